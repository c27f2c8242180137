"""Callbacks, told by a server of the test's own: what they raise, and which of them are refused."""

from __future__ import annotations

import asyncio
import json
import unittest
from functools import partial
from typing import Any, Callable

from belljar import AsyncSandbox, BelljarError, Daemon, DaemonError, Sandbox
from belljar._calls import Broken

from .fake_daemon import CELL, SESSION, FakeDaemon, encoded

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _told(*events: dict[str, Any]) -> bytes:
    """A stream of events, which then ends."""
    numbered = [{"seq": number, **event} for number, event in enumerate(events, 1)]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered).encode()
    return _HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


_CELL_EVENTS = _told(
    {"type": "output", "cell": 1, "stream": "stdout", "text": "a"},
    {"type": "output", "cell": 1, "stream": "stderr", "text": "b"},
    {"type": "display", "cell": 1, "mime": {"text/plain": "c"}},
    {"type": "cell_finished", "result": CELL},
)
_ASK_EVENTS = _told({"type": "ask_started", "ask": 1}, {"type": "ask_finished", "ask": 1, "end": {}})


def _answer(request: bytes) -> bytes:
    line = request.partition(b"\r\n")[0]
    if line.startswith(b"GET /v1/sessions/fake ") or line.startswith(b"GET /v1/sessions/s1 "):
        return encoded(SESSION)
    if b"/asks HTTP" in line:
        return encoded({"ask": 1})
    return _ASK_EVENTS if b"/asks/" in line else _CELL_EVENTS


class Callbacks(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeDaemon(_answer)
        self.addCleanup(self.fake.close)
        daemon = Daemon(self.fake.path, autostart=False)
        self.box = Sandbox.connect("fake", daemon=daemon)
        self.asynchronous = asyncio.run(AsyncSandbox.connect("fake", daemon=daemon))

    def test_what_a_callback_raises_comes_out_once_and_as_it_is(self) -> None:
        told: list[object] = []
        errors: list[Exception] = [
            DaemonError("of the callback", code="shutting_down"),
            DaemonError("of the callback", code="daemon_unavailable"),
            Broken("of the callback"),
            BelljarError("of the callback"),
            ValueError("of the callback"),
        ]
        for error in errors:

            def fails(about: object) -> None:
                told.append(about)
                if len(told) > 1:
                    # Otherwise it might be told for ever.
                    raise AssertionError("told again")
                raise error

            async def fails_later(about: object) -> None:
                await asyncio.sleep(0)
                fails(about)

            box: Any = self.box
            calls: list[Callable[[], object]] = []
            for name in ("on_stdout", "on_stderr", "on_result"):
                calls.append(partial(box.run_code, "1", **{name: fails}))
                for callback in (fails, fails_later):
                    calls.append(partial(self._in_loop, "1", **{name: callback}))
            calls.append(partial(box.commands.run, "x", on_stdout=fails))
            calls.append(partial(box.ask, "x", on_event=fails))
            for number, call in enumerate(calls):
                with self.subTest(number, error=error):
                    told.clear()
                    with self.assertRaises(type(error)) as raised:
                        call()
                    self.assertIs(raised.exception, error)
                    self.assertEqual(len(told), 1)

    def _in_loop(self, code: str, **callbacks: Any) -> object:
        return asyncio.run(self.asynchronous.run_code(code, **callbacks))

    def test_async_functions_are_refused_at_once_where_there_is_no_loop_to_run_them(self) -> None:
        async def later(words: str = "") -> str:
            return words

        async def pieces(words: str = "") -> Any:
            yield words

        class Later:
            async def __call__(self, words: str = "") -> str:
                return words

        box: Any = self.box
        before = len(self.fake.requests)
        for function in (later, pieces, Later(), partial(later, "a")):
            calls: list[Callable[[], object]] = [
                *(partial(box.run_code, "1", **{name: function}) for name in ("on_stdout", "on_stderr", "on_result", "on_error")),
                *(partial(box.ask, "1", **{name: function}) for name in ("on_event", "on_approval")),
                partial(box.commands.run, "x", on_stdout=function),
                partial(box.tool, function),
                partial(box.tool(name="named"), function),
            ]
            for number, call in enumerate(calls):
                with self.subTest(number, function=function), self.assertRaisesRegex(TypeError, "AsyncSandbox"):
                    call()
        self.assertEqual((len(self.fake.requests), box._toolbox.tools), (before, {}))
        self.asynchronous.tool(later)
