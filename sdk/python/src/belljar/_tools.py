"""Functions of this process as tools of a sandbox: lent over a stream that brings the calls."""

from __future__ import annotations

import inspect
import json
import os
import threading
import traceback
from abc import ABC, abstractmethod
from asyncio import CancelledError
from typing import Any, Callable, Coroutine

from ._async import AsyncClient
from ._calls import Attempts, Broken, Call, as_json, encoded_json, nothing
from ._exchange import Events, Exchanges
from ._loops import Home, Loops, cancelled
from ._schema import FunctionTool
from ._sync import SyncClient, end_of
from ._wire import ServerSentEvent, quoted
from .errors import BadRequestError, BelljarError, DaemonError, NotFoundError, ToolError

#: Calls that are worked on at once; more wait.
_CALLS_AT_ONCE = 32
#: Answered calls of a loan that are known by their ids, and bytes of their last answers, kept for the next daemon.
_CALLS_KNOWN = 10_000
_ANSWERS_BYTES = 64 << 20
#: How often, and how far apart, a request looks whether the tools are there again after a restart of the daemon.
_SETTLE_LOOKS = 1000
SETTLE_SECONDS = 0.02
#: Characters of an exception's text, and of its traceback, that code in the sandbox gets to see.
_ERROR_CHARS = 2000
#: The answer to a call that was answered before, if the answer is not kept any more.
_FORGOTTEN = ToolError("the call was made, and its answer is not kept any more", code="interrupted")
#: This package, whose frames are no concern of who called the tool.
_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def _lend(session: str, tools: list[FunctionTool], again: bool) -> Call[object]:
    # Without a key: each stream is a loan of its own.
    body: dict[str, Any] = {"tools": [tool.definition for tool in tools]}
    if again:
        body["again"] = True
    headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
    return Call("POST", f"{session}/tools", nothing, encoded_json(body), headers)


def _answer(session: str, call: str, answer: dict[str, Any]) -> Call[None]:
    try:
        body = encoded_json(answer)
    except BadRequestError as error:
        body = encoded_json(_failure(error))
    # Without a key: the daemon takes one answer to a call, however often it comes. And what a daemon had taken when it
    # died, the next one has to get.
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    return Call("POST", f"{session}/tool-calls/{quoted(call)}", nothing, body, headers)


def _failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, CancelledError):
        error = cancelled()
    if isinstance(error, ToolError):
        return {"failure": {"code": error.code, "message": error.message[:_ERROR_CHARS]}}
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return {"failure": {"code": "failed", "message": message[:_ERROR_CHARS] + _where(error)}}


def _where(error: BaseException) -> str:
    """The last frames of the tool itself, behind what it raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    lines = "".join(traceback.format_list(frames)).rstrip()
    return f"\nTraceback (most recent call last):\n{lines[-_ERROR_CHARS:]}" if lines else ""


def _still_waits(error: BelljarError) -> bool:
    """Whether the code that called may still wait for an answer, though this one was refused."""
    return not isinstance(error, (NotFoundError, DaemonError))


def _value(tool: FunctionTool, value: Any) -> dict[str, Any]:
    value = tool.json_of_result(value)
    if "output" not in tool.definition and not isinstance(value, str):
        # A tool that does not say what it gives, gives text.
        value = json.dumps(value, ensure_ascii=False, default=str)
    return {"value": value}


def _call_of(event: ServerSentEvent, tools: dict[str, FunctionTool]) -> tuple[str, FunctionTool, dict[str, Any]] | None:
    if event.name != "tool_call":
        return None
    told = as_json(event.data.encode())
    tool = tools.get(told["name"])
    return None if tool is None else (told["call"], tool, told["arguments"])


def _may_lend_again(error: Exception) -> bool:
    """Whether a refusal may pass: the daemon has not noticed yet that the stream before is gone."""
    return isinstance(error, BadRequestError)


class _ReceivedCalls:
    """The calls of a loan by their ids. One that a daemon sends again, because the daemon before it died, is not made
    again: its answer is."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        #: The newest answers are at the end; none for a call whose answer was forgotten.
        self._answers: dict[str, Call[None] | None] = {}
        self._answer_bytes = 0
        self._lock = threading.Lock()

    def begin(self, call: str) -> bool:
        """Whether the call has not been received before."""
        with self._lock:
            is_new = call not in self._open and call not in self._answers
            if is_new:
                self._open.add(call)
            return is_new

    def answer(self, call: str, answer: Call[None]) -> None:
        with self._lock:
            self._open.discard(call)
            self._forget(call)
            self._answers.pop(call, None)
            self._answers[call] = answer
            self._answer_bytes += len(answer.body or b"")
            if len(self._answers) > _CALLS_KNOWN:
                oldest = next(iter(self._answers))
                self._forget(oldest)
                del self._answers[oldest]
            for other in list(self._answers):
                if self._answer_bytes <= _ANSWERS_BYTES:
                    break
                self._forget(other)

    def is_answered(self, call: str) -> bool:
        with self._lock:
            return call in self._answers

    def answer_to(self, call: str) -> Call[None] | None:
        with self._lock:
            return self._answers.get(call)

    def _forget(self, call: str) -> None:
        answer = self._answers.get(call)
        if answer is not None:
            self._answers[call] = None
            self._answer_bytes -= len(answer.body or b"")


