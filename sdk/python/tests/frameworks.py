"""Running the suites that frameworks ship for what plugs into them, and the examples, as a user would."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .harness import WithDaemon, eventually

_PACKAGE = Path(__file__).resolve().parents[1]
#: The longest that a suite may take.
_SECONDS = 500


def needs(framework: str) -> None:
    """Leaves out the tests of an adapter whose framework is not installed, and says so."""
    if importlib.util.find_spec(framework) is None:
        raise unittest.SkipTest(f"`{framework}` IS NOT INSTALLED: its adapter is not tested")


def script(*messages: Any) -> Any:
    """A chat model of LangChain that plays messages, whatever it is told, and takes all tools."""
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    class Script(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_options: Any) -> Any:
            return self

    return Script(messages=iter(messages))


def call(tool: str, **arguments: Any) -> Any:
    """A message of such a model that calls a tool."""
    from langchain_core.messages import AIMessage

    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"{tool}-call"}])


class WithFramework(WithDaemon):
    """Tests of one adapter."""

    framework = ""

    @classmethod
    def setUpClass(cls) -> None:
        needs(cls.framework)
        super().setUpClass()

    def ran(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": f"{_PACKAGE / 'src'}:{_PACKAGE}"}
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=_PACKAGE, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )

    def outcomes(self, suite: str) -> Counter[str]:
        """How many checks of a suite ended how. A failure is one here, too."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            options = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-W", "ignore", f"--junitxml={report}")
            done = self.ran("-m", "pytest", *options, f"tests/suites/{suite}.py")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            outcomes: Counter[str] = Counter()
            for case in ElementTree.parse(report).iter("testcase"):
                skipped = case.find("skipped")
                outcomes["passed" if skipped is None else str(skipped.get("type")).rpartition(".")[2]] += 1
        # What a suite forgets goes with its process, if not before.
        eventually("its sandboxes are gone", lambda: None if self.ground.sessions() else True)
        return outcomes

    def example(self, name: str) -> str:
        done = self.ran(f"examples/{name}.py")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.ground.sessions(), [])
        return done.stdout
