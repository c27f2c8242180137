"""The stream of a snapshot between a runner and the daemon: sections in pieces, and what is told at the end."""

import io
import posix  # not `os`, whose functions user code may replace
import socket
import struct
from collections import deque

from . import descriptor_io, wire
from .limits import RECORD_BYTES

_HEADER = struct.Struct(">BI")
_SIZE = struct.Struct(">Q")
_PIECE, _SECTION_END, _END, _GIVEN_UP = b"PSEX"


class Broken(Exception):
    """The stream is not as agreed, or has ended too early."""


class TooLarge(Exception):
    """More would have to be sent than the daemon takes."""


def connect(path, token):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.setblocking(True)
    descriptor_io.send_all(connection.fileno(), token.encode() + b"\n")
    return connection


class Writer:
    """Sends records. Only the process that made it sends: code of a variable may have forked."""

    def __init__(self, connection, most):
        self._descriptor = connection.fileno()
        self._pid = posix.getpid()
        self._left = most
        self.sent = 0
        self.waits = False  # for the other side, in the middle of a record

    def _send(self, kind, payload=b""):
        if posix.getpid() != self._pid:
            posix._exit(1)
        self.waits = True
        try:
            descriptor_io.send_all(self._descriptor, _HEADER.pack(kind, len(payload)))
            if payload:
                descriptor_io.send_all(self._descriptor, payload)
        finally:
            self.waits = False

    def write(self, data):
        view = memoryview(data).cast("B")
        self.sent += len(view)
        if self.sent > self._left:
            raise TooLarge
        for start in range(0, len(view), RECORD_BYTES):
            self._send(_PIECE, view[start : start + RECORD_BYTES])

    def end_section(self):
        self._send(_SECTION_END)

    def end(self, manifest):
        self._send(_END, wire.encode_json(manifest))

    def give_up(self, code, message):
        self._send(_GIVEN_UP, wire.encode_json({"code": code, "message": message}))


class Spool:
    """Holds what is written until it is known to be whole; nothing any more when it is more than `most`."""

    def __init__(self, most, most_of_all):
        self._most, self._most_of_all = most, most_of_all
        self.pieces, self.written = [], 0

    def write(self, data):
        size = memoryview(data).nbytes
        self.written += size
        if self.written > self._most_of_all:
            raise TooLarge
        if self.written > self._most:
            self.pieces = None  # and no large piece is copied before that
        if self.pieces is not None:
            self.pieces.append(data if type(data) is bytes else bytes(data))


class Pipe:
    """Writes to the process that tries out what is packed."""

    def __init__(self, descriptor):
        self._descriptor, self.written, self.waits = descriptor, 0, False

    def write(self, data):
        view = memoryview(data).cast("B")
        self.written += len(view)
        self.waits = True
        try:
            descriptor_io.send_all(self._descriptor, view)
        finally:
            self.waits = False


class PipeEnd(io.FileIO):
    """The other end of it, which tells how much has come."""

    written = 0

    def readinto(self, target):
        count = super().readinto(target)
        self.written += count
        return count


class Reader:
    """Reads sections one after the other."""

    def __init__(self, connection):
        self._connection = connection
        self._left = 0  # of the piece that is being read
        self.at_end = False  # of the section

    def _receive(self, view):
        while view:
            count = descriptor_io.receive(self._connection, lambda: self._connection.recv_into(view))
            if not count:
                raise Broken("the stream ended early")
            view = view[count:]

    def _bytes(self, count):
        data = bytearray(count)
        self._receive(memoryview(data))
        return bytes(data)

    def _next_piece(self):
        """Begin the next piece; False at the end of the section."""
        kind, length = _HEADER.unpack(self._bytes(_HEADER.size))
        if length > RECORD_BYTES:
            raise Broken(f"a record of {length} bytes")
        if kind == _PIECE:
            self._left = length
            return True
        if kind == _SECTION_END and length == 0:
            return False
        if kind == _GIVEN_UP:
            raise Broken("the daemon gave up sending")
        raise Broken("a record of an unknown kind, or out of turn")

    def section(self):
        """The whole section, in pieces."""
        pieces = []
        while self._next_piece():
            pieces.append(self._bytes(self._left))
        return pieces

    def section_into(self, view):
        """Fill the buffer with the section, which has exactly its size."""
        while self._next_piece():
            if self._left > len(view):
                raise Broken("a buffer is longer than was said")
            self._receive(view[: self._left])
            view = view[self._left :]
        if view:
            raise Broken("a buffer is shorter than was said")

    def pass_section(self, size):
        """Let go of the section, which has this size."""
        while self._next_piece():
            size -= len(self._bytes(self._left))
        if size:
            raise Broken("a buffer has another size than was said")

    def end(self):
        """The manifest."""
        kind, length = _HEADER.unpack(self._bytes(_HEADER.size))
        if kind != _END or length > RECORD_BYTES:
            raise Broken("the stream goes on where it should end")
        return self._bytes(length)


def footer(sizes):
    """What follows the pickle in its section: the size of each buffer, and how many there are."""
    return b"".join(map(_SIZE.pack, sizes)) + _SIZE.pack(len(sizes))


def sizes_of(pieces):
    """The sizes that `footer` wrote at the end of these pieces."""
    (count,) = _SIZE.unpack(_tail(pieces, _SIZE.size))
    tail = _tail(pieces, _SIZE.size * (count + 1))
    return [_SIZE.unpack_from(tail, _SIZE.size * place)[0] for place in range(count)]


def _tail(pieces, size):
    if sum(map(len, pieces)) < size:
        raise Broken("the first section is too short")
    first, held = len(pieces), 0
    while held < size:
        first -= 1
        held += len(pieces[first])
    return b"".join(pieces[first:])[-size:]


class Pieces:
    """A file over pieces, each of which is let go when it was read: memory is needed once and not twice. `mark_read` is told
    how much was read."""

    def __init__(self, pieces, mark_read=None):
        self._pieces, self._mark_read = deque(pieces), mark_read
        self._at = 0  # in the first piece

    def readinto(self, target):
        view, done = memoryview(target).cast("B"), 0
        while self._pieces and done < len(view):
            part = memoryview(self._pieces[0])[self._at : self._at + len(view) - done]
            view[done : done + len(part)] = part
            self._pass(len(part))
            done += len(part)
        return done

    def read(self, size):
        if self._pieces and self._at + size <= len(self._pieces[0]):
            data = self._pieces[0][self._at : self._at + size]
            self._pass(size)
            return data
        data = bytearray(min(size, sum(map(len, self._pieces)) - self._at))
        self.readinto(data)
        return bytes(data)

    def readline(self):
        line = bytearray()
        while self._pieces and not line.endswith(b"\n"):
            line += self.read(1)
        return bytes(line)

    def _pass(self, size):
        self._at += size
        if self._mark_read is not None:
            self._mark_read(size)
        if self._at == len(self._pieces[0]):
            self._pieces.popleft()
            self._at = 0
