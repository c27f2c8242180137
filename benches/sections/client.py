"""What the Python package costs on top of the same request over a bare socket, beside a client over httpx, as those of
other sandboxes are. `sdk/python/tests/overhead.py` measures it."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import measure
from sections import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target/peers/httpx"
ROUNDS, SECONDS, INSTALL_SECONDS = 1000, 120, 300
BARE, OWN, HTTPX = "bare socket", "Sandbox", "httpx"
LABELS = {
    BARE: "the request over a bare socket",
    OWN: "`Sandbox.run_code`",
    "AsyncSandbox": "`AsyncSandbox.run_code`",
    "Sandbox, streaming": "`Sandbox.run_code` with callbacks",
    HTTPX: "a client over httpx",
}


def prepare():
    """Installs httpx, without which its row is empty."""
    words = [ROOT / "tests/python-env.sh", FOLDER, ROOT / "benches/requirements/httpx.txt"]
    subprocess.run(words, check=True, capture_output=True, timeout=INSTALL_SECONDS)


def measured(binary):
    python = FOLDER / "bin/python"
    words = [python if python.exists() else sys.executable, ROOT / "sdk/python/tests/overhead.py", str(ROUNDS), "--json"]
    done = subprocess.run(
        words, env=os.environ | {"BELLJAR": binary}, check=True, capture_output=True, text=True, timeout=SECONDS
    )
    took = json.loads(done.stdout)
    bare = medians(took[BARE])
    rows = []
    for name, label in LABELS.items():
        if name not in took:
            rows.append((label, [measure.absent("httpx is not installed")] * 3))
            continue
        clock, own = medians(took[name])
        # The difference of two medians over the same rounds: a single pair differs by what the machine does meanwhile.
        more = [measure.value(ms, "ms") for ms in (clock - bare[0], own - bare[1])]
        rows.append((label, [measure.milliseconds([clock for clock, _ in took[name]]), *more]))
    note = "`1+1` in a jail without checkpoints, with an idempotency key in every request; the ways take turns."
    return [table("The Python package", note, ["ms", "more than the bare socket", "more time of its own"], rows)]


def medians(pairs):
    """Milliseconds: of the clock, and of the client's own processor time."""
    return [1e3 * statistics.median(column) for column in zip(*pairs)]
