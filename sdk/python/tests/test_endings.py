"""Sandboxes go with whoever made them, however that ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import belljar
from belljar import Sandbox

from .harness import SOON, WithDaemon, eventually


def child(code: str) -> subprocess.Popen[str]:
    """A Python process of its own, which uses the package."""
    environment = {**os.environ, "PYTHONPATH": str(Path(belljar.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


class EndingCases(WithDaemon):
    def test_a_process_that_ends_takes_its_sandboxes_along_however_it_ends(self) -> None:
        make = (
            "import asyncio, os, signal, sys, threading, time\nfrom belljar import AsyncSandbox, Sandbox\n"
            "box = Sandbox.create()\n"
            "@box.tool\ndef wait() -> None:\n    time.sleep(1000)\n"
            "box.run_code('x = 1')\n"
            "other = asyncio.run(AsyncSandbox.create())\n"
            "print(box.name, other.name, flush=True)\n"
        )
        busy = "threading.Thread(target=box.run_code, args=('wait()',), daemon=True).start(); time.sleep(0.5)\n"
        ends = ("", "sys.exit(3)", "raise ValueError", "os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)", busy)
        children = [child(make + end) for end in ends]
        # In the middle of a cell of an event loop, whose tool is being called.
        in_loop = (
            "import asyncio, sys\nfrom belljar import AsyncSandbox\n"
            "async def main():\n"
            "    boxes = [await AsyncSandbox.create() for _ in range(2)]\n"
            "    print(*[box.name for box in boxes], flush=True)\n"
            "    @boxes[0].tool\n    async def wait() -> None:\n        sys.exit(3)\n"
            "    await asyncio.gather(boxes[0].run_code('wait()', on_stdout=print), boxes[1].run_code('while True: pass'))\n"
            "asyncio.run(main())\n"
        )
        children.append(child(in_loop.replace("sys.exit(3)", "raise KeyboardInterrupt")))
        children.append(child(in_loop.replace("await asyncio.gather(", "asyncio.gather(") + "sys.exit(3)"))
        names: list[str] = []
        for process in children:
            told, errors = process.communicate(timeout=SOON)
            self.assertEqual(len(told.split()), 2, errors)
            names += told.split()
            self.assertNotIn("Exception ignored", errors)
        eventually("all are gone", lambda: not set(names) & set(self.ground.sessions()) or None)

    def test_a_tool_that_hangs_holds_up_neither_loop_nor_process(self) -> None:
        process = child(
            "import asyncio, time\nfrom belljar import AsyncSandbox\n"
            "async def main():\n"
            "    box = await AsyncSandbox.create()\n"
            "    called = asyncio.Event()\n"
            "    loop = asyncio.get_running_loop()\n"
            "    @box.tool\n"
            "    def hang() -> None:\n"
            "        loop.call_soon_threadsafe(called.set)\n"
            "        time.sleep(1000)\n"
            "    cell = asyncio.create_task(box.run_code('hang()'))\n"
            "    await called.wait()\n"
            "    print(box.name, flush=True)\n"
            "asyncio.run(main())\n"
        )
        told, errors = process.communicate(timeout=SOON)
        self.assertEqual((process.returncode, len(told.split())), (0, 1), errors)
        eventually("it is gone", lambda: told.strip() not in self.ground.sessions() or None)

    def test_a_sandbox_that_is_forgotten_goes(self) -> None:
        box = Sandbox.create()
        name = box.name
        box.run_code("1")
        del box
        gc.collect()
        eventually("it is gone", lambda: name not in self.ground.sessions() or None)

    def test_a_child_that_lives_on_does_not_keep_the_sandbox(self) -> None:
        parent = child(
            "import os, time\nfrom belljar import Sandbox\nbox = Sandbox.create()\ntime.sleep(0.5)\n"
            "pid = os.fork()\nif pid == 0:\n    os.closerange(0, 3)\n    time.sleep(60)\n    os._exit(0)\n"
            "print(box.name, pid, flush=True)\nos._exit(0)"
        )
        name, pid = parent.communicate(timeout=SOON)[0].split()
        try:
            eventually("it is gone", lambda: name not in self.ground.sessions() or None)
        finally:
            os.kill(int(pid), signal.SIGKILL)


class OnDocker(EndingCases):
    backend = "docker"


class OnBubblewrap(EndingCases):
    backend = "bubblewrap"


del EndingCases
