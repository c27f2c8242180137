"""A tool of LangChain."""

from __future__ import annotations

import asyncio

from .frameworks import WithFramework


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
