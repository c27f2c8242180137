"""Messages between guardian and runners: length (u32, big endian), kind (one byte), payload.

From guardian to runner, the payload of most kinds is a JSON frame of the daemon. From runner to guardian, it comes from
a process in which user code runs, so it is not trusted: the guardian itself states what it is about (which cell, which
call, which request) and passes the rest on unread, as `said` by a runner.
"""

import json.decoder
import json.encoder
import struct

from .limits import FRAME_BYTES

HEADER = struct.Struct(">IB")

# Guardian to runner.
HOST_FRAME = ord("H")
SPAWN = ord("S")  # with descriptors; the payload is `[index of the new runner, is a checkpoint, tag]`
PROMOTE = ord("M")  # to a checkpoint: you are the main worker now
REDO = ord("R")  # what cells changed after this copy was made, each as its runner wrote it down, in a JSON array
TOOL_ANSWER = ord("A")  # the runner's newest cell when it called, its own number of the call, and the daemon's frame
BACKGROUND = ord("G")  # a cell for a thread of its own; with descriptors: its output, its errors, its interrupts
ARE_YOU_BACK = ord("Q")  # after a cell of the main line, with its number: answer when your first thread is free
# Runner to guardian.
PROMOTED = ord("M")  # in answer
PRESENT = ord("P")  # first message of a runner: its pid
BACK = ord("Q")  # in answer, with the same number
HURRY = ord("U")  # what was printed has to be read before more is
DISPLAY = ord("Y")  # a MIME bundle, for the present cell
BACKGROUND_DISPLAY = ord("Z")  # the number of a background cell, and a MIME bundle
TOOL_CALL = ord("C")  # the runner's own number of the call and its background cell or 0, then its name and arguments
TOOL_GIVEN_UP = ord("N")  # the runner's own number of a call whose answer is not waited for any more
CELL_BEGUN = ord("B")  # from here on the code may have had effects; names that it may assign, if known
CELL_DONE = ord("D")  # `DONE`, what repeats all that the cell changed, if that is known, then how it went
BACKGROUND_DONE = ord("G")  # the number of a background cell, then how it went
VARIABLES_DONE = ord("V")
PRELOADED = ord("L")
RESTORED = ord("O")  # 1 if a snapshot was loaded, else 0, then how that went
SPAWN_FAILED = ord("X")  # the payload is `[index of the runner that could not be made, for want of descriptors]`

CALL = struct.Struct(">IQ")
CALL_NUMBER = struct.Struct(">I")
ANSWERED = struct.Struct(">QI")
CELL = struct.Struct(">Q")
DONE = struct.Struct(">QH")  # the number of the cell, and the length of what repeats it; 0 if nothing can
PID = struct.Struct(">i")

# The C halves of `json`, taken once: quicker, and nothing that user code can replace lies between.
_scan = json.decoder.JSONDecoder().scan_once
_encode = json.encoder.c_make_encoder(None, None, json.encoder.encode_basestring, None, ":", ",", False, False, False)


class WireError(Exception):
    """The other side broke the framing."""


def encode_json(value, errors="replace"):
    # Surrogates cannot travel as UTF-8 and a lone one is no valid JSON escape: they become `?`.
    return "".join(_encode(value, 0)).encode("utf-8", errors)


def decode_json(text):
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if text[end:].strip():
        raise ValueError("more than one JSON value")
    return value


def pack(kind, payload=b""):
    return HEADER.pack(len(payload), kind) + payload


class MessageReader:
    """Takes a stream of bytes apart into messages."""

    __slots__ = ("_buffer",)

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data):
        self._buffer += data

    def unread(self):
        """Number of bytes of messages that were fed but not returned yet."""
        return len(self._buffer)

    def next(self):
        """The next whole message as `(kind, payload)`, or None."""
        buffer = self._buffer
        if len(buffer) < HEADER.size:
            return None
        length, kind = HEADER.unpack_from(buffer)
        if length > FRAME_BYTES:
            raise WireError(f"a message of {length} bytes")
        end = HEADER.size + length
        if len(buffer) < end:
            return None
        payload = bytes(buffer[HEADER.size : end])
        del buffer[:end]
        return kind, payload
