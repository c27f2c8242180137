"""A server that stands for the daemon: it answers as it is told, and can fail in ways in which a daemon seldom does."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from typing import Callable

SESSION = {
    "id": "s1",
    "name": "fake",
    "state": "idle",
    "backend": "bubblewrap",
    "limits": {"memory_bytes": 1, "cpus": 1.0},
    "created_at": "2026-01-01T00:00:00Z",
    "cells": 0,
}
CELL = {
    "cell": 1,
    "status": "success",
    "reason": "ok",
    "stdout": "",
    "stderr": "",
    "displays": [],
    "result": {"repr": "2", "type": "int"},
    "state": {"kind": "kept"},
    "artifacts": [],
    "truncated": dict.fromkeys(("stdout_bytes", "stderr_bytes", "dropped_bytes", "displays", "artifacts"), 0),
    "duration_ms": 0.3,
}


def encoded(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def streamed(result: object) -> bytes:
    event = json.dumps({"seq": 1, "type": "cell_finished", "result": result})
    body = f"id: 1\nevent: cell_finished\ndata: {event}\n\n".encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


_SESSION_ANSWER, _CELL_ANSWER, _STREAM_ANSWER = encoded(SESSION), encoded(CELL), streamed(CELL)
Answer = Callable[[bytes], "bytes | None"]


def _two(request: bytes) -> bytes:
    if request.startswith(b"GET"):
        return _SESSION_ANSWER
    return _STREAM_ANSWER if b"stream=true" in request.partition(b"\r\n")[0] else _CELL_ANSWER


class FakeDaemon:
    """Serves a socket. `answer` gets each request, and gives the answer, or nothing to hang up; without it every cell is
    `1+1`, and takes as long as `pause` says."""

    def __init__(self, answer: Answer | None = None, *, pause: float = 0.0, place: str | None = None) -> None:
        self._answer = answer or _two
        self._pause = pause
        self._folder = tempfile.TemporaryDirectory()
        self.path = place or f"{self._folder.name}/s"
        self.requests: list[bytes] = []
        self.streams: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        # Its name is there only when it listens.
        self._listener.bind(f"{self.path}.new")
        self._listener.listen()
        os.rename(f"{self.path}.new", self.path)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self.streams.append(stream)
            threading.Thread(target=self._talk, args=(stream,), daemon=True).start()

    def _talk(self, stream: socket.socket) -> None:
        try:
            while (request := self._request(stream)) is not None:
                self.requests.append(request)
                if self._pause:
                    time.sleep(self._pause)
                answer = self._answer(request)
                if answer is None:
                    break
                stream.sendall(answer)
        except OSError:
            pass
        stream.close()

    @staticmethod
    def _request(stream: socket.socket) -> bytes | None:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (piece := stream.recv(1 << 20)):
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [int(line.split()[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        pieces, left = [data], sum(lengths) - len(body)
        while left > 0:
            piece = stream.recv(1 << 20)
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def hang_up(self) -> None:
        """Ends all connections, as a daemon does that dies."""
        for stream in self.streams:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()
        self.hang_up()
        self._folder.cleanup()
