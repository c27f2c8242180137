"""Requests and their connections, against a server of the test's own that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
import threading
import time
import unittest
from typing import Any, Callable
from unittest import mock

from belljar import AsyncSandbox, Daemon, DaemonError, Sandbox, _calls, _connection, _exchange

_SESSION = {
    "id": "s1",
    "name": "fake",
    "state": "idle",
    "backend": "bubblewrap",
    "limits": {"memory_bytes": 1, "cpus": 1.0},
    "created_at": "2026-01-01T00:00:00Z",
    "cells": 0,
}
_CELL = {
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


class FakeDaemon:
    """Serves a socket. `answer` gets each request and its connection; it gives the answer, or nothing to hang up."""

    def __init__(self, answer: Callable[[bytes, socket.socket], bytes | None] | None = None) -> None:
        self._answer = answer or (lambda request, _stream: encoded(_SESSION if request.startswith(b"GET") else _CELL))
        self._folder = tempfile.TemporaryDirectory()
        self.path = f"{self._folder.name}/s"
        self.requests: list[bytes] = []
        self.streams: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
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
                answer = self._answer(request, stream)
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


class Exchanges(unittest.TestCase):
    def serve(self, answer: Callable[[bytes, socket.socket], bytes | None] | None = None) -> FakeDaemon:
        fake = FakeDaemon(answer)
        self.addCleanup(fake.close)
        return fake

    def both(self, fake: FakeDaemon) -> list[Callable[[str], str | None]]:
        """The same cell by the blocking client and by that of an event loop."""
        box = Sandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))
        other = asyncio.run(AsyncSandbox.connect("fake", daemon=Daemon(fake.path, autostart=False)))

        async def run(code: str) -> str | None:
            return (await other.run_code(code)).text

        return [lambda code: box.run_code(code).text, lambda code: asyncio.run(run(code))]

    def patched(self, where: Any, name: str, value: float) -> None:
        patch = mock.patch.object(where, name, value)
        patch.start()
        self.addCleanup(patch.stop)

    def test_many_requests_take_one_connection(self) -> None:
        fake = self.serve()
        for run in self.both(fake):
            before = len(fake.streams)
            self.assertEqual([run("1+1") for _ in range(20)], ["2"] * 20)
            self.assertEqual(len(fake.streams), before)

    def test_a_cell_is_sent_as_json_with_a_key_of_its_own(self) -> None:
        fake = self.serve()
        box = Sandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))
        codes = ['print("é\\n")', "\u2028\0'\"", ""]
        for code in codes:
            box.run_code(code)
        box.run_code("1", timeout=2.5, mode="fork")
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in fake.requests[1:]]
        self.assertEqual(bodies, [*({"code": code} for code in codes), {"code": "1", "timeout_s": 2.5, "mode": "fork"}])
        keys = [line for request in fake.requests for line in request.split(b"\r\n") if line.startswith(b"Idempotency-Key")]
        self.assertEqual(len(set(keys)), len(bodies))

    def test_connections_that_died_cost_no_request_whether_they_were_just_used_or_not(self) -> None:
        fake = self.serve()
        runs = self.both(fake)
        for fresh in (_calls.FRESH_SECONDS, 0.0):
            self.patched(_connection, "FRESH_SECONDS", fresh)
            for run in runs:
                run("1")
                fake.hang_up()
                began = time.monotonic()
                self.assertEqual(run("1+1"), "2")
                # At once, not after the pause for a daemon that may come.
                self.assertLess(time.monotonic() - began, _calls.PAUSE_SECONDS)

    def test_an_answer_that_breaks_off_is_asked_for_again_with_the_same_key(self) -> None:
        broken: list[bytes] = []

        def answer(request: bytes, _stream: socket.socket) -> bytes | None:
            if request.startswith(b"GET"):
                return encoded(_SESSION)
            if len(broken) % 2 == 0:
                broken.append(request)
                return None
            broken.append(request)
            return encoded(_CELL)

        for run in self.both(self.serve(answer)):
            self.assertEqual(run("1+1"), "2")
        self.assertEqual((len(broken), broken[0], broken[2]), (4, broken[1], broken[3]))

    def test_silence_ends_if_health_is_not_answered_either_and_not_before(self) -> None:
        self.patched(_exchange, "QUIET_SECONDS", 0.2)
        self.patched(_exchange, "HEALTH_SECONDS", 0.3)
        is_healthy = True

        def answer(request: bytes, _stream: socket.socket) -> bytes | None:
            if request.startswith(b"GET /v1/version"):
                time.sleep(0 if is_healthy else 2)
            elif request.startswith(b"POST"):
                time.sleep(1)
            return encoded(_SESSION if request.startswith(b"GET") else _CELL)

        for run in self.both(self.serve(answer)):
            is_healthy = True
            self.assertEqual(run("1+1"), "2")
            is_healthy = False
            with self.assertRaises(DaemonError) as silent:
                run("1+1")
            self.assertEqual(silent.exception.code, "daemon_silent")

    def test_large_requests_and_answers_arrive_whole_though_the_reader_is_slow(self) -> None:
        text = "x" * 5_000_000

        def answer(request: bytes, _stream: socket.socket) -> bytes | None:
            if request.startswith(b"GET"):
                return encoded(_SESSION)
            code = json.loads(request.partition(b"\r\n\r\n")[2])["code"]
            return encoded({**_CELL, "result": {"repr": code, "type": "str"}})

        with mock.patch.object(FakeDaemon, "_request", staticmethod(_slowly(FakeDaemon._request))):
            for run in self.both(self.serve(answer)):
                self.assertEqual(run(text), text)
                # The socket is as before.
                self.assertEqual(run("y"), "y")

    def test_a_signal_interrupts_a_request(self) -> None:
        def answer(request: bytes, _stream: socket.socket) -> bytes | None:
            time.sleep(0 if request.startswith(b"GET") else 20)
            return encoded(_SESSION)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for run in self.both(self.serve(answer)):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                began = time.monotonic()
                with self.assertRaises(KeyboardInterrupt):
                    run("1")
                self.assertLess(time.monotonic() - began, 5)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_a_forked_process_leaves_the_connections_of_its_parent_alone(self) -> None:
        fake = self.serve()
        box = Sandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))
        box.run_code("1")
        before = len(fake.streams)
        pid = os.fork()
        if pid == 0:
            try:
                code = 0 if box.run_code("1+1").text == "2" else 1
            except BaseException:
                code = 2
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(len(fake.streams), before + 1)
        self.assertEqual(box.run_code("1+1").text, "2")
        self.assertEqual(len(fake.streams), before + 1)


def _slowly(read: Callable[[socket.socket], bytes | None]) -> Callable[[socket.socket], bytes | None]:
    def wait_and_read(stream: socket.socket) -> bytes | None:
        stream.recv(1, socket.MSG_PEEK)
        time.sleep(0.3)
        return read(stream)

    return wait_and_read