class Loan(ABC):
    """One loan of tools, until it is closed. Its stream is opened again after a restart of the daemon.

    It is served by threads, as coroutines that never suspend. Only its beginning may be that of an event loop.
    """

    def __init__(self, exchanges: Exchanges, session: str, tools: list[FunctionTool]) -> None:
        self.tools = tools
        self._exchanges = exchanges
        self._session = session
        self._by_name = {tool.name: tool for tool in tools}
        self._calls = _ReceivedCalls()
        self._stream: Events | None = None
        self._was_lent = False
        self._is_closed = False
        #: Whether the daemon has taken these tools before, or may have, in a loan that has ended.
        self.were_taken = False

    def follow(self, before: Loan) -> None:
        """Goes on for a loan that has ended, or was never quite begun: what it was called for is not done again."""
        self._calls, self._was_lent, self.were_taken = before._calls, before._was_lent, True

    @property
    @abstractmethod
    def serves(self) -> bool:
        """Whether calls are still taken, or will be."""

    @abstractmethod
    async def start(self) -> None:
        """Returns when the tools are there."""

    @abstractmethod
    def close(self) -> None: ...

    def leave_to_parent(self) -> None:
        """In a forked process: lets go of the copy without ending the parent's connection."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    @abstractmethod
    async def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Has it done beside the stream, once there is room."""

    @abstractmethod
    async def _outcome(self, tool: FunctionTool, arguments: dict[str, Any]) -> Any: ...

    async def settle(self, sleep: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        """If a restart of the daemon has ended the loan: waits until it is made again."""
        for _ in range(_SETTLE_LOOKS):
            stream = self._stream
            is_there = stream is not None and not stream.connection.is_hung_up()
            if is_there or not self.serves:
                return
            await sleep(SETTLE_SECONDS)

    async def _make(self, exchanges: Exchanges) -> None:
        attempts = Attempts()
        while True:
            try:
                return await self._open(exchanges)
            except (Broken, BelljarError) as error:
                is_taken = self.were_taken and _may_lend_again(error)
                await exchanges.sleep(attempts.pause_after(Broken(str(error)) if is_taken else error))

    async def _open(self, exchanges: Exchanges) -> None:
        stream = await exchanges.events(_lend(self._session, self.tools, self._was_lent))
        try:
            event = await stream.next()
            if event is None or event.name != "ready":
                raise Broken("the daemon took no tools")
        except BaseException:
            stream.close()
            raise
        stream.read_by(self._exchanges)
        self._stream, self._was_lent = stream, True

    async def _serve(self) -> None:
        attempts = Attempts()
        # The stream is there already, and the loan may have been closed since.
        while not self._is_closed or self._stream is not None:
            try:
                if self._stream is None:
                    await self._open(self._exchanges)
                await self._read(attempts)
                raise Broken("the stream of calls ended")
            except (BelljarError, Broken) as error:
                try:
                    pause = attempts.pause_after(Broken(str(error)) if _may_lend_again(error) else error)
                except (BelljarError, Broken):
                    return
            if not self._is_closed:
                await self._exchanges.sleep(pause)

    async def _read(self, attempts: Attempts) -> None:
        stream = self._stream
        assert stream is not None
        try:
            while not self._is_closed and (event := await stream.next()) is not None:
                attempts.reset()
                if (called := _call_of(event, self._by_name)) is not None:
                    await self._take(*called)
        finally:
            self._stream = None
            stream.close()

    async def _take(self, call: str, tool: FunctionTool, arguments: dict[str, Any]) -> None:
        if self._calls.begin(call):
            await self._begin(self._work(call, tool, arguments))
        elif self._calls.is_answered(call):
            answer = self._calls.answer_to(call) or _answer(self._session, call, _failure(_FORGOTTEN))
            await self._begin(self._send(call, answer))

    async def _work(self, call: str, tool: FunctionTool, arguments: dict[str, Any]) -> None:
        try:
            answer = _value(tool, await self._outcome(tool, arguments))
        except BaseException as error:
            # Whatever it is, the code that called waits for an answer.
            answer = _failure(error)
        await self._send(call, _answer(self._session, call, answer))

    async def _send(self, call: str, answer: Call[None]) -> None:
        self._calls.answer(call, answer)
        try:
            try:
                await self._exchanges.request(answer)
            except BelljarError as error:
                if not _still_waits(error):
                    raise
                # The daemon does not take this answer, for example because it is too large, and the code waits for one.
                failure = _answer(self._session, call, _failure(error))
                self._calls.answer(call, failure)
                await self._exchanges.request(failure)
        except BelljarError:
            # Nobody waits for the answer any more; otherwise the next daemon asks for it.
            pass


class ToolServer(Loan):
    """Serves one loan in threads."""

    def __init__(self, client: SyncClient, session: str, tools: list[FunctionTool]) -> None:
        super().__init__(client.exchanges, session, tools)
        self._free = threading.BoundedSemaphore(_CALLS_AT_ONCE)
        self._has_begun = self._has_ended = False

    @property
    def serves(self) -> bool:
        return self._has_begun and not self._has_ended

    async def start(self) -> None:
        await self._make(self._exchanges)
        self._run_beside()

    def _run_beside(self) -> None:
        threading.Thread(target=self._run, name="belljar-tools", daemon=True).start()
        self._has_begun = True

    def _run(self) -> None:
        # Also here, for Ctrl-C may come while the other thread waits for this one to be there.
        self._has_begun = True
        try:
            end_of(self._serve())
        finally:
            self._has_ended = True

    def close(self) -> None:
        self._is_closed = True
        stream = self._stream
        if stream is not None:
            stream.connection.hang_up()

    async def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        def run() -> None:
            try:
                end_of(work)
            finally:
                self._free.release()

        self._free.acquire()
        threading.Thread(target=run, name="belljar-tool", daemon=True).start()

    async def _outcome(self, tool: FunctionTool, arguments: dict[str, Any]) -> Any:
        return tool.bound(arguments)()


class AsyncToolServer(ToolServer):
    """Serves one loan in threads, too, so that it does not end with the loop that it was made in: cells of another loop may
    be calling. Only coroutines run in a loop."""

    def __init__(
        self, client: AsyncClient, beside: SyncClient, session: str, tools: list[FunctionTool], loops: Loops
    ) -> None:
        super().__init__(beside, session, tools)
        self._client = client
        self._home = Home(loops)

    async def start(self) -> None:
        await self._make(self._client)
        self._run_beside()

    def close(self) -> None:
        super().close()
        self._home.close()

    async def _outcome(self, tool: FunctionTool, arguments: dict[str, Any]) -> Any:
        value = await super()._outcome(tool, arguments)
        return self._home.run(value) if inspect.iscoroutine(value) else value
