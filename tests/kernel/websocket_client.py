"""The daemon's side of the bridge, for tests: a websocket client over an accepted unix socket."""

import base64
import os
import socket
import struct
import time

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA


class Closed(Exception):
    """The kernel hung up."""


def upgrade_request(key=None):
    key = key or base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /bridge HTTP/1.1\r\nHost: kernel\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def masked_frame(opcode, payload=b"", final=True, mask=b"\x11\x22\x33\x44", reserved=0):
    size = len(payload)
    head = bytes([(0x80 if final else 0) | reserved | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + struct.pack(">H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", size)
    repeated = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return head + mask + (int.from_bytes(payload, "big") ^ repeated).to_bytes(size, "big")


class Connection:
    def __init__(self, accepted):
        self._socket = accepted
        self._buffer = bytearray()

    def upgrade(self):
        self.send_raw(upgrade_request())
        deadline = time.monotonic() + 10
        while b"\r\n\r\n" not in self._buffer:
            self._fill(deadline)
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        if not head.startswith(b"HTTP/1.1 101"):
            raise AssertionError(head)
        return head

    def send_raw(self, data):
        self._socket.settimeout(10)
        self._socket.sendall(data)

    def send_text(self, text):
        self.send_raw(masked_frame(TEXT, text.encode()))

    def receive(self, deadline):
        """`(opcode, payload)`; raises TimeoutError at the deadline and Closed at the end."""
        while True:
            frame = self._frame()
            if frame is not None:
                return frame
            self._fill(deadline)

    def close(self):
        self._socket.close()

    def _frame(self):
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        if buffer[1] & 0x80:
            raise AssertionError("the server masked a frame")
        size, start = buffer[1] & 0x7F, 2
        if size == 126:
            if len(buffer) < 4:
                return None
            size, start = struct.unpack_from(">H", buffer, 2)[0], 4
        elif size == 127:
            if len(buffer) < 10:
                return None
            size, start = struct.unpack_from(">Q", buffer, 2)[0], 10
        if len(buffer) < start + size:
            return None
        opcode, payload = buffer[0] & 0x0F, bytes(buffer[start : start + size])
        del buffer[: start + size]
        return opcode, payload

    def _fill(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no frame of the kernel in time")
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(1 << 20)
        except socket.timeout:
            raise TimeoutError("no frame of the kernel in time") from None
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed
        self._buffer += data
