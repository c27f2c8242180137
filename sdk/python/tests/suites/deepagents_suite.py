"""The integration tests that LangChain has for sandboxes of Deep Agents."""

from __future__ import annotations

from typing import Iterator

import pytest
from deepagents.backends.protocol import ExecuteResponse, SandboxBackendProtocol
from langchain_tests.integration_tests.sandboxes import SandboxIntegrationTests

from belljar.deepagents import BelljarSandbox

#: These want what the base class of Deep Agents did before version 0.7: paths of `glob` that are relative and folders among
#: them, and a `write` that refuses files which are there. No sandbox that uses the base class passes them.
_OUTDATED = (
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
)


class _Sandbox(BelljarSandbox):
    """The tests say `python`, and in a jail of this machine it may have its other name only."""

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return super().execute(f'python() {{ python3 "$@"; }}\n{command}', timeout=timeout)


class TestSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        with _Sandbox() as backend:
            yield backend

    @pytest.fixture(autouse=True)
    def outdated(self, request: pytest.FixtureRequest) -> None:
        if request.node.originalname in _OUTDATED:
            request.node.add_marker(pytest.mark.xfail(reason="Deep Agents has changed", strict=True))
