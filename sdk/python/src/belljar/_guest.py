"""Programs and files of a sandbox as agent frameworks want them: output as a whole, arguments and input of any size, all
paths that the code in the sandbox can reach with its rights, and the errors of an operating system."""

from __future__ import annotations

import base64
import json
import os
import posixpath
import signal
import threading
import time
from dataclasses import dataclass
from importlib import resources
from typing import Any, Callable, Mapping, Sequence, TypeVar

from . import _api
from ._calls import as_json, post
from ._follow import CellFollower, Event
from .errors import BadRequestError, BelljarError, NotFoundError
from .results import command_result_of
from .sandbox import Sandbox

T = TypeVar("T")

#: Contents up to this size travel within a command. Commands are recorded, so larger ones go through a file of the
#: workspace, which is removed at once.
INLINE_BYTES = 32 * 1024
#: Words and environment of a command, of which the daemon takes 96 KiB.
_WORDS_BYTES = 64 * 1024
#: The most of a stream that is collected, unless another bound is given.
OUTPUT_BYTES = 64 * 1024 * 1024
#: How long the removal of a sandbox is waited for, once its programs have ended.
_REMOVAL_SECONDS = 10.0
_REMOVAL_PAUSE_SECONDS = 0.05
_SHELL = "/bin/sh"


class SandboxGone(Exception):
    """The sandbox is not there any more, and will not come back."""


class FileTooLarge(Exception):
    """A file has more bytes than were to be read."""


class OutputTooLarge(Exception):
    """A program wrote more than was to be collected. It was ended."""

    def __init__(self, stdout: str, stderr: str) -> None:
        super().__init__("the program wrote too much")
        self.stdout = stdout
        self.stderr = stderr


@dataclass
class Ran:
    """How a program ended. After a signal the exit code is that of a shell: 128 and the signal's number."""

    exit_code: int
    stdout: str
    stderr: str
    is_timeout: bool
    #: Whether bytes of its output were not even recorded.
    is_cut: bool


@dataclass
class Entry:
    name: str
    is_folder: bool
    bytes: int | None


def shell_words(line: str) -> list[str]:
    return [_SHELL, "-c", line]


