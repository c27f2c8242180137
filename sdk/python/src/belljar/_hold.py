"""Holding a sandbox that is to go with this process.

The daemon removes an ephemeral session ten seconds after the last connection that holds it has ended, however that was:
the process may exit, crash or be killed. A thread keeps such a connection for each sandbox, and takes hold again of a
sandbox whose daemon was restarted. Async sandboxes are held in the same way, so that they outlive an event loop.
"""

from __future__ import annotations

import threading

from ._calls import Attempts, Broken, Call, nothing
from ._connection import Connection, Place
from ._forks import leave_at_fork
from ._sync import SyncClient
from .errors import BelljarError, DaemonError


class Hold:
    def __init__(self, place: Place, session: str) -> None:
        self._client = SyncClient(place)
        headers = {"Accept": "text/event-stream"}
        self._call: Call[object] = Call("GET", f"{session}/hold", nothing, headers=headers, most=None)
        self._closed = threading.Event()
        self._connection: Connection | None = None
        leave_at_fork(self)
        # A daemon thread, so that the interpreter can exit while the thread still runs.
        threading.Thread(target=self._keep, name="belljar-hold", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        connection = self._connection
        if connection is not None:
            connection.hang_up()

    def leave_to_parent(self) -> None:
        self._closed = threading.Event()
        self._closed.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _keep(self) -> None:
        attempts = Attempts()
        while not self._closed.is_set():
            try:
                self._listen(attempts)
            except (Broken, DaemonError) as error:
                try:
                    self._closed.wait(attempts.pause_after(error))
                except (BelljarError, Broken):
                    # The next request says what is wrong.
                    return
            except BelljarError:
                # The sandbox is gone, so there is nothing to hold.
                return

    def _listen(self, attempts: Attempts) -> None:
        stream = self._client.events(self._call)
        self._connection = stream.connection
        try:
            if not self._closed.is_set():
                attempts.reset()
                stream.next()
                raise Broken("the daemon let go")
        finally:
            self._connection = None
            stream.close()
