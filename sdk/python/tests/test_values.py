"""Values that come out of a sandbox: nothing of them is changed, and nothing is left out without a word."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import belljar
from belljar import Result, Sandbox
from belljar.results import execution_of

from .fake_daemon import CELL
from .harness import WithDaemon

_RUNNER = Path(belljar.__file__).with_name("_job_runner.py")


class ValuesOfJobs(unittest.TestCase):
    """What the script of a job writes down, without a sandbox."""

    def told(self, code: str, must_be_json: str = "no") -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "main.py").write_text(code)
            words = [sys.executable, str(_RUNNER), "main.py", must_be_json, "none", ""]
            subprocess.run(words, cwd=folder, capture_output=True, timeout=60, check=False)
            told = json.loads((Path(folder) / "_belljar_result.json").read_text())
        assert isinstance(told, dict)
        return told

    def test_a_value_that_json_would_change_is_there_as_its_text(self) -> None:
        for code in ("{1: 'a', '1': 'b'}", "[{'a': ({None: 1},)}]", "{True: 1}", "float('nan')", "[-float('inf')]"):
            self.assertEqual(self.told(code), {"text": repr(eval(code)), "is_cut": False})
        for code in ("{'1': [1, 'ü', None, True, 0.5]}", "10 ** 100"):
            self.assertEqual(self.told(code), {"value": eval(code)})

    def test_where_json_has_to_have_it_the_reason_is_told(self) -> None:
        error = self.told("{1: 'a'}", must_be_json="yes")["error"]
        self.assertEqual(error["type"], "TypeError")
        self.assertIn("the key 1 is no text", error["value"])
        self.assertEqual(self.told("float('nan')", must_be_json="yes")["error"]["type"], "TypeError")

    def test_a_text_that_is_cut_says_so(self) -> None:
        told = self.told("set(range(20_000))")
        self.assertEqual((len(told["text"]), told["text"][-1], told["is_cut"]), (20_000, "…", True))


class ValuesOfCells(unittest.TestCase):
    def test_text_that_is_cut_makes_the_result_truncated(self) -> None:
        def cut(text: str) -> tuple[bool, bool]:
            shown = execution_of({**CELL, "displays": [{"mime": {"text/plain": text}}]}).truncated
            value = execution_of({**CELL, "result": {"repr": text, "type": "list"}}).truncated
            self.assertEqual((bool(shown), bool(value)), (shown.text, value.text))
            return shown.text, value.text

        self.assertEqual(cut("x" * 19_999 + "…"), (True, True))
        for text in ("…", "x" * 20_000, "'" + "x" * 19_997 + "…'"):
            self.assertEqual(cut(text), (False, False))

    def test_one_result_says_it_too(self) -> None:
        self.assertTrue(Result({"text/plain": "x" * 19_999 + "…"}, is_main_result=True).is_cut)
        self.assertFalse(Result({"text/html": "x"}, is_main_result=True).is_cut)


class ValueCases(WithDaemon):
    def test_a_long_value_is_not_cut_without_a_word(self) -> None:
        with Sandbox.create() as box:
            ran = box.run_code("import json; json.dumps(list(range(9000)))")
            self.assertEqual((len(ran.text or ""), bool(ran.truncated), ran.truncated.text), (20_000, True, True))
            self.assertFalse(box.run_code("list(range(100))").truncated)


class OnDocker(ValueCases):
    backend = "docker"


class OnBubblewrap(ValueCases):
    backend = "bubblewrap"


del ValueCases
