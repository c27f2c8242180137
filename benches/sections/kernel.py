"""What the kernel alone takes, without a daemon; `benches/kernel.py` also compares several kernels."""

import kernel
import measure
from sections import table

ROUNDS = 2


def prepare():
    """Compiles the guardian."""
    kernel.harness.guardian(kernel.OWN)


def measured(_binary):
    found = kernel.rounds([kernel.OWN], ROUNDS)[kernel.OWN]
    rows = [(name, [measure.summary(values, unit)]) for (name, unit), values in found.items()]
    note = f"As the kernel's tests drive it, without daemon, journal and sandbox; medians of {ROUNDS} rounds."
    return [table("The kernel alone", note, ["Belljar"], rows)]
