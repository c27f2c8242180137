"""The daemon's API as calls: one function for each request that sandboxes make."""

from __future__ import annotations

import base64
import inspect
import math
import re
from dataclasses import replace
from typing import Any, Iterable, Literal, Mapping, Sequence, TypedDict

from ._calls import Call, as_json, delete, encoded_json, get, nothing, post
from ._wire import quoted, quoted_path
from .errors import BadRequestError
from .results import (
    Asleep,
    CommandInfo,
    CommandResult,
    Differences,
    Execution,
    FileInfo,
    Installed,
    Package,
    SandboxInfo,
    Snapshot,
    Undone,
    Variable,
    asleep_of,
    command_result_of,
    differences_of,
    execution_of,
    info_of,
    snapshot_of,
)

_BYTES = "application/octet-stream"
_TAR = "application/x-tar"
#: A time that is longer is a mistake, and a whole number may be too large for the arithmetic of floats.
_MOST_SECONDS = 1e15
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def wrong(message: str, hint: str | None = None) -> BadRequestError:
    return BadRequestError(message, code="bad_request", hint=hint)


def bytes_of(size: int | str, name: str) -> int:
    """A size as the configuration has it: `"512MiB"`, `"1.5g"`, `"10MB"` (decimal), or a number of bytes."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    pattern = r"\s*(\d+(?:\.\d+)?)\s*(?:b|([kmgt])(i|b|ib)?)?\s*"
    found = re.fullmatch(pattern, size.lower()) if isinstance(size, str) else None
    if found is None:
        raise wrong(f"`{name}` is no size: {size!r}", "use bytes, or text such as \"512MiB\"")
    factor = 1000 if found[3] == "b" else 1024
    return int(float(found[1]) * factor ** _UNITS[found[2] or ""])


def seconds_of(timeout: float | None, name: str = "timeout") -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= _MOST_SECONDS:
        raise wrong(f"`{name}` is a number of seconds above 0, not {timeout!r}")
    return timeout


def text_of(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise wrong(f"`{name}` is text, not {type(value).__name__}")
    return value


def named_texts(value: Mapping[str, str] | None, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise wrong(f"`{name}` is a dictionary of text to text")
    return dict(value)


def texts_of(value: Sequence[str] | None, name: str) -> list[str]:
    """A list of texts. A text is one of its letters, too, which nobody means."""
    if value is None:
        return []
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise wrong(f"`{name}` is a list of texts, not {type(value).__name__}")
    texts = list(value)
    if not all(isinstance(text, str) for text in texts):
        raise wrong(f"`{name}` is a list of texts")
    return texts


def values_of(value: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong(f"`{name}` is a dictionary with names that are text")
    return dict(value)


def check_callbacks(may_be_async: bool, **callbacks: object) -> None:
    """Refuses what cannot be called before anything runs whose output it should get."""
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise wrong(f"`{name}` is a function, not {type(callback).__name__}")
        if not may_be_async:
            check_not_async(callback, f"`{name}`")


def check_not_async(function: object, what: str) -> None:
    """A blocking client has no event loop, so that an async function would be called and never run."""
    # What a class makes callable is called through its method.
    for called in (function, getattr(type(function), "__call__", None)):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise TypeError(f"{what} is an async function, which only an `AsyncSandbox` runs; a `Sandbox` needs a plain one")


class SandboxOptions(TypedDict, total=False):
    """How a sandbox is made; what is not given is as the daemon's configuration says."""

    name: str | None
    image: str | None
    #: Bytes, or text such as `"2GiB"`.
    memory: int | str | None
    cpus: float | None
    #: The most processes and threads.
    pids: int | None
    #: Variables of the environment, for every process.
    envs: Mapping[str, str] | None
    #: For finding it again.
    labels: Mapping[str, str] | None
    #: A folder of the host that is worked in; otherwise the daemon makes one, which goes with the sandbox.
    workspace: str | None
    #: From a path in the sandbox to the name of a volume, `"models"` or `"models:ro"`.
    volumes: Mapping[str, str] | None
    #: From a path in the sandbox to a folder of the host, which is there to read.
    mounts: Mapping[str, str] | None
    #: Variables that it begins with, as JSON has them.
    seed: Mapping[str, Any] | None
    #: Imports that it begins with, such as `"numpy as np"`.
    preload: Sequence[str] | None
    checkpointing: Literal["every", "idle", "off"] | None
    #: When variables are saved to the disk; otherwise when `snapshot`, `sleep` or `branch` asks for it, and with `keep` at rest.
    snapshots: Literal["auto", "named", "off"] | None
    backend: Literal["docker", "bubblewrap", "process"] | None
    #: Seconds without use after which its processes end.
    idle: float | None


