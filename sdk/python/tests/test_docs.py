"""The examples of the documentation run as they stand there, but for those that say that they do not."""

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

from .harness import WithDaemon

_ROOT = Path(__file__).resolve().parents[3]
_PAGES = [
    *sorted((_ROOT / "docs/sdk").glob("*.md")),
    _ROOT / "docs/guide/branches.md",
    _ROOT / "sdk/python/README.md",
    _ROOT / "README.md",
]


class DocCases(WithDaemon):
    def test_examples(self) -> None:
        # Examples write files where they run.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(folder.name)
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
