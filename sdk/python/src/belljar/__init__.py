"""Runs model-written Python in the sandboxes of a Belljar daemon.

    from belljar import Sandbox

    with Sandbox.create() as box:
        box.run_code("x = 20")
        print(box.run_code("x + 22").text)
"""

from ._api import SandboxOptions
from .asks import Approval, AskOptions, AsyncApproval
from .async_sandbox import AsyncSandbox
from .commands import AsyncCommandHandle, CommandHandle
from .daemon import Daemon
from .errors import (
    AskError,
    BadRequestError,
    BelljarError,
    BusyError,
    CommandError,
    DaemonError,
    ExistsError,
    ForbiddenError,
    ImageError,
    ModelError,
    NotFoundError,
    OutcomeUnknownError,
    PackageError,
    QuotaError,
    SandboxError,
    SnapshotError,
    StorageError,
    ToolError,
    TooLargeError,
    UndoError,
)
from .jobs import JobOptions, JobResult, map_async, run_job, run_job_async
from .jobs import map as map
from .results import (
    Artifact,
    Asleep,
    CommandInfo,
    CommandResult,
    Differences,
    Execution,
    ExecutionError,
    FileInfo,
    FileType,
    Installed,
    Logs,
    Package,
    Result,
    SandboxInfo,
    Snapshot,
    State,
    Truncated,
    Undone,
    Variable,
)
from .sandbox import Sandbox

# Without `map`, which `from belljar import *` would put in the place of Python's own.
__all__ = [
    "Approval",
    "Artifact",
    "AskError",
    "AskOptions",
    "Asleep",
    "AsyncApproval",
    "AsyncCommandHandle",
    "AsyncSandbox",
    "BadRequestError",
    "BelljarError",
    "BusyError",
    "CommandError",
    "CommandHandle",
    "CommandInfo",
    "CommandResult",
    "Daemon",
    "DaemonError",
    "Differences",
    "Execution",
    "ExecutionError",
    "ExistsError",
    "FileInfo",
    "FileType",
    "ForbiddenError",
    "ImageError",
    "Installed",
    "JobOptions",
    "JobResult",
    "Logs",
    "ModelError",
    "NotFoundError",
    "OutcomeUnknownError",
    "Package",
    "PackageError",
    "QuotaError",
    "Result",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SandboxOptions",
    "Snapshot",
    "SnapshotError",
    "State",
    "StorageError",
    "TooLargeError",
    "ToolError",
    "Truncated",
    "UndoError",
    "Undone",
    "Variable",
    "map_async",
    "run_job",
    "run_job_async",
]
__version__ = "0.1.0"
