"""Sixty kinds of objects: each comes back as it was, or is reported by name with the reason.

`docs/guide/what-sleeps.md` has the same table; `BELLJAR_WRITE_TABLE=1` writes it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import unittest

from harness import KERNEL, guardian
from kinds_of_objects import KINDS
from snapshot_harness import SnapshotTest

TOP = os.path.abspath(os.path.join(KERNEL, ".."))
GUIDE = os.path.join(TOP, "docs", "guide", "what-sleeps.md")
IMAGE = "belljar/science"
BEGIN, END = "<!-- the table: written by tests/kernel/test_what_sleeps.py -->\n", "<!-- end of the table -->\n"


def is_there(kind):
    return all(importlib.util.find_spec(name) for name in kind.needs)


class WhatSleeps(SnapshotTest):
    def test_each_kind_comes_back_or_is_reported_with_its_reason(self):
        kinds = [kind for kind in KINDS if is_there(kind)]
        for kind in kinds:
            with self.subTest(kind.name, when="before"):
                run = self.kernel.run(kind.make)
                self.assertEqual(run.end.get("status"), "success", run.end)
                if kind.check:
                    self.assertEqual(self.kernel.run(f"bool({kind.check})").value, "True")
        snapshot = self.take()
        kernel, report = self.wake(snapshot)
        missing = {each["name"]: each["reason"] for each in report["missing"]}
        self.assertEqual(missing, {}, "what could be packed can be loaded")
        missing = snapshot.missing
        expected = {}
        for kind in kinds:
            with self.subTest(kind.name, when="after"):
                for name, reason in reasons_of(kind).items():
                    expected[name] = reason
                    self.assertIn(reason, missing.get(name, "NOT REPORTED"))
                if kind.check:
                    run = kernel.run(f"bool({kind.check})", cell=kernel.next_cell + 100)
                    self.assertEqual(run.value, "True", run.end["exception"])
        # Tracebacks are left out by design, modules that were imported after a patch have it, too, and those of the
        # session's own files are imported anew.
        by_design = ("own is back", "imported anew")
        is_expected = lambda name, reason: name in expected or "__traceback__" in name or any(each in reason for each in by_design)  # noqa: E731
        unexpected = {name: reason for name, reason in missing.items() if not is_expected(name, reason)}
        self.assertEqual(unexpected, {})

    @unittest.skipIf(importlib.util.find_spec("numpy"), "the packages are here, so the other test has them")
    def test_the_same_with_the_packages_of_the_science_image(self):
        if shutil.which("docker") is None or subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True).returncode:
            self.skipTest(f"no Docker with the image {IMAGE}")
        ran = subprocess.run(
            ["docker", "run", "--rm", "--network", "none", "-v", f"{TOP}:/belljar:ro", "-v", f"{guardian(KERNEL)}:/guardian:ro"]
            + ["-e", "BELLJAR_GUARDIAN=/guardian", "-e", "BELLJAR_SKIP_SCHEMAS", "-e", "MPLCONFIGDIR=/tmp", "-e", "MPLBACKEND=Agg"]
            + ["-e", "BELLJAR_LONG", "--init", "-w", "/belljar/tests/kernel", IMAGE, "python3", "-B", "-m", "unittest", "-v"]
            + ["test_what_sleeps.WhatSleeps", "test_snapshots_exact.Arrays", "test_snapshots.Gigabyte.test_an_array_of_numpy"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertRegex(ran.stdout, r"each_kind_comes_back.* \.\.\. ok")
        if os.environ.get("BELLJAR_LONG") == "1":
            self.assertRegex(ran.stdout, r"an_array_of_numpy.* \.\.\. ok")

    def test_the_guide_has_this_table(self):
        rows = ["| kind | after the sleep |\n", "|---|---|\n"]
        for kind in KINDS:
            if not kind.missing or (kind.says and not kind.check):
                fate = "comes back"
            else:
                fate = "comes back in part, the rest is reported" if kind.check else "is reported as missing"
            rows.append(f"| {kind.name} | {fate}{', ' + kind.says if kind.says else ''} |\n")
        table = BEGIN + "".join(rows) + END
        with open(GUIDE, encoding="utf-8") as file:
            written = file.read()
        wanted = re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: table, written, flags=re.DOTALL)
        if os.environ.get("BELLJAR_WRITE_TABLE") == "1":
            with open(GUIDE, "w", encoding="utf-8") as file:
                file.write(wanted)
            written = wanted
        self.assertIn(BEGIN, written)
        self.assertEqual(written, wanted, "run this test with BELLJAR_WRITE_TABLE=1")


def reasons_of(kind):
    """The words of the reason by name."""
    if not kind.missing:
        return {}
    if isinstance(kind.missing, dict):
        return kind.missing
    names = re.findall(r"(?:^|\n|; )(\w+) = ", kind.make)
    return {names[-1]: kind.missing}


