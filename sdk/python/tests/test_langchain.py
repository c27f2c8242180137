"""A tool of LangChain."""

from __future__ import annotations

import asyncio
from typing import Any

from .frameworks import WithFramework, call, script

_FILMS = """title,year,minutes
Long,1999,300
Longer,2003,185
Short,2004,80
Middle,2006,120
Late,2011,240
"""
#: What the model of an example runs: first it looks at the table, then it draws a chart.
_LOOK = """
import csv
films = [row for row in csv.DictReader(open("films.csv")) if 2000 <= int(row["year"]) <= 2010]
films.sort(key=lambda film: -int(film["minutes"]))
[film["title"] for film in films[:2]]
"""
_DRAW = """
class Chart:
    def _repr_svg_(self):
        bars = (f'<rect y="{20 * n}" height="18" width="{film["minutes"]}"/>' for n, film in enumerate(films[:2]))
        return '<svg xmlns="http://www.w3.org/2000/svg">' + "".join(bars) + "</svg>"
open("chart.svg", "w").write(Chart()._repr_svg_())
Chart()
"""


class LangChainCases(WithFramework):
    framework = "langchain"

    def test_the_standard_tests_of_tools_pass(self) -> None:
        outcomes = self.outcomes("langchain_suite")
        self.assertEqual(set(outcomes), {"passed"}, outcomes)
        self.assertGreaterEqual(outcomes["passed"], 11)

    def test_the_example_runs(self) -> None:
        told = self.example("langchain_tool")
        self.assertIn("> sorting\n[1, 2, 3] (success)\n", told)
        self.assertTrue(told.endswith("> 6 (success)\nThe sum is 6.\n"), told)

    def test_the_data_analysis_of_its_documentation_works_in_a_box(self) -> None:
        # That example, with another sandbox and a model that plays what was written before: a table is uploaded, an agent
        # answers and draws, the picture is taken from the call and from the files, and the sandbox is closed.
        from langchain.agents import create_agent
        from langchain_core.messages import ToolMessage

        from belljar.langchain import BelljarTool

        python = BelljarTool()
        python.box.files.write("films.csv", _FILMS)
        model = script(call("python", code=_LOOK), call("python", code=_DRAW), "Longer and Middle, as the chart shows.")
        agent: Any = create_agent(model=model, tools=[python], system_prompt="You analyse tables with Python.")
        question = "Which two films from 2000 to 2010 are the longest? The table is `films.csv`. Draw their lengths, too."
        messages = agent.invoke({"messages": [{"role": "user", "content": question}]})["messages"]
        looked, drew = (message for message in messages if isinstance(message, ToolMessage))
        self.assertEqual(looked.text, "['Longer', 'Middle']")
        [chart] = drew.artifact.results
        self.assertEqual(chart.svg, python.box.files.read("chart.svg"))
        self.assertIn('width="185"', chart.svg)
        self.assertEqual(messages[-1].text, "Longer and Middle, as the chart shows.")
        python.close()
        self.assertEqual(self.ground.sessions(), [])

    def test_what_a_model_is_told(self) -> None:
        from belljar.langchain import BelljarTool

        with BelljarTool(timeout=1) as python:
            self.assertEqual(python.invoke({"code": "x = 1"}), "[nothing was printed]")
            self.assertIn("ZeroDivisionError", python.invoke({"code": "x = 2; x / 0"}))
            late = python.invoke({"code": "x = 3\nwhile True: pass"})
            self.assertEqual(late, "timeout: its time had passed\n[the variables are as before this call]")
            self.assertEqual(asyncio.run(python.ainvoke({"code": "x"})), "2")
            call = {"name": "python", "args": {"code": "display(x)"}, "id": "1", "type": "tool_call"}
            self.assertEqual(python.invoke(call).artifact.results[0].text, "2")
        self.assertFalse(python.box.is_running())


class OnDocker(LangChainCases):
    backend = "docker"


class OnBubblewrap(LangChainCases):
    backend = "bubblewrap"


del LangChainCases