def new_session(
    *,
    ephemeral: bool,
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
    checkpointing: str | None = None,
    snapshots: str | None = None,
    backend: str | None = None,
    idle: float | None = None,
) -> Call[list[SandboxInfo]]:
    """One sandbox. As a list, which is what a branch gives."""
    body: dict[str, Any] = {"ephemeral": ephemeral}
    given = {
        "name": name,
        "image": image,
        "cpus": cpus,
        "pids": pids,
        "workspace": workspace,
        "checkpointing": checkpointing,
        "snapshots": snapshots,
        "backend": backend,
    }
    body.update({key: value for key, value in given.items() if value is not None})
    if memory is not None:
        body["memory_bytes"] = bytes_of(memory, "memory")
    if idle is not None:
        # Whole seconds, of which part of one is not none.
        body["idle_s"] = math.ceil(seconds_of(idle, "idle") or 0)
    if preload is not None:
        body["preload"] = texts_of(preload, "preload")
    body.update(env=named_texts(envs, "envs"), labels=named_texts(labels, "labels"), seed=values_of(seed, "seed"))
    body["volumes"] = [_volume(target, named) for target, named in named_texts(volumes, "volumes").items()]
    body["mounts"] = [{"folder": folder, "target": target} for target, folder in named_texts(mounts, "mounts").items()]
    return post("/v1/sessions", lambda answer: [info_of(as_json(answer))], body)


def _volume(target: str, named: str) -> dict[str, Any]:
    """A volume by its name; `NAME:ro` is one that can only be read."""
    name, _, mode = named.partition(":")
    if mode not in ("", "ro"):
        raise wrong(f"`{named}` is no volume: use its name, or `{name}:ro`")
    return {"name": name, "target": target, "read_only": mode == "ro"}


def session_path(key: str) -> str:
    if not text_of(key, "name"):
        raise wrong("the name of a sandbox is empty")
    return f"/v1/sessions/{quoted(key)}"


def sessions(labels: Mapping[str, str] | None) -> Call[list[SandboxInfo]]:
    query = "&".join(f"label={quoted(f'{key}={value}')}" for key, value in named_texts(labels, "labels").items())
    path = "/v1/sessions" + (f"?{query}" if query else "")
    return get(path, lambda answer: [info_of(one) for one in as_json(answer)["sessions"]])


def show(session: str) -> Call[SandboxInfo]:
    return get(session, lambda answer: info_of(as_json(answer)))


def remove(session: str) -> Call[None]:
    return delete(f"{session}?wait=true", nothing)


def run_cell(session: str, code: str, timeout: float | None, mode: str) -> Call[Execution]:
    return post(f"{session}/cells?wait=true", _execution, _cell(code, timeout, mode))


def stream_cell(session: str, code: str, timeout: float | None, mode: str) -> Call[object]:
    return post(f"{session}/cells?stream=true", nothing, _cell(code, timeout, mode), accept="text/event-stream")


def _execution(answer: bytes) -> Execution:
    return execution_of(as_json(answer))


def _cell(code: str, timeout: float | None, mode: str) -> bytes:
    if timeout is None and mode == "main":
        # An encoder of text is at hand, whereas that of a dictionary is made anew each time.
        return b'{"code":%b}' % encoded_json(text_of(code, "code"))
    body: dict[str, Any] = {"code": text_of(code, "code")}
    if timeout is not None:
        body["timeout_s"] = seconds_of(timeout)
    if mode != "main":
        body["mode"] = mode
    return encoded_json(body)


