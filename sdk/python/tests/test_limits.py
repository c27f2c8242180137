"""Large results, and a daemon that is silent."""

from __future__ import annotations

import asyncio
import signal
from typing import Callable
from unittest import mock

from belljar import AsyncSandbox, BelljarError, Daemon, DaemonError, Sandbox
from belljar import _exchange

from .harness import WithDaemon
from .test_async import run


class LimitCases(WithDaemon):
    def test_large_output_files_and_values(self) -> None:
        size = 100_000_000
        with Sandbox.create(memory="1GiB") as box:
            told = 0

            def count(text: str) -> None:
                nonlocal told
                told += len(text)

            code = "import sys\nfor _ in range(1000): sys.stdout.write('x' * 99_999 + '\\n')"
            ran = box.run_code(code, on_stdout=count, timeout=120)
            self.assertEqual((ran.status, told), ("success", size))
            self.assertLess(len(ran.stdout), 200_000)
            self.assertTrue(ran.truncated)
            ran = box.run_code(code, timeout=120)
            self.assertEqual(ran.truncated.stdout_bytes + len(ran.stdout.encode()) >= size, True)
            value = box.run_code(f"'y' * {size}")
            self.assertLess(len(value.text or ""), 100_000)
            self.assertEqual(value.status, "success")
            box.files.write("large", b"z" * size)
            self.assertEqual(len(box.files.read("large", format="bytes")), size)
            with self.assertRaises(BelljarError):
                box.run_code("#" + "x" * size)
            self.assertEqual(box.run_code("1").text, "1")

    def test_large_output_and_files_with_asyncio(self) -> None:
        size = 100_000_000

        async def work() -> None:
            async with await AsyncSandbox.create(memory="1GiB") as box:
                told = 0

                async def count(text: str) -> None:
                    nonlocal told
                    told += len(text)

                code = "import sys\nfor _ in range(1000): sys.stdout.write('x' * 99_999 + '\\n')"
                ran = await box.run_code(code, on_stdout=count, timeout=120)
                self.assertEqual((ran.status, told, len(ran.stdout) < 200_000), ("success", size, True))
                await box.files.write("large", b"z" * size)
                self.assertEqual(len(await box.files.read("large", format="bytes")), size)
                with self.assertRaises(BelljarError):
                    await box.run_code("#" + "x" * size)
                self.assertEqual((await box.run_code("1")).text, "1")

        asyncio.run(work())

    def test_a_daemon_that_does_not_answer_holds_up_nobody_for_ever(self) -> None:
        box = Sandbox.create(keep=True)
        self.addCleanup(box.kill)
        asynchronous = run(AsyncSandbox.connect(box.name))
        for patch in (mock.patch.object(_exchange, name, 1.0) for name in ("QUIET_SECONDS", "HEALTH_SECONDS")):
            patch.start()
            self.addCleanup(patch.stop)
        # Patience as long as it answers something.
        daemon = Daemon()
        patient = Sandbox.connect(box.name, daemon=daemon)
        self.assertEqual(patient.run_code("import time; time.sleep(4); 5").text, "5")
        self.assertEqual(run(asynchronous.run_code("import time; time.sleep(4); 5")).text, "5")
        patient = Sandbox.connect(box.name, daemon=Daemon())
        self.ground.signal(signal.SIGSTOP)
        try:
            works: list[Callable[[], object]] = [
                lambda: patient.run_code("1"),
                lambda: run(asynchronous.run_code("1")),
            ]
            for work in works:
                with self.assertRaises(DaemonError) as silent:
                    work()
                self.assertEqual(silent.exception.code, "daemon_silent")
        finally:
            self.ground.signal(signal.SIGCONT)


class OnDocker(LimitCases):
    backend = "docker"


class OnBubblewrap(LimitCases):
    backend = "bubblewrap"


del LimitCases
