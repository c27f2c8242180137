"""HTTP/1.1 and server-sent events without any input or output, so that the sync and the async client share one parser.

The daemon's answers are simple (a length, or chunks), and this parser costs a few microseconds where the one of the
standard library costs more than the rest of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping
from urllib.parse import quote

#: The largest head of an answer.
HEAD_BYTES = 64 * 1024
#: The largest JSON answer or event: a result with all its displays, doubled for the escapes of JSON.
ANSWER_BYTES = 48 * 1024 * 1024
#: The most digits of a length, which are those of the largest number of 64 bits.
_LENGTH_DIGITS = 20


class WireError(Exception):
    """The other side does not speak HTTP, or exceeds a bound."""


def quoted(text: str) -> str:
    """One segment of a path, with all bytes escaped that have a meaning in a URL."""
    return quote(text, safe="")


def quoted_path(path: str) -> str:
    return quote(path, safe="/")


def encode_request(method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The head of a request, with its body if that is given and small enough to be sent in one piece."""
    lines = [f"{method} {path} HTTP/1.1\r\nHost: belljar\r\n"]
    for name, value in headers.items():
        lines.append(f"{name}: {value}\r\n")
    if body is None:
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")
    lines.append(f"Content-Length: {len(body)}\r\n\r\n")
    return "".join(lines).encode("latin-1") + body


@dataclass(slots=True)
class Head:
    status: int
    #: The lines of the headers in lower case, each with the end of the line before it.
    lines: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def value(self, name: bytes) -> bytes | None:
        """The value of a header, in lower case. Few are looked at, so the others are not taken apart."""
        start = self.lines.find(b"\r\n" + name + b":")
        if start < 0:
            return None
        start += len(name) + 3
        end = self.lines.find(b"\r\n", start)
        return self.lines[start : end if end >= 0 else None].strip()


class ResponseParser:
    """Takes the bytes of one answer as they come. `head` is set when it is there, `take` gives the body so far."""

    __slots__ = (
        "_body", "_body_bytes", "_buffer", "_in_trailers", "_is_chunked", "_left", "_most", "head", "is_done"
    )

    def __init__(self, most: int | None = ANSWER_BYTES) -> None:
        self.head: Head | None = None
        self.is_done = False
        #: The most bytes of the body, of an answer that is collected; none for one that is read in pieces.
        self._most = most
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._buffer = bytearray()
        #: Bytes of the body, or of the current chunk, that are still to come.
        self._left: int | None = None
        self._is_chunked = False
        self._in_trailers = False

    @property
    def left(self) -> int:
        """Bytes of the body, or of the current chunk, that are known to come."""
        return self._left or 0

    @property
    def keeps_alive(self) -> bool:
        head = self.head
        return self.is_done and head is not None and head.value(b"connection") != b"close"

    @property
    def has_begun(self) -> bool:
        return self.head is not None or len(self._buffer) > 0

    def feed(self, data: bytes) -> None:
        if self.head is None:
            if self._buffer:
                data = bytes(self._buffer) + data
                self._buffer.clear()
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > HEAD_BYTES:
                    raise WireError("the head of the daemon's answer has no end")
                self._buffer += data
                return
            self._take_head(data[:end])
            data = data[end + 4 :]
        if self.is_done:
            if data:
                raise WireError("the daemon sent more than its answer")
        elif self._is_chunked:
            self._feed_chunks(data)
        else:
            self._feed_plain(data)

    def take(self) -> bytes:
        """The bytes of the body that have come since the last time."""
        taken = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._body_bytes = 0
        return taken

    def _take_head(self, head: bytes) -> None:
        # Neither the names nor any of the values that are read depend on the case.
        head = head.lower()
        status = head[9:12]
        if not head.startswith(b"http/1.1 ") or not status.isdigit():
            raise WireError("the daemon's answer is no HTTP/1.1")
        self.head = Head(int(status), head)
        if self.head.value(b"transfer-encoding") == b"chunked":
            self._is_chunked = True
            return
        length = self.head.value(b"content-length")
        if length is None:
            length = b"0"
        if not length.isdigit() or len(length) > _LENGTH_DIGITS:
            raise WireError("the daemon's answer has no length")
        self._left = int(length)
        if self._most is not None and self._left > self._most:
            raise WireError(f"the daemon's answer is larger than {self._most} bytes")
        self.is_done = self._left == 0

    def _keep(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._most is not None and self._body_bytes > self._most:
            raise WireError(f"the daemon's answer is larger than {self._most} bytes")
        self._body.append(data)

    def _feed_plain(self, data: bytes) -> None:
        assert self._left is not None
        if len(data) > self._left:
            raise WireError("the daemon sent more than its answer")
        if data:
            self._left -= len(data)
            self._keep(data)
        self.is_done = self._left == 0

    def _feed_chunks(self, data: bytes) -> None:
        self._buffer += data
        position = 0
        buffer = self._buffer
        while not self.is_done:
            if self._left is None:
                end = buffer.find(b"\r\n", position)
                if end < 0:
                    if len(buffer) - position > HEAD_BYTES:
                        raise WireError("a chunk of the daemon's answer has no length")
                    break
                line = bytes(buffer[position:end])
                position = end + 2
                if self._in_trailers:
                    self.is_done = not line
                    continue
                try:
                    self._left = int(line.partition(b";")[0], 16)
                except ValueError:
                    raise WireError("a chunk of the daemon's answer has no length") from None
                if self._left == 0:
                    self._in_trailers, self._left = True, None
                continue
            # A chunk ends with an empty line, of which the length does not speak.
            there = min(self._left, len(buffer) - position)
            if there:
                self._keep(bytes(buffer[position : position + there]))
                position += there
                self._left -= there
            if self._left or len(buffer) - position < 2:
                break
            position += 2
            self._left = None
        del buffer[:position]


@dataclass(slots=True)
class ServerSentEvent:
    name: str
    data: str


class EventDecoder:
    """Server-sent events out of bytes that may be cut anywhere."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: Up to where the buffer was searched, so that a large event is not searched again with every piece.
        self._searched = 0

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        self._buffer += data
        events: list[ServerSentEvent] = []
        start = 0
        while (end := self._buffer.find(b"\n\n", max(start, self._searched))) >= 0:
            event = _event_of(self._buffer[start:end].decode("utf-8", "replace"))
            if event is not None:
                events.append(event)
            start = self._searched = end + 2
        del self._buffer[:start]
        self._searched = max(0, len(self._buffer) - 1)
        if len(self._buffer) > ANSWER_BYTES:
            raise WireError(f"an event of the daemon is larger than {ANSWER_BYTES} bytes")
        return events


def _event_of(text: str) -> ServerSentEvent | None:
    name, data = "", None
    for line in text.split("\n"):
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "event":
            name = value
        elif field == "data":
            data = value if data is None else f"{data}\n{value}"
    return None if data is None else ServerSentEvent(name, data)
