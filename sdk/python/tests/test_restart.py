"""The daemon ends in the middle of a request, and the request has its answer all the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from unittest import mock

from belljar import AsyncSandbox, Daemon, DaemonError, Sandbox

from .harness import BINARY, SOON, WithDaemon, eventually, in_thread
from .test_async import run as run_loop

_SLOW = "import time\nfor i in range(30):\n    print(i)\n    time.sleep(0.1)\nn = globals().get('n', 0) + 1\nn * 42"
_PRINTED = "".join(f"{i}\n" for i in range(30))


class RestartCases(WithDaemon):
    maxDiff = None

    def wait_for_cell(self, box: Sandbox) -> None:
        eventually("the cell runs", lambda: box.info().state == "busy" or None)

    def test_a_cell_goes_on_and_is_run_once(self) -> None:
        with Sandbox.create() as box:
            running = in_thread(lambda: box.run_code(_SLOW))
            self.wait_for_cell(box)
            self.ground.kill()
            run = running()
            self.assertEqual((run.text, run.stdout), ("42", _PRINTED))
            self.assertEqual(box.run_code("n").text, "1")
            self.assertIn(box.name, self.ground.sessions())

    def test_a_stream_is_resumed_without_gaps_or_repetitions(self) -> None:
        told: list[str] = []
        with Sandbox.create() as box:
            running = in_thread(lambda: box.run_code(_SLOW, on_stdout=told.append))
            for _ in range(2):
                before = len(told)
                eventually("more output", lambda: len(told) > before or None)
                self.ground.kill()
            self.assertEqual((running().text, "".join(told)), ("42", _PRINTED))
            command = in_thread(lambda: box.commands.run("for i in 1 2 3 4; do echo $i; sleep 0.5; done", on_stdout=told.append))
            told.clear()
            eventually("some output", lambda: bool(told) or None)
            self.ground.kill()
            self.assertEqual((command().exit_code, "".join(told)), (0, "1\n2\n3\n4\n"))

    def test_a_sandbox_is_held_again_by_the_next_daemon(self) -> None:
        with Sandbox.create() as box:
            box.run_code("x = 1")
            self.ground.kill()
            self.assertEqual(box.run_code("x").text, "1")
            # Longer than a sandbox stays that nobody holds.
            time.sleep(13)
            self.assertEqual(box.run_code("x").text, "1")

    def test_the_answer_of_a_tool_outlives_the_daemon_and_no_call_is_made_twice(self) -> None:
        made: list[int] = []
        began, go_on = threading.Event(), threading.Event()
        with Sandbox.create() as box:

            @box.tool
            def double(number: int) -> int:
                made.append(number)
                began.set()
                go_on.wait(SOON)
                return number * 2

            for number in (1, 2, 3):
                began.clear()
                go_on.clear()
                running = in_thread(lambda: box.run_code("double(number=%d) + double(number=%d)" % (number, 10 * number)))
                self.assertTrue(began.wait(SOON))
                self.ground.kill()
                if number == 2:
                    # The answer comes when the tool is lent again, else while no daemon is there.
                    box.info()
                    time.sleep(1)
                if number == 3:
                    box.info()
                    self.ground.kill()
                go_on.set()
                run = running()
                self.assertEqual((run.error, run.text), (None, str(22 * number)))
            self.assertEqual(made, [1, 10, 2, 20, 3, 30])

    def test_calls_of_tools_go_on_over_one_death_after_the_other(self) -> None:
        made: list[int] = []
        with Sandbox.create() as box:

            @box.tool
            def noted(number: int) -> str:
                made.append(number)
                time.sleep(0.02)
                return f"<{number}>"

            running = in_thread(lambda: box.run_code("print(''.join(noted(n) for n in range(150)))", timeout=SOON))
            for seen in (10, 50, 90):
                eventually("more calls", lambda: len(made) >= seen or None)
                # What has died is there again before it dies anew.
                box.info()
                self.ground.kill()
            run = running()
            self.assertIsNone(run.error)
            self.assertEqual(run.stdout, "".join(f"<{n}>" for n in range(150)) + "\n")
            self.assertEqual(made, list(range(150)))
            self.ground.kill()
            # The next cell finds the tool, too.
            self.assertEqual(box.run_code("print(noted(1))").stdout, "<1>\n")

    def test_the_answer_of_an_async_tool_outlives_the_daemon(self) -> None:
        async def work() -> None:
            made: list[int] = []
            began = asyncio.Event()
            async with await AsyncSandbox.create() as box:

                @box.tool
                async def double(number: int) -> int:
                    made.append(number)
                    began.set()
                    await asyncio.sleep(1)
                    return number * 2

                running = asyncio.create_task(box.run_code("double(number=4) + double(number=5)"))
                await began.wait()
                await asyncio.to_thread(self.ground.kill)
                run = await running
                self.assertEqual((run.error, run.text, made), (None, "18", [4, 5]))
                await asyncio.to_thread(self.ground.kill)
                run = await box.run_code("double(number=6)")
                self.assertEqual((run.error, run.text), (None, "12"))

        run_loop(work())

    def test_a_daemon_that_was_stopped_is_not_started_for_a_sandbox_but_for_a_new_client(self) -> None:
        daemon = Daemon()
        box = Sandbox.create(keep=True, daemon=daemon)
        self.ground.command("daemon", "stop")
        with self.assertRaises(DaemonError) as stopped:
            box.run_code("1")
        self.assertEqual(stopped.exception.message, "the daemon was stopped")
        self.assertTrue(Sandbox.connect(box.name, daemon=Daemon()).kill())

    def test_several_processes_start_one_daemon(self) -> None:
        self.ground.command("daemon", "stop")
        code = "from belljar import Sandbox\nwith Sandbox.create() as b: print(b.run_code('6 * 7').text)"
        processes = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=_environment())
            for _ in range(3)
        ]
        self.assertEqual([process.communicate(timeout=SOON)[0] for process in processes], ["42\n"] * 3)


class OnDocker(RestartCases):
    backend = "docker"


class OnBubblewrap(RestartCases):
    backend = "bubblewrap"

    def test_without_a_daemon_or_a_way_to_start_one_it_is_said(self) -> None:
        nowhere = str(self.ground.home / "nowhere.sock")
        with self.assertRaises(DaemonError) as absent:
            Sandbox.list(daemon=Daemon(nowhere, autostart=False))
        self.assertIn("no daemon listens", absent.exception.message)
        with mock.patch.dict(os.environ, {"PATH": "/nonexistent"}), self.assertRaises(DaemonError) as missing:
            Sandbox.list(daemon=Daemon(nowhere))
        self.assertIn("no command `belljar`", missing.exception.message)
        with mock.patch.dict(os.environ, {"BELLJAR_CONFIG": "/nonexistent"}), self.assertRaises(DaemonError) as failed:
            Sandbox.list(daemon=Daemon(nowhere))
        self.assertIn("/nonexistent", failed.exception.message)
        self.assertTrue(BINARY.exists())


def _environment() -> dict[str, str]:
    import belljar

    return {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(belljar.__file__))}


del RestartCases
