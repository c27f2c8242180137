"""Agents of smolagents whose code runs in a sandbox, with a model that plays what was written before."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from .frameworks import WithFramework, needs

needs("smolagents")

from smolagents import CodeAgent, Model, Tool, ToolCollection, WebSearchTool, tool  # noqa: E402
from smolagents.models import ChatMessage, MessageRole  # noqa: E402

from belljar import BadRequestError, Sandbox  # noqa: E402
from belljar.smolagents import BelljarExecutor  # noqa: E402

_SERVER = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("test", log_level="ERROR")
@server.tool()
def greet(name: str, times: int = 1) -> str:
    "Greets somebody."
    if not name:
        raise ValueError("nobody is there")
    return "Hello, " * times + name
@server.tool()
def count(words: list[str], weights: dict[str, float] | None = None) -> dict[str, float]:
    "Counts words."
    return {word: words.count(word) * (weights or {}).get(word, 1.0) for word in words}
server.run()
"""


class Script(Model):  # type: ignore[misc]
    """Plays cells, one after the other, and keeps what it was told."""

    def __init__(self, *cells: str) -> None:
        super().__init__(model_id="script")
        self._cells = list(cells)
        self.told = ""

    def generate(self, messages: list[Any], **_options: Any) -> Any:
        self.told = "\n".join(str(message.content) for message in messages)
        content = f"Thought: go on.\n<code>\n{self._cells.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=content)


class Counter(Tool):  # type: ignore[misc]
    """A tool that cannot be sent anywhere as source code: it holds a lock."""

    name = "count"
    description = "Counts up."
    inputs = {"by": {"type": "integer", "description": "How far.", "nullable": True}}
    output_type = "integer"

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.total = 0

    def forward(self, by: int | None = None) -> int:
        with self.lock:
            self.total += by or 1
            return self.total


@tool  # type: ignore[misc, unused-ignore]
def weather(city: str) -> dict:  # type: ignore[type-arg]
    """Tells the weather.

    Args:
        city: Where.
    """
    return {"city": city, "degrees": 20}


