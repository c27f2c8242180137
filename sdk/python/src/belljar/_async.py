"""The client over asyncio. It waits on plain sockets, so that its idle connections belong to no event loop: one client
serves several loops, one after the other or in several threads."""

from __future__ import annotations

import asyncio
import inspect
import socket

from . import _daemon
from ._calls import time_to_send
from ._connection import Connection
from ._exchange import Exchanges
from ._threads import in_thread


class AsyncClient(Exchanges):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _start_daemon(self) -> None:
        await in_thread(lambda: _daemon.start(self.place.path))

    async def _reach(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        reaching = asyncio.get_running_loop().sock_connect(stream, self.place.path)
        try:
            await asyncio.wait_for(reaching, _daemon.CONNECT_SECONDS)
        except asyncio.TimeoutError as error:
            raise TimeoutError() from error

    def _write(self, connection: Connection, data: bytes) -> int:
        return connection.socket.send(data)

    async def _write_rest(self, connection: Connection, data: memoryview) -> None:
        sending = asyncio.get_running_loop().sock_sendall(connection.socket, data)
        try:
            await asyncio.wait_for(sending, time_to_send(data))
        except asyncio.TimeoutError as error:
            raise TimeoutError() from error

    def _read(self, connection: Connection, size: int) -> bytes | None:
        try:
            return connection.socket.recv(size)
        except (BlockingIOError, InterruptedError):
            return None

    async def _is_readable(self, connection: Connection, seconds: float) -> bool:
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

    async def _settle(self, outcomes: list[object]) -> None:
        for outcome in outcomes:
            if inspect.isawaitable(outcome):
                await outcome
