"""The kernel for Jupyter, as nbclient and frontends use it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path
from typing import Any, Callable, ClassVar

from belljar import Sandbox, _completion

from .frameworks import WithFramework
from .harness import BINARY, SOON, eventually, in_thread

_PACKAGE = Path(__file__).resolve().parents[1]
#: The start of every PNG.
_PNG = b"\x89PNG\r\n\x1a\n"
#: A picture without a library for plots, which only one image has.
_PICTURE = """\
import base64
class Picture:
    def _repr_png_(self):
        return base64.b64decode(
            "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        )
display(Picture())"""
_PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"


class JupyterCases(WithFramework):
    framework = "nbclient"
    #: Less than the kernel asks for at first.
    configuration = '[cells]\nmax_timeout = "50s"\n'
    #: An image with a library for plots, and how a cell shows a picture.
    image: ClassVar[str | None] = None
    picture: ClassVar[str] = _PICTURE

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prefix = folder.name
        # What Jupyter knows of, and nothing of the user's.
        cls._set("JUPYTER_PATH", f"{folder.name}/share/jupyter")
        cls._set("JUPYTER_RUNTIME_DIR", f"{folder.name}/runtime")
        cls._set("IPYTHONDIR", f"{folder.name}/ipython")
        cls._set("PYTHONPATH", str(_PACKAGE / "src"))
        cls.install()

    @classmethod
    def _set(cls, name: str, value: str) -> None:
        before = os.environ.get(name)
        os.environ[name] = value
        cls.addClassCleanup(os.environ.pop if before is None else os.environ.__setitem__, name, before or value)

    prefix: ClassVar[str]

    @classmethod
    def install(cls, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "belljar.jupyter", "install", "--prefix", cls.prefix, *words]
        at = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SOON).stdout.strip()
        spec: dict[str, Any] = json.loads((Path(at) / "kernel.json").read_text())
        return spec

    def executed(self, *cells: str, kernel: str = "belljar", folder: str | None = None, **options: Any) -> Any:
        """The notebook of these cells, as nbclient leaves it."""
        import nbclient
        import nbformat

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
        resources = {"metadata": {"path": folder or self.prefix}}
        client = nbclient.NotebookClient(
            notebook, kernel_name=kernel, resources=resources, **{"timeout": SOON, "startup_timeout": SOON, **options}
        )
        client.execute()
        nbformat.validate(notebook)
        return notebook

    def test_a_notebook_runs_with_its_pictures(self) -> None:
        if self.image is not None:
            self.install("--name", "plots", "--image", self.image)
        kernel = "belljar" if self.image is None else "plots"
        cells = ("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 20\nx + 22", self.picture, "x")
        notebook = self.executed(*cells, kernel=kernel)
        first, second, third = (cell.outputs for cell in notebook.cells)
        texts = {output.name: output.text for output in first if output.output_type == "stream"}
        self.assertEqual(texts, {"stdout": "out\n", "stderr": "err\n"})
        self.assertEqual((first[-1].output_type, first[-1].data["text/plain"]), ("execute_result", "42"))
        shown = [output for output in second if output.output_type == "display_data"]
        self.assertEqual(len(shown), 1, second)
        self.assertTrue(base64.b64decode(shown[0].data["image/png"]).startswith(_PNG))
        self.assertEqual(third[0].data["text/plain"], "20")
        self.assertEqual([cell.execution_count for cell in notebook.cells], [1, 2, 3])
        self.assertRegex(notebook.metadata.language_info.version, r"^3\.\d+\.\d+")
        # The kernel asked for more time at first than this daemon allows, and then for as much as it does.
        # What a kernel had for itself goes with it.
        self.assertEqual(self.ground.sessions(), [])

    def test_a_cell_that_crashes_costs_no_variables(self) -> None:
        crash = "x = 2\nimport ctypes\nctypes.string_at(0)"
        notebook = self.executed("x = 1", crash, "x", "1 / 0", allow_errors=True)
        _, crashed, after, raised = (cell.outputs for cell in notebook.cells)
        told = {output.output_type: output for output in crashed}
        self.assertEqual(told["error"].ename, "crashed")
        self.assertIn("signal", told["error"].evalue)
        self.assertIn("belljar: variables are back as", told["stream"].text)
        self.assertEqual(told["stream"].name, "stderr")
        self.assertEqual(after[0].data["text/plain"], "1")
        self.assertEqual(raised[0].ename, "ZeroDivisionError")
        self.assertIn("1 / 0", "\n".join(raised[0].traceback))
        with self.assertRaisesRegex(Exception, "ZeroDivisionError"):
            self.executed("1 / 0")

    def test_cells_are_told_that_there_is_no_input(self) -> None:
        notebook = self.executed("input('name? ')", allow_errors=True)
        self.assertIn("cells cannot read input", notebook.cells[0].outputs[0].evalue)

    def test_what_lies_beside_a_notebook_is_no_code_of_the_kernel(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("ipykernel", "belljar", "hashlib", "json", "gettext", "statistics"):
                (Path(folder) / f"{name}.py").write_text("open('mark', 'w')\nraise SystemExit(1)\n")
            self.assertEqual(self.executed("1", folder=folder).cells[0].outputs[0].data["text/plain"], "1")
            self.assertFalse((Path(folder) / "mark").exists())
        # Nor of what it imports later.
        from belljar._jupyter_kernel import KernelApp

        before = [part for part in sys.path if part]
        with unittest.mock.patch.object(sys, "path", list(before)):
            app: Any = KernelApp
            app().init_path()
            self.assertEqual(sys.path, before)

    def test_the_command_installs_and_writes_what_jupyter_reads(self) -> None:
        import nbformat

        words = ("jupyter", "install", "--name", "told", "--prefix", self.prefix, "--python", sys.executable)
        told = self.ground.command("--json", *words)
        self.assertEqual(told.returncode, 0, told.stderr)
        spec = json.loads((Path(json.loads(told.stdout)["path"]) / "kernel.json").read_text())
        self.assertEqual((spec["argv"][0], spec["display_name"]), (sys.executable, "Python (Belljar: told)"))
        with Sandbox.create(name="written") as box:
            for code in ("import sys\nprint('on'); print('err', file=sys.stderr)\n6 * 7", _PICTURE, "1 / 0"):
                box.run_code(code)
            box.run_code("import os; os.abort()")
            box.run_code("x = 1")
            written = Path(self.prefix) / "written.ipynb"
            self.assertEqual(self.ground.command("export", "-s", "written", str(written)).returncode, 0)
        notebook = nbformat.read(written, as_version=4)
        nbformat.validate(notebook)
        kinds = [[output.output_type for output in cell.outputs] for cell in notebook.cells]
        self.assertEqual(kinds, [["stream", "stream", "execute_result"], ["display_data"], ["error"], ["stream", "error"], []])
        self.assertTrue(base64.b64decode(notebook.cells[1].outputs[0].data["image/png"]).startswith(_PNG))
        # What the kernel shows and what is written are the same.
        again = self.executed(*(cell.source for cell in notebook.cells), kernel="told", allow_errors=True)
        shown = [[output.output_type for output in cell.outputs] for cell in again.cells]
        self.assertEqual(shown, kinds)

    def test_a_python_without_the_package_is_told(self) -> None:
        environment = {**os.environ, "PYTHONPATH": "", "BELLJAR_HOME": str(self.ground.home)}
        with tempfile.TemporaryDirectory() as folder:
            # Neither the package nor anything that looks like it in the folder of the caller.
            (Path(folder) / "belljar").mkdir()
            (Path(folder) / "belljar" / "__init__.py").write_text("raise SystemExit('run')")
            command = [str(BINARY), "jupyter", "install", "--python", sys.executable]
            told = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SOON, check=False
            )
        self.assertEqual(told.returncode, 125, told.stderr)
        self.assertIn("has no package `belljar`", told.stderr)
        self.assertIn("-m pip install 'belljar[jupyter]'", told.stderr)

    def test_a_named_session_stays(self) -> None:
        spec = self.install("--name", "lab", "--session", "lab", "--timeout", "1")
        self.assertEqual(spec["display_name"], "Python (Belljar: lab)")
        self.assertEqual(spec["interrupt_mode"], "message")
        self.executed("kept = 5", kernel="lab")
        self.assertEqual(self.ground.sessions(), ["lab"])
        with Sandbox.connect("lab") as box:
            self.assertEqual(box.run_code("kept").text, "5")
        late = self.executed("while True: pass", "kept", kernel="lab", allow_errors=True)
        self.assertEqual(late.cells[0].outputs[-1].ename, "timeout")
        self.assertEqual(late.cells[1].outputs[0].data["text/plain"], "5")
        Sandbox.connect("lab").kill()

    def test_a_session_that_was_removed_is_said_to_be(self) -> None:
        with self.kernel() as frontend:
            frontend.run("x = 1")
            (name,) = self.ground.sessions()
            Sandbox.connect(name).kill()
            error, said = frontend.run("x")["error"], frontend.said
            self.assertEqual(error["ename"], "NotFoundError")
            self.assertIn("the next cell begins a new one", said)
            self.assertEqual(frontend.run("2")["execute_result"]["data"]["text/plain"], "2")

    def kernel(self, name: str = "belljar") -> Frontend:
        return Frontend(name)

    def test_cells_are_interrupted(self) -> None:
        with self.kernel() as frontend:
            for interrupt in (frontend.manager.interrupt_kernel, lambda: frontend.manager.signal_kernel(2)):
                begun = time.monotonic()
                wait = in_thread(lambda: frontend.run("x = 7\nprint('on')\nimport time; time.sleep(45)"))
                eventually("the cell runs", lambda: True if "on" in frontend.said else None)
                interrupt()
                self.assertEqual(wait()["error"]["ename"], "KeyboardInterrupt")
                self.assertLess(time.monotonic() - begun, 40)
                self.assertEqual(frontend.run("x")["execute_result"]["data"]["text/plain"], "7")

    def test_a_kernel_that_is_started_anew_finds_its_files(self) -> None:
        with self.kernel() as frontend:
            frontend.run("x = 1\nopen('a.txt', 'w').write('kept')")
            before = self.ground.sessions()
            frontend.manager.restart_kernel()
            frontend.wait()
            told = frontend.run("print('x' in globals(), open('a.txt').read())")
            self.assertEqual((told["stream"]["text"], frontend.said), ("False kept\n", "False kept\n"))
            self.assertEqual(self.ground.sessions(), before)
            # A kernel that dies costs not even the variables.
            frontend.run("y = 2")
            frontend.manager.restart_kernel(now=True)
            frontend.wait()
            self.assertEqual(frontend.run("y")["execute_result"]["data"]["text/plain"], "2")
            self.assertIn("goes on, with its variables", frontend.said)
        self.assertEqual(self.ground.sessions(), [])

    def test_what_is_typed_is_completed_and_described(self) -> None:
        with self.kernel() as frontend:
            frontend.run(
                "class Bell:\n    'Rings.'\n    tone = 440\n    def toll(self, times: int = 1): 'Tolls.'\n"
                "bell = Bell()\nbells = {'große': 1}\nopen('data.csv', 'w').close()"
            )

            def offered(code: str) -> list[str]:
                answer = frontend.ask("complete", code, len(code))
                start = answer["cursor_start"]
                return [code[:start] + match for match in answer["matches"]]

            self.assertEqual(offered("bel"), ["bell", "bells"])
            self.assertEqual(offered("x = bell.to"), ["x = bell.toll", "x = bell.tone"])
            self.assertEqual(offered("bells['gr"), ["bells['große"])
            self.assertEqual(offered("open('da"), ["open('data.csv"])
            self.assertEqual(offered("unknown.x"), [])
            described = frontend.ask("inspect", "bell.toll(", 10)
            self.assertTrue(described["found"])
            self.assertIn("times: int = 1", described["data"]["text/plain"])
            self.assertIn("Tolls.", described["data"]["text/plain"])
            self.assertFalse(frontend.ask("inspect", "unknown", 3)["found"])
            for code, status in (("x = 1", "complete"), ("if x:", "incomplete"), ("%%time\nx", "incomplete"), ("x = )", "invalid")):
                self.assertEqual(frontend.ask("is_complete", code)["status"], status, code)
            values = {"good": "bell.tone", "bad": "1 / 0"}
            reply = frontend.ask("execute", "bell.tone = 1", user_expressions=values)["user_expressions"]
            self.assertEqual(reply["good"]["data"]["text/plain"], "1")
            self.assertEqual(reply["bad"]["ename"], "ZeroDivisionError")


class Frontend:
    """A kernel and its client, as JupyterLab has them."""

    def __init__(self, name: str) -> None:
        from jupyter_client.manager import KernelManager

        self.manager: Any = KernelManager(kernel_name=name)
        self.manager.start_kernel()
        self.client: Any = self.manager.client()
        self.client.start_channels()
        #: All that the last cell printed.
        self.said = ""
        self.wait()

    def wait(self) -> None:
        self.client.wait_for_ready(timeout=SOON)

    def run(self, code: str) -> dict[str, Any]:
        """What a cell has shown last, by the type of the message."""
        self.said, told = "", {}

        def saw(message: dict[str, Any]) -> None:
            told[message["msg_type"]] = message["content"]
            if message["msg_type"] == "stream":
                self.said += message["content"]["text"]

        self.client.execute_interactive(code, timeout=SOON, output_hook=saw, allow_stdin=False)
        return told

    def ask(self, what: str, *words: Any, **options: Any) -> dict[str, Any]:
        send: Callable[..., str] = getattr(self.client, what)
        sent = send(*words, **options)
        while True:
            # Raises where no answer comes.
            answer: dict[str, Any] = self.client.get_shell_msg(timeout=SOON)
            if answer["parent_header"].get("msg_id") == sent:
                content: dict[str, Any] = answer["content"]
                return content

    def __enter__(self) -> Frontend:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


class OnDocker(JupyterCases):
    backend = "docker"
    image = "belljar/science"
    picture = _PLOT


class OnBubblewrap(JupyterCases):
    backend = "bubblewrap"


class Completion(unittest.TestCase):
    def test_attributes_keys_paths_and_names_are_asked_for(self) -> None:
        names, members, paths = _completion.Names, _completion.Members, _completion.Paths
        for text, expected in (
            ("df.co", members(3, "df", False, "co")),
            ("x = f(np.random.no", members(16, "np.random", False, "no")),
            ("é.a", members(2, "é", False, "a")),
            ("df['co", members(4, "df", True, "co")),
            ('a.b[ "', members(6, "a.b", True, "")),
            ("x\nopen('da", paths(8, "", "da")),
            ("open('./a/c", paths(10, "a", "c")),
            ("open('/workspace/a/c", paths(19, "a", "c")),
            ("!cat da", paths(5, "", "da")),
            ("%cd a/b", paths(6, "a", "b")),
            ("x = al", names(4, "al")),
        ):
            self.assertEqual(_completion.question(text, len(text)), expected, text)
        for none in ("", "f().a", "1.a", "x # a.b", "open('/etc/pa", "open('../a", "x['a'].b", "1al"):
            self.assertIsNone(_completion.question(none, len(none)), none)

    def test_what_no_person_can_type_is_not_offered(self) -> None:
        offered = _completion.names("a", ["alpha", "a b", "a\x1b[2J", "a" * 200, "ä"])
        self.assertEqual([name for name in offered if name.startswith("al") or not name.isalpha()], ["all", "alpha"])
        self.assertTrue(all(map(_completion.can_be_quoted, ("a b", "größe", "a/b.csv"))))
        self.assertFalse(any(map(_completion.can_be_quoted, ("", "a'b", "a\\", "a\x1b[2J", "a\u202eb"))))


del JupyterCases