class SmolagentsCases(WithFramework):
    framework = "smolagents"

    def test_an_agent_keeps_its_variables_calls_tools_and_answers(self) -> None:
        counter = Counter()
        with BelljarExecutor() as executor:
            model = Script(
                "x = count(by=5)\nprint('x is', x)\nweather('Ulm')['degrees']",
                "1 / 0",
                "try:\n    final_answer(x + count() + len(given))\nexcept Exception:\n    pass\nx = 'not reached'",
            )
            agent = CodeAgent(tools=[counter, weather], model=model, executor=executor, verbosity_level=0)
            self.assertEqual(agent.run("Count.", additional_args={"given": [1, 2]}), 13)
            self.assertEqual((counter.total, executor.box.run_code("x").text), (6, "5"))
            self.assertIn("x is 5", model.told)
            self.assertIn("ZeroDivisionError", model.told)
            # The same agent again, with the tools that it has.
            model._cells = ["final_answer({'t': (1, 2), 'w': weather(city='Bonn')})"]
            answer = agent.run("Again.", reset=False)
            self.assertEqual(answer, {"t": [1, 2], "w": {"city": "Bonn", "degrees": 20}})
            # What it cannot do on this machine, it cannot do there.
            model._cells = ["import os; final_answer(os.path.exists('/root/.bashrc') or os.getuid() == 0)"]
            self.assertEqual(agent.run("Where are you?"), False)
        self.assertFalse(executor.box.is_running())

    def test_the_example_of_the_guide_runs_with_a_model_that_plays_a_script(self) -> None:
        page = Path(__file__).resolve().parents[3] / "docs/sdk/FROM-SMOLAGENTS.md"
        found = re.search(r"^```python no-test\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        assert found is not None
        script = Script("ulm = weather(city='Ulm')\nfinal_answer(ulm['degrees'] > 30)")
        # In a file, for smolagents reads the source of tools. Jails have no images.
        code = found[1].replace('image="belljar/science", ', "")
        with tempfile.TemporaryDirectory() as folder, mock.patch("smolagents.InferenceClientModel", lambda: script):
            example = Path(folder) / "example.py"
            example.write_text(code)
            agent = runpy.run_path(str(example))["agent"]
        self.assertEqual((agent.memory.steps[-1].action_output, script._cells), (False, []))
        self.assertEqual(self.ground.sessions(), [])

    def test_what_code_does_wrong_is_told_and_the_session_goes_on(self) -> None:
        with Sandbox.create() as box:
            executor = BelljarExecutor(box, timeout=1)
            executor.send_variables({"a": [1, {"b": None}], "c": "ü"})
            self.assertEqual(executor("a, c").output, ([1, {"b": None}], "ü"))
            self.assertEqual((executor("print('p')").output, executor.state["_print_outputs"]), (None, "p\n"))
            self.assertEqual(executor("object").output, "<class 'object'>")
            for wrong, said in (("while True: pass", "timeout"), ("import os; os.abort()", "crashed"), ("nope", "NameError")):
                with self.assertRaisesRegex(Exception, said):
                    executor(wrong)
            self.assertEqual(executor("c").output, "ü")
            with self.assertRaisesRegex(BadRequestError, "`t`"):
                executor.send_variables({"t": threading.Lock()})
            executor.cleanup()
            self.assertTrue(box.is_running())

    def test_a_managed_agent_works_for_another(self) -> None:
        inner = CodeAgent(
            tools=[], model=Script("final_answer('inner: ' + '42')"), executor=BelljarExecutor(), name="helper",
            description="Helps.", verbosity_level=0,
        )  # fmt: skip
        with BelljarExecutor() as executor:
            model = Script("said = helper(task='What is it?')\nfinal_answer('42' in said)")
            agent = CodeAgent(tools=[], model=model, managed_agents=[inner], executor=executor, verbosity_level=0)
            self.assertEqual(agent.run("Ask the helper."), True)
        inner.cleanup()

    def test_tools_of_an_mcp_server(self) -> None:
        from mcp import StdioServerParameters

        with tempfile.TemporaryDirectory() as folder:
            server = Path(folder) / "server.py"
            server.write_text(_SERVER)
            parameters = StdioServerParameters(command=sys.executable, args=[str(server)])
            for structured in (False, True):
                mcp = ToolCollection.from_mcp(parameters, trust_remote_code=True, structured_output=structured)
                with mcp as collection, BelljarExecutor() as executor:
                    tools = {one.name: one for one in collection.tools}
                    executor.send_tools(tools)
                    said = executor("greet('Ulm')").output
                    self.assertEqual(said["result"] if structured else said, "Hello, Ulm")
                    said = executor("greet(name='Ulm', times=2)").output
                    self.assertEqual(said["result"] if structured else said, "Hello, Hello, Ulm")
                    counted = executor("count(words=['a', 'b', 'a'], weights={'b': 0.5})").output
                    self.assertEqual(counted if structured else json.loads(counted), {"a": 2.0, "b": 0.5})
                    # What the server refuses is told, and code in the sandbox can go on.
                    told = executor("try:\n    told = greet('')\nexcept Exception as e:\n    told = str(e)\nstr(told)").output
                    self.assertIn("nobody is there", told)
                    # An agent sends the tools again, which is no other set of tools.
                    model = Script("final_answer(greet(name='Ulm'))")
                    agent = CodeAgent(tools=[*collection.tools], model=model, executor=executor, verbosity_level=0)
                    answer = agent.run("Greet.")
                    self.assertEqual(answer["result"] if structured else answer, "Hello, Ulm")

    def test_its_example_of_sandboxes_runs_with_this_one(self) -> None:
        # That example, with another executor, a model that plays what was written before, and a web that is not asked.
        found = [{"title": "Bridges", "link": "https://bridges.test", "description": "The Pont des Arts: 155 metres."}]
        model = Script(
            "found = web_search(query='How long is the Pont des Arts?')\nprint(found)",
            "import re\nmetres = int(re.search(r'([0-9]+) metres', found)[1])\nfinal_answer(round(metres / (58 / 3.6), 1))",
        )
        with mock.patch.object(WebSearchTool, "search", lambda _tool, _query: found):
            with CodeAgent(
                tools=[WebSearchTool()], model=model, executor=BelljarExecutor(), verbosity_level=0
            ) as agent:
                seconds = agent.run("How long does a leopard at full speed take to cross the Pont des Arts?")
        self.assertEqual(seconds, 9.6)
        self.assertIn("[Bridges](https://bridges.test)", model.told)
        with CodeAgent(
            tools=[], model=Script("import math\nfinal_answer(math.sqrt(125))"), executor=BelljarExecutor(), verbosity_level=0
        ) as agent:
            self.assertAlmostEqual(agent.run("What is the square root of 125?"), 125**0.5)
        self.assertEqual(self.ground.sessions(), [], "an agent that ends takes its sandbox with it")

    def test_the_example_runs(self) -> None:
        self.assertTrue(self.example("smolagents_mcp").endswith("GBP at 1.2\n"))


class OnDocker(SmolagentsCases):
    backend = "docker"


class OnBubblewrap(SmolagentsCases):
    backend = "bubblewrap"


del SmolagentsCases
