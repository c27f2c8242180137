"""Workspaces for agents of Pydantic AI: their commands and files are those of a sandbox.

    from pydantic_ai import Agent
    from belljar.pydantic_ai import BelljarSandbox

    agent = Agent(…, capabilities=[BelljarSandbox(image="belljar/science")])

A sandbox is made with the first command or file of a run, and stays after it, as Pydantic AI wants it: whoever has its
reference goes on in it, or removes it with `BelljarSandbox.destroy`.
"""

from __future__ import annotations

import math
import posixpath
import threading
from typing import TYPE_CHECKING, Callable, Mapping, Sequence, TypeVar

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from ._api import SandboxOptions
from ._guest import OUTPUT_BYTES, Entry, Guest, OutputTooLarge, Program, SandboxGone, shell_words
from ._worker import in_worker
from .daemon import Daemon
from .errors import NotFoundError
from .sandbox import Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

#: The name of these workspaces in references.
PROVIDER = "belljar"


def _id_of(ref: WorkspaceRef) -> str:
    if ref.provider != PROVIDER:
        raise ValueError(f"this is a workspace of {ref.provider!r}, not of {PROVIDER!r}")
    return ref.id


class BelljarBackend:
    """The sandbox of one reference; without one, a sandbox that the first operation makes and nobody removes."""

    def __init__(
        self, ref: WorkspaceRef | None = None, *, daemon: Daemon | None = None, **options: Unpack[SandboxOptions]
    ) -> None:
        self._id = None if ref is None else _id_of(ref)
        self._daemon = daemon
        self._options = options
        self._guest: Guest | None = None
        self._making = threading.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        return None if self._id is None else WorkspaceRef(provider=PROVIDER, id=self._id)

    async def working_dir(self) -> str:
        return await self._with(lambda guest: guest.folder)

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        words = _words_of(command, shell)
        if timeout is not None and not (isinstance(timeout, (int, float)) and math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"a timeout is a number of seconds above 0, not {timeout!r}")
        guest = await self._with(lambda guest: guest)
        program = Program(guest, words, envs=env, timeout=timeout, most=OUTPUT_BYTES)
        try:
            ran = await self._with(lambda _: program.run(), on_cancel=program.end)
        except OutputTooLarge as error:
            message = f"the command wrote more than {OUTPUT_BYTES} bytes"
            limit = OUTPUT_BYTES
            raise WorkspaceOutputLimitError(message, limit=limit, stdout=error.stdout, stderr=error.stderr) from error
        if ran.is_timeout:
            message = "the command took longer than it may"
            raise WorkspaceTimeoutError(message, stdout=ran.stdout, stderr=ran.stderr)
        if ran.is_cut:
            message = "the command wrote more than the daemon records"
            limit = len(ran.stdout) + len(ran.stderr)
            raise WorkspaceOutputLimitError(message, limit=limit, stdout=ran.stdout, stderr=ran.stderr)
        return CommandResult(exit_code=ran.exit_code, stdout=ran.stdout, stderr=ran.stderr)

    async def read_bytes(self, path: str) -> bytes:
        return await self._with(lambda guest: guest.read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._with(lambda guest: guest.write(path, data))

    async def stat(self, path: str) -> FileEntry:
        entry = await self._with(lambda guest: guest.status(path))
        return _entry_of(path, entry)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        entries = await self._with(lambda guest: guest.entries(path))
        return [_entry_of(posixpath.join(path, entry.name), entry) for entry in entries]

    async def make_dir(self, path: str) -> None:
        await self._with(lambda guest: guest.make_folder(path))

    async def remove(self, path: str) -> None:
        await self._with(lambda guest: guest.remove(path))

    async def exists(self, path: str) -> bool:
        return await self._with(lambda guest: guest.exists(path))

    async def realpath(self, path: str) -> str:
        return await self._with(lambda guest: guest.real_path(path))

    async def _with(self, work: Callable[[Guest], T], *, on_cancel: Callable[[], object] = lambda: None) -> T:
        try:
            return await in_worker(lambda: work(self._made()), on_cancel=on_cancel)
        except SandboxGone as error:
            raise WorkspaceUnavailableError(f"the sandbox {self._id} is not there any more") from error

    def _made(self) -> Guest:
        # The lock is held by a thread, which goes on when the task is cancelled: the reference is never lost.
        with self._making:
            if self._guest is None:
                if self._id is None:
                    box = Sandbox.create(keep=True, daemon=self._daemon, **self._options)
                    self._id = box.id
                else:
                    box = _connected(self._id, self._daemon)
                self._guest = Guest(box)
            return self._guest


def _connected(id: str, daemon: Daemon | None) -> Sandbox:
    try:
        return Sandbox.connect(id, daemon=daemon)
    except NotFoundError as error:
        raise SandboxGone(str(error)) from error


def _words_of(command: WorkspaceCommand, shell: bool) -> list[str]:
    if isinstance(command, str):
        if not shell:
            raise TypeError("a line of text needs `shell=True`; without it, a command is a list of words")
        return shell_words(command)
    if shell or isinstance(command, (bytes, bytearray)):
        raise TypeError("with `shell=True` a command is one line of text")
    words = list(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise TypeError("a command is a list of words, of which the first is the program")
    return words


def _entry_of(path: str, entry: Entry) -> FileEntry:
    return FileEntry(name=entry.name, path=path, is_dir=entry.is_folder, size=entry.bytes)


class BelljarSandbox(AbstractCapability[AgentDepsT]):
    """Gives each run of an agent a sandbox as its workspace: a new one, or that of the run's reference. The options are
    those of `Sandbox.create`."""

    def __init__(self, *, daemon: Daemon | None = None, **options: Unpack[SandboxOptions]) -> None:
        super().__init__()
        self._daemon = daemon
        self._options: SandboxOptions = options

    def backend(self, ref: WorkspaceRef | None = None) -> BelljarBackend:
        return BelljarBackend(ref, daemon=self._daemon, **self._options)

    def get_workspace(self, ctx: RunContext[AgentDepsT], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        return self.backend(ref) if ref is None or ref.provider == PROVIDER else None

    async def destroy(self, ref: WorkspaceRef) -> bool:
        """Removes the sandbox with its files; False if it was gone already."""
        key = _id_of(ref)

        def remove() -> bool:
            try:
                return _connected(key, self._daemon).kill()
            except SandboxGone:
                return False

        return await in_worker(remove)
