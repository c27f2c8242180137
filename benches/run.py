#!/usr/bin/env python3
"""Measures Belljar, and with `--peers` what could be used in its place, and writes one report.

    benches/run.py BELLJAR [--peers] [--out FOLDER] [--only NAME,NAME]
    benches/run.py --readme [--out FOLDER]

The report is FOLDER/report.md with its plots, and all figures are in FOLDER/report.json; the README's table is printed.
`--readme` puts the table of the last report into the README. `--only` names contestants by module (`belljar`, `monty`,
…) and sections (`jobs`, …). Every loop has a bound in count and time, every contestant one in time, and so has the
whole.
"""

import argparse
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

import contestants
import engine
import images
import measure
import report as reports

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# What goals are judged by comes before the peers, the rest after them, so that a slow machine loses the rest first.
SECTIONS = ("requests", "client", "sessions", "jobs", "recovery", "kernel")
LATER_SECTIONS = ("packages", "neighbours", "snapshots")
# Nothing new begins after this; what runs then has its own bound, so that all of it stays below 20 minutes. What peers
# need is installed before. On two processors Belljar takes about 2 minutes with the bare engine and Python, a pool of
# 100 sandboxes with science 3, the other sections 7, the peers 5: loops in `work.py` end after seconds that sum up to
# 36 for each, and a peer that takes seconds for one repetition needs the rest.
RUN_SECONDS = 18 * 60
CONTESTANT_SECONDS = 90
INSTALL_SECONDS = 300


class Run:
    def __init__(self, binary, folder, only):
        self.binary, self.folder, self.only = binary, folder, only
        self.began = time.monotonic()
        self.report = {
            "machine": measure.machine(), "contestants": {}, "tables": [], "failed": {}, "yardsticks": [], "seconds": 0,
        }  # fmt: skip

    def wanted(self, name):
        return not self.only or name in self.only

    def over(self):
        return time.monotonic() - self.began > RUN_SECONDS

    def begin(self, name):
        self.report["yardsticks"].append(measure.yardstick())
        print(f"{time.monotonic() - self.began:6.0f} s  {name}", file=sys.stderr, flush=True)

    def save(self):
        self.report["seconds"] = time.monotonic() - self.began
        reports.write(self.report, self.folder)

    def contestant(self, entry):
        if not self.wanted(entry.module):
            return
        self.begin(entry.name)
        try:
            if self.over():
                raise Unable("the time of the whole run was over")
            found = self.compete(entry, python_of(entry))
        except Unable as reason:
            found = {"absent": str(reason), "figures": {}}
        self.report["contestants"][entry.name] = found
        self.save()

    def compete(self, entry, python):
        words = [python, HERE / "contestant.py", entry.module, *([entry.variant] if entry.variant else [])]
        if entry.only:
            words += ["--only", entry.only]
        environment = os.environ | {"BELLJAR_BINARY": str(self.binary)}
        code, said, problems = ended(words, CONTESTANT_SECONDS, environment)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        if not lines:
            raise Unable(last_line(problems))
        found = {**lines[0], "figures": {line["work"]: line["figure"] for line in lines[1:]}}
        if code:
            why = f"by signal {-code}" if code < 0 else last_line(problems)
            reason = f"the contestant ended before this work: {why}"
            missing = (name for name in reports.HEADS if name not in found["figures"])
            found["figures"].update({name: measure.absent(reason) for name in missing if not entry.only})
        return found

    def section(self, name):
        if not self.wanted(name):
            return
        self.begin(name)
        try:
            if self.over():
                raise Unable("the time of the whole run was over")
            for table in importlib.import_module(f"sections.{name}").measured(str(self.binary)):
                self.report["tables"].append(table)
        except Exception as problem:
            traceback.print_exc()
            self.report["failed"][name] = f"{type(problem).__name__}: {problem}"[:400]
        self.save()


class Unable(Exception):
    """A contestant cannot run here; the text says why."""


def ended(words, seconds, environment=None):
    """Runs a command to its end, or until the seconds are over, then with all that it has started; gives its exit code
    and what it said."""
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, problems = process.communicate(timeout=seconds)
        return process.returncode, said, problems
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return 1, process.communicate()[0], f"its {seconds} s were over"


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]


def python_of(entry):
    """The interpreter of the contestant's own environment, which is made if it is not there."""
    if not entry.requirements:
        return sys.executable
    folder = ROOT / "target/peers" / pathlib.Path(entry.requirements).stem
    words = [ROOT / "tests/python-env.sh", folder, HERE / "requirements" / entry.requirements]
    code, _, problems = ended(words, INSTALL_SECONDS)
    if code:
        raise Unable(f"cannot be installed: {last_line(problems)}")
    if entry.image:
        try:
            images.build(folder / "bin/pip")
        except (RuntimeError, subprocess.SubprocessError) as problem:
            said = getattr(problem, "stderr", b"") or str(problem).encode()
            raise Unable(f"its image cannot be built: {said.decode(errors='replace').strip()[-200:]}") from problem
    return folder / "bin/python"


def prepare(entries):
    """Installs before anything is measured; what fails here is told when its turn comes."""
    for entry in entries:
        try:
            python_of(entry)
        except Unable as reason:
            print(f"{entry.name}: {reason}", file=sys.stderr)


def prepare_sections(names):
    """Does what some sections need first; one that fails here fails again, and is told of, when its turn comes."""
    for name in names:
        try:
            getattr(importlib.import_module(f"sections.{name}"), "prepare", lambda: None)()
        except Exception as problem:
            print(f"{name}: {problem}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", type=pathlib.Path)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/bench")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if given.readme:
        reports.into_readme(json.loads((given.out / "report.json").read_text()), ROOT / "README.md")
        return
    if not given.binary:
        parser.error("name the binary")
    os.environ["BELLJAR_BENCH_RUN"] = f"{os.getpid()}-{time.time_ns()}"
    only = set(given.only.split(",")) - {""}
    peers = contestants.PEERS if given.peers else []
    prepare([entry for entry in contestants.OURS + peers if not only or entry.module in only])
    prepare_sections(name for name in SECTIONS + LATER_SECTIONS if not only or name in only)
    run = Run(given.binary.resolve(), given.out, only)
    try:
        for entry in contestants.OURS:
            run.contestant(entry)
        for name in SECTIONS:
            run.section(name)
        for entry in peers:
            run.contestant(entry)
        for name in LATER_SECTIONS:
            run.section(name)
    finally:
        if engine.available():
            engine.remove_all_of_this_run()
    run.begin("done")
    run.save()
    print(reports.readme_table(run.report))
    print(f"The report: {given.out}/report.md")


if __name__ == "__main__":
    main()
