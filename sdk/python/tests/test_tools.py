"""Functions of this process as tools, asks and approvals."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, Callable, Literal, TypedDict

import pydantic

from belljar import (
    Approval,
    AskError,
    AsyncApproval,
    AsyncSandbox,
    BadRequestError,
    ModelError,
    Sandbox,
    ToolError,
)

from .harness import WithDaemon, eventually, in_thread
from .test_async import run


class Answer(pydantic.BaseModel):
    month: str
    sold: int


class Point(TypedDict):
    x: int
    y: int


def says(words: str) -> str:
    return f"[[reply]]\ncontent = {json.dumps(words)}\n"


def calls(name: str, **arguments: Any) -> str:
    text = json.dumps({**arguments, "tool_call_purpose": "the test wants it"})
    return f"[[reply]]\n[[reply.call]]\nname = {json.dumps(name)}\narguments_text = {json.dumps(text)}\n"


def runs(code: str) -> str:
    return calls("execute_python_code", python_code_snippet=code, timeout=30)


def much() -> str:
    """Gives more than a request may have."""
    return "x" * (20 << 20)


class ToolCases(WithDaemon):
    configuration = '[model.script]\nprovider = "script"\nfile = "script.toml"\n'

    def plays(self, *replies: str) -> None:
        (self.ground.home / "script.toml").write_text("".join(replies))

    def test_a_function_is_called_from_a_cell_and_its_result_is_a_value(self) -> None:
        with Sandbox.create() as box:

            @box.tool
            def rate(currency: str, factor: float = 1) -> float:
                """Exchange rate to the euro."""
                return {"USD": 0.5, "GBP": 2.0}[currency] * factor

            @box.tool(name="shift", description="Moves a point.")
            def moved(point: Point, by: list[int], how: Literal["up", "down"] | None = None) -> Point:
                return {"x": point["x"] + by[0], "y": point["y"] + by[1]}

            @box.tool
            def best(answer: Answer) -> Answer:
                return Answer(month=answer.month.upper(), sold=answer.sold + 1)

            @box.tool
            def said(words: str):  # type: ignore[no-untyped-def]
                return {"words": words}

            @box.tool
            def refuses() -> None:
                raise ToolError("not today", code="closed")

            self.assertEqual(rate("USD"), 0.5)
            ran = box.run_code("rate('USD') + rate(currency='GBP', factor=3)")
            self.assertEqual((ran.error, ran.text), (None, "6.5"))
            self.assertEqual(box.run_code("shift(point={'x': 1, 'y': 2}, by=[1, 1])").text, "{'x': 2, 'y': 3}")
            self.assertEqual(box.run_code("best(answer={'month': 'may', 'sold': 1})").text, "{'month': 'MAY', 'sold': 2}")
            self.assertEqual(box.run_code("print(said('hi'))").stdout, '{"words": "hi"}\n')
            code = "try:\n    {}\nexcept ToolError as error:\n    print(error.code, error.message)"
            self.assertEqual(box.run_code(code.format("refuses()")).stdout, "closed not today\n")
            failed = box.run_code(code.format("rate('CHF')")).stdout
            self.assertIn("failed KeyError: 'CHF'\nTraceback (most recent call last):\n", failed)
            self.assertIn("test_tools.py", failed)
            self.assertNotIn("_tools.py\", line", failed.replace("test_tools.py", ""))
            self.assertIn("Exchange rate", box.run_code("rate.__doc__").text or "")

    def test_a_result_that_the_daemon_does_not_take_is_a_failure_and_no_wait(self) -> None:
        with Sandbox.create() as box:
            box.tool(much)
            run = box.run_code("much()", timeout=60)
            self.assertIsNotNone(run.error)
            assert run.error is not None
            self.assertEqual(run.error.name, "ToolError")
            self.assertIn("larger than 16777216 bytes", run.error.value)

    def test_calls_come_at_the_same_time(self) -> None:
        barrier = threading.Barrier(3, timeout=30)
        with Sandbox.create() as box:

            @box.tool
            def meet() -> int:
                return barrier.wait()

            code = "import asyncio\nsorted(await asyncio.gather(*[tools.aio.meet() for _ in range(3)]))"
            self.assertEqual(box.run_code(code).text, "[0, 1, 2]")

    def test_tools_come_back_after_a_restart_of_the_daemon(self) -> None:
        with Sandbox.create() as box:

            @box.tool
            def double(number: int) -> int:
                return number * 2

            self.assertEqual(box.run_code("double(4)").text, "8")
            self.ground.kill()

            def doubled() -> str | None:
                ran = box.run_code("double(5)")
                return ran.text

            self.assertEqual(eventually("the tool is there again", doubled), "10")

    def test_what_cannot_be_a_tool_is_refused(self) -> None:
        with Sandbox.create() as box:

            def anything(*words: str) -> None: ...
            def strange(thread: threading.Thread) -> None: ...
            def keyed(table: dict[int, str]) -> None: ...
            def fine() -> None: ...

            for function in (anything, strange, keyed, 3, lambda: None):
                with self.assertRaises(BadRequestError, msg=str(function)):
                    box.tool(function)  # type: ignore[type-var]
            box.tool(fine)
            with self.assertRaises(BadRequestError):
                box.tool(fine)
            # A name that the daemon has itself is refused with the next cell, and once.
            box.tool(name="execute_python_code")(lambda: None)
            with self.assertRaises(BadRequestError):
                box.run_code("1")
            self.assertEqual(box.run_code("1").text, "1")

    def test_tools_go_with_their_sandbox_object(self) -> None:
        kept = Sandbox.create(keep=True)
        self.addCleanup(kept.kill)
        with Sandbox.connect(kept.name) as box:
            box.tool(name="one")(lambda: "1")
            self.assertEqual(box.run_code("print(one())").stdout, "1\n")
        gone = lambda: kept.run_code("'one' in globals()").text == "False" or None  # noqa: E731
        eventually("the tool is gone", gone)

    def test_async_tools(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create() as box:
                loop = asyncio.get_running_loop()

                @box.tool
                async def here(number: int) -> bool:
                    await asyncio.sleep(0.01)
                    return asyncio.get_running_loop() is loop

                @box.tool
                def elsewhere() -> bool:
                    return threading.current_thread() is threading.main_thread()

                self.assertEqual((await box.run_code("here(1), elsewhere()")).text, "(True, False)")

        run(work())
        box = run(AsyncSandbox.create())
        box.tool(name="one")(lambda: "1")
        for _ in range(2):
            self.assertEqual(run(box.run_code("print(one())")).stdout, "1\n")
        run(box.kill())

    def test_tools_outlive_the_loop_that_lent_them_while_a_cell_of_another_calls_them(self) -> None:
        box = run(AsyncSandbox.create())
        self.addCleanup(lambda: run(box.kill()))

        @box.tool
        async def here() -> str:
            await asyncio.sleep(0)
            return threading.current_thread().name

        box.tool(name="one")(lambda: "1")
        code = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\nprint(one(), here())"
        own: list[str] = []

        def other() -> str:
            own.append(threading.current_thread().name)
            return run(box.run_code(code)).stdout

        async def lend() -> Callable[[], str]:
            await box.run_code("1")
            calling = in_thread(other)
            while (await box.info()).state != "busy":
                await asyncio.sleep(0.02)
            return calling

        calling = run(lend())
        Sandbox.connect(box.name).files.write("go", "")
        self.assertEqual(calling(), f"1 {own[0]}\n")

    def test_a_model_answers_in_the_shape_that_is_wanted(self) -> None:
        with Sandbox.create() as box:

            @box.tool
            def sales() -> dict[str, int]:
                """What was sold in each month."""
                return {"may": 7}

            self.plays(runs("s = sales(); s"), says('{"month": "may", "sold": 7}'))
            kinds: list[str] = []
            answer = box.ask("Which month sold most?", schema=Answer, on_event=lambda event: kinds.append(event["type"]))
            self.assertEqual(answer, Answer(month="may", sold=7))
            self.assertEqual((kinds[0], kinds[-1], kinds.count("cell_finished")), ("ask_started", "ask_finished", 1))
            self.assertEqual(box.run_code("s").text, "{'may': 7}")
            self.plays(runs("n * 2"), says("It is 84."))
            self.assertEqual(box.ask("Twice?", context={"n": 42}, fresh=True), "It is 84.")
            self.plays(says("[1, 2]"))
            self.assertEqual(box.ask("List?", schema={"type": "array"}, fresh=True), [1, 2])
            self.plays(*[runs("1")] * 3)
            with self.assertRaises(AskError) as limit:
                box.ask("Again and again?", fresh=True, steps=2)
            self.assertEqual((limit.exception.outcome, limit.exception.steps), ("step_limit", 2))
            with self.assertRaises((ModelError, BadRequestError)):
                box.ask("Who?", model="nobody")

    def test_a_person_decides(self) -> None:
        with Sandbox.create() as box:
            self.plays(runs("x = 1"), runs("x = 2"), says("done"))
            asking = in_thread(lambda: box.ask("Do.", approval="ask"))
            waiting = eventually("an approval", lambda: box.approvals() or None)
            self.assertEqual((waiting[0].kind, waiting[0].code), ("cell", "x = 1"))
            with Sandbox.create() as other:
                self.assertEqual(other.approvals(), [])
            waiting[0].accept(code="x = 10")
            eventually("another", lambda: box.approvals() or None)[0].respond("no, enough")
            self.assertEqual(asking(), "done")
            self.assertEqual(box.run_code("x").text, "10")

            def decide(request: Approval) -> None:
                request.reject("no")

            self.plays(runs("x = 3"))
            with self.assertRaises(AskError) as rejected:
                box.ask("Do.", approval="ask", on_approval=decide, fresh=True)
            self.assertEqual((rejected.exception.outcome, box.approvals()), ("rejected", []))

    def test_async_asks(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create() as box:

                async def decide(request: AsyncApproval) -> None:
                    await request.accept()

                self.plays(runs("x = 1"), says("done"))
                self.assertEqual(await box.ask("Do.", approval="ask", on_approval=decide), "done")
                self.plays(runs("x = 2"))
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(box.ask("Do.", approval="ask", fresh=True), 1)
                self.assertEqual(await box.approvals(), [])

        run(work())

    def test_an_ask_goes_on_over_a_restart_of_the_daemon(self) -> None:
        with Sandbox.create() as box:
            self.plays(runs("import time; time.sleep(2); x = 1"), says("done"))
            kinds: list[str] = []
            asking = in_thread(lambda: box.ask("Do.", on_event=lambda event: kinds.append(event["type"])))
            eventually("the cell runs", lambda: "cell_started" in kinds or None)
            self.ground.kill()
            self.assertEqual(asking(), "done")
            self.assertEqual((kinds.count("ask_started"), kinds.count("cell_finished")), (1, 1))


class OnDocker(ToolCases):
    backend = "docker"


class OnBubblewrap(ToolCases):
    backend = "bubblewrap"


del ToolCases
