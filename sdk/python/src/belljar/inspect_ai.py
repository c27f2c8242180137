"""Sandboxes for evaluations of Inspect: `Task(…, sandbox="belljar")`, or `--sandbox belljar`.

With an image, `sandbox=("belljar", "belljar/science")`; with more,

    from inspect_ai.util import SandboxEnvironmentSpec
    from belljar.inspect_ai import BelljarConfig

    Task(…, sandbox=SandboxEnvironmentSpec("belljar", BelljarConfig(image="belljar/science", memory="2GiB")))

Each sample has a sandbox of its own, which goes with it, and at the latest with this process.
"""

from __future__ import annotations

import os
from typing import Any, Callable, ClassVar, Literal, TypeVar, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from . import _api
from ._guest import FileTooLarge, Guest, OutputTooLarge, Program, SandboxGone
from ._worker import in_worker
from .errors import DaemonError, NotFoundError
from .sandbox import Sandbox

T = TypeVar("T")

#: The label of the sandboxes, whose value is the name of the task.
_LABEL = "inspect-task"
#: Characters of a label's value.
_LABEL_CHARS = 100
#: What the sandbox says of a program that it may not run.
_NOT_ALLOWED = (126, "Permission denied")
#: How often Inspect looks for what its own tools in the sandbox have to say, in seconds.
_POLLING_SECONDS = 0.2


class BelljarConfig(BaseModel):
    """How the sandboxes of samples are made, as `Sandbox.create` has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = None
    memory: int | str | None = None
    cpus: float | None = None
    pids: int | None = None
    envs: dict[str, str] | None = None
    volumes: dict[str, str] | None = None
    mounts: dict[str, str] | None = None
    packages: tuple[str, ...] = ()
    backend: Literal["docker", "bubblewrap", "process"] | None = None


def _config_of(config: SandboxEnvironmentConfigType | None) -> BelljarConfig:
    if config is None:
        return BelljarConfig()
    if isinstance(config, str):
        return BelljarConfig(image=config)
    if isinstance(config, BelljarConfig):
        return config
    raise _api.wrong("the configuration of a sandbox is an image, or a `BelljarConfig`")


@sandboxenv(name="belljar")
class BelljarEnvironment(SandboxEnvironment):
    """One sandbox."""

    #: The sandboxes of samples that have not been cleaned up.
    _open: ClassVar[dict[str, Sandbox]] = {}

    def __init__(self, box: Sandbox) -> None:
        super().__init__()
        self.box = box
        self._guest = Guest(box)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None and not await self._do(lambda: self._guest.is_user(user)):
            raise SandboxUserUnsupportedError(f"a sandbox has one user, who is not {user!r}; nobody in it is root")
        stdin = input.encode("utf-8") if isinstance(input, str) else input
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        program = Program(self._guest, cmd, cwd=cwd, envs=env, stdin=stdin, timeout=timeout, most=most)
        try:
            ran = await self._do(program.run, on_cancel=program.end)
        except OutputTooLarge as error:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit, error.stdout or error.stderr) from error
        if ran.is_timeout:
            raise TimeoutError(f"the command took longer than it may ({timeout or 'the daemon’s most'} s)")
        code, said = _NOT_ALLOWED
        if ran.exit_code == code and ran.stderr.startswith("belljar: ") and said in ran.stderr:
            raise PermissionError(ran.stderr.strip())
        return ExecResult(ran.exit_code == 0, ran.exit_code, ran.stdout, ran.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode("utf-8") if isinstance(contents, str) else contents
        await self._do(lambda: self._guest.write(file, data))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._do(lambda: self._guest.read(file, most))
        except FileTooLarge as error:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit, None) from error
        return data.decode("utf-8") if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        if not await self._do(self.box.is_running):
            raise ConnectionError(f"the sandbox {self.box.name} is not there any more")
        return SandboxConnection(type="belljar", command=f"belljar sh -s {self.box.name}")

    def default_polling_interval(self) -> float:
        return _POLLING_SECONDS

    async def _do(self, work: Callable[[], T], *, on_cancel: Callable[[], object] = lambda: None) -> T:
        try:
            return await in_worker(work, on_cancel=on_cancel)
        except (SandboxGone, DaemonError) as error:
            raise SandboxUnavailableError(str(error)) from error

    @classmethod
    def default_concurrency(cls) -> int | None:
        return 2 * (os.cpu_count() or 1)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        options = _config_of(config).model_dump()
        labels = {_LABEL: task_name[:_LABEL_CHARS]}
        # Nobody runs cells, so nothing is to be restored.
        box = await in_worker(lambda: Sandbox.create(labels=labels, checkpointing="off", **options))
        cls._open[box.id] = box
        return {"default": cls(box)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            box = environment.as_type(BelljarEnvironment).box
            cls._open.pop(box.id, None)
            await in_worker(box.kill)

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        """What samples left behind stays for its idle time, if nothing is to be cleaned up."""
        if cleanup:
            return
        for box in list(cls._open.values()):
            print(f"the sandbox {box.name} stays a while: `belljar sh -s {box.name}`, `belljar rm {box.name}`")
            await in_worker(lambda box=box: box._client.request(_api.act(box._path, "linger")))  # type: ignore[misc]
            cls._open.pop(box.id, None)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        def remove() -> None:
            for info in Sandbox.list():
                if _LABEL in info.labels and id in (None, info.id, info.name):
                    try:
                        Sandbox.connect(info.id).kill()
                    except NotFoundError:
                        pass

        await in_worker(remove)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return BelljarConfig(**config)
