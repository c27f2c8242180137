"""Requests and streams over connections to the daemon: all that the sync and the async client have in common, which is
everything but how they wait.

It is written once, as coroutines over the few steps that differ. Those of the blocking client never suspend, so that its
coroutines have come to their end when they are begun.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Coroutine, TypeVar

from . import _daemon
from ._calls import HEALTH_REQUEST, HEALTH_SECONDS, QUIET_SECONDS, RECEIVE_BYTES, Attempts, Broken, Call, receive_bytes
from ._connection import Connection, Place, Pool, silent
from ._wire import EventDecoder, ResponseParser, ServerSentEvent, WireError
from .errors import DaemonError, NotFoundError, problem_of

if TYPE_CHECKING:
    from ._follow import Follower

T = TypeVar("T")
#: What a request needs that is lost with the daemon, as tools are, is made here before the next daemon gets the request.
BeforeAgain = Callable[[], Coroutine[Any, Any, None]]


class Exchanges(ABC):
    def __init__(self, place: Place) -> None:
        self.place = place
        self._pool = Pool()

    def close(self) -> None:
        self._pool.clear()

    # How to wait.

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def _start_daemon(self) -> None: ...

    @abstractmethod
    async def _reach(self, stream: socket.socket) -> None:
        """Connects a new socket; raises an `OSError`, which is a `TimeoutError` if that takes too long."""

    @abstractmethod
    def _write(self, connection: Connection, data: bytes) -> int:
        """Sends what can be sent without waiting, and says how much that is; raises an `OSError`, which is a
        `BlockingIOError` if it is nothing."""

    @abstractmethod
    async def _write_rest(self, connection: Connection, data: memoryview) -> None:
        """Sends all of it; raises an `OSError`, which is a `TimeoutError` if that takes too long."""

    @abstractmethod
    def _read(self, connection: Connection, size: int) -> bytes | None:
        """What is there to read; None if nothing is there yet. A blocking client may wait for it a moment."""

    @abstractmethod
    async def _is_readable(self, connection: Connection, seconds: float) -> bool:
        """After `_read` gave nothing: waits until there is something; False if that takes longer."""

    @abstractmethod
    async def _settle(self, outcomes: list[object]) -> None:
        """Does with what callbacks have returned whatever is to be done with it."""

    # What to wait for.

    async def request(self, call: Call[T], before_again: BeforeAgain | None = None) -> T:
        """Sends a call until it is answered, also by the next daemon if this one ends meanwhile: then `before_again` comes
        first."""
        attempts: Attempts | None = None
        may_be_done = False
        while True:
            try:
                return await self._exchange(call)
            except NotFoundError:
                if not may_be_done or call.method != "DELETE":
                    raise
                # It was there for the request whose answer was lost.
                return call.parse(b"")
            except (Broken, DaemonError) as error:
                if isinstance(error, Broken):
                    if not call.repeats:
                        raise error.outcome_unknown() from error
                    may_be_done = may_be_done or not error.is_unsent
                attempts = attempts or Attempts()
                await self.sleep(attempts.pause_after(error))
            if before_again is not None:
                await before_again()

    async def follow(self, follower: Follower[T], before_again: BeforeAgain | None = None) -> T:
        """Reads events until the follower has what it is after. A stream that breaks off is resumed, after `before_again`."""
        attempts = Attempts()
        events: Events | None = None
        try:
            while True:
                try:
                    events = events or await self.events(follower.call())
                    sent = await events.next()
                    if sent is None:
                        raise Broken("the stream ended")
                    event = follower.read(sent)
                    attempts.reset()
                except (Broken, DaemonError) as error:
                    if events is not None:
                        events.close()
                        events = None
                    await self.sleep(attempts.pause_after(error))
                    if before_again is not None:
                        await before_again()
                    continue
                # What a callback raises comes out as it is, whatever it is: it says nothing about the connection.
                if event is not None:
                    await self._settle(follower.take(event))
                if follower.is_done:
                    return follower.result()
        finally:
            if events is not None:
                events.close()

    async def events(self, call: Call[object]) -> Events:
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
        return Events(self, connection, parser)

    async def _exchange(self, call: Call[T]) -> T:
        # The daemon may be about to close one that is idle, which would look like an answer that was lost.
        idle = self._pool.take() if call.repeats else None
        connection = idle or await self._connect()
        try:
            await self._send(connection, call.encoded())
            # Only now, while the daemon works.
            parser = ResponseParser(call.most)
            while not parser.is_done:
                await self.receive(connection, parser)
        except BaseException:
            # The answer to a cancelled task is still on its way, so no other request may use the connection.
            connection.close()
            raise
        if parser.keeps_alive and not connection.is_cut:
            self._pool.give(connection)
        else:
            connection.close()
        assert parser.head is not None
        return call.outcome(parser.head, parser.take())

    async def _send(self, connection: Connection, data: bytes) -> None:
        try:
            try:
                # Most requests fit into the socket's buffer, so that nobody has to wait.
                sent = self._write(connection, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            if sent < len(data):
                await self._write_rest(connection, memoryview(data)[sent:])
        except TimeoutError as error:
            raise silent() from error
        except (BrokenPipeError, ConnectionResetError):
            # The daemon hung up. If it has refused the request before it read all of it, its answer is there to be read.
            connection.is_cut = True
        except OSError as error:
            raise connection.broken(str(error)) from error

    async def receive(self, connection: Connection, parser: ResponseParser) -> None:
        try:
            while (data := self._read(connection, receive_bytes(parser))) is None:
                if not await self._is_readable(connection, QUIET_SECONDS):
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
        for may_start in (True, False):
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                await self._reach(stream)
            except TimeoutError as error:
                stream.close()
                raise silent() from error
            except OSError as error:
                stream.close()
                if self.place.needs_start(error) and may_start:
                    await self._start_daemon()
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
            await self._send(connection, HEALTH_REQUEST)
            while (data := self._read(connection, RECEIVE_BYTES)) is None:
                if not await self._is_readable(connection, HEALTH_SECONDS):
                    raise silent()
            if not data:
                raise Broken("it was closed without an answer")
        except OSError as error:
            raise Broken(str(error)) from error
        finally:
            connection.close()


class Events:
    """The events of one connection, one by one."""

    def __init__(self, exchanges: Exchanges, connection: Connection, parser: ResponseParser) -> None:
        self.connection = connection
        self._exchanges = exchanges
        self._parser = parser
        self._decoder = EventDecoder()
        self._ready: deque[ServerSentEvent] = deque()

    def read_by(self, exchanges: Exchanges) -> None:
        """Who reads from now on, perhaps in another way than who has begun."""
        self._exchanges = exchanges

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
                await self._exchanges.receive(self.connection, self._parser)

    def close(self) -> None:
        self.connection.close()
