"""`config/openapi.json` is valid, its examples fit, and a client that is generated from it does what the guide says."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar, Iterator
from unittest import mock

import httpx
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from .harness import WithDaemon

_ROOT = Path(__file__).resolve().parents[3]
_DOCUMENT = _ROOT / "config/openapi.json"
_PAGE = _ROOT / "docs/guide/generated-clients.md"
_GENERATOR = Path(sys.executable).parent / "openapi-python-client"
_SECONDS = 120


@functools.cache
def document() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(_DOCUMENT.read_text())
    return read


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a value."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(part)


def generate(folder: Path) -> None:
    """Makes the client with the command of the page; a warning of the generator is a failure."""
    found = re.search(r"^openapi-python-client (.*?)[^\\]\n", _PAGE.read_text() + "\n", re.MULTILINE | re.DOTALL)
    assert found is not None
    words = found[0].replace("\\\n", " ").split()[1:]
    # The page names files of the repository, and the client is to be elsewhere.
    words = [str(_ROOT / word) if (_ROOT / word).is_file() else word for word in words]
    command = [str(_GENERATOR), *words, "--fail-on-warning"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(value: Any, schema: dict[str, Any]) -> None:
    Draft202012Validator({**schema, "components": document()["components"]}).validate(value)


def events_of(lines: Iterator[str], at_most: int = 1000) -> Iterator[tuple[str, Any]]:
    """The events of a stream, by their names."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
            at_most -= 1
        if at_most == 0:
            return


class Document(unittest.TestCase):
    def test_it_is_valid(self) -> None:
        validate(document())

    def test_references_lead_somewhere(self) -> None:
        whole = document()
        for part in parts(whole):
            reference = part.get("$ref")
            if isinstance(reference, str):
                found: Any = whole
                for name in reference.removeprefix("#/").split("/"):
                    self.assertIn(name, found, reference)
                    found = found[name]

    def test_examples_fit_their_schemas(self) -> None:
        whole, checked = document(), 0
        problem = whole["components"]["schemas"]["Problem"]
        given = [part for part in parts(whole["paths"]) if {"schema", "example"} <= set(part)]
        for part in [*given, {"schema": problem, "example": problem["examples"][0]}]:
            check(part["example"], part["schema"])
            checked += 1
        self.assertGreater(checked, 60)


class GeneratedCases(WithDaemon):
    folder: ClassVar[tempfile.TemporaryDirectory[str]]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.folder = tempfile.TemporaryDirectory()
        generate(Path(cls.folder.name))
        sys.path.insert(0, cls.folder.name)
        importlib.invalidate_caches()

    @classmethod
    def tearDownClass(cls) -> None:
        sys.path.remove(cls.folder.name)
        cls.folder.cleanup()
        super().tearDownClass()

    def test_the_tutorial(self) -> None:
        self.assertEqual(self.ground.sessions(), [])  # This starts the daemon.
        text = _PAGE.read_text()
        blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        self.assertEqual(len(blocks), 2)
        with mock.patch.dict(os.environ, {"BELLJAR_SOCKET": str(self.ground.home / "belljar.sock")}):
            for block in blocks:
                code = "\n" * (text.count("\n", 0, block.start()) + 1) + block[1]
                exec(compile(code, str(_PAGE), "exec"), {"__name__": "__main__"})
        self.assertEqual(self.ground.sessions(), [])

    def test_streams_and_answers_are_as_documented(self) -> None:
        self.assertEqual(self.ground.sessions(), [])  # This starts the daemon.
        streams = document()["components"]["x-event-streams"]
        transport = httpx.HTTPTransport(uds=str(self.ground.home / "belljar.sock"))
        with httpx.Client(base_url="http://belljar", transport=transport, timeout=_SECONDS) as http:

            def ask(method: str, path: str, schema: str, **body: Any) -> None:
                answer = http.request(method, f"/v1/sessions{path}", json=body or None)
                check(answer.json(), {"$ref": f"#/components/schemas/{schema}"})

            ask("POST", "", "SessionView", name="lab")
            for code in ("x = 1\nx", "1 / 0", "import os; os.kill(os.getpid(), 9)"):
                ask("POST", "/lab/cells?wait=true", "ExecutionResult", code=code)
            ask("POST", "/lab/cells", "CellView", code="print(x)")
            ask("GET", "/lab/cells/4?wait=true", "CellView")
            ask("POST", "/lab/commands?wait=true", "ExecutionResult", line="echo hello")
            ask("POST", "/lab/undo", "Undone", cells=1)
            ask("GET", "/lab/variables", "VariableList")
            ask("GET", "/lab/receipt", "Receipt")
            ask("GET", "/none", "Problem")
            tools = {"tools": [{"name": "twice", "description": "Doubles.", "parameters": {"type": "object"}}]}
            with http.stream("POST", "/v1/sessions/lab/tools", json=tools) as calls:
                told = list(events_of(calls.iter_lines(), at_most=1))
            self.assertEqual(told, [("ready", {})])
            check(told[0][1], streams["tools"]["events"]["ready"]["data"])
            with http.stream("GET", "/v1/sessions/lab/events?follow=false") as answer:
                events = list(events_of(answer.iter_lines()))
            names = {name for name, _ in events}
            self.assertLessEqual({"session_created", "sandbox_ready", "cell_died", "cell_finished", "undone"}, names)
            for name, data in events:
                with self.subTest(event=name):
                    check(data, streams["session"]["events"][name]["data"])
            ask("DELETE", "/lab?wait=true", "Done")

    def test_every_module_can_be_imported(self) -> None:
        """Also of the operations that the tutorial does not use."""
        modules = {f"{one['tags'][0]}.{one['operationId']}" for one in parts(document()) if "operationId" in one}
        self.assertGreater(len(modules), 60)
        for module in modules:
            self.assertTrue(hasattr(importlib.import_module(f"belljar_client.api.{module}"), "sync_detailed"), module)


class OnBubblewrap(GeneratedCases):
    backend = "bubblewrap"


class OnDocker(GeneratedCases):
    backend = "docker"


del GeneratedCases
