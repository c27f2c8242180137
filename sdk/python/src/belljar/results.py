"""What the daemon answers, as objects."""

from __future__ import annotations

import base64
import enum
import html
import json
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping

Json = dict[str, Any]

#: What stands for a cell that has ended without an exception, and not by itself.
_REASONS = {
    "cell_deadline": "its time had passed",
    "signal": "its process was killed by a signal",
    "exit_call": "it ended its own process",
    "out_of_memory": "it took more memory than the sandbox has",
    "pids": "it started more processes than the sandbox may have",
    "descriptors": "it opened more files than the sandbox may",
    "sandbox_lost": "its sandbox ended",
    "journal_quota": "there is no room left to record what it does",
    "by_user": "somebody ended it",
    "by_cancel": "its sandbox was reset or removed",
    "rolled_back": "the session went back to earlier variables",
    "no_shell": "the image has no shell",
}

#: The form of a large picture that the sandbox adds for models.
_SMALL_PICTURE = "application/vnd.belljar.small-picture"
#: Characters of the text of a value. Of a longer one, the sandbox gives the start, with this mark as the last of them.
_TEXT_CHARS, _CUT_MARK = 20_000, "…"


class Result:
    """A value or a display, in all forms that the sandbox gave it. Notebooks show the richest."""

    def __init__(self, forms: Mapping[str, Any], *, is_main_result: bool) -> None:
        #: By MIME type; binary forms are base64. The copy that the daemon has for models is not among them.
        self.forms: dict[str, Any] = {kind: form for kind, form in forms.items() if kind != _SMALL_PICTURE}
        #: Whether it is the value of the last expression, and no display.
        self.is_main_result = is_main_result

    def _text(self, kind: str) -> str | None:
        value = self.forms.get(kind)
        if isinstance(value, list):
            return "".join(map(str, value))
        return value if value is None or isinstance(value, str) else json.dumps(value)

    @property
    def text(self) -> str | None:
        """Its `repr`; of a longer one, the first 20,000 characters, the last of them `…`."""
        return self._text("text/plain")

    @property
    def is_cut(self) -> bool:
        """Whether `text` is only the start of it."""
        text = self.text
        return text is not None and len(text) == _TEXT_CHARS and text.endswith(_CUT_MARK)

    @property
    def html(self) -> str | None:
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        return self._text("image/svg+xml")

    @property
    def latex(self) -> str | None:
        return self._text("text/latex")

    @property
    def png(self) -> str | None:
        """Base64; `png_bytes` has the bytes."""
        return self._text("image/png")

    @property
    def jpeg(self) -> str | None:
        """Base64."""
        return self._text("image/jpeg")

    @property
    def json(self) -> Any:
        return self.forms.get("application/json")

    @property
    def png_bytes(self) -> bytes | None:
        return None if self.png is None else base64.b64decode(self.png)

    def formats(self) -> list[str]:
        """The MIME types that there are."""
        return list(self.forms)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Json:
        return dict(self.forms)

    def _repr_html_(self) -> str | None:
        return self.html

    def _repr_png_(self) -> bytes | None:
        return self.png_bytes

    def __str__(self) -> str:
        return self.text or f"<{', '.join(self.forms)}>"

    def __repr__(self) -> str:
        return f"Result({str(self)!r}, formats={self.formats()})"


