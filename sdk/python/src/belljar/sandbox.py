"""Sandboxes, for programs that wait."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Mapping, Sequence

from . import _api
from ._base import OnError, OnResult, OnText, SandboxBase, cell_follower, tell_error, told_execution
from .commands import Commands
from .daemon import Daemon, default
from .errors import NotFoundError
from .files import Files
from .results import Execution, Installed, SandboxInfo, Undone, Variable


class Sandbox(SandboxBase):
    """A Python session in a sandbox: variables live on from one `run_code` to the next.

    A sandbox that was made without `keep` goes with its `with` block, or else with this process. Threads may share one;
    cells that they run at the same time wait for each other.
    """

    def __init__(self, daemon: Daemon, info: SandboxInfo, *, is_owned: bool) -> None:
        super().__init__(daemon, info, is_owned=is_owned)
        self._client = daemon._sync
        self.files = Files(self._client, self._path)
        self.commands = Commands(self._client, self._path)

    @classmethod
    def create(
        cls,
        *,
        name: str | None = None,
        image: str | None = None,
        memory: int | str | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        envs: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str | None = None,
        volumes: Mapping[str, str] | None = None,
        mounts: Mapping[str, str] | None = None,
        seed: Mapping[str, Any] | None = None,
        preload: Sequence[str] | None = None,
        packages: Sequence[str] = (),
        checkpointing: Literal["every", "idle", "off"] | None = None,
        backend: Literal["docker", "bubblewrap", "process"] | None = None,
        idle: float | None = None,
        keep: bool = False,
        daemon: Daemon | None = None,
    ) -> Sandbox:
        """Makes a sandbox; what is not given is as the daemon's configuration says.

        `memory` is bytes or text such as `"2GiB"`. `volumes` and `mounts` are dictionaries from a path in the sandbox to
        the name of a volume (`"models"`, `"models:ro"`) or a folder of the host, which is there to read. With `keep` it
        stays until somebody removes it, and `Sandbox.connect(name)` finds it again.
        """
        used = daemon or default()
        call = _api.new_session(
            name=name,
            image=image,
            memory=memory,
            cpus=cpus,
            pids=pids,
            envs=envs,
            labels=labels,
            workspace=workspace,
            volumes=volumes,
            mounts=mounts,
            seed=seed,
            preload=preload,
            checkpointing=checkpointing,
            backend=backend,
            idle=idle,
            ephemeral=not keep,
        )
        box = cls(used, used._sync.request(call), is_owned=not keep)
        if packages:
            try:
                box.install(*packages)
            except BaseException:
                box.kill()
                raise
        return box

    @classmethod
    def connect(cls, name: str, *, daemon: Daemon | None = None) -> Sandbox:
        """A sandbox that is there, by its name or id. It stays at the end of a `with` block."""
        used = daemon or default()
        return cls(used, used._sync.request(_api.show(_api.session_path(name))), is_owned=False)

    @classmethod
    def list(cls, *, labels: Mapping[str, str] | None = None, daemon: Daemon | None = None) -> list[SandboxInfo]:
        return (daemon or default())._sync.request(_api.sessions(labels))

    def run_code(
        self,
        code: str,
        *,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        timeout: float | None = None,
        mode: Literal["main", "fork"] = "main",
    ) -> Execution:
        """Runs a cell. Exceptions, timeouts and crashes of the code are in the result.

        Callbacks are called while it runs, with all of its output. `timeout` is in seconds. With `mode="fork"` its
        changes to variables are dropped. A Ctrl-C leaves the cell running: `interrupt` ends it.
        """
        if on_stdout is None and on_stderr is None and on_result is None:
            execution = self._client.request(_api.run_cell(self._path, code, timeout, mode))
            tell_error(execution, on_error)
            return execution
        start = _api.stream_cell(self._path, code, timeout, mode)
        follower = cell_follower(self._path, start, on_stdout, on_stderr, on_result)
        return told_execution(self._client.follow(follower), on_result, on_error)

    def interrupt(self) -> int | None:
        """Raises `KeyboardInterrupt` in the running cell, and gives its number; None if none runs."""
        return self._client.request(_api.interrupt(self._path))

    def undo(self, cells: int = 1) -> Undone:
        """Takes back what the last cells did to variables; files stay."""
        return self._client.request(_api.undo(self._path, cells))

    def reset(self) -> None:
        """Forgets all variables and ends all processes; files stay."""
        self._client.request(_api.act(self._path, "reset"))

    def install(self, *packages: str, reset: bool = False) -> Installed:
        """Installs packages, which code can import at once. With `reset`, versions may be replaced that are in use, and
        the variables are forgotten."""
        return self._client.request(_api.install(self._path, packages, reset))

    def variables(self) -> list[Variable]:
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

    def close(self) -> None:
        """Lets go of the sandbox. Unless it is to be kept, or was connected to, the daemon removes it soon."""
        self._let_go()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_mine:
            self.kill()
        else:
            self.close()
