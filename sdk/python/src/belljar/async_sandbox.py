"""Sandboxes, for asyncio."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Sequence, TypeVar, overload

from . import _api, _session_files as archive, asks
from ._api import SandboxOptions
from ._base import OnError, OnResult, OnText, SandboxBase, cell_follower, last_told
from ._follow import AskFollower, Event
from ._loans import Loans
from ._loops import Loops
from ._making import CANCEL_SECONDS, made_async
from ._tools import AsyncToolServer
from .asks import AskOptions, AsyncApproval
from .commands import AsyncCommands
from .daemon import Daemon, chosen
from .errors import BelljarError, NotFoundError
from .files import AsyncFiles
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


class AsyncSandbox(SandboxBase):
    """A Python session in a sandbox: variables live on from one `run_code` to the next.

    A sandbox that was made without `keep` goes with its `with` block, or else with this process. Threads may share one;
    cells that they run at the same time wait for each other.
    """

    _has_loop = True

    def __init__(self, daemon: Daemon, info: SandboxInfo, *, is_owned: bool) -> None:
        super().__init__(daemon, info, is_owned=is_owned)
        self._client = client = daemon._async
        path = self._path
        self._loops = loops = Loops()
        self._loans = Loans(
            self, self._toolbox, lambda tools: AsyncToolServer(client, daemon._sync, path, tools, loops), client.sleep
        )
        self.files = AsyncFiles(self._client, self._path)
        self.commands = AsyncCommands(self._client, self._path)

    @classmethod
    async def create(
        cls,
        *,
        keep: bool = False,
        packages: Sequence[str] = (),
        daemon: Daemon | None = None,
        **options: Unpack[SandboxOptions],
    ) -> AsyncSandbox:
        """Makes a sandbox; `SandboxOptions` has what can be said of it.

        With `keep` it stays until somebody removes it, and `AsyncSandbox.connect(name)` finds it again. `packages` are
        installed first.
        """
        used = chosen(daemon)
        wanted = _api.texts_of(packages, "packages")
        call = _api.new_session(ephemeral=not keep, **options)
        (info,) = await made_async(used, call, keep)
        box = cls(used, info, is_owned=not keep)
        if wanted:
            try:
                await box.install(*wanted)
            except BaseException:
                await box.kill()
                raise
        return box

    @classmethod
    async def connect(cls, name: str, *, daemon: Daemon | None = None) -> AsyncSandbox:
        """A sandbox that is there, by its name or id. It stays at the end of a `with` block."""
        used = chosen(daemon)
        return cls(used, await used._async.request(_api.show(_api.session_path(name))), is_owned=False)

    @classmethod
    async def list(cls, *, labels: Mapping[str, str] | None = None, daemon: Daemon | None = None) -> builtins.list[SandboxInfo]:
        return await chosen(daemon)._async.request(_api.sessions(labels))

    async def run_code(
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
            _api.check_callbacks(True, on_error=on_error)
        await self._lend_tools()
        if on_stdout is None and on_stderr is None and on_result is None:
            execution = await self._client.request(_api.run_cell(self._path, code, timeout, mode), self._loans.lend)
        else:
            start = _api.stream_cell(self._path, code, timeout, mode)
            follower = cell_follower(self._path, start, True, on_stdout, on_stderr, on_result)
            execution = execution_of(await self._client.follow(follower, self._loans.lend))
        for outcome in last_told(execution, on_result, on_error):
            if inspect.isawaitable(outcome):
                await outcome
        return execution

    async def _lend_tools(self) -> None:
        self._loops.use()
        await self._loans.lend()

    @overload
    async def ask(
        self,
        text: str,
        *,
        schema: None = None,
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[AsyncApproval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> str: ...
    @overload
    async def ask(
        self,
        text: str,
        *,
        schema: type[T],
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[AsyncApproval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> T: ...
    @overload
    async def ask(
        self,
        text: str,
        *,
        schema: Mapping[str, Any],
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[AsyncApproval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> Any: ...
    async def ask(
        self,
        text: str,
        *,
        schema: Any = None,
        on_event: Callable[[Event], object] | None = None,
        on_approval: Callable[[AsyncApproval], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> Any:
        """Has a model of the daemon's configuration work in this sandbox until it answers; raises `AskError` if it does
        not. Variables and conversation are there for the next ask. `AskOptions` has what can be said of it.

        The answer is text; with a `schema`, a pydantic model or a JSON Schema, a value of it. What waits for a decision
        is given to `on_approval`, and listed by `approvals`. A task that is cancelled cancels the ask.
        """
        _api.check_callbacks(True, on_event=on_event, on_approval=on_approval)
        await self._lend_tools()
        number = await self._client.request(asks.start(self._path, text, schema, **options), self._loans.lend)
        try:
            if on_event is None and on_approval is None:
                return asks.answer_of(await self._client.request(asks.wait(self._path, number)), schema)

            async def saw(event: Event) -> None:
                outcomes = [] if on_event is None else [on_event(event)]
                if on_approval is not None and event.get("type") == "approval_wanted":
                    outcomes.append(on_approval(AsyncApproval(self._client, asks.request_of(event["approval"]))))
                for outcome in outcomes:
                    if inspect.isawaitable(outcome):
                        await outcome

            return asks.answer_of(await self._client.follow(AskFollower(self._path, number, saw)), schema)
        except asyncio.CancelledError:
            await asyncio.wait({asyncio.create_task(self._cancel(number))}, timeout=CANCEL_SECONDS)
            raise

    async def _cancel(self, ask: int) -> None:
        try:
            await self._client.request(asks.cancel(self._path, ask))
        except BelljarError:
            # It may have ended meanwhile.
            pass

    async def approvals(self) -> builtins.list[AsyncApproval]:
        """What of this sandbox waits for a decision."""
        return [AsyncApproval(self._client, request) for request in await self._client.request(asks.approvals(self.id))]

    async def interrupt(self) -> int | None:
        """Raises `KeyboardInterrupt` in the running cell, and gives its number; None if none runs."""
        return await self._client.request(_api.interrupt(self._path))

    async def undo(self, cells: int = 1) -> Undone:
        """Takes back what the last cells did to variables; files stay."""
        return await self._client.request(_api.undo(self._path, cells))

    async def reset(self) -> None:
        """Forgets all variables and ends all processes; files stay."""
        await self._client.request(_api.act(self._path, "reset"))

    async def snapshot(self, name: str | None = None) -> Snapshot:
        """Saves the variables to the daemon's disk; with a name, until it is removed. Cells go on meanwhile."""
        return await self._client.request(_api.snapshot(self._path, name))

    async def sleep(self) -> Asleep:
        """Saves the variables, ends all processes, and says what could not be saved. The next cell wakes the sandbox as it
        was."""
        return await self._client.request(_api.sleep(self._path))

    @overload
    async def branch(
        self, name: str | None = None, *, at: int | None = None, snapshot: str | None = None, keep: bool = False
    ) -> AsyncSandbox: ...
    @overload
    async def branch(
        self,
        name: str | None = None,
        *,
        count: int,
        at: int | None = None,
        snapshot: str | None = None,
        keep: bool = False,
    ) -> builtins.list[AsyncSandbox]: ...
    async def branch(
        self,
        name: str | None = None,
        *,
        count: int | None = None,
        at: int | None = None,
        snapshot: str | None = None,
        keep: bool = False,
    ) -> AsyncSandbox | builtins.list[AsyncSandbox]:
        """Makes a sandbox that begins with the variables and files of this one; with a `count`, a list of them.

        With `at` the variables are as after that cell, with `snapshot` those of the snapshot of that name. Unless `keep`
        is set, branches go as those of `create` do.
        """
        call = _api.branch(self._path, name, at, snapshot, 1 if count is None else count, not keep)
        infos = await made_async(self._daemon, call, keep)
        branches = [AsyncSandbox(self._daemon, info, is_owned=not keep) for info in infos]
        return branches[0] if count is None else branches

    async def diff(self, other: AsyncSandbox | str) -> Differences:
        """What another sandbox, or the one of that name, has otherwise than this one."""
        key = other.id if isinstance(other, SandboxBase) else other
        return await self._client.request(_api.diff(self._path, key))

    async def export(self, path: str | os.PathLike[str]) -> None:
        """Writes all of the sandbox to a file: variables, files, packages and what ran. It has to fit into memory."""
        await asyncio.to_thread(archive.write, path, await self._client.request(_api.export(self._path)))

    @classmethod
    async def import_(
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
    ) -> AsyncSandbox:
        """Makes a sandbox of a file that `export` wrote, for the same minor version of Python.

        It has the backend and the image that it had, where both may be used here; `backend` and `image` choose others.
        With `replay` its cells run again, with the recorded answers of tools, on any version. Code of the archive has the rules
        of what a model writes, unless `trust` says that it is your own.
        """
        used = chosen(daemon)
        content = await asyncio.to_thread(archive.read, path)
        call = _api.import_archive(content, name, backend, image, replay, trust, not keep)
        return cls(used, await used._async.request(call), is_owned=not keep)

    async def install(self, *packages: str, reset: bool = False) -> Installed:
        """Installs packages, which code can import at once. With `reset`, versions may be replaced that are in use, and
        the variables are forgotten."""
        return await self._client.request(_api.install(self._path, packages, reset))

    async def variables(self) -> builtins.list[Variable]:
        return await self._client.request(_api.variables(self._path))

    async def receipt(self) -> dict[str, Any]:
        """How the sandbox is really isolated, as read back from what runs."""
        return await self._client.request(_api.receipt(self._path))

    async def info(self) -> SandboxInfo:
        return await self._client.request(_api.show(self._path))

    async def is_running(self) -> bool:
        """Whether the sandbox is still there."""
        try:
            await self.info()
        except NotFoundError:
            return False
        return True

    async def kill(self) -> bool:
        """Removes the sandbox and its files; False if it was gone already."""
        self.close()
        try:
            await self._client.request(_api.remove(self._path))
        except NotFoundError:
            return False
        return True

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_mine:
            await self.kill()
        else:
            self.close()
