"""Runs inside of a sandbox, as `python3 -c SOURCE REQUEST` with the user and the rights of the code there: one operation on
files, or a program whose arguments or input are too large for a command. It needs nothing but the standard library, and
is written for every Python that an image may have.

The request is JSON, or `@` and the name of a file that has it. The answer is one line of JSON; what is large is left in
the file that the request names.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import sys

# For type checkers: the module that has this name takes longer to import than all others.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    Request = dict[str, Any]
    Answer = dict[str, Any]


def read(request: Request) -> Answer:
    # Without waiting for the other end of a pipe.
    descriptor = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        size = _regular(descriptor, request["path"]).st_size
        if request["most"] is not None and size > request["most"]:
            return {"too_large": size}
        if size <= request["inline"]:
            return {"value": base64.b64encode(file.read()).decode()}
        try:
            os.link(os.path.realpath(request["path"]), request["spare"])
        except OSError:
            # The file is on another file system, or belongs to another user.
            with open(request["spare"], "xb") as copy:
                _copy(file, copy)
    return {"is_spare": True}


def write(request: Request) -> Answer:
    path, flags = request["path"], os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
    with open(descriptor, "wb") as file:
        _regular(descriptor, path)
        os.ftruncate(descriptor, 0)
        if request["data"] is not None:
            file.write(base64.b64decode(request["data"]))
        else:
            with open(request["spare"], "rb") as sent:
                _copy(sent, file)
            os.unlink(request["spare"])
    return {"value": None}


def status(request: Request) -> Answer:
    return {"value": _entry(request["path"], os.stat(request["path"]))}


def entries(request: Request) -> Answer:
    folder, found = request["path"], []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        try:
            found.append(_entry(path, os.stat(path)))
        except OSError:
            # A link to nowhere, or in a circle, or gone by now.
            found.append({"name": name, "is_folder": False, "bytes": None})
    return {"value": found}


def make_folder(request: Request) -> Answer:
    os.makedirs(request["path"], exist_ok=True)
    return {"value": None}


def remove(request: Request) -> Answer:
    path, root = request["path"], os.getcwd()
    target = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if root == target or root.startswith(target.rstrip("/") + "/"):
        return {"refused": "the working folder, and what is above it, cannot be removed"}
    if stat.S_ISDIR(os.lstat(path).st_mode):
        import shutil

        shutil.rmtree(path)
    else:
        os.unlink(path)
    return {"value": None}


def exists(request: Request) -> Answer:
    return {"value": os.path.exists(request["path"])}


def real_path(request: Request) -> Answer:
    return {"value": os.path.realpath(request["path"])}


def folder_and_user(request: Request) -> Answer:
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = None
    return {"value": {"folder": os.getcwd(), "user": os.getuid(), "name": name}}


def execute(request: Request) -> None:
    """Becomes the program."""
    if request["stdin"] is not None:
        descriptor = os.open(request["stdin"], os.O_RDONLY)
        os.unlink(request["stdin"])
        os.dup2(descriptor, 0)
        os.close(descriptor)
    # Python ignores these signals, and a program inherits that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(request["argv"][0], request["argv"])
    except OSError as error:
        sys.stderr.write("belljar: `%s` cannot be run: %s\n" % (request["argv"][0], error.strerror))
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _regular(descriptor: int, path: str) -> os.stat_result:
    told = os.fstat(descriptor)
    if stat.S_ISDIR(told.st_mode):
        raise IsADirectoryError(21, "Is a directory", path)
    if not stat.S_ISREG(told.st_mode):
        raise OSError(22, "Not a regular file", path)
    return told


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while True:
        piece = source.read(1 << 20)
        if not piece:
            return
        target.write(piece)


def _entry(path: str, told: os.stat_result) -> Answer:
    is_file = stat.S_ISREG(told.st_mode)
    name = os.path.basename(path.rstrip("/"))
    return {"name": name, "is_folder": stat.S_ISDIR(told.st_mode), "bytes": told.st_size if is_file else None}


def main() -> None:
    text = sys.argv[1]
    if text.startswith("@"):
        with open(text[1:]) as file:
            text_of_file = file.read()
        os.unlink(text[1:])
        text = text_of_file
    request = json.loads(text)
    try:
        answer = globals()[request["do"]](request)
    except OSError as error:
        answer = {"error": [error.errno or 5, error.strerror or str(error)]}
    line = json.dumps(answer)
    if len(line) > 2 * request["inline"]:
        with open(request["spare"], "x") as file:
            file.write(line)
        line = json.dumps({"is_spare": True})
    print(line)


if __name__ == "__main__":
    main()
