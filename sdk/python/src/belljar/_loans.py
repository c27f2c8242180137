"""The tools of a sandbox, and what lends them to it."""

from __future__ import annotations

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
        # Who lends, if anybody does: a lock for coroutines, too, which may be of several loops, and do not block on it. Ctrl-C
        # may come after each call, and so one call takes it, where `finally` is in force, and one gives it back.
        self._lender: dict[str, object] = {}
        # A loan is here before it is begun, so that one whose beginning was interrupted is found and made again.
        self._servers: list[L] = []
        weakref.finalize(owner, _close_all, self._servers)
        leave_at_fork(self)

    @property
    def has_any(self) -> bool:
        return bool(self._servers or self._toolbox.waiting)

    async def lend(self) -> None:
        """Returns when all tools are there. Where several lend at once, each waits until another has done so."""
        me = object()
        try:
            while self._lender.setdefault("is", me) is not me:
                await self._sleep(SETTLE_SECONDS)
            for server in list(self._servers):
                if server.serves:
                    await server.settle(self._sleep)
                else:
                    await self._begin(server.tools, server)
            if tools := self._untaken():
                await self._begin(tools, None)
        finally:
            # There is no call before the one that gives it back.
            if self._lender == {"is": me}:
                self._lender.clear()

    def _untaken(self) -> list[FunctionTool]:
        return [tool for tool in self._toolbox.waiting if not any(tool in server.tools for server in self._servers)]

    async def _begin(self, tools: list[FunctionTool], before: L | None) -> None:
        server = self._make(tools)
        if before is None:
            self._servers.append(server)
        else:
            # If its beginning was interrupted, it may have come so far that the tools are lent.
            before.close()
            server.follow(before)
            self._servers[self._servers.index(before)] = server
        try:
            await server.start()
        except BelljarError as error:
            # Where only the daemon is missing, the next request lends them.
            is_missing = isinstance(error, DaemonError)
            if not is_missing:
                self._toolbox.give_up(tools)
            if before is None or not is_missing:
                self._servers.remove(server)
            raise
        self._toolbox.lent(tools)

    def end(self) -> None:
        _close_all(self._servers)

    def leave_to_parent(self) -> None:
        """In a forked process: what the parent serves, only the parent ends, also when this process exits."""
        is_lending = bool(self._lender)
        self._lender.clear()
        for server in list(self._servers):
            server.leave_to_parent()
            # By a thread that is only in the parent, which lends there what waits, and what does not serve yet.
            if is_lending or server.serves:
                self._servers.remove(server)
                self._toolbox.lent(server.tools)
        if is_lending:
            self._toolbox.waiting.clear()


def _close_all(servers: list[L]) -> None:
    for server in list(servers):
        server.close()
