"""Runs one module of CPython's own tests and prints, as JSON, how each of its tests ended.

Usage: one_module.py FOLDER_OF_TEST_PACKAGE MODULE SECONDS [PATTERN_TO_LEAVE_OUT...]. It runs outside and inside of
sandboxes alike.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree


def outcome(case):
    """`passed`, or the kind of the end; what regrtest has a child element for."""
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return "passed"


def main():
    package, module, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        report = os.path.join(folder, "report.xml")
        left_out = [word for pattern in sys.argv[4:] for word in ("--ignore", pattern)]
        command = [sys.executable, "-m", "test", "--junit-xml", report, "--tempdir", folder, *left_out, module]
        environment = {**os.environ, "PYTHONPATH": package}
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(json.dumps({"end": "too slow", "tests": {}}))
            return
        try:
            cases = xml.etree.ElementTree.parse(report).iter("testcase")
            tests = {case.get("name"): outcome(case) for case in cases}
        except (OSError, xml.etree.ElementTree.ParseError):
            tests = {}
        end = "done" if tests else said.decode(errors="replace").strip()[-400:]
        print(json.dumps({"end": end, "tests": tests}))


main()
