"""Sandboxes, for programs that wait."""

from __future__ import annotations

import builtins
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Sequence, TypeVar, overload

from . import _api, _session_files as archive, asks
from ._api import SandboxOptions
from ._base import OnError, OnResult, OnText, SandboxBase, cell_follower, last_told
from ._follow import AskFollower, Event
from ._loans import Loans
from ._making import made
from ._sync import end_of
from ._tools import ToolServer
from .asks import Approval, AskOptions
from .commands import Commands
from .daemon import Daemon, chosen
from .errors import NotFoundError
from .files import Files
from .results import (
    Asleep,
    Differences,
    Execution,
    Installed,
    SandboxInfo,
    Snapshot,
    Undone,
    Variable,
    execution_of,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Sandbox(SandboxBase):
    """A Python session in a sandbox: variables live on from one `run_code` to the next.

    A sandbox that was made without `keep` goes with its `with` block, or else with this process. Threads may share one;
    cells that they run at the same time wait for each other.
    """

    _has_loop = False

    def __init__(self, daemon: Daemon, info: SandboxInfo, *, is_owned: bool) -> None:
        super().__init__(daemon, info, is_owned=is_owned)
        self._client = client = daemon._sync
        path = self._path
        self._loans = Loans(self, self._toolbox, lambda tools: ToolServer(client, path, tools), client.exchanges.sleep)
        self.files = Files(self._client, self._path)
        self.commands = Commands(self._client, self._path)

    @classmethod
    def create(
        cls,
        *,
        keep: bool = False,
        packages: Sequence[str] = (),
        daemon: Daemon | None = None,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """Makes a sandbox; `SandboxOptions` has what can be said of it.

        With `keep` it stays until somebody removes it, and `Sandbox.connect(name)` finds it again. `packages` are
        installed first.
        """
        used = chosen(daemon)
        wanted = _api.texts_of(packages, "packages")
        call = _api.new_session(ephemeral=not keep, **options)
        (info,) = made(used, call, keep)
        box = cls(used, info, is_owned=not keep)
        if wanted:
            try:
                box.install(*wanted)
            except BaseException:
                box.kill()
                raise
        return box

    @classmethod
    def connect(cls, name: str, *, daemon: Daemon | None = None) -> Sandbox:
        """A sandbox that is there, by its name or id. It stays at the end of a `with` block."""
        used = chosen(daemon)
        return cls(used, used._sync.request(_api.show(_api.session_path(name))), is_owned=False)

    @classmethod
    def list(cls, *, labels: Mapping[str, str] | None = None, daemon: Daemon | None = None) -> builtins.list[SandboxInfo]:
        return chosen(daemon)._sync.request(_api.sessions(labels))

    def run_code(
        self,
        code: str,
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        timeout: float | None = None,
        mode: Literal["main", "fork", "scratch", "background"] = "main",
    ) -> Execution:
        """Runs a cell. Exceptions, timeouts and crashes of the code are in the result.

        Callbacks are called while it runs, with all of its output. `timeout` is in seconds. With `mode="fork"` its
        changes to variables are dropped, with `"scratch"` its names; with `"background"` other cells run beside it. A
        Ctrl-C leaves the cell running: `interrupt` ends it.
        """
        if on_error is not None:
            _api.check_callbacks(False, on_error=on_error)
        self._lend_tools()
        if on_stdout is None and on_stderr is None and on_result is None:
            execution = self._client.request(_api.run_cell(self._path, code, timeout, mode), self._loans.lend)
        else:
            start = _api.stream_cell(self._path, code, timeout, mode)
            follower = cell_follower(self._path, start, False, on_stdout, on_stderr, on_result)
            execution = execution_of(self._client.follow(follower, self._loans.lend))
        last_told(execution, on_result, on_error)
        return execution

    def _lend_tools(self) -> None:
        if self._loans.has_any:
            end_of(self._loans.lend())

    @overload
    def ask(
        self,
        text: str,
        *,
        schema: None = None,
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[Approval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> str: ...
    @overload
    def ask(
        self,
        text: str,
        *,
        schema: type[T],
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[Approval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> T: ...
    @overload
    def ask(
        self,
        text: str,
        *,
        schema: Mapping[str, Any],
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[Approval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> Any: ...
    def ask(
        self,
        text: str,
        *,
        schema: Any = None,
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[Approval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> Any:
        """Has a model of the daemon's configuration work in this sandbox until it answers; raises `AskError` if it does
        not. Variables and conversation are there for the next ask. `AskOptions` has what can be said of it.

        The answer is text; with a `schema`, a pydantic model or a JSON Schema, a value of it. What waits for a decision
        is given to `on_approval`, and listed by `approvals`. A Ctrl-C cancels the ask.
        """
        _api.check_callbacks(False, on_event=on_event, on_approval=on_approval)
        self._lend_tools()
        number = self._client.request(asks.start(self._path, text, schema, **options), self._loans.lend)
        try:
            if on_event is None and on_approval is None:
                return asks.answer_of(self._client.request(asks.wait(self._path, number)), schema)

            def saw(event: Event) -> None:
                if on_event is not None:
                    on_event(event)
                if on_approval is not None and event.get("type") == "approval_wanted":
                    on_approval(Approval(self._client, asks.request_of(event["approval"])))

            return asks.answer_of(self._client.follow(AskFollower(self._path, number, saw)), schema)
        except KeyboardInterrupt:
            self._client.request(asks.cancel(self._path, number))
            raise

    def approvals(self) -> builtins.list[Approval]:
        """What of this sandbox waits for a decision."""
        return [Approval(self._client, request) for request in self._client.request(asks.approvals(self.id))]

    def interrupt(self) -> int | None:
        """Raises `KeyboardInterrupt` in the running cell, and gives its number; None if none runs."""
        return self._client.request(_api.interrupt(self._path))

    def undo(self, cells: int = 1) -> Undone:
        """Takes back what the last cells did to variables; files stay."""
        return self._client.request(_api.undo(self._path, cells))

    def reset(self) -> None:
        """Forgets all variables and ends all processes; files stay."""
        self._client.request(_api.act(self._path, "reset"))

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Saves the variables to the daemon's disk; with a name, until it is removed. Cells go on meanwhile."""
        return self._client.request(_api.snapshot(self._path, name))

    def sleep(self) -> Asleep:
        """Saves the variables, ends all processes, and says what could not be saved. The next cell wakes the sandbox as it
        was."""
        return self._client.request(_api.sleep(self._path))

    @overload
    def branch(
        self, name: str | None = None, *, at: int | None = None, snapshot: str | None = None, keep: bool = False
    ) -> Sandbox: ...
    @overload
    def branch(
        self,
        name: str | None = None,
        *,
        count: int,
        at: int | None = None,
        snapshot: str | None = None,
        keep: bool = False,
    ) -> builtins.list[Sandbox]: ...
    def branch(
        self,
        name: str | None = None,
        *,
        count: int | None = None,
        at: int | None = None,
        snapshot: str | None = None,
        keep: bool = False,
    ) -> Sandbox | builtins.list[Sandbox]:
        """Makes a sandbox that begins with the variables and files of this one; with a `count`, a list of them.

        With `at` the variables are as after that cell, with `snapshot` those of the snapshot of that name. Unless `keep`
        is set, branches go as those of `create` do.
        """
        call = _api.branch(self._path, name, at, snapshot, 1 if count is None else count, not keep)
        branches = [Sandbox(self._daemon, info, is_owned=not keep) for info in made(self._daemon, call, keep)]
        return branches[0] if count is None else branches

    def diff(self, other: Sandbox | str) -> Differences:
        """What another sandbox, or the one of that name, has otherwise than this one."""
        key = other.id if isinstance(other, SandboxBase) else other
        return self._client.request(_api.diff(self._path, key))

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all of the sandbox to a file: variables, files, packages and what ran. It has to fit into memory."""
        archive.write(path, self._client.request(_api.export(self._path)))

    @classmethod
    def import_(
        cls,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        backend: Literal["docker", "bubblewrap", "process"] | None = None,
        image: str | None = None,
        replay: bool = False,
        trust: bool = False,
        keep: bool = False,
        daemon: Daemon | None = None,
    ) -> Sandbox:
        """Makes a sandbox of a file that `export` wrote, for the same minor version of Python.

        It has the backend and the image that it had, where both may be used here; `backend` and `image` choose others.
        With `replay` its cells run again, with the recorded answers of tools, on any version. Code of the archive has the rules
        of what a model writes, unless `trust` says that it is your own.
        """
        used = chosen(daemon)
        call = _api.import_archive(archive.read(path), name, backend, image, replay, trust, not keep)
        return cls(used, used._sync.request(call), is_owned=not keep)

    def install(self, *packages: str, reset: bool = False) -> Installed:
        """Installs packages, which code can import at once. With `reset`, versions may be replaced that are in use, and
        the variables are forgotten."""
        return self._client.request(_api.install(self._path, packages, reset))

    def variables(self) -> builtins.list[Variable]:
        return self._client.request(_api.variables(self._path))

    def receipt(self) -> dict[str, Any]:
        """How the sandbox is really isolated, as read back from what runs."""
        return self._client.request(_api.receipt(self._path))

    def info(self) -> SandboxInfo:
        return self._client.request(_api.show(self._path))

    def is_running(self) -> bool:
        """Whether the sandbox is still there."""
        try:
            self.info()
        except NotFoundError:
            return False
        return True

    def kill(self) -> bool:
        """Removes the sandbox and its files; False if it was gone already."""
        self.close()
        try:
            self._client.request(_api.remove(self._path))
        except NotFoundError:
            return False
        return True

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_mine:
            self.kill()
        else:
            self.close()
