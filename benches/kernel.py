#!/usr/bin/env python3
"""What the kernel alone takes, without a daemon, as the kernel's tests drive it.

    benches/kernel.py [DIRECTORY …]

Each directory holds a kernel as `sandbox-bootstrap` does; without one it is this repository's. Several are measured in
turn, round after round, so that what else the machine does meets all of them. The numbers are medians over the rounds:

- the time of `1+1` and of a cell that needs a checkpoint, back to back and after a pause, and the CPU time of the latter
- 200,000 short lines and bulk output, as the daemon would read them
- what eight checkpoints hold in memory beside the worker
"""

import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

os.environ["BELLJAR_SKIP_SCHEMAS"] = "1"  # checking each frame would take longer than the kernel
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kernel"))

import harness  # noqa: E402

OWN = harness.KERNEL

ROUNDS = 5
CELLS = 300
LONE_CELLS = 25
PAUSE_S = 0.1
LINES = 200_000
LINE = "a short line, 24 bytes."
BULK_BYTES = 256 * 1024 * 1024
MEBIBYTE = 1024 * 1024
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
LIMITS = {"output_bytes": 2**40}


def main():
    kernels = [os.path.abspath(each) for each in sys.argv[1:]] or [OWN]
    found = rounds(kernels, ROUNDS)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} processors, medians of {ROUNDS} rounds (range)")
    for name, unit in found[kernels[0]]:
        for kernel in kernels:
            values = found[kernel][name, unit]
            spread = f"({min(values):.3f} to {max(values):.3f})"
            print(f"{name:44} {statistics.median(values):9.3f} {unit:4} {spread}  {kernel}")


def rounds(kernels, count):
    """What was measured of each kernel, in turn: lists of values by name and unit."""
    can_unshare = subprocess.run([*UNSHARE, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    prefix = UNSHARE if can_unshare else ()
    found = {kernel: {} for kernel in kernels}
    for _ in range(count):
        for kernel in kernels:
            harness.KERNEL = kernel
            for key, value in measure(prefix).items():
                found[kernel].setdefault(key, []).append(value)
    return found


def measure(prefix):
    return {**cells(prefix), **output(prefix), ("eight checkpoints, PSS", "MiB"): checkpoints()}


def cells(prefix):
    found = {}
    for name, code in (("`1+1`", "1+1"), ("`x = int(1)`", "x = int(1)")):
        before = cpu_seconds()
        with Started(prefix, {}) as kernel:
            found[f"{name} hot", "ms"] = median_ms(kernel, code, CELLS, 0)
        found[f"{name} hot, CPU time", "ms"] = (cpu_seconds() - before) * 1000 / CELLS
    with Started(prefix, {"checkpoints_at_rest": True}) as kernel:
        found["`x = int(1)` hot, checkpoints at rest", "ms"] = median_ms(kernel, "x = int(1)", CELLS, 0)
    with Started(prefix, {}) as kernel:
        for name, code in (("`1+1`", "1+1"), ("`x = int(1)`", "x = int(1)")):
            found[f"{name} after a pause", "ms"] = median_ms(kernel, code, LONE_CELLS, PAUSE_S)
    return found


def median_ms(kernel, code, count, pause_s):
    times = []
    for _ in range(count):
        time.sleep(pause_s)
        begun = time.perf_counter()
        kernel.run(code)
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


def output(prefix):
    found = {}
    with Started(prefix, {}) as kernel:
        short = f"for _ in range({LINES}): print({LINE!r})\n{LINES * (len(LINE) + 1)}"
        found["short lines", "MB/s"] = rate(kernel, short)
        # A signal of the kernel's own can end a write before all of it is written.
        bulk = f"import os\nsum(os.write(1, bytes({MEBIBYTE})) for _ in range({BULK_BYTES // MEBIBYTE}))"
        found["bulk output", "MB/s"] = rate(kernel, bulk)
    return found


def rate(kernel, code):
    """The speed of a cell whose value is the number of bytes that it has written."""
    begun = time.perf_counter()
    run = kernel.run(code)
    seconds = time.perf_counter() - begun
    came = sum(len(data) for _, data in run.output)
    if str(came) != run.value:
        raise AssertionError(f"{came} of {run.value} bytes came")
    return came / seconds / 1e6


def checkpoints():
    """Outside of a pid namespace, where their size can be read."""
    with Started((), {}) as kernel:
        worker = int(kernel.run("import os; os.getpid()").value)
        for _ in range(12):
            kernel.run("x = int(1)")
            time.sleep(PAUSE_S / 2)
        of_guardian = f"/proc/{kernel.process.pid}/task/{kernel.process.pid}/children"
        with open(of_guardian, encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        waiting = [pid for pid in pids if pid != worker and command(pid) not in ("belljar-inbox", "belljar-zygote")]
        return sum(map(pss_bytes, waiting)) / MEBIBYTE


def command(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
        return file.read().strip()


def pss_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def cpu_seconds():
    """The CPU seconds of all processes that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Started:
    def __init__(self, prefix, limits):
        self._kernel = harness.Kernel({**LIMITS, **limits}, prefix=prefix)

    def __enter__(self):
        self._kernel.start()
        self._kernel.run("0")
        return self._kernel

    def __exit__(self, *_):
        self._kernel.close()


if __name__ == "__main__":
    main()
