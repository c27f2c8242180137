#!/usr/bin/env python3
"""Switches off one security control after the other and says which test notices.

    tests/mutate/run.py [--table FILE …] [--only NAME …] [--jobs N] [--no-baseline]

The tests are built once, with the cargo feature `mutate`. All tests that the tables name have to pass; then, for each
row, they are run with `BELLJAR_MUTATE` naming its control, until one fails. A control that nothing notices makes the
exit code 1. A row may say `also_off = ["attestation"]`: what else is off, so that the test has to see the effect of the
missing control itself, and not only that a sandbox without it is refused.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import uuid
from concurrent.futures import ThreadPoolExecutor

TOP = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")) / "mutate"
TEST_SECONDS = 240
KEYS = {"what", "tests", "also_off"}
HOME = re.compile(r"/tmp/bj[A-Za-z0-9]+")


def rows(tables):
    """(name, row) of all tables, in their order."""
    found = []
    for path in tables:
        for name, row in tomllib.loads(path.read_text()).items():
            if not {"what", "tests"} <= set(row) <= KEYS or not row["tests"]:
                sys.exit(f"{path}: the row `{name}` needs `what` and `tests`, and may have `also_off`")
            found.append((name, row))
    return found


def build():
    """The test binaries, by the tests that are in them."""
    command = ["cargo", "test", "--no-run", "--quiet", "--features", "mutate", "--target-dir", str(TARGET)]
    command += ["--lib", "--bins", "--test", "it", "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, check=True, text=True)
    home_of = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("profile", {}).get("test") and message.get("executable"):
            listed = subprocess.run([message["executable"], "--list", "--format", "terse"], capture_output=True, text=True)
            for test in listed.stdout.splitlines():
                home_of[test.removesuffix(": test")] = message["executable"]
    return home_of


def run(binary, test, off=""):
    """(passed, seconds, the first words of the failure)"""
    tag = uuid.uuid4().hex
    environment = os.environ | {"BELLJAR_MUTATE": off, "BELLJAR_MUTATE_RUN": tag, "RUST_BACKTRACE": "0", "INSTA_UPDATE": "no"}
    begun = time.monotonic()
    child = subprocess.Popen(
        [binary, "--exact", test, "--nocapture"],
        cwd=TOP, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=TEST_SECONDS)
        said = first_words(output)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        said = f"no end within {TEST_SECONDS} s"
        clear_away(tag)
    return child.returncode == 0, time.monotonic() - begun, said


def first_words(output):
    lines = output.splitlines()
    at = next((index for index, line in enumerate(lines) if "panicked at" in line), None)
    words = " ".join(lines[at + 1 : at + 4]) if at is not None else (lines[-1] if lines else "")
    return re.sub(r"\s+", " ", words)[:160]


def clear_away(tag):
    """What a test that was killed has left: its daemons know its tag, its sandboxes the daemon's home."""
    homes = set()
    for process in pathlib.Path("/proc").iterdir():
        if process.name.isdigit():
            text = read(process / "environ")
            if tag in text:
                homes.update(HOME.findall(text))
                end(process)
    for home in homes:
        instance = read(pathlib.Path(home) / "instance").strip()
        if instance:
            label = f"label=belljar.instance={instance}"
            listed = subprocess.run(["docker", "ps", "-aq", "--filter", label], capture_output=True, text=True)
            for container in listed.stdout.split():
                subprocess.run(["docker", "rm", "-f", container], capture_output=True)
        for process in pathlib.Path("/proc").iterdir():
            if process.name.isdigit() and home in read(process / "cmdline"):
                end(process)
        subprocess.run(["umount", "-l", home], capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def read(path):
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def end(process):
    try:
        os.kill(int(process.name), signal.SIGKILL)
    except ProcessLookupError:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", nargs="+", type=pathlib.Path, help="these tables instead of all")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these controls instead of all")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once (2)")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests with all controls first")
    options = parser.parse_args()

    table = rows(options.table or sorted((TOP / "tests/mutate").glob("*.toml")))
    if options.only:
        unknown = set(options.only) - {name for name, _ in table}
        if unknown:
            sys.exit(f"no such control: {', '.join(sorted(unknown))}")
        table = [(name, row) for name, row in table if name in options.only]

    begun = time.monotonic()
    home_of = build()
    named = sorted({test for _, row in table for test in row["tests"]})
    missing = [test for test in named if test not in home_of]
    if missing:
        sys.exit("no such test: " + ", ".join(missing))
    print(f"{len(table)} controls, {len(named)} tests, built within {time.monotonic() - begun:.0f} s", flush=True)

    broken = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        if not options.no_baseline:
            for test, result in zip(named, pool.map(lambda test: run(home_of[test], test), named)):
                if not result[0]:
                    broken[test] = result[2]
                    print(f"FAILS WITH ALL CONTROLS  {test}: {result[2]}", flush=True)

        def look(entry):
            name, row = entry
            off = "+".join([name, *row.get("also_off", [])])
            spent = 0
            for test in (test for test in row["tests"] if test not in broken):
                passed, seconds, said = run(home_of[test], test, off)
                spent += seconds
                if not passed:
                    return name, row, test, said, spent
            return name, row, None, "", spent

        unnoticed = []
        for name, row, test, said, seconds in pool.map(look, table):
            unnoticed += [name] if test is None else []
            print(f"{'noticed    ' if test else 'NOT NOTICED'} {seconds:4.0f} s  {name}: {row['what']}")
            print(f"                    {test}: {said}" if test else "", flush=True)

    minutes = (time.monotonic() - begun) / 60
    print(f"{len(table) - len(unnoticed)} of {len(table)} controls are noticed when they are gone ({minutes:.0f} minutes)")
    if unnoticed:
        print("not noticed: " + ", ".join(unnoticed))
    if broken:
        print("fails with all controls: " + ", ".join(broken))
    return 1 if unnoticed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
