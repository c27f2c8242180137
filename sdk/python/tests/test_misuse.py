"""What goes wrong: no hang, no sandbox that is left, and an error that says what it is."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from typing import Any, Callable, Coroutine
from unittest import mock

from belljar import (
    AsyncSandbox,
    BadRequestError,
    BelljarError,
    BusyError,
    Daemon,
    DaemonError,
    ImageError,
    QuotaError,
    Sandbox,
)
from belljar import _calls, _connection

from .harness import WithDaemon, eventually, in_thread
from .test_async import run


class MisuseCases(WithDaemon):
    def test_a_forked_process_shares_the_sandbox_but_no_connection(self) -> None:
        with Sandbox.create() as box:
            box.run_code("x = 1")
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    with box:
                        os.write(writer, (box.run_code("x + 1").text or "").encode())
                finally:
                    os._exit(0)
            texts = [box.run_code("x").text for _ in range(20)]
            os.waitpid(pid, 0)
            self.assertEqual((texts, os.read(reader, 10)), (["1"] * 20, b"2"))
            # The end of the child's block is not the end of the sandbox.
            time.sleep(12)
            self.assertEqual(box.run_code("x").text, "1")
            with multiprocessing.get_context("fork").Pool(2) as pool:
                self.assertEqual(pool.map(_text_of, [(box.name, n) for n in range(4)]), ["0", "1", "2", "3"])

    def test_a_forked_process_leaves_the_tools_of_its_parent_alone(self) -> None:
        with Sandbox.create() as box:
            box.tool(name="whose")(lambda: str(os.getpid()))
            self.assertEqual(box.run_code("print(whose())").stdout, f"{os.getpid()}\n")
            asynchronous = run(AsyncSandbox.connect(box.name))
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    told = [box.run_code("print(whose())").stdout, run(asynchronous.run_code("print(whose())")).stdout]
                    box.close()
                    os.write(writer, "".join(told).encode())
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            self.assertEqual(os.read(reader, 100).decode(), f"{os.getpid()}\n" * 2)
            self.assertEqual(box.run_code("print(whose())").stdout, f"{os.getpid()}\n")

    def test_wrong_values_are_refused_with_asyncio_too(self) -> None:
        async def work() -> None:
            async with await AsyncSandbox.create() as box:
                wrongs: list[Callable[[], Coroutine[Any, Any, object]]] = [
                    lambda: box.run_code(3),  # type: ignore[arg-type]
                    lambda: box.run_code("1", timeout=-1),
                    lambda: box.undo(0),
                    lambda: box.commands.run([]),
                    lambda: box.files.write("a", 3),  # type: ignore[arg-type]
                    lambda: AsyncSandbox.create(memory="lots"),
                ]
                for wrong in wrongs:
                    with self.assertRaises(BadRequestError):
                        await wrong()
                self.assertEqual((await box.run_code("1")).text, "1")

        run(work())

    def test_threads_share_a_sandbox(self) -> None:
        with Sandbox.create() as box:
            waiting = [in_thread(functools.partial(_five_times, box, n)) for n in range(8)]
            self.assertEqual([wait() for wait in waiting], [[str(n)] * 5 for n in range(8)])

    def test_more_cells_than_may_wait_are_refused(self) -> None:
        with Sandbox.create() as box:
            running = in_thread(lambda: box.run_code("import time; time.sleep(1000)", timeout=60))
            eventually("it runs", lambda: box.info().state == "busy" or None)
            outcomes: list[object] = []

            def one_more() -> None:
                try:
                    outcomes.append(box.run_code("1").status)
                except BelljarError as error:
                    outcomes.append(error)

            waiting = [in_thread(one_more) for _ in range(18)]
            eventually("two are refused", lambda: len(outcomes) == 2 or None)
            self.assertEqual([type(outcome) for outcome in outcomes], [BusyError, BusyError])
            box.reset()
            self.assertEqual(running().status, "interrupted")
            for wait in waiting:
                wait()

    def test_wrong_values_are_refused_before_or_by_the_daemon(self) -> None:
        with Sandbox.create() as box:
            wrongs: list[Callable[[], object]] = [
                lambda: box.run_code(3),  # type: ignore[arg-type]
                lambda: box.run_code(b"1"),  # type: ignore[arg-type]
                lambda: box.run_code("1", timeout=0),
                lambda: box.run_code("1", timeout=float("nan")),
                lambda: box.run_code("1", timeout="5"),  # type: ignore[arg-type]
                lambda: box.run_code("1", timeout=1e9),
                lambda: box.run_code("'\ud800'"),
                lambda: box.run_code("1", mode="other"),  # type: ignore[arg-type]
                lambda: box.undo(0),
                lambda: box.undo(True),
                lambda: box.install(),
                lambda: box.commands.run([]),
                lambda: box.commands.run(3),  # type: ignore[call-overload]
                lambda: box.commands.run("x", envs={"A": 1}),  # type: ignore[dict-item]
                lambda: box.files.write("a", 3),  # type: ignore[arg-type]
                lambda: box.files.write("", "x"),
                lambda: box.files.read("a", format="json"),  # type: ignore[call-overload]
                lambda: box.files.make_dir("/"),
                lambda: Sandbox.create(memory="lots"),
                lambda: Sandbox.create(name="a/b"),
                lambda: Sandbox.create(preload="math"),
                lambda: Sandbox.create(seed={"a": object()}),
                lambda: Sandbox.create(seed={"a": float("inf")}),
                lambda: Sandbox.create(volumes={"/v": "a:rw"}),
                lambda: Sandbox.create(backend="vm"),  # type: ignore[arg-type]
                lambda: Sandbox.connect(""),
                lambda: box.ask("a", approval="never"),
            ]
            for wrong in wrongs:
                with self.assertRaises(BadRequestError):
                    wrong()
            with self.assertRaises(TypeError):
                Sandbox.create(memroy="1GiB")  # type: ignore[call-arg]
            for path in ("../../etc/passwd", "a\r\nX: y", "a?b#c"):
                with self.assertRaises(BelljarError):
                    box.files.read(path)
            with self.assertRaises((QuotaError, BadRequestError)):
                Sandbox.create(memory="1TiB")
            with self.assertRaises(ImageError):
                Sandbox.create(image="nobody/nothing")
            self.assertEqual(box.run_code("1").text, "1")


def _text_of(job: tuple[str, int]) -> str | None:
    name, number = job
    return Sandbox.connect(name).run_code(str(number)).text


def _five_times(box: Sandbox, number: int) -> list[str | None]:
    return [box.run_code(str(number)).text for _ in range(5)]


class OnDocker(MisuseCases):
    backend = "docker"


class OnBubblewrap(MisuseCases):
    backend = "bubblewrap"

    def test_what_listens_but_is_no_daemon(self) -> None:
        def serve(number: int, answer: bytes) -> str:
            path = str(self.ground.home / f"fake{number}.sock")
            listener = socket.socket(socket.AF_UNIX)
            self.addCleanup(listener.close)
            listener.bind(path)
            listener.listen()

            def talk() -> None:
                while True:
                    try:
                        stream, _ = listener.accept()
                    except OSError:
                        return
                    with stream:
                        stream.recv(65536)
                        if answer:
                            stream.sendall(answer)

            threading.Thread(target=talk, daemon=True).start()
            return path

        with mock.patch.object(_calls, "PAUSE_SECONDS", 0.01):
            answers = (
                b"",
                b"SSH-2.0-x\r\n\r\n",
                b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",
                b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{",
                b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}",
            )
            for number, answer in enumerate(answers):
                daemon = Daemon(serve(number, answer))
                with self.assertRaises(DaemonError):
                    Sandbox.list(daemon=daemon)
                with self.assertRaises(DaemonError):
                    run(AsyncSandbox.list(daemon=daemon))

    def test_a_daemon_that_is_killed_again_and_again_ends_the_patience(self) -> None:
        with mock.patch.object(_calls, "PAUSE_SECONDS", 0.01), mock.patch.object(_calls, "TRIES", 3):
            box = Sandbox.create()
            with mock.patch.object(_connection.Place, "needs_start", side_effect=lambda error: _absent(error)):
                self.ground.kill()
                with self.assertRaises(DaemonError):
                    box.run_code("1")
            self.assertEqual(box.run_code("1").text, "1")
            box.kill()

    def test_a_large_archive_that_is_refused_before_it_is_read_is_told_why(self) -> None:
        with tempfile.NamedTemporaryFile() as archive:
            # More than the daemon reads of what it has refused.
            archive.truncate(64 << 20)
            with self.assertRaises(BadRequestError):
                Sandbox.import_(archive.name, "no name")
            with self.assertRaises(BadRequestError):
                run(AsyncSandbox.import_(archive.name, "no name"))

    def test_a_cancelled_creation_leaves_nothing(self) -> None:
        async def work() -> None:
            for keep in (False, True):
                for pause in (0.0, 0.01, 0.05):
                    making = asyncio.create_task(AsyncSandbox.create(keep=keep))
                    await asyncio.sleep(pause)
                    making.cancel()
                    await asyncio.wait({making})

        before = set(self.ground.sessions())
        run(work())
        eventually("nothing is left", lambda: not set(self.ground.sessions()) - before or None)


def _absent(error: OSError) -> bool:
    raise DaemonError(str(error), code="daemon_unavailable")


del MisuseCases
