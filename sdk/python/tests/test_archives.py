"""Archives on their way to a daemon, against a server of the test's own that answers as it is told."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from typing import Callable

from belljar import AsyncSandbox, Daemon, OutcomeUnknownError, Sandbox
from belljar._base import SandboxBase

from .fake_daemon import SESSION, Answer, FakeDaemon, encoded


class Archives(unittest.TestCase):
    def serve(self, answer: Answer) -> FakeDaemon:
        fake = FakeDaemon(answer)
        self.addCleanup(fake.close)
        return fake

    def test_an_archive_is_sent_once_whatever_becomes_of_the_answer(self) -> None:
        is_lost = True

        def answer(request: bytes) -> bytes | None:
            if request.startswith(b"POST"):
                return None if is_lost else encoded({"session": SESSION})
            return encoded({"sessions": []})

        fake = self.serve(answer)
        daemon = Daemon(fake.path, autostart=False)
        with tempfile.NamedTemporaryFile() as archive:

            def in_loop() -> AsyncSandbox:
                return asyncio.run(AsyncSandbox.import_(archive.name, keep=True, daemon=daemon))

            imports: list[tuple[Callable[[], SandboxBase], Callable[[], object]]] = [
                (lambda: Sandbox.import_(archive.name, keep=True, daemon=daemon), lambda: Sandbox.list(daemon=daemon)),
                (in_loop, lambda: asyncio.run(AsyncSandbox.list(daemon=daemon))),
            ]
            for import_, look in imports:
                is_lost = True
                before = len(fake.requests)
                with self.assertRaises(OutcomeUnknownError) as unknown:
                    import_()
                self.assertEqual((unknown.exception.code, len(fake.requests)), ("outcome_unknown", before + 1))
                is_lost = False
                look()
                # An idle connection that ends is no sign of anything.
                fake.hang_up()
                self.assertEqual(import_().name, "fake")

    def test_an_archive_gets_the_backend_that_its_caller_names(self) -> None:
        fake = self.serve(lambda _request: encoded({"session": SESSION}))
        daemon = Daemon(fake.path, autostart=False)
        with tempfile.NamedTemporaryFile() as archive:
            Sandbox.import_(archive.name, backend="bubblewrap", keep=True, daemon=daemon)
            asyncio.run(AsyncSandbox.import_(archive.name, backend="bubblewrap", keep=True, daemon=daemon))
        sent = [request.split()[1] for request in fake.requests if request.startswith(b"POST")]
        self.assertEqual(sent, [b"/v1/archives?backend=bubblewrap"] * 2)
