"""Errors. Each has the stable `code` of the daemon's API, a `message`, and often a `hint` what to do."""

from __future__ import annotations

import json


class BelljarError(Exception):
    """What all errors of this package are."""

    def __init__(self, message: str, *, code: str = "client", hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"

    def __reduce__(self) -> tuple[object, ...]:
        # Otherwise an error could not be sent from one process to another: its arguments are named.
        return _rebuilt, (type(self), self.__dict__.copy(), self.args)


def _rebuilt(kind: type[BelljarError], fields: dict[str, object], args: tuple[object, ...]) -> BelljarError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class DaemonError(BelljarError):
    """There is no daemon, it does not answer, or it is not to be trusted."""


class BadRequestError(BelljarError):
    """A value that was given is wrong."""


class NotFoundError(BelljarError):
    """There is no such sandbox, cell, file, ask, approval, job, batch or volume; or it belongs to another user."""


class ExistsError(BelljarError):
    """The name is taken."""


class BusyError(BelljarError):
    """Too much is waiting already; the same request may succeed later."""


class QuotaError(BelljarError):
    """A quota of the user, or of the machine, is used up."""


class ForbiddenError(BelljarError):
    """The user, or the configuration, does not allow it."""


class TooLargeError(BelljarError):
    """Something exceeds a limit that the message names."""


class ImageError(BelljarError):
    """The image is not there, or not allowed."""


class SandboxError(BelljarError):
    """The sandbox could not be started, ended, or is full."""


class PackageError(BelljarError):
    """Packages could not be installed, or do not fit those that are there."""


class ModelError(BelljarError):
    """A model is not configured, has no key, or did not answer."""


class StorageError(BelljarError):
    """The daemon's disk is full, or fails."""


class OutcomeUnknownError(BelljarError):
    """The daemon ended over the request, and nobody knows how far it came."""


class UndoError(BelljarError):
    """There is no checkpoint that far back."""


class SnapshotError(BelljarError):
    """Variables could not be saved, or what was saved is damaged, or is for another version of Python."""


class AskError(BelljarError):
    """A model did not answer: a limit was reached, or a person said no. `outcome` says which."""

    def __init__(self, message: str, *, outcome: str, steps: int, tokens: int, hint: str | None = None) -> None:
        super().__init__(message, code=outcome, hint=hint)
        self.outcome = outcome
        self.steps = steps
        self.tokens = tokens


class CommandError(BelljarError):
    """A command that was run with `check=True` did not succeed."""

    def __init__(self, message: str, *, exit_code: int | None, stdout: str, stderr: str) -> None:
        super().__init__(message, code="command_failed")
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class ToolError(BelljarError):
    """To be raised by a tool: code in the sandbox gets a `ToolError` with this code and message."""

    def __init__(self, message: str, *, code: str = "failed") -> None:
        super().__init__(message, code=code)


_CLASSES: dict[str, type[BelljarError]] = {
    "bad_request": BadRequestError,
    "no_such_session": NotFoundError,
    "no_such_cell": NotFoundError,
    "no_such_file": NotFoundError,
    "no_such_ask": NotFoundError,
    "no_such_approval": NotFoundError,
    "no_such_job": NotFoundError,
    "no_such_batch": NotFoundError,
    "no_such_volume": NotFoundError,
    "no_such_snapshot": NotFoundError,
    "no_such_route": BelljarError,
    "no_such_image": NotFoundError,
    "no_such_input": NotFoundError,
    "no_such_call": NotFoundError,
    "session_exists": ExistsError,
    "volume_exists": ExistsError,
    "snapshot_exists": ExistsError,
    "busy": BusyError,
    "too_many": BusyError,
    "too_slow": BusyError,
    "quota_exceeded": QuotaError,
    "too_large": TooLargeError,
    "forbidden": ForbiddenError,
    "engine_unavailable": SandboxError,
    "image_missing": ImageError,
    "image_architecture": ImageError,
    "image_forbidden": ImageError,
    "build_failed": ImageError,
    "policy_violation": SandboxError,
    "sandbox_failed": SandboxError,
    "sandbox_full": SandboxError,
    "preload_failed": SandboxError,
    "install_failed": PackageError,
    "package_conflict": PackageError,
    "outcome_unknown": OutcomeUnknownError,
    "out_of_reach": UndoError,
    "variables_failed": SandboxError,
    "snapshot_failed": SnapshotError,
    "snapshot_damaged": SnapshotError,
    "snapshot_mismatch": SnapshotError,
    "key_reused": BadRequestError,
    "events_gone": BelljarError,
    "internal": BelljarError,
    "model_failed": ModelError,
    "storage": StorageError,
    "shutting_down": DaemonError,
}


def problem_of(status: int, body: bytes) -> BelljarError:
    """The error that an answer without success stands for."""
    try:
        problem = json.loads(body)
        code, message = str(problem["code"]), str(problem["message"])
        hint = problem.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        return DaemonError(f"the daemon answered with status {status} and no reason")
    kind = _CLASSES.get(code, BelljarError)
    return kind(message, code=code, hint=None if hint is None else str(hint))
