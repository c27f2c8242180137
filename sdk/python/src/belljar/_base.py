"""What sync and async sandboxes have in common: whose they are, and what happens to them in the end."""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, TypeVar, overload

from . import _api
from ._calls import Call
from ._follow import CellFollower, Event
from ._hold import Hold
from ._loans import Loans, Toolbox
from .daemon import Daemon
from .results import Execution, ExecutionError, Result, SandboxInfo

F = TypeVar("F", bound=Callable[..., Any])
OnText = Callable[[str], object]
OnResult = Callable[[Result], object]
OnError = Callable[[ExecutionError], object]


class SandboxBase:
    _loans: Loans[Any]
    #: Whether there is an event loop that runs async functions.
    _has_loop: bool

    def __init__(self, daemon: Daemon, info: SandboxInfo, *, is_owned: bool) -> None:
        self._daemon = daemon
        self._info = info
        # By its id: the name may belong to another sandbox later.
        self._path = _api.session_path(info.id)
        self._process = os.getpid()
        self._is_owned = is_owned
        self._toolbox = Toolbox()
        self._let_go: Callable[[], object] = lambda: None
        if is_owned:
            # Nothing that the hold refers to refers to the sandbox, so that one which is forgotten goes, too.
            self._let_go = weakref.finalize(self, Hold(daemon._place, self._path).close)

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def sandbox_id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def _is_mine(self) -> bool:
        """Whether the sandbox goes at the end of a `with` block: not in a process that was forked within it."""
        return self._is_owned and self._process == os.getpid()

    @overload
    def tool(self, function: F) -> F: ...
    @overload
    def tool(
        self, *, name: str | None = None, description: str | None = None, read_only: bool = False
    ) -> Callable[[F], F]: ...
    def tool(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
    ) -> F | Callable[[F], F]:
        """Makes a function a tool of this sandbox: a function of the same name in it calls this one, here.

        Its parameters need types that JSON has, its result too; without one it gives text. It is lent with the next
        `run_code` or `ask`, and serves until the sandbox is closed. Calls may come at the same time, in threads; a
        coroutine function is for async sandboxes, and runs in the loop that made that request, or, once that has ended, in
        another one that uses the sandbox.
        Names of Python's own are refused; a variable of the same name hides the tool, and `tools.NAME` is still it.
        With `read_only` its calls change nothing anywhere, and are quicker: none waits for the daemon's disk.
        """

        def add(function: F) -> F:
            if not self._has_loop:
                _api.check_not_async(function, "the tool")
            self._toolbox.add(function, name, description, read_only)
            return function

        return add if function is None else add(function)

    def close(self) -> None:
        """Lets go of the sandbox. Unless it is to be kept, or was connected to, the daemon removes it soon."""
        self._loans.end()
        self._let_go()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def cell_follower(
    session: str,
    start: Call[object],
    may_be_async: bool,
    on_stdout: OnText | None,
    on_stderr: OnText | None,
    on_result: OnResult | None = None,
) -> CellFollower:
    _api.check_callbacks(may_be_async, on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result)
    texts = {"stdout": on_stdout, "stderr": on_stderr}

    def saw(event: Event) -> object:
        kind = event.get("type")
        if kind == "output":
            on_text = texts.get(str(event.get("stream")))
            return None if on_text is None else on_text(str(event.get("text")))
        if kind == "display" and on_result is not None:
            return on_result(Result(event.get("mime") or {}, is_main_result=False))
        return None

    return CellFollower(session, start, saw)


def last_told(execution: Execution, on_result: OnResult | None, on_error: OnError | None) -> list[object]:
    """Tells the callbacks what is known only at the end, and gives what they return."""
    outcomes = []
    if on_result is not None and execution.results and execution.results[-1].is_main_result:
        outcomes.append(on_result(execution.results[-1]))
    if on_error is not None and execution.error is not None:
        outcomes.append(on_error(execution.error))
    return outcomes
