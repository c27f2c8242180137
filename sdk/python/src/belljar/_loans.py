"""The tools of a sandbox, and what lends them to it."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Coroutine, Generic, TypeVar

from ._api import wrong
from ._forks import leave_at_fork
from ._schema import FunctionTool
from ._tools import SETTLE_SECONDS, Loan
from .errors import BelljarError, DaemonError

L = TypeVar("L", bound=Loan)


class Toolbox:
    """The tools of a sandbox, and those among them that are yet to be lent."""

    def __init__(self) -> None:
        self.tools: dict[str, FunctionTool] = {}
        self.waiting: list[FunctionTool] = []

    def add(
        self, function: Callable[..., Any], name: str | None, description: str | None, read_only: bool
    ) -> None:
        if not callable(function):
            raise wrong(f"a tool is a function, not {type(function).__name__}")
        self._take(FunctionTool(function, name, description, read_only))

    def add_defined(self, definition: dict[str, Any], function: Callable[..., Any]) -> None:
        self._take(FunctionTool.defined(definition, function))

    def _take(self, tool: FunctionTool) -> None:
        if tool.name in self.tools:
            raise wrong(f"there is a tool `{tool.name}` already")
        self.tools[tool.name] = tool
        self.waiting.append(tool)

    def lent(self, tools: list[FunctionTool]) -> None:
        """These wait no more. Another thread may be adding others."""
        for tool in tools:
            if tool in self.waiting:
                self.waiting.remove(tool)

    def give_up(self, tools: list[FunctionTool]) -> None:
        """Forgets tools that the daemon refused, so that the next request is not refused, too."""
        self.lent(tools)
        for tool in tools:
            self.tools.pop(tool.name, None)


class Loans(Generic[L]):
    """The loans of a sandbox, each with the tools that were added since the one before."""

    def __init__(
        self,
        owner: object,
        toolbox: Toolbox,
        make: Callable[[list[FunctionTool]], L],
        sleep: Callable[[float], Coroutine[Any, Any, None]],
    ) -> None:
        # The owner has the loans, and so they do not have the owner: a sandbox that is only forgotten ends them, too.
        self._owner = weakref.ref(owner)
        self._toolbox = toolbox
        self._make = make
        self._sleep = sleep
        # A lock of threads also for coroutines, which may be of several loops; they do not block on it.
        self._lock = threading.Lock()
        self._servers: list[L] = []
        self._ends: list[weakref.finalize[..., object]] = []
        leave_at_fork(self)

    @property
    def has_any(self) -> bool:
        return bool(self._servers or self._toolbox.waiting)

    async def lend(self) -> None:
        """Returns when all tools are there. Where several lend at once, each waits until another has done so."""
        while not self._lock.acquire(blocking=False):
            await self._sleep(SETTLE_SECONDS)
        try:
            for server in list(self._servers):
                if server.serves:
                    await server.settle()
                else:
                    await self._begin(server.tools, server)
            if tools := list(self._toolbox.waiting):
                await self._begin(tools, None)
        finally:
            self._lock.release()

    async def _begin(self, tools: list[FunctionTool], before: L | None) -> None:
        server = self._make(tools)
        if before is not None:
            server.follow(before)
        try:
            await server.start()
        except BelljarError as error:
            # Where only the daemon is missing, the next request lends them.
            if not isinstance(error, DaemonError):
                self._toolbox.give_up(tools)
                self._end_of(before)
            raise
        self._toolbox.lent(tools)
        self._end_of(before)
        self._servers.append(server)
        owner = self._owner()
        assert owner is not None, "it is the owner that lends"
        self._ends.append(weakref.finalize(owner, server.close))

    def _end_of(self, before: L | None) -> None:
        if before is not None:
            self._servers.remove(before)

    def end(self) -> None:
        for end in self._ends:
            end()
        self._ends.clear()

    def leave_to_parent(self) -> None:
        """In a forked process: what the parent serves, only the parent ends, also when this process exits."""
        for end in self._ends:
            end.detach()
        self._ends.clear()
        for server in self._servers:
            server.leave_to_parent()
        self._servers = [server for server in self._servers if not server.serves]
        if self._lock.locked():
            # By a thread that is only in the parent, and lends there what waits.
            self._toolbox.waiting.clear()
            self._lock = threading.Lock()