class Guest:
    """The programs and files of one sandbox. Threads may share it."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self._source = resources.files(__package__).joinpath("_inside.py").read_text()
        self._told: dict[str, Any] | None = None

    def read(self, path: str, most: int | None = None) -> bytes:
        inside = self._in_workspace(path)
        if inside is not None and most is None:
            try:
                return self._checked(lambda: self.box.files.read(inside, format="bytes"))
            except (BadRequestError, NotFoundError):
                # What is wrong with it, if anything is, is known best inside: links are not followed from outside.
                pass
        with _Spare(self) as spare:
            answer = self._ask({"do": "read", "path": self._absolute(path), "most": most}, spare)
            if "too_large" in answer:
                raise FileTooLarge(path)
            data = spare.taken() if answer.get("is_spare") else _understood(lambda: base64.b64decode(answer["value"]))
            if most is not None and len(data) > most:
                raise FileTooLarge(path)
            return data

    def write(self, path: str, data: bytes) -> None:
        request: dict[str, Any] = {"do": "write", "path": self._absolute(path), "data": None}
        with _Spare(self) as spare:
            if len(data) <= INLINE_BYTES:
                request["data"] = base64.b64encode(data).decode("ascii")
            else:
                spare.put(data)
            self._ask(request, spare)
            # It was removed when its content was copied.
            spare.is_used = False

    def status(self, path: str) -> Entry:
        told = self._value("status", path)
        return _understood(lambda: _entry_of(told))

    def entries(self, path: str) -> list[Entry]:
        told = self._value("entries", path)
        return _understood(lambda: [_entry_of(one) for one in told])

    def make_folder(self, path: str) -> None:
        self._value("make_folder", path)

    def remove(self, path: str) -> None:
        """A file, a link, or a folder with all that is in it; a `ValueError` for the workspace and what is above it."""
        self._value("remove", path)

    def exists(self, path: str) -> bool:
        return bool(self._value("exists", path))

    def real_path(self, path: str) -> str:
        return str(self._value("real_path", path))

    @property
    def folder(self) -> str:
        """The folder that programs begin in."""
        return str(self._facts()["folder"])

    def is_user(self, user: str) -> bool:
        """Whether this is the name or the number of the user that everything in the sandbox runs as."""
        facts = self._facts()
        return user in (str(facts["user"]), facts["name"])

    def _facts(self) -> dict[str, Any]:
        if self._told is None:
            with _Spare(self) as spare:
                answer = self._ask({"do": "folder_and_user"}, spare)
                told = _understood(lambda: {key: answer["value"][key] for key in ("folder", "user", "name")})
                self._told = told
        return self._told

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else posixpath.join(self.folder, path)

    def _in_workspace(self, path: str) -> str | None:
        """The path from the workspace on, if it is plainly in there."""
        whole, folder = self._absolute(path), self.folder
        return whole[len(folder) + 1 :] if whole.startswith(f"{folder}/") and posixpath.normpath(whole) == whole else None

    def _value(self, do: str, path: str) -> Any:
        with _Spare(self) as spare:
            answer = self._ask({"do": do, "path": self._absolute(path)}, spare)
            return _understood(lambda: (as_json(spare.taken()) if answer.get("is_spare") else answer)["value"])

    def _ask(self, request: dict[str, Any], spare: _Spare) -> dict[str, Any]:
        request = {"inline": INLINE_BYTES, "spare": spare.name, **request}
        ran = Program(self, self._inside(json.dumps(request))).run()
        if ran.exit_code != 0:
            said = ran.stderr.strip()[-2000:] or f"it exited with {ran.exit_code}"
            hint = "the image needs a `python3`" if ran.exit_code in (126, 127) else None
            raise BelljarError(f"a file of the sandbox cannot be worked on: {said}", code="sandbox_failed", hint=hint)
        answer = _understood(lambda: dict(json.loads(ran.stdout)))
        if "error" in answer:
            number, said = _understood(lambda: (int(answer["error"][0]), str(answer["error"][1])))
            raise OSError(number, said, request.get("path"))
        if "refused" in answer:
            raise ValueError(str(answer["refused"]))
        if answer.get("is_spare"):
            spare.is_used = True
        return answer

    def _inside(self, request: str) -> list[str]:
        # Isolated, so that neither the workspace nor its packages can stand in for the standard library.
        return ["python3", "-I", "-S", "-c", self._source, request]

    def _checked(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except NotFoundError as error:
            if error.code == "no_such_session":
                raise SandboxGone(str(error)) from error
            raise


def _understood(look: Callable[[], T]) -> T:
    """What comes from inside may be anything, whatever it should be."""
    try:
        return look()
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise BelljarError("the sandbox answered something else than was asked", code="sandbox_failed") from error


def _entry_of(told: dict[str, Any]) -> Entry:
    size = told["bytes"]
    return Entry(str(told["name"]), bool(told["is_folder"]), None if size is None else int(size))


class _Spare:
    """A file of the workspace through which something large goes, and which is gone afterwards."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.name = f".belljar-{os.urandom(12).hex()}"
        self.is_used = False

    def put(self, data: bytes) -> None:
        self.is_used = True
        self._guest._checked(lambda: self._guest.box.files.write(self.name, data))

    def taken(self) -> bytes:
        return self._guest._checked(lambda: self._guest.box.files.read(self.name, format="bytes"))

    def __enter__(self) -> _Spare:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self.is_used:
            try:
                self._guest.box.files.remove(self.name)
            except NotFoundError:
                pass


