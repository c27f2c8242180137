"""Workspaces of Pydantic AI."""

from __future__ import annotations

import asyncio
import unittest.mock

from .frameworks import WithFramework


class PydanticAiCases(WithFramework):
    framework = "pydantic_ai"

    def test_all_rules_of_the_conformance_suite_hold(self) -> None:
        outcomes = self.outcomes("pydantic_ai_suite")
        self.assertEqual(set(outcomes), {"passed"}, outcomes)
        self.assertGreaterEqual(outcomes["passed"], 38)

    def test_the_example_runs(self) -> None:
        self.assertEqual(self.example("pydantic_ai_workspace"), "Most was sold in June.\nremoved: True\n")

    def test_what_is_not_ours_or_too_large_is_refused(self) -> None:
        from pydantic_ai.workspaces import WorkspaceOutputLimitError, WorkspaceRef

        from belljar import pydantic_ai as adapter

        foreign = WorkspaceRef(provider="docker", id="x")
        with self.assertRaisesRegex(ValueError, "docker"):
            adapter.BelljarBackend(foreign)

        async def use() -> None:
            sandbox = adapter.BelljarSandbox[None](memory="512MiB")
            backend = sandbox.backend()
            self.assertIsNone(backend.ref)
            with unittest.mock.patch.object(adapter, "OUTPUT_BYTES", 1000):
                with self.assertRaises(WorkspaceOutputLimitError) as refused:
                    await backend.run("yes", shell=True)
            self.assertEqual((refused.exception.limit, refused.exception.stdout), (1000, "y\n" * 500))
            assert backend.ref is not None
            self.assertTrue(await sandbox.destroy(backend.ref))
            self.assertFalse(await sandbox.destroy(backend.ref))

        asyncio.run(use())


class OnDocker(PydanticAiCases):
    backend = "docker"


class OnBubblewrap(PydanticAiCases):
    backend = "bubblewrap"


del PydanticAiCases
