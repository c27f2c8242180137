"""Sandboxes of Inspect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from .frameworks import WithFramework, needs

_PACKAGE = Path(__file__).resolve().parents[1]
_FINDS = "from inspect_ai.util._sandbox.registry import registry_find_sandboxenv as f; print(f('belljar').__module__)"


class AsInstalled(unittest.TestCase):
    def test_inspect_finds_the_sandbox_by_the_entry_point_of_the_package(self) -> None:
        needs("inspect_ai")
        project = (_PACKAGE / "pyproject.toml").read_text()
        found = re.search(r'^\[project\.entry-points\.inspect_ai\]\n(\w+) = "([\w.]+)"$', project, re.MULTILINE)
        assert found is not None
        # What an installer makes of it, for the tests run where the package is not installed.
        with tempfile.TemporaryDirectory() as folder:
            about = Path(folder) / "belljar-0.1.0.dist-info"
            about.mkdir()
            (about / "METADATA").write_text("Metadata-Version: 2.1\nName: belljar\nVersion: 0.1.0\n")
            (about / "entry_points.txt").write_text(f"[inspect_ai]\n{found[1]} = {found[2]}\n")
            environment = {**os.environ, "PYTHONPATH": f"{folder}:{_PACKAGE / 'src'}"}
            done = subprocess.run(
                [sys.executable, "-c", _FINDS], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
        self.assertEqual((done.returncode, done.stdout), (0, "belljar.inspect_ai\n"), done.stderr)


class InspectAiCases(WithFramework):
    framework = "inspect_ai"

    def test_all_of_its_checks_pass_but_the_one_that_needs_root(self) -> None:
        outcomes = self.outcomes("inspect_ai_suite")
        self.assertEqual(set(outcomes), {"passed", "xfail"}, outcomes)
        self.assertEqual(outcomes["xfail"], 1)
        self.assertGreaterEqual(outcomes["passed"], 44)

    def test_the_example_runs(self) -> None:
        told = self.example("inspect_ai_eval")
        self.assertEqual(told, "bash: 'note.txt\\n12'\npython: '12'\nscore: C\n")


class OnDocker(InspectAiCases):
    backend = "docker"


class OnBubblewrap(InspectAiCases):
    backend = "bubblewrap"


del InspectAiCases