def command_body(
    command: str | Sequence[str],
    *,
    background: bool,
    cwd: str | None,
    envs: Mapping[str, str] | None,
    stdin: str | bytes | None,
    timeout: float | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {"env": named_texts(envs, "envs")}
    if isinstance(command, str):
        body["line"] = command
    elif isinstance(command, Sequence) and command and all(isinstance(word, str) for word in command):
        body["argv"] = list(command)
    else:
        raise wrong("a command is a line of text, or a list of a program and its arguments")
    if background:
        body["background"] = True
    if cwd is not None:
        body["cwd"] = text_of(cwd, "cwd")
    if timeout is not None:
        body["timeout_s"] = seconds_of(timeout)
    if isinstance(stdin, bytes):
        body["stdin_base64"] = base64.b64encode(stdin).decode("ascii")
    elif stdin is not None:
        body["stdin"] = text_of(stdin, "stdin")
    return body


def run_command(session: str, body: dict[str, Any]) -> Call[CommandResult]:
    return post(f"{session}/commands?wait=true", lambda answer: command_result_of(as_json(answer)), body)


def stream_command(session: str, body: dict[str, Any]) -> Call[object]:
    return post(f"{session}/commands?stream=true", nothing, body, accept="text/event-stream")


def start_command(session: str, body: dict[str, Any]) -> Call[int]:
    return post(f"{session}/commands", lambda answer: int(as_json(answer)["cell"]), body)


def commands(session: str) -> Call[list[CommandInfo]]:
    def parse(answer: bytes) -> list[CommandInfo]:
        listed = as_json(answer)["commands"]
        return [CommandInfo(one["command"], one["line"], one["state"], one.get("exit_code")) for one in listed]

    return get(f"{session}/commands", parse)


def command_number(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise wrong(f"the number of a command is a whole number, not {number!r}")
    return number


def wait_for_command(session: str, number: int) -> Call[CommandResult | None]:
    def parse(answer: bytes) -> CommandResult | None:
        result = as_json(answer).get("result")
        return None if result is None else command_result_of(result)

    return get(f"{session}/commands/{number}?wait=true", parse)


def end_command(session: str, number: int, how: str) -> Call[None]:
    return post(f"{session}/commands/{number}/{how}", nothing)


def interrupt(session: str) -> Call[int | None]:
    return post(f"{session}/interrupt", lambda answer: as_json(answer).get("cell"))


def act(session: str, what: str) -> Call[None]:
    return post(f"{session}/{what}", nothing)


def undo(session: str, cells: int) -> Call[Undone]:
    if isinstance(cells, bool) or not isinstance(cells, int) or cells < 1:
        raise wrong(f"`cells` is a number of at least 1, not {cells!r}")

    def parse(answer: bytes) -> Undone:
        told = as_json(answer)
        return Undone(told["state_of"], told["files_changed"], told.get("note"))

    return post(f"{session}/undo", parse, {"cells": cells})


def snapshot(session: str, name: str | None) -> Call[Snapshot]:
    body = {} if name is None else {"name": text_of(name, "name")}
    return post(f"{session}/snapshots", lambda answer: snapshot_of(as_json(answer)), body)


def sleep(session: str) -> Call[Asleep]:
    return post(f"{session}/sleep", lambda answer: asleep_of(as_json(answer)))


def branch(
    session: str, name: str | None, at: int | None, snapshot: str | None, count: int, ephemeral: bool
) -> Call[list[SandboxInfo]]:
    for number, least, what in ((at, 0, "at"), (count, 1, "count")):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise wrong(f"`{what}` is a number of at least {least}, not {number!r}")
    body: dict[str, Any] = {"count": count, "ephemeral": ephemeral}
    if name is not None:
        body["name"] = text_of(name, "name")
    if at is not None:
        body["at"] = at
    if snapshot is not None:
        body["snapshot"] = text_of(snapshot, "snapshot")
    return post(f"{session}/branch", lambda answer: [info_of(one) for one in as_json(answer)["sessions"]], body)


def diff(session: str, other: str) -> Call[Differences]:
    return get(f"{session}/diff/{quoted(text_of(other, 'other'))}", lambda answer: differences_of(as_json(answer)))


def export(session: str) -> Call[bytes]:
    return Call("GET", f"{session}/archive", bytes, headers={"Accept": _TAR}, most=None)


def import_archive(
    archive: bytes,
    name: str | None,
    backend: str | None,
    image: str | None,
    replay: bool,
    trust: bool,
    ephemeral: bool,
) -> Call[SandboxInfo]:
    flags = {"replay": replay, "trust": trust, "ephemeral": ephemeral}
    words = [f"{key}=true" for key, value in flags.items() if value]
    named = {"name": name, "backend": backend, "image": image}
    words += [f"{key}={quoted(text_of(value, key))}" for key, value in named.items() if value]
    path = "/v1/archives" + ("?" + "&".join(words) if words else "")
    headers = {"Accept": "application/json", "Content-Type": _TAR}
    # Without a key: the body of a request that has one is bounded, as the daemon keeps it in memory.
    return Call("POST", path, lambda answer: info_of(as_json(answer)["session"]), archive, headers, repeats=False)


def install(session: str, packages: Sequence[str], reset: bool) -> Call[Installed]:
    if not packages or not all(isinstance(package, str) for package in packages):
        raise wrong("packages are given by name, as in `install(\"polars\")`")

    def parse(answer: bytes) -> Installed:
        def versions(listed: list[dict[str, Any]]) -> list[Package]:
            return [Package(one["name"], one["version"]) for one in listed]

        told = as_json(answer)
        return Installed(versions(told["packages"]), versions(told["in_image"]), told["cached"])

    return post(f"{session}/install", parse, {"packages": list(packages), "reset": reset})


def variables(session: str) -> Call[list[Variable]]:
    def parse(answer: bytes) -> list[Variable]:
        listed = as_json(answer)["variables"]
        return [
            Variable(one["name"], one["type"], one["preview"], one.get("bytes"), one.get("shape")) for one in listed
        ]

    return get(f"{session}/variables", parse)


def receipt(session: str) -> Call[dict[str, Any]]:
    return get(f"{session}/receipt", as_json)


def in_workspace(path: str) -> str:
    """A path of the workspace, relative to it. The daemon takes every path for one of those, as it reaches no others."""
    if not text_of(path, "path").startswith("/"):
        return path
    first, *rest = [part for part in path.split("/") if part not in ("", ".")] or [""]
    if first != "workspace":
        raise wrong(
            f"`{path}` is not in the workspace: only paths below `/workspace`, or relative to it, can be worked on from here",
            "code and commands in the sandbox can work on its other files",
        )
    return "/".join(rest)


def is_workspace(path: str) -> bool:
    """Whether it is the path of the workspace itself, in any way but an empty text."""
    return path != "" and all(part in ("", ".") for part in in_workspace(path).split("/"))


def file_path(session: str, path: str) -> str:
    try:
        return f"{session}/files/{quoted_path(in_workspace(path))}"
    except UnicodeEncodeError:
        raise wrong(f"the path {path!r} is no text in UTF-8") from None


def read_file(session: str, path: str) -> Call[bytes]:
    return Call(
        "GET",
        file_path(session, path),
        bytes,
        headers={"Accept": _BYTES},
        most=None,
        expects=(_BYTES, f"`{path}` is a folder, and no file"),
    )


def write_file(session: str, path: str, data: bytes) -> Call[None]:
    return Call("PUT", file_path(session, path), nothing, data, {"Content-Type": _BYTES})


def unpack(session: str, path: str, archive: bytes) -> Call[None]:
    return Call("PUT", file_path(session, path), nothing, archive, {"Content-Type": _TAR})


def list_files(session: str, path: str) -> Call[list[FileInfo]]:
    def parse(answer: bytes) -> list[FileInfo]:
        told = as_json(answer)
        folder = told["path"].strip("/")
        prefix = f"{folder}/" if folder else ""
        entries = told["entries"]
        return [FileInfo(one["name"], prefix + one["name"], one["kind"], one["bytes"]) for one in entries]

    # What a file holds could look like a list.
    expects = ("application/json", f"`{path}` is a file, and no folder")
    return replace(get(file_path(session, path), parse), expects=expects)


def remove_file(session: str, path: str) -> Call[None]:
    if path == "":
        raise wrong("`path` is empty: it is that of a file or a folder")
    if is_workspace(path):
        raise wrong("the workspace itself cannot be removed", "`kill` removes the sandbox with its files")
    return delete(file_path(session, path), nothing)
