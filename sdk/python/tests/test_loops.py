"""In which event loop the async tools of a sandbox run, and what is answered to their calls, without a daemon."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import unittest
from typing import Any, Callable, Coroutine

from belljar import AsyncSandbox, Daemon, ToolError
from belljar._loops import Home, Loops

from .fake_daemon import CELL, SESSION, FakeDaemon, encoded
from .harness import SOON, eventually, in_thread

variable = contextvars.ContextVar("variable", default="none")


class Loop:
    """A loop in a thread of its own, until it is ended as `asyncio.run` does that."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._has_begun, self._end = threading.Event(), asyncio.Event()
        self.begun: Any = None
        self.loop: asyncio.AbstractEventLoop

        async def main() -> None:
            variable.set(threading.current_thread().name)
            self.loop = asyncio.get_running_loop()
            self.begun = begin()
            self._has_begun.set()
            await self._end.wait()

        self._ended = in_thread(lambda: asyncio.run(main()))
        self._has_begun.wait(SOON)

    def end(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end.set)
        self._ended()


class LoopsOfASandbox(unittest.TestCase):
    def setUp(self) -> None:
        self.loops = Loops()
        self.first = self.loop(lambda: Home(self.loops))
        self.home: Home = self.first.begun

    def loop(self, begin: Callable[[], Any]) -> Loop:
        loop = Loop(begin)
        self.addCleanup(loop.end)
        return loop

    async def here(self) -> tuple[asyncio.AbstractEventLoop, str]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), variable.get()

    def test_a_tool_runs_in_the_loop_that_lent_it_and_then_in_another_that_uses_the_sandbox(self) -> None:
        second = self.loop(self.loops.use)
        there, name = self.home.run(self.here())
        self.assertIs(there, self.first.loop)
        self.first.end()
        there, other = self.home.run(self.here())
        self.assertIs(there, second.loop)
        # In the context of the request, too.
        self.assertEqual(len({name, other, "none"}), 3)
        second.end()
        with self.assertRaises(ToolError) as nowhere:
            self.home.run(self.here())
        self.assertEqual(nowhere.exception.code, "interrupted")

    def test_what_had_begun_when_its_loop_ended_is_not_begun_again(self) -> None:
        self.loop(self.loops.use)
        begun: list[int] = []

        async def waits() -> None:
            begun.append(1)
            await asyncio.sleep(SOON)

        running = in_thread(lambda: self.home.run(waits()))
        eventually("it has begun", lambda: begun or None)
        self.first.end()
        with self.assertRaises(ToolError) as interrupted:
            running()
        self.assertEqual((interrupted.exception.code, begun), ("interrupted", [1]))

    def test_what_had_not_begun_when_its_loop_ended_runs_in_another(self) -> None:
        self.first.end()
        stopped = asyncio.new_event_loop()

        async def make() -> Home:
            return Home(self.loops)

        home = stopped.run_until_complete(make())
        running = in_thread(lambda: home.run(self.here()))
        eventually("it waits for its loop", lambda: home._running or None)
        second = self.loop(self.loops.use)
        stopped.close()
        self.assertIs(running()[0], second.loop)

    def test_what_still_runs_is_cancelled_with_its_loan(self) -> None:
        ended: list[str] = []

        async def waits() -> None:
            try:
                ended.append("no")
                await asyncio.sleep(SOON)
            finally:
                ended[0] = "yes"

        running = in_thread(lambda: self.home.run(waits()))
        eventually("it has begun", lambda: ended or None)
        self.home.close()
        with self.assertRaises(ToolError):
            running()
        eventually("it has ended", lambda: ended == ["yes"] or None)
        with self.assertRaises(ToolError):
            self.home.run(self.here())


class AnswersOfAsyncTools(unittest.TestCase):
    def answer_of(self, function: Callable[[], Coroutine[Any, Any, str]]) -> Any:
        """What the daemon gets from a tool that it calls as soon as it is lent."""
        answers: list[Any] = []
        events = b'event: ready\ndata: {}\n\nevent: tool_call\ndata: {"call": "c", "name": "t", "arguments": {}}\n\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

        def answer(request: bytes) -> bytes:
            line, _, rest = request.partition(b"\r\n")
            if b"/tool-calls/" in line:
                answers.append(json.loads(rest.partition(b"\r\n\r\n")[2]))
            elif b"/tools HTTP" in line:
                return head + b"%x\r\n%b\r\n" % (len(events), events)
            return encoded(SESSION if line.startswith(b"GET") else CELL)

        fake = FakeDaemon(answer)
        self.addCleanup(fake.close)

        async def work() -> None:
            box = await AsyncSandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))
            box.tool(name="t")(function)
            await box.run_code("1")
            await asyncio.to_thread(lambda: eventually("an answer", lambda: answers or None, 10))
            # The loop works on.
            self.assertEqual((await box.run_code("1")).text, "2")
            box.close()

        asyncio.run(work())
        return answers[0]

    def test_one_that_waits_for_what_was_cancelled_is_answered(self) -> None:
        async def waits() -> str:
            task = asyncio.create_task(asyncio.sleep(SOON))
            task.cancel()
            await task
            return ""

        self.assertEqual(self.answer_of(waits)["failure"]["code"], "interrupted")

    def test_one_that_would_end_the_program_is_a_failure_as_any_other(self) -> None:
        for error, said in ((SystemExit(7), "SystemExit: 7"), (KeyboardInterrupt(), "KeyboardInterrupt")):

            async def ends() -> str:
                raise error

            failure = self.answer_of(ends)["failure"]
            self.assertEqual((failure["code"], failure["message"].partition("\n")[0]), ("failed", said))
