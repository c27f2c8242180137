"""Pydantic AI's own conformance suite, all of it: no rule is left out."""

from __future__ import annotations

from typing import Awaitable, Callable, Iterator

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from belljar import Sandbox
from belljar.pydantic_ai import BelljarBackend, BelljarSandbox


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def made() -> Iterator[Sandbox]:
    with Sandbox.create() as box:
        yield box


class TestConformance(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, made: Sandbox) -> WorkspaceBackend:
        return BelljarBackend(WorkspaceRef(provider="belljar", id=made.id))

    @pytest.fixture
    def fresh_backend(self) -> Iterator[Callable[[], WorkspaceBackend] | None]:
        backends: list[BelljarBackend] = []

        def make() -> WorkspaceBackend:
            backends.append(BelljarBackend())
            return backends[-1]

        yield make
        for backend in backends:
            if backend.ref is not None and backend.ref.id in [info.id for info in Sandbox.list()]:
                Sandbox.connect(backend.ref.id).kill()

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WorkspaceBackend] | None:
        return BelljarBackend

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]] | None:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            assert await BelljarSandbox[None]().destroy(backend.ref)

        return destroy
