"""Open files of the session: where they are, how far they were read, and what waits to be written."""

import io
import posix  # not `os`, whose functions user code may replace
import stat

from . import snapshot_make, snapshot_unflushed
from .late_imports import from_stdlib

pickle = from_stdlib("pickle")

# A text that each setting of `newline` splits into other lines.
_LINES = "a\nb\rc\r\nd"
_SPLIT_BY = {
    ("a\n", "b\n", "c\n", "d"): None,
    ("a\n", "b\r", "c\r\n", "d"): "",
    ("a\n", "b\rc\r\n", "d"): "\n",
    ("a\nb\r", "c\r", "\nd"): "\r",
    ("a\nb\rc\r\n", "d"): "\r\n",
}


def reducers(packing):
    def reduce(file):
        known = packing.open_files.get(id(file))
        if known is None:
            # What is written but not flushed can be looked at only once.
            known = packing.open_files[id(file)] = file, _reduce(file)
        reduced = known[1]
        if reduced[0] is snapshot_make.file:
            packing.note_file(reduced[1][0])
        return reduced

    return dict.fromkeys((io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO), reduce)


def _reduce(file):
    is_text = isinstance(file, io.TextIOWrapper)
    mode = getattr(file, "mode", None)
    if not isinstance(mode, str):
        raise pickle.PicklingError("it is or holds an open file that was not made by `open`")
    options = {"encoding": file.encoding, "errors": file.errors} if is_text else {}
    if isinstance(file, io.FileIO):
        options["buffering"] = 0
    elif is_text and file.line_buffering:
        options["buffering"] = 1
    if file.closed:
        return snapshot_make.closed_file, (str(file.name), mode, options)
    path = _path(file)
    return snapshot_make.file, (path, mode, options, *_place(file, is_text, options))


def _path(file):
    try:
        descriptor = file.fileno()
        path = posix.readlink(f"/proc/self/fd/{descriptor}")
        own, named = posix.fstat(descriptor), posix.stat(path)
    except (OSError, ValueError):
        raise pickle.PicklingError("it is or holds an open file that has no name any more") from None
    if not stat.S_ISREG(own.st_mode) or (own.st_dev, own.st_ino) != (named.st_dev, named.st_ino):
        raise pickle.PicklingError("it is or holds an open pipe, device or deleted file")
    return path


def _place(file, is_text, options):
    """Where the file is, what waits to be written to it, and if there is anything, how the file is where that belongs.
    The file is of no use in this process afterwards.

    Nothing may be written here: the session's own process writes it. So the descriptor leads elsewhere first.
    """
    descriptor, position = file.fileno(), None
    raw_position = posix.lseek(descriptor, 0, io.SEEK_CUR)
    if not file.writable():
        try:
            position = file.tell()
        except OSError:
            raise pickle.PicklingError("it is or holds a file that is being iterated, whose position is not told") from None
    elsewhere, itself = _nameless_file(), posix.dup(descriptor)
    try:
        posix.lseek(elsewhere, raw_position, io.SEEK_SET)
        posix.dup2(elsewhere, descriptor, inheritable=False)
        pending = b""
        if file.writable():
            file.flush()
            pending = _written(elsewhere, raw_position)
            if file.readable():
                if pending:
                    raise pickle.PicklingError("it is or holds a file for reading and writing with changes that are not flushed")
                position = file.tell()
            else:
                position = raw_position
        if is_text:
            options["newline"] = _newline(file, elsewhere) if file.readable() else _newline_written(file, elsewhere)
        if not pending:
            return position, pending
        place = posix.fstat(itself).st_size if "a" in file.mode else position
        return position, pending, snapshot_unflushed.noted(itself, place, len(pending))
    except OSError as error:
        raise pickle.PicklingError(f"it is or holds an open file whose position is not told ({error})") from None
    finally:
        posix.close(elsewhere)
        posix.close(itself)


def _nameless_file():
    try:
        return posix.memfd_create("belljar")
    except OSError:
        # Sandboxes whose nameless memory is not counted have none.
        return posix.open("/tmp", posix.O_TMPFILE | posix.O_RDWR | posix.O_CLOEXEC, 0o600)


def _written(descriptor, start):
    size = posix.fstat(descriptor).st_size
    return posix.pread(descriptor, size - start, start) if size > start else b""


def _newline(file, elsewhere):
    posix.ftruncate(elsewhere, 0)
    posix.pwrite(elsewhere, _LINES.encode(file.encoding), 0)
    file.seek(0)
    return _SPLIT_BY.get(tuple(iter(file.readline, "")))


def _newline_written(file, elsewhere):
    """The end of a line that it writes, which is all that the setting means to a file that is only written."""
    posix.ftruncate(elsewhere, 0)
    posix.lseek(elsewhere, 0, io.SEEK_SET)
    file.write("\n")
    file.flush()
    written = _written(elsewhere, 0)
    for newline in ("\r\n", "\r"):
        if newline in written.decode(file.encoding, "replace"):
            return newline
    return "\n"
