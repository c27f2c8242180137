"""What a program does with a sandbox."""

from __future__ import annotations

import base64
import io
import unittest
from typing import Callable

from belljar import (
    BadRequestError,
    CommandError,
    ExecutionError,
    ExistsError,
    FileType,
    NotFoundError,
    Result,
    Sandbox,
    UndoError,
)

from .harness import WithDaemon, eventually, in_thread


class SandboxCases(WithDaemon):
    def test_variables_live_on_and_the_value_output_and_error_are_told(self) -> None:
        with Sandbox.create() as box:
            self.assertIn(box.name, self.ground.sessions())
            run = box.run_code("import sys\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
            self.assertEqual((run.text, run.stdout, run.stderr), ("21", "out\n", "err\n"))
            self.assertEqual((run.logs.stdout, run.error, run.state.kind), (["out\n"], None, "kept"))
            self.assertEqual(run.check().results[0].is_main_result, True)
            failed = box.run_code("x / 0")
            assert failed.error is not None
            self.assertEqual((failed.status, failed.error.name), ("failure", "ZeroDivisionError"))
            self.assertIn("x / 0", failed.error.traceback)
            foreign = box.run_code("import json; json.loads('{')").error
            assert foreign is not None
            self.assertEqual((foreign.name, foreign.type), ("JSONDecodeError", "json.decoder.JSONDecodeError"))
            with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
                failed.check()
            self.assertEqual([variable.name for variable in box.variables() if variable.name == "x"], ["x"])
        self.assertNotIn(box.name, self.ground.sessions())
        with self.assertRaises(NotFoundError):
            box.run_code("1")
        self.assertFalse(box.is_running() or box.kill())

    def test_callbacks_get_all_of_it_while_it_runs(self) -> None:
        told: list[str] = []
        results: list[Result] = []
        errors: list[ExecutionError] = []
        with Sandbox.create() as box:
            run = box.run_code(
                "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay({'c': 1})\n'd'",
                on_stdout=lambda text: told.append(f"out {text}"),
                on_stderr=lambda text: told.append(f"err {text}"),
                on_result=results.append,
                on_error=errors.append,
            )
            self.assertEqual(sorted(told), ["err b\n", "out a\n"])
            self.assertEqual([result.text for result in results], ["{'c': 1}", "'d'"])
            self.assertEqual([result.is_main_result for result in run.results], [False, True])
            self.assertEqual(errors, [])
            box.run_code("1 / 0", on_stdout=print, on_error=errors.append)
            box.run_code("2 / 0", on_error=errors.append)
            self.assertEqual([error.name for error in errors], ["ZeroDivisionError"] * 2)

            def refuse(text: str) -> None:
                raise LookupError(text)

            with self.assertRaises(LookupError):
                box.run_code("y = 1; print('no')", on_stdout=refuse)
            self.assertEqual(box.run_code("y").text, "1")

    def test_what_ends_a_cell_is_told_and_costs_no_variables(self) -> None:
        with Sandbox.create() as box:
            box.run_code("x = 1")
            late = box.run_code("x = 2\nwhile True: pass", timeout=0.5)
            assert late.error is not None
            self.assertEqual((late.status, late.error.name, late.state.kind), ("timeout", "timeout", "restored"))
            died = box.run_code("import os; os.abort()")
            assert died.error is not None
            self.assertEqual((died.status, died.error.name), ("crashed", "crashed"))
            self.assertEqual(box.run_code("x").text, "1")
            self.assertEqual(box.run_code("x = 3", mode="fork").status, "success")
            self.assertEqual(box.run_code("x").text, "1")
            box.run_code("x = 5")
            box.undo()
            self.assertEqual(box.run_code("x").text, "1")
            with self.assertRaises(UndoError):
                box.undo(99)
            box.reset()
            self.assertEqual(box.run_code("'x' in globals()").text, "False")

    def test_a_cell_that_ends_with_its_sandbox_says_so(self) -> None:
        for end in (Sandbox.kill, Sandbox.reset):
            with Sandbox.create() as box:
                running = in_thread(lambda: box.run_code("while True: pass"))
                eventually("it runs", lambda: box.info().state == "busy" or None)
                end(box)
                error = running().error
                assert error is not None
                self.assertEqual((error.name, error.value), ("interrupted", "its sandbox was reset or removed"))

    def test_files_are_written_read_listed_and_removed(self) -> None:
        with Sandbox.create() as box:
            box.files.write("in.csv", "a,b\n1,2\n")
            box.files.write("/workspace/deep/er/ü %.bin", io.BytesIO(bytes(range(256))))
            self.assertEqual(box.run_code("open('in.csv').read()").text, repr("a,b\n1,2\n"))
            self.assertEqual(box.files.read("in.csv"), "a,b\n1,2\n")
            self.assertEqual(box.files.read("deep/er/ü %.bin", format="bytes"), bytes(range(256)))
            box.files.make_dir("new/one")
            listed = {(entry.path, entry.kind) for entry in box.files.list()}
            self.assertEqual(listed, {("in.csv", "file"), ("deep", "folder"), ("new", "folder")})
            self.assertEqual([entry.path for entry in box.files.list("deep/er")], ["deep/er/ü %.bin"])
            entry = box.files.get_info("in.csv")
            self.assertEqual((entry.name, entry.type, entry.type == "file", entry.size), ("in.csv", FileType.FILE, True, 8))
            self.assertEqual(box.files.get_info("/workspace/deep/er").type, FileType.DIR)
            for absent in ("none", "no/ne"):
                with self.assertRaises(NotFoundError):
                    box.files.get_info(absent)
            self.assertTrue(box.files.exists("in.csv") and box.files.exists("new/one"))
            self.assertFalse(box.files.exists("out.csv") or box.files.exists("no/out.csv") or box.files.exists("in.csv/x"))
            box.files.remove("deep")
            self.assertFalse(box.files.exists("deep"))
            for wrong in (lambda: box.files.read("new"), lambda: box.files.list("in.csv"), lambda: box.files.read("../x")):
                with self.assertRaises(BadRequestError):
                    wrong()
            with self.assertRaises(NotFoundError) as missing:
                box.files.read("none")
            self.assertEqual(missing.exception.code, "no_such_file")
            # A file that looks like a list is none.
            box.files.write("list", '{"path":"","entries":[]}')
            with self.assertRaises(BadRequestError):
                box.files.list("list")

    def test_paths_are_those_of_the_workspace_and_others_are_refused(self) -> None:
        with Sandbox.create() as box:
            files = box.files
            outside: list[Callable[[], object]] = [
                lambda: files.write("/tmp/in.csv", "1"),
                lambda: files.read("/tmp/in.csv"),
                lambda: files.list("/"),
                lambda: files.list("/workspaces"),
                lambda: files.get_info("//tmp/./in.csv"),
                lambda: files.exists("/tmp/in.csv"),
                lambda: files.make_dir("/tmp/new"),
                lambda: files.remove("/etc/passwd"),
            ]
            for wrong in outside:
                with self.assertRaisesRegex(BadRequestError, "only paths below `/workspace`"):
                    wrong()
            self.assertEqual(files.list(), [])
            files.write("/workspace/workspace/in.csv", "1")
            self.assertEqual(box.run_code("open('/workspace/workspace/in.csv').read()").text, "'1'")
            self.assertEqual([one.path for one in files.list("//workspace/./workspace/")], ["workspace/in.csv"])
            with self.assertRaises(BadRequestError):
                files.read("/workspace/../in.csv")

    def test_the_workspace_itself_is_a_folder_that_stays(self) -> None:
        with Sandbox.create() as box:
            for path in ("/workspace", "/workspace/", "."):
                self.assertTrue(box.files.exists(path))
                box.files.make_dir(path)
                info = box.files.get_info(path)
                self.assertEqual((info.name, info.path, info.type), ("workspace", "", FileType.DIR))
                with self.assertRaisesRegex(BadRequestError, "the workspace itself cannot be removed"):
                    box.files.remove(path)
            self.assertEqual((box.files.list(), box.files.exists("")), ([], False))
            with self.assertRaisesRegex(BadRequestError, "`path` is empty"):
                box.files.remove("")
        with self.assertRaises(NotFoundError):
            box.files.exists("/workspace")

    def test_commands_run_beside_the_cells(self) -> None:
        with Sandbox.create() as box:
            ran = box.commands.run("echo $A; cat; pwd; exit 3", cwd="/tmp", envs={"A": "a"}, stdin="in\n")
            self.assertEqual((ran.exit_code, ran.stdout, ran.status), (3, "a\nin\n/tmp\n", "failure"))
            self.assertEqual(box.commands.run(["printf", "%s", "a b"]).stdout, "a b")
            told: list[str] = []
            box.commands.run("echo 1; echo 2 >&2", on_stdout=told.append, on_stderr=told.append)
            self.assertEqual(sorted("".join(told).split()), ["1", "2"])
            with self.assertRaises(CommandError) as failed:
                box.commands.run("echo no >&2; exit 4", check=True)
            self.assertEqual((failed.exception.exit_code, failed.exception.stderr), (4, "no\n"))
            sleeper = box.commands.run("sleep 1000", background=True)
            self.assertIn(("sleep 1000", "running"), [(one.line, one.state) for one in box.commands.list()])
            sleeper.kill()
            self.assertNotEqual(box.commands.connect(sleeper.number).wait().exit_code, 0)
            other = box.commands.run("sleep 1000", background=True)
            self.assertIn((other.pid, "sleep 1000"), [(one.pid, one.cmd) for one in box.commands.list()])
            self.assertEqual((box.commands.kill(other.pid), box.commands.kill(999)), (True, False))
            self.assertNotEqual(other.wait().exit_code, 0)

    def test_a_sandbox_is_found_again_and_stays_if_it_is_to(self) -> None:
        box = Sandbox.create(
            name="kept", keep=True, memory="512MiB", envs={"E": "e"}, labels={"k": "v"}, seed={"s": [1]}, preload=["math"]
        )
        self.addCleanup(box.kill)
        self.assertEqual(box.run_code("import os; os.environ['E'], s, math.floor(1.5)").text, "('e', [1], 1)")
        with Sandbox.connect("kept") as again:
            self.assertEqual((again.id, again.run_code("s").text), (box.id, "[1]"))
        self.assertEqual([info.name for info in Sandbox.list(labels={"k": "v"})], ["kept"])
        self.assertEqual(Sandbox.list(labels={"k": "other"}), [])
        self.assertEqual((box.info().memory_bytes, box.info().backend), (512 << 20, self.backend))
        self.assertTrue(box.receipt()["read_only_root"])
        with self.assertRaises(ExistsError):
            Sandbox.create(name="kept")
        with self.assertRaises(NotFoundError) as missing:
            Sandbox.connect("none")
        self.assertEqual(missing.exception.code, "no_such_session")
        self.assertTrue(box.kill())

    def test_a_picture_shows_itself_in_a_notebook(self) -> None:
        picture = base64.b64encode(b"\x89PNG").decode()
        with Sandbox.create() as box:
            run = box.run_code(
                "class Both:\n"
                "    def _repr_html_(self): return '<b>x</b>'\n"
                f"    def _repr_png_(self): return '{picture}'\n"
                "display(Both())\nprint('<a>')"
            )
        shown = run.results[0]
        self.assertEqual((shown.html, shown._repr_html_()), ("<b>x</b>", "<b>x</b>"))
        self.assertEqual((shown.png, shown._repr_png_()), (picture, b"\x89PNG"))
        self.assertIn("text/html", shown.formats())
        self.assertIn("&lt;a&gt;", run._repr_html_())


class OnDocker(SandboxCases):
    backend = "docker"


class OnBubblewrap(SandboxCases):
    backend = "bubblewrap"


del SandboxCases

if __name__ == "__main__":
    unittest.main()
