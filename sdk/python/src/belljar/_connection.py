"""One connection to the daemon over its unix socket, and the connections that wait for the next request."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque

from . import _daemon
from ._calls import FRESH_SECONDS, IDLE_CONNECTIONS, Broken
from .errors import DaemonError


class Connection:
    __slots__ = ("_poll", "idle_since", "is_cut", "is_reused", "socket")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.is_reused = False
        #: The daemon hung up before all of a request was sent.
        self.is_cut = False
        self.idle_since = 0.0
        self._poll: select.poll | None = None

    def close(self) -> None:
        self.socket.close()

    def hang_up(self) -> None:
        """Ends the connection for a thread that reads from it, too."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def is_hung_up(self) -> bool:
        """Whether the daemon has closed a connection on which it sends whatever comes."""
        try:
            watch = select.poll()
            watch.register(self.socket, 0)
            return bool(watch.poll(0))
        except (OSError, ValueError):
            # Another thread has just closed it.
            return True

    def is_alive(self) -> bool:
        """Whether an idle connection can be used: the daemon has neither closed it nor sent bytes without a request. That is
        taken for granted of one that was used just now; should its daemon have died since, the request is sent again."""
        if time.monotonic() - self.idle_since < FRESH_SECONDS:
            return True
        return not self.is_readable(0.0)

    def is_readable(self, seconds: float) -> bool:
        """Whether there is something to read, or the end, after so much time at most, however many signals come meanwhile."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.socket, select.POLLIN)
        return bool(self._poll.poll(seconds * 1000))

    def broken(self, reason: str, *, has_answer: bool = False) -> Broken:
        return Broken(reason, is_stale=self.is_reused and not has_answer, is_unsent=self.is_cut)


class Pool:
    """Idle connections. Threads may share a pool; a forked process does not use the connections of its parent."""

    def __init__(self) -> None:
        self._idle: deque[Connection] = deque()
        self._process = os.getpid()

    def take(self) -> Connection | None:
        if self._process != os.getpid():
            self.clear()
            self._process = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_alive():
                connection.is_reused = True
                return connection
            connection.close()

    def give(self, connection: Connection) -> None:
        if self._process == os.getpid() and len(self._idle) < IDLE_CONNECTIONS:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def __del__(self) -> None:
        self.clear()


class Place:
    """Where the daemon listens, and whether one may be started there."""

    def __init__(self, path: str | None, autostart: bool | None) -> None:
        self.path = _daemon.socket_path() if path is None else _daemon.checked_path(os.path.abspath(path))
        self.may_start = _daemon.may_start() if autostart is None else autostart
        self._was_connected = False

    def needs_start(self, error: OSError) -> bool:
        """Whether a failure to connect means that a daemon is to be started; raises if it means something else."""
        if isinstance(error, FileNotFoundError) and self._was_connected:
            # A daemon that crashes leaves the file of its socket. This one was stopped on purpose.
            raise _daemon.stopped() from error
        if not isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            raise _daemon.unreachable(self.path, error) from error
        if not self.may_start:
            raise _daemon.absent(self.path) from error
        return True

    def connected(self, stream: socket.socket) -> Connection:
        try:
            _daemon.check_trust(self.path, stream)
        except DaemonError:
            stream.close()
            raise
        self._was_connected = True
        return Connection(stream)


def silent() -> DaemonError:
    message = "the daemon does not answer"
    return DaemonError(message, code="daemon_silent", hint="its log, and `belljar daemon status`, may say why")