class Program:
    """A program that runs in a sandbox, until it ends or is ended by another thread."""

    def __init__(
        self,
        guest: Guest,
        words: Sequence[str],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        most: int = OUTPUT_BYTES,
    ) -> None:
        self._guest = guest
        self._words = list(words)
        self._cwd = cwd
        self._envs = envs
        self._stdin = stdin or None
        self._timeout = timeout
        self._most = most
        self._number: int | None = None
        self._is_ended = False
        self._lock = threading.Lock()
        self._streams: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._sizes = {"stdout": 0, "stderr": 0}

    def run(self) -> Ran:
        """Without a timeout it may run for as long as the daemon's configuration lets it."""
        with _Spare(self._guest) as words, _Spare(self._guest) as stdin:
            return self._guest._checked(lambda: self._run(words, stdin))

    def _run(self, words: _Spare, stdin: _Spare) -> Ran:
        box = self._guest.box
        body = _api.command_body(
            self._sendable(words, stdin),
            # In the background, so that its number is known at once and the default of its time is the most.
            background=True,
            cwd=self._cwd,
            envs=self._envs,
            stdin=None if stdin.is_used else self._stdin,
            timeout=self._timeout,
        )
        view = box._client.request(post(f"{box._path}/commands", as_json, body))
        with self._lock:
            self._number = int(view["cell"])
        if self._is_ended:
            self._kill()
        follower = CellFollower.begun(box._path, self._number, int(view["events_after"]), self._saw)
        try:
            told = box._client.follow(follower)
        except BaseException:
            self.end()
            raise
        result = command_result_of(told)
        if result.reason in ("sandbox_lost", "by_cancel") and self._is_removed():
            raise SandboxGone("the sandbox was removed while the program ran")
        # Without a code it was killed with its sandbox.
        code = -signal.SIGKILL if result.exit_code is None else result.exit_code
        return Ran(
            exit_code=128 - code if code < 0 else code,
            stdout="".join(self._streams["stdout"]),
            stderr="".join(self._streams["stderr"]),
            is_timeout=result.status == "timeout",
            is_cut=result.truncated.dropped_bytes > 0,
        )

    def _is_removed(self) -> bool:
        """Whether the end of the program was that of its sandbox, and no reset: while it is removed, it is asleep."""
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while time.monotonic() < deadline:
            try:
                if self._guest.box.info().state != "asleep":
                    return False
            except NotFoundError:
                return True
            time.sleep(_REMOVAL_PAUSE_SECONDS)
        return False

    def _sendable(self, words: _Spare, stdin: _Spare) -> list[str]:
        """The words themselves; or, if they or the input are too large, those of a program that becomes this one."""
        size = sum(len(word.encode()) + 1 for word in self._words)
        if size <= _WORDS_BYTES and (self._stdin is None or len(self._stdin) <= INLINE_BYTES):
            return self._words
        folder = self._guest.folder
        path = None
        if self._stdin is not None and len(self._stdin) > INLINE_BYTES:
            stdin.put(self._stdin)
            path = f"{folder}/{stdin.name}"
        request = json.dumps({"do": "execute", "argv": self._words, "stdin": path})
        if len(request) > _WORDS_BYTES:
            words.put(request.encode())
            request = f"@{folder}/{words.name}"
        return self._guest._inside(request)

    def _saw(self, event: Event) -> None:
        stream, text = event.get("stream"), event.get("text")
        if event.get("type") != "output" or stream not in self._streams or not isinstance(text, str):
            return
        self._streams[stream].append(text)
        self._sizes[stream] += len(text)
        if self._sizes[stream] > self._most:
            raise OutputTooLarge(*("".join(self._streams[name])[: self._most] for name in ("stdout", "stderr")))

    def end(self) -> None:
        """Ends the program and all that it started, without waiting for that."""
        with self._lock:
            self._is_ended = True
            is_known = self._number is not None
        if is_known:
            threading.Thread(target=self._kill, name="belljar-end", daemon=True).start()

    def _kill(self) -> None:
        box = self._guest.box
        assert self._number is not None
        try:
            box._client.request(_api.end_command(box._path, self._number, "kill"))
        except BelljarError:
            # It has ended already, or its sandbox has.
            pass


