"""The client over blocking sockets. Threads may share one."""

from __future__ import annotations

import time
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
from ._wire import EventDecoder, ResponseParser, ServerSentEvent, WireError
from .errors import DaemonError, problem_of

if TYPE_CHECKING:
    from ._follow import Follower

T = TypeVar("T")


class SyncClient:
    def __init__(self, place: Place) -> None:
        self.place = place
        self._pool = Pool()

    def close(self) -> None:
        self._pool.clear()

    def request(self, call: Call[T]) -> T:
        """Sends a call until it is answered, also by the next daemon if this one ends meanwhile."""
        attempts = Attempts()
        while True:
            try:
                return self._exchange(call)
            except (Broken, DaemonError) as error:
                time.sleep(attempts.pause_after(error))

    def follow(self, follower: Follower[T]) -> T:
        """Reads events until the follower has what it is after. A stream that breaks off is resumed."""
        attempts = Attempts()
        while True:
            try:
                events = self.events(follower.call())
                try:
                    while (event := events.next()) is not None:
                        attempts.reset()
                        follower.take(event)
                        if follower.is_done:
                            return follower.result()
                finally:
                    events.close()
                raise Broken("the stream ended")
            except (Broken, DaemonError) as error:
                time.sleep(attempts.pause_after(error))

    def events(self, call: Call[object]) -> EventStream:
        """The events of one connection, which the caller has to close."""
        connection = self._connect()
        try:
            parser = ResponseParser(call.most)
            self._send(connection, call.encoded())
            while parser.head is None:
                self.receive(connection, parser)
            if not parser.head.is_success:
                while not parser.is_done:
                    self.receive(connection, parser)
                raise problem_of(parser.head.status, parser.take())
        except BaseException:
            connection.close()
            raise
        return EventStream(self, connection, parser)

    def _exchange(self, call: Call[T]) -> T:
        connection = self._pool.take() or self._connect()
        try:
            parser = ResponseParser(call.most)
            self._send(connection, call.encoded())
            while not parser.is_done:
                self.receive(connection, parser)
        except BaseException:
            connection.close()
            raise
        if parser.keeps_alive:
            self._pool.give(connection)
        else:
            connection.close()
        assert parser.head is not None
        return call.outcome(parser.head, parser.take())

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            if len(data) > RECEIVE_BYTES:
                # The timeout of a socket is that of all pieces together.
                connection.socket.settimeout(time_to_send(data))
            connection.socket.sendall(data)
            if len(data) > RECEIVE_BYTES:
                connection.socket.settimeout(QUIET_SECONDS)
        except TimeoutError as error:
            raise silent() from error
        except OSError as error:
            raise connection.broken(str(error)) from error

    def receive(self, connection: Connection, parser: ResponseParser) -> None:
        while True:
            try:
                data = connection.socket.recv(RECEIVE_BYTES)
                break
            except TimeoutError:
                self._check_health()
            except OSError as error:
                raise connection.broken(str(error), has_answer=parser.has_begun) from error
        if not data:
            raise connection.broken("it was closed before the answer ended", has_answer=parser.has_begun)
        try:
            parser.feed(data)
        except WireError as error:
            raise DaemonError(str(error), code="bad_answer") from error

    def _connect(self) -> Connection:
        for may_start in (True, False):
            stream = open_socket()
            stream.settimeout(_daemon.CONNECT_SECONDS)
            try:
                stream.connect(self.place.path)
            except TimeoutError as error:
                stream.close()
                raise silent() from error
            except OSError as error:
                stream.close()
                if self.place.needs_start(error) and may_start:
                    _daemon.start(self.place.path)
                    continue
                raise _daemon.unreachable(self.place.path, error) from error
            stream.settimeout(QUIET_SECONDS)
            return self.place.connected(stream)
        raise AssertionError("the second try returns or raises")

    def _check_health(self) -> None:
        """Raises if the daemon does not answer a request that takes no time."""
        connection = self._connect()
        connection.socket.settimeout(HEALTH_SECONDS)
        try:
            connection.socket.sendall(HEALTH_REQUEST)
            if not connection.socket.recv(RECEIVE_BYTES):
                raise Broken("it was closed without an answer")
        except TimeoutError as error:
            raise silent() from error
        except OSError as error:
            raise Broken(str(error)) from error
        finally:
            connection.close()


class EventStream:
    """The events of one connection, one by one."""

    def __init__(self, client: SyncClient, connection: Connection, parser: ResponseParser) -> None:
        self._client = client
        self._parser = parser
        self._decoder = EventDecoder()
        self._ready: deque[ServerSentEvent] = deque()
        self.connection = connection

    def next(self) -> ServerSentEvent | None:
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
                self._client.receive(self.connection, self._parser)

    def close(self) -> None:
        self.connection.close()
