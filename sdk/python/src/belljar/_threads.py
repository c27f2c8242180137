"""Work in a daemon thread, so that the interpreter can exit while the work still runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Callable, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """The loop's own executor would be waited for when the loop ends, however long that takes."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The event loop was closed, so no coroutine waits for this result any more.
            pass

    threading.Thread(target=run, name="belljar-work", daemon=True).start()
    return await outcome
