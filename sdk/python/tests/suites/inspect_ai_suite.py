"""Inspect's own checks of a sandbox, all of them. One needs root in the sandbox, and nobody ever is."""

from __future__ import annotations

from typing import AsyncIterator, Iterator

import pytest
from inspect_ai.util import SandboxUserUnsupportedError
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from belljar import Sandbox
from belljar.inspect_ai import BelljarEnvironment

pytestmark = pytest.mark.anyio

_NEEDS_ROOT = "test_exec_as_user"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox.create() as box:
        yield box


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest, box: Sandbox) -> AsyncIterator[BelljarEnvironment]:
    if request.node.originalname == _NEEDS_ROOT:
        reason = "a sandbox has one user, who is not root"
        request.node.add_marker(pytest.mark.xfail(reason=reason, raises=SandboxUserUnsupportedError, strict=True))
    yield BelljarEnvironment(box)


def test_all_checks_are_here() -> None:
    assert _NEEDS_ROOT in self_check.__all__
    assert all(name in globals() for name in self_check.__all__)
