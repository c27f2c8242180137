"""The examples of the documentation run as they stand there, and those that need a model with one that plays a script."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import os
import re
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from .frameworks import call, needs, script
from .harness import WithDaemon
from .test_async import run
from .test_tools import runs, says

_ROOT = Path(__file__).resolve().parents[3]
_PAGES = [
    *sorted((_ROOT / "docs/sdk").glob("*.md")),
    _ROOT / "docs/guide/branches.md",
    _ROOT / "sdk/python/README.md",
    _ROOT / "README.md",
]


class DocCases(WithDaemon):
    configuration = '[model.script]\nprovider = "script"\nfile = "script.toml"\n'

    def setUp(self) -> None:
        # Examples write files where they run.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(folder.name)

    def test_examples(self) -> None:
        ran = 0
        for page in _PAGES:
            text = page.read_text()
            for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
                line = text.count("\n", 0, found.start()) + 2
                with self.subTest(page=page.name, line=line), contextlib.redirect_stdout(io.StringIO()):
                    code = "\n" * (line - 1) + found[1]
                    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
                ran += 1
        self.assertGreater(ran, 8)
        self.assertEqual(self.ground.sessions(), [])

    def with_model(self, page: str, words: str, **names: Any) -> dict[str, Any]:
        """Runs the example that has these words with what is given in place of the model and of the reader's own. Jails have no
        images."""
        blocks = re.findall(r"^```python no-test\n(.*?)^```", (_ROOT / "docs/sdk" / page).read_text(), re.MULTILINE | re.DOTALL)
        (code,) = (block for block in blocks if words in block)
        code = re.sub(r'image="belljar/science"(, )?', "", code)
        code = code.replace('Agent("…"', "Agent(model, tools=tools").replace("Task(…", "Task(samples")
        code = code.replace('model="…"', "model=model")
        self.told = io.StringIO()
        with contextlib.redirect_stdout(self.told):
            exec(compile(code, page, "exec"), names)
        return names

    def plays(self, *replies: str) -> None:
        (self.ground.home / "script.toml").write_text("".join(replies))

    def test_an_ask_with_a_schema(self) -> None:
        Path("sales.csv").write_text("month,sold\njuly,3\n")
        read = "import csv; (row,) = csv.DictReader(open('in.csv')); row"
        self.plays(runs(read), says('{"month": "july", "sold": 3}'))
        self.with_model("TOOLS.md", "schema=Answer")
        self.assertTrue(self.told.getvalue().endswith("ask_finished\njuly 3\n"), self.told.getvalue())

    def test_an_ask_with_approval(self) -> None:
        self.plays(runs("open('tidy', 'w')"), says("done"))
        answer = mock.Mock(return_value="y")
        self.with_model("TOOLS.md", "on_approval=decide", input=answer)
        answer.assert_called_once_with("run it? ")
        self.assertEqual(self.told.getvalue(), "open('tidy', 'w')\n")

    def test_pydantic_ai(self) -> None:
        needs("pydantic_ai")
        from pydantic_ai.models.function import FunctionModel

        from examples.pydantic_ai_workspace import play, shell, write

        ran = self.with_model("ADAPTERS.md", "from pydantic_ai", model=FunctionModel(play), tools=[write, shell])
        ref = ran["result"].workspace.ref
        self.assertEqual((ran["again"].output, ran["again"].workspace.ref), ("Most was sold in June.", ref))
        self.assertTrue(run(ran["sandbox"].destroy(ref)))
        self.assertEqual(self.ground.sessions(), [])

    def test_inspect(self) -> None:
        needs("inspect_ai")
        from inspect_ai.dataset import Sample

        # The tasks are only made: one needs an image, and the other packages.
        self.with_model("ADAPTERS.md", "from inspect_ai", samples=[Sample("…")])

    def test_deep_agents(self) -> None:
        needs("deepagents")
        self.with_model("ADAPTERS.md", "from deepagents", model=script(call("execute", command="true"), "done"))
        self.assertEqual(self.ground.sessions(), [])

    def test_langchain(self) -> None:
        needs("langchain")
        self.with_model("ADAPTERS.md", "from langchain", model=script(call("python", code="1 + 1"), "done"))
        self.assertEqual(self.ground.sessions(), [])


class OnBubblewrap(DocCases):
    backend = "bubblewrap"


class Pages(unittest.TestCase):
    def test_examples_that_need_a_model_are_python_and_name_what_is_there(self) -> None:
        seen = 0
        for page in _PAGES:
            for block in re.findall(r"^```python no-test\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
                parsed = ast.parse(block.replace("…", "0"), str(page))
                for line in parsed.body:
                    if isinstance(line, ast.ImportFrom) and line.module is not None and _is_there(line.module):
                        module = importlib.import_module(line.module)
                        for name in line.names:
                            self.assertTrue(hasattr(module, name.name), f"{page.name}: {line.module}.{name.name}")
                            seen += 1
        self.assertGreater(seen, 0)

    def test_links_lead_somewhere(self) -> None:
        for page in _PAGES:
            for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text()):
                self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")


def _is_there(module: str) -> bool:
    """Whether a module can be imported: that of an adapter needs its framework, which has the same name."""
    package, _, inner = module.partition(".")
    return importlib.util.find_spec(inner if package == "belljar" and inner else package) is not None


del DocCases
