"""Functions of this process as tools of a sandbox: lent over a stream that brings the calls."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import weakref
from typing import Any, Callable

from ._api import wrong
from ._async import AsyncClient
from ._calls import Attempts, Broken, Call, as_json, encoded_json, nothing, post
from ._exchange import Events
from ._schema import FunctionTool, json_of
from ._sync import EventStream, SyncClient
from ._threads import in_thread
from ._wire import ServerSentEvent, quoted
from .errors import BadRequestError, BelljarError, DaemonError, NotFoundError, ToolError

#: Calls that are worked on at once; more wait.
_CALLS_AT_ONCE = 32
#: Characters of an exception's text that code in the sandbox gets to see.
_ERROR_CHARS = 2000


class Toolbox:
    """The tools of a sandbox, and those among them that are yet to be lent."""

    def __init__(self) -> None:
        self.tools: dict[str, FunctionTool] = {}
        self.waiting: list[FunctionTool] = []

    def add(
        self, function: Callable[..., Any], name: str | None, description: str | None, read_only: bool
    ) -> None:
        if not callable(function):
            raise wrong(f"a tool is a function, not {type(function).__name__}")
        self._take(FunctionTool(function, name, description, read_only))

    def add_defined(self, definition: dict[str, Any], function: Callable[..., Any]) -> None:
        self._take(FunctionTool.defined(definition, function))

    def _take(self, tool: FunctionTool) -> None:
        if tool.name in self.tools:
            raise wrong(f"there is a tool `{tool.name}` already")
        self.tools[tool.name] = tool
        self.waiting.append(tool)

    def take_waiting(self) -> list[FunctionTool]:
        waiting, self.waiting = self.waiting, []
        return waiting

    def give_up(self, tools: list[FunctionTool]) -> None:
        """Forgets tools that the daemon refused, so that the next request is not refused, too."""
        for tool in tools:
            self.tools.pop(tool.name, None)


def _lend(session: str, tools: list[FunctionTool]) -> Call[object]:
    # Without a key: each stream is a loan of its own.
    body = encoded_json({"tools": [tool.definition for tool in tools]})
    headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
    return Call("POST", f"{session}/tools", nothing, body, headers)


def _answer(session: str, call: str, answer: dict[str, Any]) -> Call[None]:
    path = f"{session}/tool-calls/{quoted(call)}"
    try:
        return post(path, nothing, answer)
    except BadRequestError as error:
        return post(path, nothing, _failure(error))


def _failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ToolError):
        return {"failure": {"code": error.code, "message": error.message[:_ERROR_CHARS]}}
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return {"failure": {"code": "failed", "message": message[:_ERROR_CHARS]}}


def _still_waits(error: BelljarError) -> bool:
    """Whether the code that called may still wait for an answer, though this one was refused."""
    return not isinstance(error, (NotFoundError, DaemonError))


def _value(tool: FunctionTool, value: Any) -> dict[str, Any]:
    value = json_of(value)
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


class ToolServer:
    """Serves one loan in threads, until it is closed. The stream is opened again after a restart of the daemon."""

    def __init__(self, client: SyncClient, session: str, tools: list[FunctionTool]) -> None:
        self._client = client
        self._session = session
        self._tools = {tool.name: tool for tool in tools}
        self._lend = _lend(session, tools)
        self._closed = threading.Event()
        self._free = threading.BoundedSemaphore(_CALLS_AT_ONCE)
        self._stream: EventStream | None = None

    def start(self) -> None:
        """Returns when the tools are there."""
        attempts = Attempts()
        while True:
            try:
                self._stream = self._open()
                break
            except (Broken, DaemonError) as error:
                self._closed.wait(attempts.pause_after(error))
        threading.Thread(target=self._serve, name="belljar-tools", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.connection.hang_up()

    def _open(self) -> EventStream:
        stream = self._client.events(self._lend)
        try:
            event = stream.next()
        except BaseException:
            stream.close()
            raise
        if event is None or event.name != "ready":
            stream.close()
            raise Broken("the daemon took no tools")
        return stream

    def _serve(self) -> None:
        attempts = Attempts()
        while not self._closed.is_set():
            try:
                if self._stream is None:
                    self._stream = self._open()
                self._read(self._stream, attempts)
                raise Broken("the stream of calls ended")
            except BelljarError as error:
                if not self._pause(attempts, Broken(str(error)) if _may_lend_again(error) else error):
                    return
            except Broken as error:
                if not self._pause(attempts, error):
                    return

    def _pause(self, attempts: Attempts, error: Exception) -> bool:
        try:
            self._closed.wait(attempts.pause_after(error))
        except (BelljarError, Broken):
            return False
        return True

    def _read(self, stream: EventStream, attempts: Attempts) -> None:
        try:
            while not self._closed.is_set() and (event := stream.next()) is not None:
                attempts.reset()
                if (called := _call_of(event, self._tools)) is not None:
                    self._free.acquire()
                    threading.Thread(target=self._work, args=called, name="belljar-tool", daemon=True).start()
        finally:
            self._stream = None
            stream.close()

    def _work(self, call: str, tool: FunctionTool, arguments: dict[str, Any]) -> None:
        try:
            try:
                answer = _value(tool, tool.bound(arguments)())
            except BaseException as error:
                answer = _failure(error)
            try:
                self._client.request(_answer(self._session, call, answer))
            except BelljarError as error:
                if not _still_waits(error):
                    raise
                # The daemon does not take this answer, for example because it is too large, and the code waits for one.
                self._client.request(_answer(self._session, call, _failure(error)))
        except BelljarError:
            # Nobody waits for the answer any more.
            pass
        finally:
            self._free.release()


class AsyncToolServer:
    """Serves one loan in a task of the loop that began it."""

    def __init__(self, client: AsyncClient, session: str, tools: list[FunctionTool]) -> None:
        self._client = client
        self._session = session
        self._tools = {tool.name: tool for tool in tools}
        self._lend = _lend(session, tools)
        self._free = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()

    @property
    def tools(self) -> list[FunctionTool]:
        return list(self._tools.values())

    @property
    def serves(self) -> bool:
        """Whether the loop is there that the task belongs to."""
        return self._task is not None and not self._task.done() and not self._task.get_loop().is_closed()

    async def start(self) -> None:
        """Returns when the tools are there."""
        attempts = Attempts()
        while True:
            try:
                stream = await self._open()
                break
            except (Broken, DaemonError) as error:
                await asyncio.sleep(attempts.pause_after(error))
        self._task = asyncio.get_running_loop().create_task(self._serve(stream))

    def close(self) -> None:
        task = self._task
        if task is None or task.done() or task.get_loop().is_closed():
            return
        for one in (task, *self._work):
            task.get_loop().call_soon_threadsafe(one.cancel)

    async def _open(self) -> Events:
        stream = await self._client.events(self._lend)
        try:
            event = await stream.next()
        except BaseException:
            stream.close()
            raise
        if event is None or event.name != "ready":
            stream.close()
            raise Broken("the daemon took no tools")
        return stream

    async def _serve(self, stream: Events | None) -> None:
        attempts = Attempts()
        while True:
            try:
                if stream is None:
                    stream = await self._open()
                await self._read(stream, attempts)
                raise Broken("the stream of calls ended")
            except (BelljarError, Broken) as error:
                stream = None
                try:
                    pause = attempts.pause_after(Broken(str(error)) if _may_lend_again(error) else error)
                except (BelljarError, Broken):
                    return
            await asyncio.sleep(pause)

    async def _read(self, stream: Events, attempts: Attempts) -> None:
        try:
            while (event := await stream.next()) is not None:
                attempts.reset()
                if (called := _call_of(event, self._tools)) is not None:
                    await self._free.acquire()
                    task = asyncio.create_task(self._answer(*called))
                    self._work.add(task)
                    task.add_done_callback(self._work.discard)
        finally:
            stream.close()

    async def _answer(self, call: str, tool: FunctionTool, arguments: dict[str, Any]) -> None:
        try:
            try:
                work = tool.bound(arguments)
                if inspect.iscoroutinefunction(tool.function):
                    answer = _value(tool, await work())
                else:
                    answer = _value(tool, await in_thread(work))
            except Exception as error:
                answer = _failure(error)
            try:
                await self._client.request(_answer(self._session, call, answer))
            except BelljarError as error:
                if not _still_waits(error):
                    raise
                # The daemon does not take this answer, for example because it is too large, and the code waits for one.
                await self._client.request(_answer(self._session, call, _failure(error)))
        except BelljarError:
            # Nobody waits for the answer any more.
            pass
        finally:
            self._free.release()


def closing(owner: object, server: ToolServer | AsyncToolServer) -> Callable[[], object]:
    """Ends the loan with its sandbox, also if that is only forgotten."""
    return weakref.finalize(owner, server.close)
