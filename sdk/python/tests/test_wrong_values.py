"""Values that are wrong are refused with a word on what is wrong, before anything is sent."""

from __future__ import annotations

import asyncio
import inspect
import unittest
from typing import Any, Callable

import belljar
from belljar import AsyncSandbox, BadRequestError, Daemon, Sandbox

from .fake_daemon import CELL, SESSION, FakeDaemon, encoded


def _answer(request: bytes) -> bytes:
    return encoded(SESSION if request.startswith((b"GET", b"POST /v1/sessions ")) else CELL)


class WrongValues(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeDaemon(_answer)
        self.addCleanup(self.fake.close)
        self.daemon = Daemon(self.fake.path, autostart=False)

    def refused(self, *wrongs: Callable[[], Any]) -> None:
        before = len(self.fake.requests)
        for number, wrong in enumerate(wrongs):
            with self.subTest(number), self.assertRaises(BadRequestError):
                outcome = wrong()
                if inspect.isawaitable(outcome):
                    asyncio.run(_end(outcome))
        self.assertEqual(len(self.fake.requests), before)

    def test_of_a_sandbox(self) -> None:
        for kind in (Sandbox, AsyncSandbox):
            create: Any = lambda **options: kind.create(daemon=self.daemon, keep=True, **options)
            self.refused(
                # A text is a sequence of its letters, each of which may be the name of a package.
                lambda: create(packages="polars"),
                lambda: create(packages=3),
                lambda: create(packages=[3]),
                lambda: create(preload="math"),
                lambda: create(preload=3),
                lambda: create(seed="abc"),
                lambda: create(seed=[1]),
                lambda: create(seed={1: 2}),
                lambda: create(idle="3"),
                lambda: create(volumes=["a"]),
                lambda: kind.create(daemon=self.fake.path),  # type: ignore[arg-type]
                lambda: kind.list(labels="a", daemon=self.daemon),  # type: ignore[arg-type]
            )

    def test_of_cells_commands_and_files(self) -> None:
        boxes: list[Any] = [
            Sandbox.connect("fake", daemon=self.daemon),
            asyncio.run(AsyncSandbox.connect("fake", daemon=self.daemon)),
        ]
        for box in boxes:
            self.refused(
                lambda: box.run_code("1", on_stdout=3),
                lambda: box.run_code("1", on_stderr="x"),
                lambda: box.run_code("1", on_result=[]),
                lambda: box.run_code("1", on_error=3),
                lambda: box.run_code("1", timeout=10**400),
                lambda: box.ask("x", on_event=3),
                lambda: box.ask("x", on_approval=3),
                lambda: box.diff(3),
                lambda: box.undo("x"),
                lambda: box.commands.run("ls", on_stdout=3),
                lambda: box.commands.run("ls", background=True, on_stdout=print),
                lambda: box.commands.run("ls", background=True, check=True),
                lambda: box.commands.connect("../../x"),
                lambda: box.commands.kill("1"),
                lambda: box.files.exists(3),
                lambda: box.files.read(None),
            )

    def test_of_jobs(self) -> None:
        run: Any = belljar.run_job
        self.refused(
            lambda: run("1", args="abc", daemon=self.daemon),
            lambda: run("1", args=3, daemon=self.daemon),
            lambda: run("1", files=["a"], daemon=self.daemon),
            lambda: run("1", files={"a": 3}, daemon=self.daemon),
            lambda: run("1", packages="polars", daemon=self.daemon),
            lambda: run("1", artifacts="*.png", daemon=self.daemon),
            lambda: belljar.map("item", [object()], daemon=self.daemon),
            lambda: belljar.map("item", [1], parallel=0, daemon=self.daemon),
        )

    def test_part_of_a_second_is_not_none(self) -> None:
        Sandbox.create(keep=True, idle=0.5, daemon=self.daemon)
        self.assertIn(b'"idle_s":1', self.fake.requests[-1])


async def _end(work: Any) -> Any:
    return await work
