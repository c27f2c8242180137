"""A sandbox for agents of Deep Agents: their commands and files are those of a sandbox.

    from deepagents import create_deep_agent
    from belljar.deepagents import BelljarSandbox

    with BelljarSandbox(image="belljar/science") as backend:
        create_deep_agent(model=…, backend=backend).invoke(…)
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from ._api import SandboxOptions, seconds_of, wrong
from ._guest import Guest, OutputTooLarge, Program, shell_words
from .sandbox import Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Seconds that a command may take which does not say.
TIMEOUT_SECONDS = 120
#: What `timeout` says of a command whose time had passed, for models have seen that before.
_TIMEOUT_CODE = 124


class BelljarSandbox(BaseSandbox):
    """Commands and files of a sandbox of its own, or of one that is given and then stays."""

    def __init__(
        self, box: Sandbox | None = None, *, timeout: float = TIMEOUT_SECONDS, **options: Unpack[SandboxOptions]
    ) -> None:
        if box is not None and options:
            raise wrong("options are for a new sandbox, and one is given")
        self._timeout = seconds_of(timeout)
        self._is_owned = box is None
        self.box = Sandbox.create(**options) if box is None else box
        self._guest = Guest(self.box)

    @property
    def id(self) -> str:
        return self.box.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a line of the shell. With a timeout of 0 it may take as long as the daemon's configuration lets it."""
        seconds = self._timeout if timeout is None else timeout or None
        # One stream, in the order in which it was written.
        program = Program(self._guest, shell_words(f"exec 2>&1\n{command}"), timeout=seconds)
        try:
            ran = program.run()
        except OutputTooLarge as error:
            return ExecuteResponse(output=error.stdout, exit_code=None, truncated=True)
        except BaseException:
            program.end()
            raise
        if ran.is_timeout:
            output = f"{ran.stdout}\n[the command was ended: its time had passed]\n"
            return ExecuteResponse(output=output, exit_code=_TIMEOUT_CODE, truncated=ran.is_cut)
        return ExecuteResponse(output=ran.stdout + ran.stderr, exit_code=ran.exit_code, truncated=ran.is_cut)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._written(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._downloaded(path) for path in paths]

    def _written(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._guest.write(path, data)
        except OSError as error:
            return _error_of(error)
        return None

    def _downloaded(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._guest.read(path))
        except OSError as error:
            return FileDownloadResponse(path=path, error=_error_of(error))

    def close(self) -> None:
        """Removes the sandbox, unless it was given."""
        if self._is_owned:
            self.box.kill()

    def __enter__(self) -> BelljarSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _error_of(error: OSError) -> str:
    """The framework's name for it, or else what the sandbox said."""
    names = {
        FileNotFoundError: "file_not_found",
        PermissionError: "permission_denied",
        IsADirectoryError: "is_directory",
        NotADirectoryError: "invalid_path",
    }
    return names.get(type(error), error.strerror or str(error))
