"""Runs one module of CPython's own tests and prints how each of its tests ended, as JSON that is compressed and written
in base64: the output of a cell is bounded.

Usage: one_module.py FOLDER_OF_TEST_PACKAGE MODULE SECONDS [PATTERN_TO_LEAVE_OUT...]. It runs outside and inside of
sandboxes alike.
"""

import base64
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
import zlib

PR_SET_CHILD_SUBREAPER = 36
# Time for what a module left behind to be gone after it was killed.
REST_SECONDS = 10
SAID_CHARACTERS = 400
# What only a sandbox sets; tests of bytecode and of encodings are skipped where Python has them.
UNSET = ("PYTHONDONTWRITEBYTECODE", "PYTHONUTF8")
# What regrtest says, in the words of its versions, of a module that has no test for this system.
NO_TESTS = re.compile(r"\bno tests? (ran|run)\b|\b(ran|run) no tests?\b", re.IGNORECASE)
# The same of one whose parts were skipped as a whole, if it reports or counts no test.
NONE_COUNTED = "Total tests: run=0"
SUCCESS = re.compile(r"\bresult: SUCCESS$", re.IGNORECASE | re.MULTILINE)


def outcome(case):
    """`passed`, or the kind of the end; what regrtest has a child element for."""
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return "passed"


def tests_of(report):
    """How each test ended; one that is told several times has not passed unless it always has. None without a report."""
    tests = {}
    try:
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            name, end = case.get("name"), outcome(case)
            # A test of which a part failed (`subTest`) is told without its name and its end.
            if name is not None and tests.get(name, "passed") == "passed":
                tests[name] = end
    except (OSError, xml.etree.ElementTree.ParseError):
        return None
    return tests


def adopt_orphans():
    """Lets processes that lose their parent become children of this one, which ends them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_rest():
    """Ends what the module left behind; on a host, nobody else would."""
    until = time.monotonic() + REST_SECONDS
    while time.monotonic() < until:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            return
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def ended(command, folder, environment, seconds):
    """What the command said, or None if it took longer."""
    with open(os.path.join(folder, "said"), "w+b") as said:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        finally:
            end_rest()
        said.seek(0)
        return said.read().decode(errors="replace")


def report_of(package, module, seconds, left_out):
    with tempfile.TemporaryDirectory(dir=os.getcwd(), ignore_cleanup_errors=True) as folder:
        report = os.path.join(folder, "report.xml")
        ignored = [word for pattern in left_out for word in ("--ignore", pattern)]
        command = [sys.executable, "-m", "test", "--junit-xml", report, "--tempdir", folder, *ignored, module]
        environment = {name: value for name, value in os.environ.items() if name not in UNSET}
        said = ended(command, folder, {**environment, "PYTHONPATH": package}, seconds)
        if said is None:
            return {"end": "too slow", "passed": [], "others": {}}
        tests = tests_of(report)
    is_success = SUCCESS.search(said) and (tests is not None or NONE_COUNTED in said)
    tests = tests or {}
    passed = [name for name, end in tests.items() if end == "passed"]
    others = {name: end for name, end in tests.items() if end != "passed"}
    if tests:
        end = "done"
    elif f"{module} skipped" in said or NO_TESTS.search(said) or is_success:
        end = "none run"
    else:
        end = said.strip()[-SAID_CHARACTERS:]
    return {"end": end, "passed": passed, "others": others}


def main():
    package, module, seconds, *left_out = sys.argv[1:]
    adopt_orphans()
    report = report_of(package, module, float(seconds), left_out)
    print(base64.b64encode(zlib.compress(json.dumps(report).encode())).decode())


if __name__ == "__main__":
    main()