@dataclass
class Logs:
    """What was printed: the start and the end of each stream, if it is long. Callbacks get all of it."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


@dataclass
class ExecutionError:
    """An exception of the code; or, without one, why it did not succeed: `name` is then `timeout`, `crashed`,
    `interrupted` or `failure`."""

    name: str
    value: str
    traceback: str
    #: The name with the exception's module, unless that is `builtins`.
    type: str

    def __str__(self) -> str:
        return self.traceback or f"{self.name}: {self.value}"


@dataclass
class State:
    """What happened to the variables. `kind` is `kept`, `restored` (as before the cell) or `lost`."""

    kind: str
    #: The cell whose variables are there again.
    restored_to: int | None = None
    #: Names that a lost cell may have assigned.
    maybe_assigned: list[str] = field(default_factory=list)
    #: Tools whose effects are not undone.
    completed_tool_calls: list[str] = field(default_factory=list)
    #: Whether there was no memory for a checkpoint.
    is_unprotected: bool = False
    note: str | None = None


@dataclass
class Artifact:
    """A file of the workspace that a cell has changed; `change` is `new`, `modified` or `removed`."""

    path: str
    bytes: int
    change: str


@dataclass
class Truncated:
    """What is not in the result; false if it is whole."""

    #: Bytes of the middle of each stream, and bytes that were not even recorded.
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    dropped_bytes: int = 0
    #: Displays, and forms of values such as HTML, that were too many or too large.
    displays: int = 0
    #: Not all files were looked at.
    artifacts: bool = False
    #: The `text` of a result is only the start of its `repr`.
    text: bool = False

    def __bool__(self) -> bool:
        is_whole = not (self.stdout_bytes or self.stderr_bytes or self.dropped_bytes or self.displays)
        return not is_whole or self.artifacts or self.text


@dataclass
class Execution:
    """How a cell ended. No status is an exception in this process: look at `error`, or call `check`."""

    cell: int
    #: `success`, `failure`, `timeout`, `crashed` or `interrupted`.
    status: str
    #: More precisely: `ok`, `exception`, `cell_deadline`, `out_of_memory`, …
    reason: str
    #: Displays in their order, and the value of the last expression at the end.
    results: list[Result]
    logs: Logs
    error: ExecutionError | None
    state: State
    artifacts: list[Artifact]
    truncated: Truncated
    exit_code: int | None
    duration_s: float

    @property
    def text(self) -> str | None:
        """The `repr` of the last expression's value.

        Of one that is longer than 20,000 characters, only its start, with `…` as the last of them; `truncated` is then
        true. What the code prints is not cut for `on_stdout`, and what it writes to a file is not for `files.read`.
        """
        main = self.results[-1] if self.results and self.results[-1].is_main_result else None
        return None if main is None else main.text

    @property
    def stdout(self) -> str:
        return "".join(self.logs.stdout)

    @property
    def stderr(self) -> str:
        return "".join(self.logs.stderr)

    def check(self) -> Execution:
        """Raises a `RuntimeError` with the traceback unless the code succeeded."""
        if self.error is not None:
            raise RuntimeError(f"cell {self.cell} did not succeed: {self.error}")
        return self

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def _repr_html_(self) -> str:
        def block(text: str, style: str = "") -> str:
            return f"<pre{style}>{html.escape(text)}</pre>" if text else ""

        parts = [block(self.stdout), block(self.stderr, ' style="color:#a00"')]
        for result in self.results:
            if result.html is not None:
                parts.append(result.html)
            elif result.png is not None:
                parts.append(f'<img src="data:image/png;base64,{html.escape(result.png)}">')
            elif result.svg is not None:
                parts.append(result.svg)
            else:
                parts.append(block(str(result)))
        if self.error is not None:
            parts.append(block(str(self.error), ' style="color:#a00"'))
        return "".join(parts)


def execution_of(told: Json) -> Execution:
    status, exception = told["status"], told.get("exception")
    error = None
    if exception is not None:
        kind = str(exception["type"])
        error = ExecutionError(kind.rpartition(".")[2], exception["value"], exception["traceback"], kind)
    elif status != "success":
        reason = str(told["reason"])
        value = f"it exited with {told.get('exit_code')}" if reason == "exit" else _REASONS.get(reason, reason)
        error = ExecutionError(status, value, "", status)
    state, cut, results = told["state"], told["truncated"], _results_of(told)
    stdout, stderr = told["stdout"], told["stderr"]
    return Execution(
        cell=told["cell"],
        status=status,
        reason=told["reason"],
        results=results,
        logs=Logs([stdout] if stdout else [], [stderr] if stderr else []),
        error=error,
        state=State(
            state["kind"],
            state.get("restored_to"),
            state.get("maybe_assigned") or [],
            state.get("completed_tool_calls") or [],
            state.get("unprotected", False),
            state.get("note"),
        ),
        artifacts=[Artifact(one["path"], one["bytes"], one["change"]) for one in told["artifacts"]],
        truncated=Truncated(
            **{name: cut[name] for name in ("stdout_bytes", "stderr_bytes", "dropped_bytes", "displays", "artifacts")},
            text=any(result.is_cut for result in results),
        ),
        exit_code=told.get("exit_code"),
        duration_s=told["duration_ms"] / 1000,
    )


def _results_of(told: Json) -> list[Result]:
    results = [Result(display["mime"], is_main_result=False) for display in told["displays"]]
    if (value := told.get("result")) is not None:
        forms = {"text/plain": value["repr"], **(value.get("mime") or {})}
        results.append(Result(forms, is_main_result=True))
    return results


@dataclass
class CommandResult:
    """How a command ended. `error` says why it did not succeed."""

    exit_code: int | None
    stdout: str
    stderr: str
    status: str
    reason: str
    error: str | None
    truncated: Truncated
    duration_s: float


def command_result_of(told: Json) -> CommandResult:
    ran = execution_of(told)
    error = None if ran.status == "success" else (ran.error.value if ran.error is not None else ran.reason)
    return CommandResult(
        ran.exit_code, ran.stdout, ran.stderr, ran.status, ran.reason, error, ran.truncated, ran.duration_s
    )


@dataclass
class CommandInfo:
    """A command of a sandbox, by its number."""

    number: int
    line: str
    #: `queued`, `running` or `done`.
    state: str
    exit_code: int | None

    @property
    def pid(self) -> int:
        """The number, by the name that users of E2B know. Programs of the sandbox see other numbers."""
        return self.number

    @property
    def cmd(self) -> str:
        return self.line


@dataclass
class SandboxInfo:
    """A sandbox, as listed."""

    id: str
    name: str
    #: `idle`, `busy`, `starting`, `restoring`, `frozen`, `asleep` (without processes) or `parked`.
    state: str
    backend: str
    image: str | None
    python: str | None
    memory_bytes: int
    cpus: float
    labels: dict[str, str]
    created_at: str
    cells: int


def info_of(told: Json) -> SandboxInfo:
    limits, image = told["limits"], told.get("image")
    return SandboxInfo(
        id=told["id"],
        name=told["name"],
        state=told["state"],
        backend=told["backend"],
        image=None if image is None else image["reference"],
        python=told.get("python"),
        memory_bytes=limits["memory_bytes"],
        cpus=limits["cpus"],
        labels=told.get("labels") or {},
        created_at=told["created_at"],
        cells=told["cells"],
    )


@dataclass
class Variable:
    name: str
    type: str
    preview: str
    bytes: int | None
    shape: str | None


@dataclass
class Undone:
    """What `undo` did. Files are not taken back: those that were changed meanwhile are listed."""

    #: The cell whose state is there again; 0 for the state before all cells.
    state_of: int
    files_changed: list[str]
    note: str | None


@dataclass
class Snapshot:
    """The variables of a session as they were after a cell, on the daemon's disk."""

    id: str
    #: The cell after which it was taken.
    cell: int
    #: Its size, and what it takes on the disk.
    bytes: int
    stored_bytes: int
    name: str | None
    #: Variables that it lacks, and why.
    missing: dict[str, str]


