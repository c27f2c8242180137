"""What `results.py` makes of reports and of the page with the reasons: no sandbox and no test of CPython is needed.

    python3 -m unittest discover -s tests/cpython
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zlib

import results

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/CPYTHON.md"
TABLE = """
| tests | where | why |
|---|---|---|
| `test_os`: `test_splice*`, `Links.*`; `test_stat`: `test_mode` (skipped) | both | shut |
| `test_large` | jail | too large |

## How many pass

Words.

| old | table |
"""


def report(passed=(), others=None, end="done"):
    return {"end": end, "passed": [f"test.test_os.{name}" for name in passed], "others": dict(others or {})}


def entry(only=None, passed=3, end="done", tries=1):
    told = {"passed": passed, "end": end}
    return {"outside": told, "inside": told, "only_outside": only or {}, "tries": tries, "seconds": 1.0}


class Compared(unittest.TestCase):
    def test_what_passed_outside_only_is_named_with_its_end_inside(self):
        inside = report(["A.x"], {"test.test_os.A.y": "skipped"})
        told = results.compared(report(["A.x", "A.y", "A.z"]), inside, 1.25)
        self.assertEqual(told["only_outside"], {"A.y": "skipped", "A.z": "not run"})
        self.assertEqual((told["outside"], told["inside"]["passed"]), ({"passed": 3, "end": "done"}, 1))

    def test_a_module_that_tells_nothing_inside_is_all_of_its_tests(self):
        told = results.compared(report(["A.x", "A.y"]), report(end="too slow"), 1)
        self.assertEqual(told["only_outside"], {results.ALL: "too slow"})
        self.assertEqual(results.compared(report(end="none run"), report(end="none run"), 1)["only_outside"], {})

    def test_a_second_try_lets_pass_what_passes_in_one_of_them(self):
        first, second = entry({"A.x": "failure", "A.y": "failure"}), entry({"A.y": "error", "A.z": "error"}, 4)
        told = results.after_second_try(first, second)
        self.assertEqual((told["only_outside"], told["tries"], told["inside"]["passed"]), ({"A.y": "error"}, 2, 4))
        nothing = entry({results.ALL: "too slow"}, 0, "too slow")
        for tries in ((first, nothing), (nothing, first)):
            told = results.after_second_try(*tries)
            self.assertEqual((told["only_outside"], told["inside"]["passed"]), (first["only_outside"], 3))


class File(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name) / "results.json"

    def test_a_later_run_goes_on_with_what_is_left(self):
        seen = results.Results(self.path)
        seen.begin("jail", "3.11.2", ["test_a", "test_b", "test_c"])
        seen.put("jail", "test_a", entry())
        seen.put("jail", "test_b", entry({"A.x": "failure"}))
        later = results.Results(self.path)
        later.begin("jail", "3.11.2", ["test_b"])
        self.assertEqual(later.left("jail"), (["test_c"], ["test_b"]))
        later.put("jail", "test_b", entry({"A.x": "failure"}, tries=2))
        later.forget("jail", ["test_a", "test_nowhere"])
        self.assertEqual(later.left("jail"), (["test_a", "test_c"], []))
        self.assertEqual(later.left("docker"), ([], []))
        self.assertEqual(list(self.path.parent.iterdir()), [self.path], "no draft is left")

    def test_another_python_begins_anew(self):
        seen = results.Results(self.path)
        seen.begin("docker", "3.13.5", ["test_a"])
        seen.put("docker", "test_a", entry())
        seen.begin("docker", "3.13.6", ["test_b"])
        self.assertEqual((seen.of("docker"), seen.left("docker")), ({}, (["test_b"], [])))


class Tables(unittest.TestCase):
    def of(self, modules, kind="jail"):
        with tempfile.TemporaryDirectory() as folder:
            seen = results.Results(pathlib.Path(folder) / "results.json")
            seen.begin(kind, "3.11.2", modules)
            for module, each in modules.items():
                seen.put(kind, module, each)
        return seen

    def test_reasons_are_those_of_the_page(self):
        reasons = results.Reasons(TABLE)
        for module, test, kind, why in (
            ("test_os", "FileTests.test_splice_offset_in", "docker", "shut"),
            ("test_os", "Links.test_any", "jail", "shut"),
            ("test_os", "FileTests.test_other", "jail", None),
            ("test_os", results.ALL, "jail", None),
            ("test_stat", "T.test_mode", "docker", "shut"),
            ("test_large", results.ALL, "jail", "too large"),
            ("test_large", "T.x", "docker", None),
        ):
            with self.subTest(module=module, test=test):
                self.assertEqual(reasons.of(module, test, kind), why)

    def test_differences_without_a_reason_come_first(self):
        only = {"A.test_splice": "skipped", "A.test_new": "failure", "A.test_newer": "failure"}
        rows = results.differences(self.of({"test_os": entry(only), "test_a": entry()}), results.Reasons(TABLE))
        lines = results.differences_table(rows).splitlines()[2:]
        self.assertEqual(len(lines), 2)
        self.assertIn("| `test_os`: `A.test_new`, `A.test_newer` (failure) | jail | **no reason", lines[0])
        self.assertEqual(lines[1], "| `test_os`: `A.test_splice` (skipped) | jail | shut |")

    def test_counts_are_told_of_both_places_and_sums(self):
        seen = self.of({"test_a": entry(), "test_b": entry(passed=0, end="none run"), "test_c": entry(passed=0, end="a|b\nc")})
        lines = results.counts_table(seen).splitlines()
        self.assertEqual(lines[2:5], ["| test_a | – | – | 3 | 3 |", "| test_c | – | – | a/b c | a/b c |", "| all 3 | 0 | 0 | 3 | 3 |"])
        self.assertEqual(lines[-1], "Nothing runs, outside as inside, of `test_b`.")
        page = results.with_counts(TABLE, "| new |")
        self.assertTrue(page.endswith("## How many pass\n\nWords.\n\n| new |\n"), page)
        self.assertEqual(results.with_counts(page, "| newer |"), page.replace("| new |", "| newer |"))

    def test_the_page_is_understood(self):
        page = PAGE.read_text(encoding="utf-8")
        reasons = results.Reasons(page)
        for module, test, kind in (
            ("test_os", "TestSendfile.test_splice", "docker"),
            ("test_mmap", "LargeMmapTests.test_large_offset", "jail"),
            ("test_tarfile", "TestExtractionFilters.test_modes", "docker"),
            ("test_largefile", "CLargeFileTest.test_seek", "jail"),
            ("test_httpservers", "CGIHTTPServerTestCase.test_post", "docker"),
            ("test_sysconfig", "TestSysConfig.test_paths_depend_on_site_initialization", "docker"),
            ("test_external_inspection", "TestGetStackTrace.test_self_trace", "docker"),
        ):
            self.assertIsNotNone(reasons.of(module, test, kind), (module, test))
        self.assertIsNone(reasons.of("test_httpservers", "CGIHTTPServerTestCase.test_post", "jail"))
        self.assertTrue(results.with_counts(page, "| x |").endswith("| x |\n"))
        for line in page.partition(results.COUNTS)[0].splitlines():
            if line.startswith("| `"):
                self.assertRegex(line, r"\| (both|container|jail) \|")


class OneModule(unittest.TestCase):
    """With a package of tests and a `test.__main__` of their own, which writes what regrtest does."""

    def told(self, program, seconds=20):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "test"
            package.mkdir()
            (package / "__init__.py").touch()
            (package / "__main__.py").write_text("import os, subprocess, sys, time\n" + program)
            words = [sys.executable, HERE / "one_module.py", folder, "test_x", str(seconds)]
            said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
        return json.loads(zlib.decompress(base64.b64decode(said)))

    def test_the_ends_of_tests_are_told(self):
        xml = (
            "<testsuites><testcase name='a'/><testcase name='b'><failure/></testcase><testcase name='b'/>"
            "<testcase name='c'><skipped/></testcase><testcase/></testsuites>"
        )
        told = self.told(f"open(sys.argv[sys.argv.index('--junit-xml') + 1], 'w').write({xml!r})\n")
        self.assertEqual(told, {"end": "done", "passed": ["a"], "others": {"b": "failure", "c": "skipped"}})
        self.assertEqual(self.told("print('test_x skipped -- No module')\n")["end"], "none run")
        success = "print('Result: SUCCESS')\n"
        empty = "open(sys.argv[sys.argv.index('--junit-xml') + 1], 'w').write('<testsuites/>')\n"
        self.assertEqual(self.told(empty + success)["end"], "none run")
        self.assertEqual(self.told("print('Total tests: run=0')\n" + success)["end"], "none run")
        self.assertIn("Result: SUCCESS", self.told(success)["end"], "without a report nobody knows")
        self.assertEqual(self.told("print('Boom')\nsys.exit(3)\n")["end"], "Boom")

    def test_what_only_a_sandbox_sets_for_python_is_unset(self):
        with unittest.mock.patch.dict(os.environ, PYTHONUTF8="1", PYTHONDONTWRITEBYTECODE="1", LANG="C.UTF-8"):
            told = self.told("sys.exit(str([os.environ.get(n) for n in ('PYTHONUTF8', 'PYTHONDONTWRITEBYTECODE', 'LANG')]))\n")
        self.assertEqual(told["end"], "[None, None, 'C.UTF-8']")

    def test_a_module_that_is_too_slow_ends_with_what_it_left_behind(self):
        program = "subprocess.Popen(['sleep', '97531'], start_new_session=True)\n"
        self.assertEqual(self.told(program + "time.sleep(90)\n", 1)["end"], "too slow")
        # What holds its output does not make it slow.
        self.assertEqual(self.told(program + "print('test_x ran no tests')\n")["end"], "none run")
        running = subprocess.run(["pgrep", "-f", "^sleep 97531$"], capture_output=True, text=True, check=False)
        self.assertEqual(running.stdout, "")


if __name__ == "__main__":
    unittest.main()
