"""The event loops that use an async sandbox, in one of which its async tools run."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
from concurrent import futures
from typing import Any, Coroutine

from .errors import ToolError

#: What a coroutine gives, or what it raised to end the program.
_Outcome = tuple[Any, "KeyboardInterrupt | SystemExit | None"]
#: How often a thread that waits for a coroutine looks whether its loop is still there, which ends without a word.
_LOOK_SECONDS = 0.5


class Loops:
    """Those whose requests the sandbox has got. Threads share it."""

    def __init__(self) -> None:
        self._used: dict[asyncio.AbstractEventLoop, contextvars.Context] = {}
        self._process = os.getpid()

    def use(self) -> None:
        """Is told of each request, in its loop."""
        if self._process != os.getpid():
            # Loops of the parent seem to run here, too.
            self._used, self._process = {}, os.getpid()
        loop = asyncio.get_running_loop()
        if loop in self._used:
            return
        for other in list(self._used):
            if other.is_closed():
                self._used.pop(other, None)
        self._used[loop] = contextvars.copy_context()

    def others(self) -> list[tuple[asyncio.AbstractEventLoop, contextvars.Context]]:
        return list(self._used.items())


class Home:
    """Where the coroutines of a loan run: in the loop that it was made in, and if that has ended, in another that uses the
    sandbox."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._own = (asyncio.get_running_loop(), contextvars.copy_context())
        self._running: dict[futures.Future[_Outcome], asyncio.AbstractEventLoop] = {}
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs it, and waits for that in a thread."""
        while not self._is_closed and (place := self._place()) is not None:
            if (outcome := self._run_in(*place, work)) is not None:
                value, ended = outcome.result()
                if ended is not None:
                    raise ended
                return value
        work.close()
        raise ToolError("no event loop is there that could run the tool", code="interrupted")

    def close(self) -> None:
        """Cancels what still runs."""
        self._is_closed = True
        for outcome, loop in list(self._running.items()):
            if not loop.is_closed():
                outcome.cancel()

    def _place(self) -> tuple[asyncio.AbstractEventLoop, contextvars.Context] | None:
        there = [place for place in (self._own, *self._loops.others()) if not place[0].is_closed()]
        return next((place for place in there if place[0].is_running()), there[0] if there else None)

    def _run_in(
        self, loop: asyncio.AbstractEventLoop, context: contextvars.Context, work: Coroutine[Any, Any, Any]
    ) -> futures.Future[_Outcome] | None:
        """What became of it; None if the loop ended before it began."""

        async def run() -> _Outcome:
            try:
                return await work, None
            except (KeyboardInterrupt, SystemExit) as ended:
                # A loop passes these on to the program, which code in a sandbox is not to end. From Python 3.11 on, a person's
                # Ctrl-C is none of them: `asyncio.run` makes it the end of its main task.
                return None, ended

        running = run()
        try:
            outcome = context.copy().run(asyncio.run_coroutine_threadsafe, running, loop)
        except RuntimeError:
            # The loop was closed just now.
            running.close()
            return None
        self._running[outcome] = loop
        has_ended = False
        while not futures.wait([outcome], _LOOK_SECONDS).done and not has_ended:
            # What the loop did before it ended is seen by one more look.
            has_ended = loop.is_closed()
        del self._running[outcome]
        if outcome.done() and not outcome.cancelled():
            return outcome
        if self._is_closed or inspect.getcoroutinestate(work) != inspect.CORO_CREATED:
            raise cancelled()
        running.close()
        return None


def cancelled() -> ToolError:
    return ToolError("the work on the call was cancelled; it is not known whether it took effect", code="interrupted")
