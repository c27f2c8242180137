"""A real daemon in a folder of its own, for each kind of sandbox, which the package under test starts by itself.

`BELLJAR` names the binary.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable, ClassVar, TypeVar

from belljar import Daemon

T = TypeVar("T")

#: The longest wait for something that should happen soon.
SOON = 60.0
_ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("BELLJAR") or _ROOT / "target/debug/belljar").resolve()


def eventually(what: str, check: Callable[[], T | None], seconds: float = SOON) -> T:
    """Polls until `check` gives something that is not None."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


def in_thread(function: Callable[[], T]) -> Callable[[], T]:
    """Begins a function in a thread; what is returned waits for its outcome."""
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> T:
        thread.join(SOON)
        if errors:
            raise errors[0]
        if not outcome:
            raise AssertionError(f"not within {SOON:.0f} s: the end of a thread")
        return outcome[0]

    return wait


class Ground:
    """A home with a configuration. No daemon is there until the first request."""

    def __init__(self, backend: str, config: str = "") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="bj"))
        self.config = self.home / "config.toml"
        self.config.write_text(f'[sandbox]\nbackend = "{backend}"\n[pool]\nsize = 0\n{config}')
        tools = self.home / "bin"
        tools.mkdir()
        (tools / "belljar").symlink_to(BINARY)
        path = f"{tools}:{os.environ['PATH']}"
        self.environment = {"BELLJAR_HOME": str(self.home), "BELLJAR_CONFIG": str(self.config), "PATH": path}
        self._before = {name: os.environ.get(name) for name in [*self.environment, "BELLJAR_SOCKET"]}
        os.environ.update(self.environment)
        os.environ.pop("BELLJAR_SOCKET", None)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BINARY), *words], capture_output=True, text=True, timeout=SOON, check=False, stdin=subprocess.DEVNULL
        )

    def sessions(self) -> list[str]:
        listed: dict[str, Any] = json.loads(self.command("--json", "ps").stdout)
        return [session["name"] for session in listed["sessions"]]

    def pid(self) -> int:
        return int((self.home / "daemon.pid").read_text().split()[0])

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid(), number)

    def kill(self) -> None:
        """Ends the daemon as a crash would, and waits until it is gone."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)

        def is_gone() -> bool | None:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return True
            return True if state == "Z" else None

        eventually("the daemon is gone", is_gone)

    def close(self) -> None:
        self.command("daemon", "stop", "--remove")
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self.home, ignore_errors=True)


class WithDaemon(unittest.TestCase):
    """Tests against one daemon. `backend` is set by the classes that are run."""

    backend: ClassVar[str] = ""
    configuration: ClassVar[str] = ""
    ground: ClassVar[Ground]

    @classmethod
    def setUpClass(cls) -> None:
        if not cls.backend:
            raise unittest.SkipTest("for each kind of sandbox there is a class")
        if cls.backend == "docker" and os.environ.get("BELLJAR_TEST_NO_DOCKER") == "1":
            raise unittest.SkipTest("BELLJAR_TEST_NO_DOCKER=1 is set")
        cls.ground = Ground(cls.backend, cls.configuration)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.ground.close()

    def daemon(self) -> Daemon:
        """A client of its own."""
        return Daemon()
