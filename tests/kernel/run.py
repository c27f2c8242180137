#!/usr/bin/env python3
"""Runs the tests of the kernel, one file more at once than there are processors: they wait for half of the time.

Beside them those of `properties`, with the Python that has `hypothesis` and `polars`, if they could be installed.
"""

import os
import pathlib
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
PROPERTIES = TOP / "target" / "properties"
# `tests/second-tries.sh` reads it when all tests have run.
SECOND_TRIES = TOP / os.environ.get("CARGO_TARGET_DIR", "target") / "kernel-second-tries"
# The file whose kinds of objects are tried as far as their packages are there; `polars` is in no image.
KINDS = "test_what_sleeps.py"
# How `unittest -v` tells of a skipped test; a test with a docstring has that on a line between its name and the reason.
SKIPPED = re.compile(r"^(\w+) \(([\w.]+)\)(?:\n.*)? \.\.\. skipped (.+)$", re.MULTILINE)


def main():
    # The largest files first, so that none of them is left over at the end.
    files = sorted(HERE.glob("test_*.py"), key=lambda path: -path.stat().st_size)
    discover = ["-m", "unittest", "discover", "-v", "-s"]
    has_packages = (PROPERTIES / "requirements.txt").exists()
    with_packages = PROPERTIES / "bin" / "python" if has_packages else sys.executable
    python_of = {KINDS: with_packages}
    suites = [(path.name, [python_of.get(path.name, sys.executable), *discover, HERE, "-p", path.name]) for path in files]
    if has_packages:
        suites.insert(0, ("properties", [with_packages, *discover, HERE / "properties"]))
    else:
        print("warning: NO PROPERTY TESTS of the kernel and NO SLEEP OF POLARS FRAMES: packages could not be installed")
    begun = time.monotonic()
    with ThreadPoolExecutor(1 + (os.cpu_count() or 1)) as pool:
        passed = list(pool.map(run, suites))
    failed = [suite for suite, has_passed in zip(suites, passed, strict=True) if not has_passed]
    # Alone, because a machine that is short of CPU time may starve a kernel for seconds. It counts as a defect.
    still = [name for name, command in failed if not run((name, command))]
    lucky = sorted({name for name, _ in failed}.difference(still))
    for name in lucky:
        print(f"SECOND TRY: {name} failed beside others and passed alone: look for the race")
    SECOND_TRIES.parent.mkdir(parents=True, exist_ok=True)
    SECOND_TRIES.write_text("".join(f"{name}\n" for name in lucky))
    print(f"{len(suites) - len(still)} of {len(suites)} files of kernel tests passed ({time.monotonic() - begun:.0f} s)")
    return 1 if still else 0


def run(suite):
    name, command = suite
    begun = time.monotonic()
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    passed, told = ended.returncode == 0, ended.stdout.decode(errors="replace")
    if not passed:
        print(told)
    # One call, so that the lines of files that run at once stay together.
    skipped = [f"\n              skipped, not passed: {test}: {reason}" for test, _, reason in SKIPPED.findall(told)]
    print(f"{'ok    ' if passed else 'FAILED'} {time.monotonic() - begun:4.0f} s  {name}{''.join(skipped)}", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
