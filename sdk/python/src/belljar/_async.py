"""The client over asyncio. It waits on plain sockets, so that its idle connections belong to no event loop: one client
serves several loops, one after the other or in several threads."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from typing import Callable

from . import _daemon
from ._calls import time_to_send
from ._connection import Connection
from ._exchange import Exchanges
from ._threads import in_thread

#: How often a client looks for room in the daemon's queue.
_FULL_SECONDS = 0.02


class AsyncClient(Exchanges):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _start_daemon(self) -> None:
        await in_thread(lambda: _daemon.start(self.place.path))

    async def _reach(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        deadline = time.monotonic() + _daemon.CONNECT_SECONDS
        while True:
            try:
                return stream.connect(self.place.path)
            except BlockingIOError:
                # More clients wait than the daemon's queue takes, and nothing says when there is room.
                if time.monotonic() > deadline:
                    raise TimeoutError() from None
                await asyncio.sleep(_FULL_SECONDS)

    def _write(self, connection: Connection, data: bytes) -> int:
        return connection.socket.send(data)

    async def _write_rest(self, connection: Connection, data: memoryview) -> None:
        # Until Python 3.12, `asyncio.wait_for` loses a cancellation that comes together with the end of what it waits for.
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + time_to_send(data)
        while data:
            try:
                data = data[connection.socket.send(data) :]
            except (BlockingIOError, InterruptedError):
                left = deadline - time.monotonic()
                if not await _is_ready(connection, left, loop.add_writer, loop.remove_writer):
                    raise TimeoutError() from None

    def _read(self, connection: Connection, size: int) -> bytes | None:
        try:
            return connection.socket.recv(size)
        except (BlockingIOError, InterruptedError):
            return None

    async def _is_readable(self, connection: Connection, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        return await _is_ready(connection, seconds, loop.add_reader, loop.remove_reader)

    async def _settle(self, outcomes: list[object]) -> None:
        for outcome in outcomes:
            if inspect.isawaitable(outcome):
                await outcome


async def _is_ready(
    connection: Connection, seconds: float, watch: Callable[..., None], forget: Callable[[socket.socket], bool]
) -> bool:
    """Waits for what the loop watches for; False if that takes longer."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not ready.done():
            ready.set_result(outcome)

    watch(connection.socket, settle, True)
    timer = loop.call_later(seconds, settle, False)
    try:
        return await ready
    finally:
        timer.cancel()
        forget(connection.socket)
