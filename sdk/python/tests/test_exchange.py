"""Requests and their connections, against a server of the test's own that answers as it is told."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Coroutine
from unittest import mock

from belljar import (
    AsyncSandbox,
    BusyError,
    Daemon,
    DaemonError,
    NotFoundError,
    Sandbox,
    _calls,
    _connection,
    _exchange,
    _making,
)
from belljar._base import SandboxBase
from belljar._sync import end_of

from .fake_daemon import CELL, SESSION, Answer, FakeDaemon, encoded
from .harness import SOON, eventually, in_thread


class Exchanges(unittest.TestCase):
    def serve(self, answer: Answer | None = None) -> FakeDaemon:
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

    def test_tools_are_lent_again_before_the_next_daemon_gets_a_cell(self) -> None:
        fake = self.serve()
        box = Sandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))
        other = asyncio.run(AsyncSandbox.connect("fake", daemon=Daemon(fake.path, autostart=False)))
        in_loop: Callable[[], Any] = lambda: asyncio.run(other.run_code("1+1"))
        blocking: Callable[[], Any] = lambda: box.run_code("1+1")
        for one, run in ((box, blocking), (other, in_loop)):
            run()
            lent: list[int] = []

            async def lend(loans: object = None) -> None:
                lent.append(len(fake.requests))

            with mock.patch.object(one._loans, "lend", lend), mock.patch.object(_connection, "FRESH_SECONDS", 60.0):
                fake.hang_up()
                before = len(fake.requests)
                self.assertEqual(run().text, "2")
            # The request on the connection that had died came nowhere. Before the second one the tools were looked at again.
            self.assertEqual(lent[1 if one is other else 0 :], [before])

    def test_an_answer_that_breaks_off_is_asked_for_again_with_the_same_key(self) -> None:
        broken: list[bytes] = []

        def answer(request: bytes) -> bytes | None:
            if request.startswith(b"GET"):
                return encoded(SESSION)
            if len(broken) % 2 == 0:
                broken.append(request)
                return None
            broken.append(request)
            return encoded(CELL)

        for run in self.both(self.serve(answer)):
            self.assertEqual(run("1+1"), "2")
        self.assertEqual((len(broken), broken[0], broken[2]), (4, broken[1], broken[3]))

    def test_who_is_refused_before_the_request_is_read_sees_why(self) -> None:
        problem = json.dumps({"code": "too_many", "message": "too many files are being sent at once"}).encode()
        refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n%b" % (len(problem), problem)
        answered: set[socket.socket] = set()

        def read_no_body(stream: socket.socket) -> bytes | None:
            if stream in answered:
                return None
            answered.add(stream)
            return stream.recv(100) or None

        fake = self.serve(lambda request: refusal if b"/archives" in request or b"/files" in request else encoded(SESSION))
        daemon = Daemon(fake.path, autostart=False)
        box = Sandbox.connect("fake", daemon=daemon)
        other = asyncio.run(AsyncSandbox.connect("fake", daemon=daemon))
        daemon.close()
        with tempfile.NamedTemporaryFile() as archive, mock.patch.object(FakeDaemon, "_request", staticmethod(read_no_body)):
            archive.truncate(8 << 20)
            for send in (
                lambda: Sandbox.import_(archive.name, keep=True, daemon=daemon),
                lambda: asyncio.run(AsyncSandbox.import_(archive.name, keep=True, daemon=daemon)),
                lambda: box.files.write("large", bytes(8 << 20)),
                lambda: asyncio.run(other.files.write("large", bytes(8 << 20))),
            ):
                with self.assertRaises(BusyError):
                    send()
        # Each was sent once, and on a connection that no other request got.
        self.assertEqual([request.split()[0] for request in fake.requests[2:]], [b"POST", b"POST", b"PUT", b"PUT"])
        self.assertIsNone(daemon._sync.exchanges._pool.take() or daemon._async._pool.take())

    def test_a_task_that_is_cancelled_as_it_connects_or_sends_is_cancelled(self) -> None:
        has_ended = threading.Event()
        self.addCleanup(has_ended.set)

        def answer(request: bytes) -> bytes | None:
            if request.startswith(b"POST"):
                has_ended.wait(SOON)
            return encoded(SESSION)

        fake = self.serve(answer)

        async def work(code: str, steps: int) -> None:
            box = await AsyncSandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))
            box._client.close()
            task = asyncio.create_task(box.run_code(code))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError, msg=f"{len(code)} characters, {steps} steps"):
                await task

        with mock.patch.object(FakeDaemon, "_request", staticmethod(_slowly(FakeDaemon._request))):
            for code in ("1", "x" * 1_000_000):
                for steps in range(1, 6):
                    asyncio.run(work(code, steps))

    def test_a_full_queue_is_waited_for(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(f"{folder.name}/s")
        listener.listen(0)
        waiting = socket.socket(socket.AF_UNIX)
        self.addCleanup(waiting.close)
        waiting.connect(f"{folder.name}/s")

        async def work() -> None:
            listing = asyncio.create_task(AsyncSandbox.list(daemon=Daemon(f"{folder.name}/s", autostart=False)))
            await asyncio.sleep(0.2)
            self.assertFalse(listing.done())
            listener.accept()[0].close()
            server = (await asyncio.to_thread(listener.accept))[0]
            await asyncio.to_thread(server.recv, 1 << 16)
            server.sendall(encoded({"sessions": []}))
            self.assertEqual(await listing, [])
            server.close()

        asyncio.run(work())

    def test_what_is_to_be_kept_is_taken_back_if_its_creation_is_cancelled_or_interrupted(self) -> None:
        is_asked, may_answer = threading.Event(), threading.Event()

        def answer(request: bytes) -> bytes | None:
            if request.startswith(b"POST"):
                is_asked.set()
                may_answer.wait(SOON)
            elif request.startswith(b"GET"):
                return encoded(SESSION)
            return encoded({"sessions": [SESSION, {**SESSION, "id": "s2"}]} if b"/branch HTTP" in request else SESSION)

        fake = self.serve(answer)
        daemon = Daemon(fake.path, autostart=False)

        async def cancel(making: Coroutine[Any, Any, object]) -> None:
            task = asyncio.create_task(making)
            await asyncio.to_thread(is_asked.wait, SOON)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        def interrupted(make: Callable[[], object]) -> None:
            def send_signal() -> None:
                is_asked.wait(SOON)
                os.kill(os.getpid(), signal.SIGALRM)

            before = signal.signal(signal.SIGALRM, interrupt)
            in_thread(send_signal)
            try:
                with self.assertRaises(KeyboardInterrupt):
                    make()
            finally:
                signal.signal(signal.SIGALRM, before)

        async def branch() -> None:
            await cancel((await AsyncSandbox.connect("fake", daemon=daemon)).branch(count=2, keep=True))

        box = Sandbox.connect("fake", daemon=daemon)
        works: list[tuple[Callable[[], None], int]] = [
            (lambda: asyncio.run(cancel(AsyncSandbox.create(keep=True, daemon=daemon))), 1),
            (lambda: asyncio.run(branch()), 2),
            (lambda: interrupted(lambda: Sandbox.create(keep=True, daemon=daemon)), 1),
            (lambda: interrupted(lambda: box.branch(count=2, keep=True)), 2),
        ]
        # Nobody waits until the daemon has made them.
        self.patched(_making, "CANCEL_SECONDS", 0.1)
        for work, made in works:
            is_asked.clear()
            may_answer.clear()
            fake.requests.clear()
            work()
            may_answer.set()

            def sent(method: bytes) -> list[bytes]:
                return [request for request in fake.requests if request.startswith(method)]

            eventually("what was made is removed", lambda: len(sent(b"DELETE")) == made or None)
            removed = [request.split()[1] for request in sent(b"DELETE")]
            self.assertEqual(removed, [b"/v1/sessions/s1?wait=true", b"/v1/sessions/s2?wait=true"][:made])
            asked = sent(b"POST")
            self.assertEqual((len(asked), asked[0]), (2, asked[1]))

    def test_what_is_gone_when_its_removal_is_repeated_was_removed(self) -> None:
        problem = json.dumps({"code": "no_such_file", "message": "it is gone"}).encode()
        missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%b" % (len(problem), problem)
        lost: list[bytes] = []

        def answer(request: bytes) -> bytes | None:
            if not request.startswith(b"DELETE"):
                return encoded(SESSION)
            line = request.partition(b"\r\n")[0]
            if b"never" in line or line in lost:
                return missing
            lost.append(line)
            return None

        daemon = Daemon(self.serve(answer).path, autostart=False)
        box = Sandbox.connect("fake", daemon=daemon)

        async def in_loop() -> bool:
            other = await AsyncSandbox.connect("fake", daemon=daemon)
            with self.assertRaises(NotFoundError):
                await other.files.remove("never")
            await other.files.remove("there")
            return await other.kill()

        with self.assertRaises(NotFoundError):
            box.files.remove("never")
        box.files.remove("there")
        self.assertEqual((box.kill(), len(lost), box.kill()), (True, 2, False))
        lost.clear()
        self.assertEqual((asyncio.run(in_loop()), len(lost)), (True, 2))

    def test_what_was_never_there_does_not_count_as_removed_when_the_daemon_ends(self) -> None:
        def refusal(status: bytes, code: str) -> bytes:
            problem = json.dumps({"code": code, "message": code}).encode()
            return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(problem), problem)

        refusals: list[bytes] = []

        def answer(request: bytes) -> bytes | None:
            if not request.startswith(b"DELETE"):
                return encoded(SESSION)
            return refusals.pop() if refusals else refusal(b"404 Not Found", "no_such_file")

        fake = self.serve(answer)
        box = Sandbox.connect("fake", daemon=Daemon(fake.path, autostart=False))

        def shut_down() -> None:
            refusals.append(refusal(b"503 Service Unavailable", "shutting_down"))

        # The one answers that it has done nothing; to the other the request cannot be sent.
        for end in (shut_down, fake.hang_up):
            box.info()
            end()
            with self.assertRaises(NotFoundError):
                box.files.remove("never")
            end()
            self.assertFalse(box.kill())
            self.assertEqual(refusals, [])

    def test_silence_ends_if_health_is_not_answered_either_and_not_before(self) -> None:
        self.patched(_exchange, "QUIET_SECONDS", 0.2)
        self.patched(_exchange, "HEALTH_SECONDS", 0.3)
        is_healthy = True

        def answer(request: bytes) -> bytes | None:
            if request.startswith(b"GET /v1/version"):
                time.sleep(0 if is_healthy else 2)
            elif request.startswith(b"POST"):
                time.sleep(1)
            return encoded(SESSION if request.startswith(b"GET") else CELL)

        for run in self.both(self.serve(answer)):
            is_healthy = True
            self.assertEqual(run("1+1"), "2")
            is_healthy = False
            with self.assertRaises(DaemonError) as silent:
                run("1+1")
            self.assertEqual(silent.exception.code, "daemon_silent")

    def test_large_requests_and_answers_arrive_whole_though_the_reader_is_slow(self) -> None:
        text = "x" * 5_000_000

        def answer(request: bytes) -> bytes | None:
            if request.startswith(b"GET"):
                return encoded(SESSION)
            code = json.loads(request.partition(b"\r\n\r\n")[2])["code"]
            return encoded({**CELL, "result": {"repr": code, "type": "str"}})

        with mock.patch.object(FakeDaemon, "_request", staticmethod(_slowly(FakeDaemon._request))):
            for run in self.both(self.serve(answer)):
                self.assertEqual(run(text), text)
                # The socket is as before.
                self.assertEqual(run("y"), "y")

    def test_a_signal_interrupts_a_request(self) -> None:
        def answer(request: bytes) -> bytes | None:
            time.sleep(0 if request.startswith(b"GET") else 20)
            return encoded(SESSION)

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

    def test_signals_that_come_again_and_again_do_not_hide_silence(self) -> None:
        self.patched(_exchange, "QUIET_SECONDS", 0.5)
        self.patched(_exchange, "HEALTH_SECONDS", 0.3)

        def answer(request: bytes) -> bytes | None:
            time.sleep(60 if request.startswith((b"POST", b"GET /v1/version")) else 0)
            return encoded(SESSION)

        runs = self.both(self.serve(answer))
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        try:
            # The second ones come before any wait of a client has ended, however short it is.
            for interval in (0.05, 0.002):
                signal.setitimer(signal.ITIMER_REAL, interval, interval)
                for run in runs:
                    began = time.monotonic()
                    with self.assertRaises(DaemonError, msg=f"signals every {interval} s") as silent:
                        run("1")
                    self.assertEqual(silent.exception.code, "daemon_silent")
                    self.assertLess(time.monotonic() - began, 45)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
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

    def test_a_forked_process_that_ends_leaves_the_tools_of_its_parent_lent(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        ready = b"event: ready\ndata: {}\n\n"

        def answer(request: bytes) -> bytes | None:
            if b"/tools HTTP" in request:
                return head + b"%x\r\n%b\r\n" % (len(ready), ready)
            return encoded(SESSION if request.startswith(b"GET") else CELL)

        daemon = Daemon(self.serve(answer).path, autostart=False)
        boxes: list[SandboxBase] = [Sandbox.connect("fake", daemon=daemon)]

        async def lend_in_loop() -> None:
            boxes.append(await AsyncSandbox.connect("fake", daemon=daemon))
            for box in boxes:
                box.tool(name="f")(lambda: "")
                await box._loans.lend() if isinstance(box, AsyncSandbox) else end_of(box._loans.lend())
            streams = [server._stream for box in boxes for server in box._loans._servers]
            pid = os.fork()
            if pid == 0:
                # As at the end of its interpreter, the finalizers of its copies run.
                del box
                boxes.clear()
                gc.collect()
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            for stream in streams:
                self.assertFalse(stream.connection.is_hung_up())
            self.assertTrue(all(server.serves for box in boxes for server in box._loans._servers))
            for box in boxes:
                box.close()

        asyncio.run(lend_in_loop())


def _slowly(read: Callable[[socket.socket], bytes | None]) -> Callable[[socket.socket], bytes | None]:
    def wait_and_read(stream: socket.socket) -> bytes | None:
        stream.recv(1, socket.MSG_PEEK)
        time.sleep(0.3)
        return read(stream)

    return wait_and_read
