"""What the session had written to an open file and not flushed yet: noted in the snapshot, and put back by the load.

A load puts it back into the buffer of the file and writes nothing: a snapshot may be loaded many times, here and in
branches, and only code of the session knows when to flush. What the file has got meanwhile is not overwritten.
"""

import io
import posix  # not `os`, whose functions user code may replace

# So much of the file before the place tells whether it is the same file.
_BEFORE_BYTES = 4096


def noted(descriptor, place, length):
    """How the file is where so many bytes will be written to it: the place, the size of the file, and what is there."""
    return place, posix.fstat(descriptor).st_size, _around(descriptor, place, length)


def room_for(pending, options):
    """The options with which `open` makes a buffer that can hold these bytes."""
    return {**options, "buffering": max(len(pending) + 1, io.DEFAULT_BUFFER_SIZE)}


def put_back(file, position, pending, before):
    """Whether the bytes are in the buffer of the file, or in the file itself; otherwise the file goes on at its end.

    `before` is what was noted, which older snapshots do not have: there the file must end where the bytes belong.
    """
    place, size, around = before or (position, position, None)
    descriptor = file.fileno()
    behind = position + len(pending)
    if _read(descriptor, place, len(pending)) == pending:
        file.seek(behind)  # cells that ran after an earlier load have flushed them
        return True
    is_same = around is None or _around(descriptor, place, len(pending)) == around
    if posix.fstat(descriptor).st_size != size or not is_same:
        file.seek(0, io.SEEK_END)
        return False
    file.seek(behind)  # so that a text file writes no second mark of its encoding
    raw = getattr(file, "buffer", file)
    raw.seek(position)
    raw.write(pending)
    return True


def _around(descriptor, place, length):
    start = max(0, place - _BEFORE_BYTES)
    return _read(descriptor, start, place - start + length)


def _read(descriptor, start, length):
    """What the file has there, or None if it cannot be read; its own descriptor may serve for writing only."""
    try:
        reads = posix.open(f"/proc/self/fd/{descriptor}", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        return posix.pread(reads, length, start)
    except OSError:
        return None
    finally:
        posix.close(reads)
