#!/usr/bin/env python3
"""Runs the tests, each class in a process of its own and several at once, for most of their time is spent waiting.

usage: run.py [--times N] [--at-once N] [--core | WORD…]

Runs the classes whose names have one of the words; `--core` are those that `make test` runs. `--times 50 test_restart` runs each
so often, whatever fails, and sums up: for what goes wrong only now and then.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
AT_ONCE = 6
#: The longest that one class may take.
SECONDS = 900
#: The slowest first, so that none of them is alone at the end.
FIRST = (
    "test_pydantic_ai",
    "test_deepagents",
    "test_inspect_ai",
    "test_jupyter",
    "test_limits",
    "test_restart",
    "test_endings",
    "test_misuse",
    "test_async",
    "test_tools",
)
#: One class of each kind that needs no framework, in jails, which are there sooner than containers.
CORE = (
    "test_wire",
    "test_exchange",
    "test_archives",
    "test_wrong_values",
    "test_received_calls",
    "test_callbacks",
    "test_loops",
    "test_sandbox.OnBubblewrap",
    "test_tools.OnBubblewrap",
)


def classes() -> list[str]:
    found = []
    for path in sorted(HERE.glob("test_*.py")):
        names = re.findall(r"^class (\w+)\((?:unittest\.TestCase|\w+Cases)\)", path.read_text(), re.MULTILINE)
        found += [f"tests.{path.stem}.{name}" for name in names]
    order = {name: place for place, name in enumerate(FIRST)}
    return sorted(found, key=lambda name: order.get(name.split(".")[1], len(FIRST)))


def run(name: str) -> tuple[str, bool, float, str]:
    began = time.monotonic()
    command = [sys.executable, "-X", "faulthandler", "-m", "unittest", "-v", name]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
    try:
        done = subprocess.run(
            command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        # A module whose framework is not installed is left out as a whole, for which `unittest` has no other word.
        is_left_out = done.stderr.rstrip().rpartition("\n")[2].startswith("unittest.case.SkipTest: ")
        passed, said = done.returncode == 0 or is_left_out, done.stderr
    except subprocess.TimeoutExpired as error:
        passed, said = False, f"not within {SECONDS} s\n{error.stderr!r}"
    return name, passed, time.monotonic() - began, said


def number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests of the Python package.")
    parser.add_argument("--times", type=number, default=1, metavar="N", help="how often each class is run")
    parser.add_argument("--at-once", type=number, default=AT_ONCE, metavar="N", help="how many classes are run at once")
    parser.add_argument("--core", action="store_true", help="only what `make test` runs")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only classes whose names have one of these")
    asked = parser.parse_args()
    wanted = CORE if asked.core else asked.words
    names = [name for name in classes() if not wanted or any(word in name for word in wanted)]
    if not names:
        parser.error("no class has such a name")
    failed: Counter[str] = Counter()
    with ThreadPoolExecutor(asked.at_once) as pool:
        for name, passed, seconds, said in pool.map(run, names * asked.times):
            print(f"{'ok    ' if passed else 'FAILED'} {name} {seconds:.1f} s", flush=True)
            for reason in re.findall(r"(?:\.\.\. skipped |\bskipped (?=['\"])|SkipTest: )(.+)", said):
                print(f"       skipped: {reason}", flush=True)
            if not passed:
                failed[name] += 1
                print(said)
    if asked.times > 1:
        for name in names:
            print(f"{name}: {asked.times - failed[name]} of {asked.times} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
