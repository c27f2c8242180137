"""Work of the blocking client for frameworks that run on anyio, on whichever event loop that is."""

from __future__ import annotations

from typing import Callable, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


async def in_worker(work: Callable[[], T], *, on_cancel: Callable[[], object] = lambda: None) -> T:
    """Waits for a function in a thread. A task that is cancelled waits no longer; `on_cancel` lets the function end."""
    # Each with a limiter of its own: programs may take hours, and the daemon bounds how many there are.
    limiter = anyio.CapacityLimiter(1)
    try:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
    except anyio.get_cancelled_exc_class():
        on_cancel()
        raise
