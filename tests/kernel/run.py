#!/usr/bin/env python3
"""Runs the tests of the kernel, one file for each processor at once: they wait for a part of the time.

Beside them those of `properties`, with the Python that has `hypothesis`, if it could be installed.
"""

import os
import pathlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
PROPERTIES = HERE.parents[1] / "target" / "properties"


def main():
    # The largest files first, so that none of them is left over at the end.
    files = sorted(HERE.glob("test_*.py"), key=lambda path: -path.stat().st_size)
    suites = [(path.name, [sys.executable, "-m", "unittest", "discover", "-s", HERE, "-p", path.name]) for path in files]
    if (PROPERTIES / "requirements.txt").exists():
        python, folder = PROPERTIES / "bin" / "python", HERE / "properties"
        suites.insert(0, ("properties", [python, "-m", "unittest", "discover", "-s", folder]))
    else:
        print("warning: NO PROPERTY TESTS of the kernel: `hypothesis` could not be installed")
    begun = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(run, suites))
    print(f"{sum(passed)} of {len(suites)} files of kernel tests passed ({time.monotonic() - begun:.0f} s)")
    return 0 if all(passed) else 1


def run(suite):
    name, command = suite
    begun = time.monotonic()
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    passed = ended.returncode == 0
    if not passed:
        print(ended.stdout.decode(errors="replace"))
    print(f"{'ok    ' if passed else 'FAILED'} {time.monotonic() - begun:4.0f} s  {name}", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
