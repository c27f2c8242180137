"""The server's half of RFC 6455, as far as the bridge needs it: no extensions, no subprotocols.

Nothing here does I/O: bytes go in, messages and bytes to send come out. Every breach of the
protocol or of a bound raises `Violation`, after which the connection is of no use.
"""

import binascii
import struct

try:
    # `hashlib` loads the whole of OpenSSL, which every new sandbox would wait for.
    from _sha1 import sha1
except ImportError:
    from hashlib import sha1

from .limits import FRAGMENTS, FRAME_BYTES, UPGRADE_BYTES, UPGRADE_HEADERS

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NORMAL, PROTOCOL_ERROR, BAD_TEXT, TOO_BIG = 1000, 1002, 1007, 1009

_ACCEPT_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTROL_BYTES = 125
_KEY_BYTES = 16
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")


class Violation(Exception):
    """The peer broke the protocol; `code` is the status for the close frame."""

    def __init__(self, code, reason):
        super().__init__(reason)
        self.code = code


def answer_upgrade(received):
    """`(answer, bytes used)` for a whole upgrade request, None while it is not all there."""
    end = received.find(b"\r\n\r\n", 0, UPGRADE_BYTES)
    if end < 0:
        if len(received) >= UPGRADE_BYTES:
            raise Violation(PROTOCOL_ERROR, "the upgrade request is too long")
        return None
    lines = bytes(received[:end]).split(b"\r\n")
    request = lines[0].split(b" ")
    if len(request) != 3 or request[0] != b"GET" or request[2] != b"HTTP/1.1":
        raise Violation(PROTOCOL_ERROR, "not a GET request of HTTP/1.1")
    headers = _headers(lines[1:])
    if headers.get(b"upgrade", b"").lower() != b"websocket":
        raise Violation(PROTOCOL_ERROR, "no upgrade to websocket")
    options = [part.strip().lower() for part in headers.get(b"connection", b"").split(b",")]
    if b"upgrade" not in options:
        raise Violation(PROTOCOL_ERROR, "the connection is not to be upgraded")
    if headers.get(b"sec-websocket-version") != b"13":
        raise Violation(PROTOCOL_ERROR, "not version 13")
    key = headers.get(b"sec-websocket-key", b"")
    try:
        key_bytes = binascii.a2b_base64(key)
    except binascii.Error:
        key_bytes = b""
    # The decoder skips characters that are no base64, so the key has to equal its own encoding.
    if len(key_bytes) != _KEY_BYTES or binascii.b2a_base64(key_bytes, newline=False) != key:
        raise Violation(PROTOCOL_ERROR, "no proper key")
    accept = binascii.b2a_base64(sha1(key + _ACCEPT_SALT).digest(), newline=False)
    answer = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    return answer, end + 4


def _headers(lines):
    if len(lines) > UPGRADE_HEADERS:
        raise Violation(PROTOCOL_ERROR, "too many headers")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise Violation(PROTOCOL_ERROR, "a header is malformed")
        name = name.lower()
        if name in headers:
            raise Violation(PROTOCOL_ERROR, "a header comes twice")
        headers[name] = value.strip()
    return headers


def unmask(data, key):
    """XOR with the repeated key, done on two big integers: hundreds of times a byte loop's speed."""
    size = len(data)
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")


def encode(opcode, *parts):
    """One unmasked, unfragmented frame."""
    size = sum(map(len, parts))
    if size <= _CONTROL_BYTES:
        header = bytes((0x80 | opcode, size))
    elif size < 2**16:
        header = bytes((0x80 | opcode, 126)) + _U16.pack(size)
    else:
        header = bytes((0x80 | opcode, 127)) + _U64.pack(size)
    return b"".join((header, *parts))


def encode_close(code, reason=""):
    return encode(CLOSE, _U16.pack(code), reason.encode()[: _CONTROL_BYTES - 2])


class MessageReader:
    """Turns the client's bytes into messages: `(TEXT, str)`, `(PING, bytes)`, `(CLOSE, bytes)`…"""

    def __init__(self):
        self._buffer = bytearray()
        self._fragments = None
        self._fragments_bytes = 0

    def feed(self, data):
        self._buffer += data

    def next(self):
        """The next whole message, or None."""
        while True:
            frame = self._frame()
            if frame is None:
                return None
            final, opcode, payload = frame
            if opcode >= CLOSE:
                return opcode, payload
            message = self._assemble(final, opcode, payload)
            if message is not None:
                return message

    def _frame(self):
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        final, opcode, size = first & 0x80, first & 0x0F, second & 0x7F
        if first & 0x70:
            raise Violation(PROTOCOL_ERROR, "a reserved bit is set")
        if not second & 0x80:
            raise Violation(PROTOCOL_ERROR, "a frame of the client is not masked")
        if opcode not in (CONTINUATION, TEXT, CLOSE, PING, PONG):
            # Binary frames go from kernel to daemon only.
            raise Violation(PROTOCOL_ERROR, "an unexpected opcode")
        if opcode >= CLOSE and (size > _CONTROL_BYTES or not final):
            raise Violation(PROTOCOL_ERROR, "a control frame is long or fragmented")
        start = 2
        if size == 126:
            if len(buffer) < 4:
                return None
            size, start = _U16.unpack_from(buffer, 2)[0], 4
        elif size == 127:
            if len(buffer) < 10:
                return None
            size, start = _U64.unpack_from(buffer, 2)[0], 10
        if size + self._fragments_bytes > FRAME_BYTES and opcode < CLOSE:
            raise Violation(TOO_BIG, "a message is too big")
        end = start + 4 + size
        if len(buffer) < end:
            return None
        payload = unmask(buffer[start + 4 : end], bytes(buffer[start : start + 4]))
        del buffer[:end]
        return final, opcode, payload

    def _assemble(self, final, opcode, payload):
        fragments = self._fragments
        if (opcode == CONTINUATION) != (fragments is not None):
            raise Violation(PROTOCOL_ERROR, "fragments are out of order")
        if fragments is None:
            if final:
                return TEXT, _text(payload)
            fragments = self._fragments = []
        fragments.append(payload)
        self._fragments_bytes += len(payload)
        if len(fragments) > FRAGMENTS:
            raise Violation(TOO_BIG, "too many fragments")
        if not final:
            return None
        self._fragments = None
        self._fragments_bytes = 0
        return TEXT, _text(b"".join(fragments))


def _text(payload):
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Violation(BAD_TEXT, "a text is not UTF-8") from error
