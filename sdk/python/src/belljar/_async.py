"""The client over asyncio. It waits on plain sockets, so that its idle connections belong to no event loop: one client
serves several loops, one after the other or in several threads."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from . import _daemon
from ._calls import (
    HEALTH_REQUEST,
    HEALTH_SECONDS,
    QUIET_SECONDS,
    RECEIVE_BYTES,
    Attempts,
    Broken,
    Call,
    time_to_send,
)
from ._connection import Connection, Place, Pool, open_socket, silent
from ._threads import in_thread
from ._wire import EventDecoder, ResponseParser, ServerSentEvent, WireError
from .errors import DaemonError, problem_of

if TYPE_CHECKING:
    from ._follow import Follower

T = TypeVar("T")


class AsyncClient:
    def __init__(self, place: Place) -> None:
        self.place = place
        self._pool = Pool()

    def close(self) -> None:
        self._pool.clear()

    async def request(self, call: Call[T]) -> T:
        """Sends a call until it is answered, also by the next daemon if this one ends meanwhile."""
        attempts = Attempts()
        while True:
            try:
                return await self._exchange(call)
            except (Broken, DaemonError) as error:
                await asyncio.sleep(attempts.pause_after(error))

    async def follow(self, follower: Follower[T]) -> T:
        """Reads events until the follower has what it is after. A stream that breaks off is resumed."""
        attempts = Attempts()
        while True:
            try:
                events = await self.events(follower.call())
                try:
                    while (event := await events.next()) is not None:
                        attempts.reset()
                        follower.take(event)
                        for outcome in follower.outcomes():
                            if inspect.isawaitable(outcome):
                                await outcome
                        if follower.is_done:
                            return follower.result()
                finally:
                    events.close()
                raise Broken("the stream ended")
            except (Broken, DaemonError) as error:
                await asyncio.sleep(attempts.pause_after(error))

    async def events(self, call: Call[object]) -> EventStream:
        """The events of one connection, which the caller has to close."""
        connection = await self._connect()
        try:
            parser = ResponseParser(call.most)
            await self._send(connection, call.encoded())
            while parser.head is None:
                await self.receive(connection, parser)
            if not parser.head.is_success:
                while not parser.is_done:
                    await self.receive(connection, parser)
                raise problem_of(parser.head.status, parser.take())
        except BaseException:
            connection.close()
            raise
        return EventStream(self, connection, parser)

    async def _exchange(self, call: Call[T]) -> T:
        connection = self._pool.take() or await self._connect()
        try:
            parser = ResponseParser(call.most)
            await self._send(connection, call.encoded())
            while not parser.is_done:
                await self.receive(connection, parser)
        except BaseException:
            # The answer to a cancelled task is still on its way, so no other request may use the connection.
            connection.close()
            raise
        if parser.keeps_alive:
            self._pool.give(connection)
        else:
            connection.close()
        assert parser.head is not None
        return call.outcome(parser.head, parser.take())

    async def _send(self, connection: Connection, data: bytes) -> None:
        try:
            # Most requests fit into the socket's buffer, for which no loop has to be asked.
            sent = connection.socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            raise connection.broken(str(error)) from error
        if sent == len(data):
            return
        sending = asyncio.get_running_loop().sock_sendall(connection.socket, memoryview(data)[sent:])
        try:
            await asyncio.wait_for(sending, time_to_send(data))
        except asyncio.TimeoutError as error:
            raise silent() from error
        except OSError as error:
            raise connection.broken(str(error)) from error

    async def receive(self, connection: Connection, parser: ResponseParser) -> None:
        while True:
            try:
                data = connection.socket.recv(RECEIVE_BYTES)
                break
            except (BlockingIOError, InterruptedError):
                if not await _is_readable(connection, QUIET_SECONDS):
                    await self._check_health()
            except OSError as error:
                raise connection.broken(str(error), has_answer=parser.has_begun) from error
        if not data:
            raise connection.broken("it was closed before the answer ended", has_answer=parser.has_begun)
        try:
            parser.feed(data)
        except WireError as error:
            raise DaemonError(str(error), code="bad_answer") from error

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        for may_start in (True, False):
            stream = open_socket()
            stream.setblocking(False)
            try:
                await asyncio.wait_for(loop.sock_connect(stream, self.place.path), _daemon.CONNECT_SECONDS)
            except asyncio.TimeoutError as error:
                stream.close()
                raise silent() from error
            except OSError as error:
                stream.close()
                if self.place.needs_start(error) and may_start:
                    await in_thread(lambda: _daemon.start(self.place.path))
                    continue
                raise _daemon.unreachable(self.place.path, error) from error
            except BaseException:
                stream.close()
                raise
            return self.place.connected(stream)
        raise AssertionError("the second try returns or raises")

    async def _check_health(self) -> None:
        """Raises if the daemon does not answer a request that takes no time."""
        connection = await self._connect()
        try:
            connection.socket.send(HEALTH_REQUEST)
            if not await _is_readable(connection, HEALTH_SECONDS):
                raise silent()
            if not connection.socket.recv(RECEIVE_BYTES):
                raise Broken("it was closed without an answer")
        except OSError as error:
            raise Broken(str(error)) from error
        finally:
            connection.close()


async def _is_readable(connection: Connection, seconds: float) -> bool:
    """Waits until there is something to read; False if that takes longer."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not readable.done():
            readable.set_result(outcome)

    loop.add_reader(connection.socket, settle, True)
    timer = loop.call_later(seconds, settle, False)
    try:
        return await readable
    finally:
        timer.cancel()
        loop.remove_reader(connection.socket)


class EventStream:
    """The events of one connection, one by one."""

    def __init__(self, client: AsyncClient, connection: Connection, parser: ResponseParser) -> None:
        self._client = client
        self._connection = connection
        self._parser = parser
        self._decoder = EventDecoder()
        self._ready: deque[ServerSentEvent] = deque()

    async def next(self) -> ServerSentEvent | None:
        """None at the end of the stream."""
        while True:
            if self._ready:
                return self._ready.popleft()
            try:
                self._ready.extend(self._decoder.feed(self._parser.take()))
            except WireError as error:
                raise DaemonError(str(error), code="bad_answer") from error
            if not self._ready:
                if self._parser.is_done:
                    return None
                await self._client.receive(self._connection, self._parser)

    def close(self) -> None:
        self._connection.close()