def snapshot_of(told: Json) -> Snapshot:
    missing = {one["name"]: one["reason"] for one in told.get("missing") or []}
    return Snapshot(told["id"], told["cell"], told["bytes"], told["stored_bytes"], told.get("name"), missing)


@dataclass
class Asleep:
    """What a sandbox that sleeps has when it wakes, and what it has not."""

    #: The snapshot that it wakes from; None if it has none.
    snapshot: str | None
    #: The newest cell whose changes that has; 0 if there is none.
    cell: int
    #: Variables that could not be saved, and why.
    missing: dict[str, str]
    #: The sandbox was lost before its newest changes were saved; the cells that made them run again when it wakes.
    unsaved: bool


def asleep_of(told: Json) -> Asleep:
    missing = {one["name"]: one["reason"] for one in told.get("missing") or []}
    return Asleep(told.get("snapshot"), told["cell"], missing, told["unsaved"])


@dataclass
class Differences:
    """What another sandbox has otherwise than this one. Variables are compared by type and content, files by size and
    content."""

    #: Names of variables that only this one has, only the other one, and both, but otherwise.
    removed: list[str]
    added: list[str]
    changed: list[str]
    #: The same of files, by their paths.
    removed_files: list[str]
    added_files: list[str]
    changed_files: list[str]
    #: False if there was too much to compare all of it.
    is_complete: bool
    #: Names of variables that look the same, but cannot be compared, such as instances of classes of your own.
    not_compared: list[str] = field(default_factory=list)


def differences_of(told: Json) -> Differences:
    variables, files = told["variables"], told["files"]
    return Differences(
        removed=[one["name"] for one in variables["only_in_first"]],
        added=[one["name"] for one in variables["only_in_second"]],
        changed=[one["first"]["name"] for one in variables["changed"]],
        removed_files=[one["path"] for one in files["only_in_first"]],
        added_files=[one["path"] for one in files["only_in_second"]],
        changed_files=[one["path"] for one in files["changed"]],
        is_complete=not (variables["cut"] or files["cut"] or files["unread"]),
        not_compared=variables.get("not_compared") or [],
    )


@dataclass
class Package:
    name: str
    version: str


@dataclass
class Installed:
    """The packages that a session has on top of its image, and those asked for that the image has already."""

    packages: list[Package]
    in_image: list[Package]
    is_cached: bool


class FileType(str, enum.Enum):
    """What an entry of a folder is, by the names that users of E2B know."""

    FILE = "file"
    DIR = "dir"
    OTHER = "other"


@dataclass
class FileInfo:
    """An entry of a folder; `kind` is `file`, `folder` or `other`."""

    name: str
    path: str
    kind: str
    bytes: int

    @property
    def type(self) -> FileType:
        return {"file": FileType.FILE, "folder": FileType.DIR}.get(self.kind, FileType.OTHER)

    @property
    def size(self) -> int:
        return self.bytes
