"""Requests that make sandboxes. Who ends one before its answer has no name yet by which to remove what it makes, so that is done
here."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from . import _api
from ._calls import Call
from ._sync import SyncClient
from ._threads import in_thread
from .errors import BelljarError
from .results import SandboxInfo

if TYPE_CHECKING:
    from .daemon import Daemon

#: How long a cancelled creation waits to remove the sandbox that it may have made: the program that cancelled it waits, too.
CANCEL_SECONDS = 5.0


def made(daemon: Daemon, call: Call[list[SandboxInfo]], keep: bool) -> list[SandboxInfo]:
    """What a request makes. If Ctrl-C ends it, what it made is removed: by the daemon, or here if it is to be kept."""
    try:
        return daemon._sync.request(call)
    except KeyboardInterrupt:
        if keep:
            taking_back = threading.Thread(target=_take_back, args=(daemon._sync, call), name="belljar-work", daemon=True)
            taking_back.start()
            taking_back.join(CANCEL_SECONDS)
        raise


async def made_async(daemon: Daemon, call: Call[list[SandboxInfo]], keep: bool) -> list[SandboxInfo]:
    """The same if its task is cancelled."""
    try:
        return await daemon._async.request(call)
    except asyncio.CancelledError:
        if keep:
            # In a thread, which goes on where the loop ends before the daemon has made it.
            taking_back = asyncio.create_task(in_thread(lambda: _take_back(daemon._sync, call)))
            await asyncio.wait({taking_back}, timeout=CANCEL_SECONDS)
        raise


def _take_back(client: SyncClient, call: Call[list[SandboxInfo]]) -> None:
    try:
        # The answer to the same key is what the request that was ended has made, once it is made.
        for info in client.request(call):
            client.request(_api.remove(_api.session_path(info.id)))
    except BelljarError:
        # Whoever ended it does not wait for what went wrong.
        pass
