"""Commands: programs of a sandbox beside its cells."""

from __future__ import annotations

from typing import Generic, Literal, Mapping, Sequence, TypeVar, overload

from . import _api
from ._async import AsyncClient
from ._base import OnText, cell_follower
from ._sync import SyncClient
from .errors import CommandError, NotFoundError
from .results import CommandInfo, CommandResult, command_result_of

Command = str | Sequence[str]
C = TypeVar("C", SyncClient, AsyncClient)


def _checked(result: CommandResult, check: bool) -> CommandResult:
    if check and result.status != "success":
        raise CommandError(
            f"the command did not succeed: {result.error}",
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
        )
    return result


def _check_background(on_stdout: OnText | None, on_stderr: OnText | None, check: bool) -> None:
    if on_stdout is not None or on_stderr is not None or check:
        message = "`on_stdout`, `on_stderr` and `check` are for commands that are waited for"
        raise _api.wrong(message, "a command in the background has `wait(check=True)`, whose result has its output")


def _there(result: CommandResult | None, number: int) -> CommandResult:
    if result is None:
        raise NotFoundError(f"command {number} has no result", code="no_such_cell")
    return result


def _no_command(error: NotFoundError) -> bool:
    if error.code != "no_such_cell":
        raise error
    return False


class _Handle(Generic[C]):
    def __init__(self, client: C, session: str, number: int) -> None:
        self._client: C = client
        self._session = session
        self.number = number

    @property
    def pid(self) -> int:
        """The number, by the name that users of E2B know. Programs of the sandbox see other numbers."""
        return self.number


class CommandHandle(_Handle[SyncClient]):
    """A command in the background."""

    def wait(self, *, check: bool = False) -> CommandResult:
        result = self._client.request(_api.wait_for_command(self._session, self.number))
        return _checked(_there(result, self.number), check)

    def kill(self) -> None:
        """Ends it, and all that it started."""
        self._client.request(_api.end_command(self._session, self.number, "kill"))

    def interrupt(self) -> None:
        """Sends SIGINT."""
        self._client.request(_api.end_command(self._session, self.number, "interrupt"))


class Commands:
    def __init__(self, client: SyncClient, session: str) -> None:
        self._client = client
        self._session = session

    @overload
    def run(
        self,
        command: Command,
        background: Literal[False] = False,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
    ) -> CommandResult: ...
    @overload
    def run(
        self,
        command: Command,
        background: Literal[True],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
    ) -> CommandHandle: ...
    def run(
        self,
        command: Command,
        background: bool = False,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
    ) -> CommandResult | CommandHandle:
        """Runs a line of the shell, or a program with its arguments if it is a list. An exit code other than 0 is in the
        result, and an error only with `check=True`."""
        body = _api.command_body(command, background=background, cwd=cwd, envs=envs, stdin=stdin, timeout=timeout)
        if background:
            _check_background(on_stdout, on_stderr, check)
            number = self._client.request(_api.start_command(self._session, body))
            return CommandHandle(self._client, self._session, number)
        if on_stdout is None and on_stderr is None:
            return _checked(self._client.request(_api.run_command(self._session, body)), check)
        start = _api.stream_command(self._session, body)
        follower = cell_follower(self._session, start, False, on_stdout, on_stderr)
        return _checked(command_result_of(self._client.follow(follower)), check)

    def list(self) -> list[CommandInfo]:
        """Those that have not ended, and the last that have."""
        return self._client.request(_api.commands(self._session))

    def connect(self, number: int) -> CommandHandle:
        return CommandHandle(self._client, self._session, _api.command_number(number))

    def kill(self, number: int) -> bool:
        """Ends a command, and all that it started; False if there is none of this number."""
        try:
            self.connect(number).kill()
        except NotFoundError as error:
            return _no_command(error)
        return True


class AsyncCommandHandle(_Handle[AsyncClient]):
    """A command in the background."""

    async def wait(self, *, check: bool = False) -> CommandResult:
        result = await self._client.request(_api.wait_for_command(self._session, self.number))
        return _checked(_there(result, self.number), check)

    async def kill(self) -> None:
        """Ends it, and all that it started."""
        await self._client.request(_api.end_command(self._session, self.number, "kill"))

    async def interrupt(self) -> None:
        """Sends SIGINT."""
        await self._client.request(_api.end_command(self._session, self.number, "interrupt"))


class AsyncCommands:
    def __init__(self, client: AsyncClient, session: str) -> None:
        self._client = client
        self._session = session

    @overload
    async def run(
        self,
        command: Command,
        background: Literal[False] = False,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
    ) -> CommandResult: ...
    @overload
    async def run(
        self,
        command: Command,
        background: Literal[True],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
    ) -> AsyncCommandHandle: ...
    async def run(
        self,
        command: Command,
        background: bool = False,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
    ) -> CommandResult | AsyncCommandHandle:
        """Runs a line of the shell, or a program with its arguments if it is a list. An exit code other than 0 is in the
        result, and an error only with `check=True`."""
        body = _api.command_body(command, background=background, cwd=cwd, envs=envs, stdin=stdin, timeout=timeout)
        if background:
            _check_background(on_stdout, on_stderr, check)
            number = await self._client.request(_api.start_command(self._session, body))
            return AsyncCommandHandle(self._client, self._session, number)
        if on_stdout is None and on_stderr is None:
            return _checked(await self._client.request(_api.run_command(self._session, body)), check)
        start = _api.stream_command(self._session, body)
        follower = cell_follower(self._session, start, True, on_stdout, on_stderr)
        return _checked(command_result_of(await self._client.follow(follower)), check)

    async def list(self) -> list[CommandInfo]:
        """Those that have not ended, and the last that have."""
        return await self._client.request(_api.commands(self._session))

    def connect(self, number: int) -> AsyncCommandHandle:
        return AsyncCommandHandle(self._client, self._session, _api.command_number(number))

    async def kill(self, number: int) -> bool:
        """Ends a command, and all that it started; False if there is none of this number."""
        try:
            await self.connect(number).kill()
        except NotFoundError as error:
            return _no_command(error)
        return True
