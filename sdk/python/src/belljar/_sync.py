"""The client over blocking sockets. Threads may share one."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Coroutine, TypeVar

from . import _daemon
from ._calls import Call, time_to_send
from ._connection import Connection, Place
from ._exchange import BeforeAgain, Events, Exchanges
from ._wire import ServerSentEvent

if TYPE_CHECKING:
    from ._follow import Follower

T = TypeVar("T")

#: How long is waited at first; most answers have come then.
_BRIEF_SECONDS = 0.01


def end_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine none of whose steps suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("a step of the blocking client has suspended")


class _Blocking(Exchanges):
    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _start_daemon(self) -> None:
        _daemon.start(self.place.path)

    async def _reach(self, stream: socket.socket) -> None:
        stream.settimeout(_daemon.CONNECT_SECONDS)
        stream.connect(self.place.path)
        # Neither the system nor Python waits in a call to send or to read. The system's timeouts would begin anew after each
        # signal, and hide silence if signals come fast; with Python's, a call to send would be preceded by one that waits.
        stream.setblocking(False)

    def _write(self, connection: Connection, data: bytes) -> int:
        return connection.socket.send(data)

    async def _write_rest(self, connection: Connection, data: memoryview) -> None:
        # The timeout of a socket is that of all pieces together.
        connection.socket.settimeout(time_to_send(data))
        connection.socket.sendall(data)
        connection.socket.setblocking(False)

    def _read(self, connection: Connection, size: int) -> bytes | None:
        # The answer is hardly ever there yet, so that to read first would cost a call, and an exception, in vain.
        if not connection.is_readable(_BRIEF_SECONDS):
            return None
        try:
            return connection.socket.recv(size)
        except BlockingIOError:
            return None

    async def _is_readable(self, connection: Connection, seconds: float) -> bool:
        return connection.is_readable(seconds)

    async def _settle(self, outcomes: list[object]) -> None:
        pass


class SyncClient:
    def __init__(self, place: Place) -> None:
        self.exchanges = _Blocking(place)

    def close(self) -> None:
        self.exchanges.close()

    def request(self, call: Call[T], before_again: BeforeAgain | None = None) -> T:
        """As `Exchanges.request`."""
        return end_of(self.exchanges.request(call, before_again))

    def follow(self, follower: Follower[T], before_again: BeforeAgain | None = None) -> T:
        """As `Exchanges.follow`."""
        return end_of(self.exchanges.follow(follower, before_again))

    def events(self, call: Call[object]) -> EventStream:
        """The events of one connection, which the caller has to close."""
        return EventStream(end_of(self.exchanges.events(call)))


class EventStream:
    """The events of one connection, one by one."""

    def __init__(self, events: Events) -> None:
        self._events = events

    @property
    def connection(self) -> Connection:
        return self._events.connection

    def next(self) -> ServerSentEvent | None:
        """None at the end of the stream."""
        return end_of(self._events.next())

    def close(self) -> None:
        self._events.close()
