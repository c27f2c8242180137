"""The daemon that sandboxes are made by."""

from __future__ import annotations

from . import _daemon
from ._api import wrong
from ._async import AsyncClient
from ._connection import Place
from ._sync import SyncClient

_defaults: dict[tuple[str, bool], Daemon] = {}


class Daemon:
    """A daemon at its socket. Without a path it is the one that the command `belljar` would use, and is started if none
    runs, unless `autostart` is false or the environment has `BELLJAR_NO_AUTOSTART=1`. Threads and event loops may share
    it."""

    def __init__(self, socket: str | None = None, *, autostart: bool | None = None) -> None:
        self._place = Place(socket, autostart)
        self._sync = SyncClient(self._place)
        self._async = AsyncClient(self._place)

    @property
    def socket(self) -> str:
        return self._place.path

    def close(self) -> None:
        """Closes idle connections. Sandboxes go on, and so does the daemon."""
        self._sync.close()
        self._async.close()

    def __repr__(self) -> str:
        return f"Daemon({self.socket!r})"


def chosen(daemon: Daemon | None) -> Daemon:
    """The daemon that a caller names, or else that of the environment."""
    if daemon is None:
        return default()
    if not isinstance(daemon, Daemon):
        raise wrong(f"`daemon` is a `Daemon`, not {type(daemon).__name__}", "make one with `Daemon(\"/path/of/its/socket\")`")
    return daemon


def default() -> Daemon:
    """The daemon that the environment says, the same object as long as that says the same."""
    key = (_daemon.socket_path(), _daemon.may_start())
    return _defaults.get(key) or _defaults.setdefault(key, Daemon(key[0], autostart=key[1]))
