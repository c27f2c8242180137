"""Where the daemon listens, whether it is to be trusted, and how one is started: all as the command `belljar` does it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sysconfig
import threading
from typing import Mapping

from .errors import DaemonError

#: Where the daemon of the whole machine listens.
_SYSTEM_SOCKET = "/run/belljar/belljar.sock"
#: The longest path of a unix socket that Linux accepts.
_SOCKET_PATH_BYTES = 107
#: Time to connect; a daemon whose queue of connections is full would hold up the caller for ever.
CONNECT_SECONDS = 5.0
#: Time for a daemon to start. The command that starts it gives up before that, and says why.
_START_SECONDS = 90.0
_PEER_CREDENTIALS = struct.Struct("3i")

_starting = threading.Lock()
if hasattr(os, "register_at_fork"):  # pragma: no branch

    def _unlock() -> None:
        global _starting
        _starting = threading.Lock()

    os.register_at_fork(after_in_child=_unlock)


def socket_path(environment: Mapping[str, str] | None = None) -> str:
    """The path of the socket. Where the environment of this process names none, the daemon of the machine is used unless the
    user's own runs."""
    env = os.environ if environment is None else environment

    def named(name: str) -> str | None:
        path = env.get(name) or None
        if path is not None and not path.startswith("/"):
            hint = "write the path from `/` on"
            raise DaemonError(f"`{name}` has to be an absolute path: {path}", code="bad_environment", hint=hint)
        return path

    def absolute(name: str) -> str | None:
        path = env.get(name) or ""
        return path if path.startswith("/") else None

    is_system = os.geteuid() == 0
    home = moved = named("BELLJAR_HOME")
    if home is None:
        if is_system:
            home = "/var/lib/belljar"
        elif (state := absolute("XDG_STATE_HOME")) is not None:
            home = f"{state}/belljar"
        elif (user := absolute("HOME")) is not None:
            home = f"{user}/.local/state/belljar"
        else:
            raise DaemonError(
                "there is no place for Belljar's state: neither `BELLJAR_HOME` nor `HOME` is set",
                code="bad_environment",
                hint="set `BELLJAR_HOME` to a folder that Belljar may use",
            )
    path = named("BELLJAR_SOCKET")
    if path is None:
        runtime = absolute("XDG_RUNTIME_DIR")
        if moved is not None:
            path = f"{home}/belljar.sock"
        elif is_system:
            path = _SYSTEM_SOCKET
        else:
            path = f"{runtime}/belljar/belljar.sock" if runtime is not None else f"{home}/run/belljar.sock"
            if environment is None and not _has_own(path, home) and _listens(_SYSTEM_SOCKET):
                path = _SYSTEM_SOCKET
    return checked_path(path)


def _has_own(path: str, home: str) -> bool:
    """Whether a daemon of the user's own runs, or has sessions for when it runs again."""
    try:
        return _listens(path) or bool(os.listdir(f"{home}/w"))
    except OSError:
        return False


def checked_path(path: str) -> str:
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        message = f"the path of the socket is longer than {_SOCKET_PATH_BYTES} bytes: {path}"
        raise DaemonError(message, code="bad_environment", hint="set `BELLJAR_SOCKET` to a shorter path")
    return path


def may_start() -> bool:
    return os.environ.get("BELLJAR_NO_AUTOSTART", "") in ("", "0")


def check_trust(path: str, connected: socket.socket) -> None:
    """The daemon of another user would read all that is sent and could answer anything. So this package only talks to
    daemons of root and of its own user, judged by the listening process and by the owner of the socket's file."""
    own = os.geteuid()
    try:
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        users = (_PEER_CREDENTIALS.unpack(credentials)[1], os.stat(path).st_uid)
    except OSError as error:
        message = f"failed to learn whose daemon listens at `{path}`: {error}"
        raise DaemonError(message, code="daemon_unavailable") from error
    for user in users:
        if user not in (0, own):
            hint = "only root's daemon and your own are used; look at `BELLJAR_SOCKET`"
            raise DaemonError(f"the daemon at `{path}` is that of user {user}", code="foreign_daemon", hint=hint)


def absent(path: str) -> DaemonError:
    hint = "start it with `belljar daemon`"
    return DaemonError(f"no daemon listens at `{path}`", code="daemon_unavailable", hint=hint)


def unreachable(path: str, error: OSError) -> DaemonError:
    hint = None
    if isinstance(error, PermissionError):
        hint = "it is open to the members of its group who can reach it: `namei -l` shows both"
    message = f"failed to connect to the daemon at `{path}`: {error.strerror or error}"
    return DaemonError(message, code="daemon_unavailable", hint=hint)


def stopped() -> DaemonError:
    hint = "any command, or a new `Daemon`, starts one again; what runs in sandboxes goes on meanwhile"
    return DaemonError("the daemon was stopped", code="daemon_unavailable", hint=hint)


def _binary() -> str:
    installed = os.path.join(sysconfig.get_path("scripts"), "belljar")
    found = installed if os.access(installed, os.X_OK) else shutil.which("belljar")
    if found is None:
        hint = "put it on the `PATH`, or start a daemon with `belljar daemon`"
        message = "no daemon runs, and there is no command `belljar` to start one"
        raise DaemonError(message, code="daemon_unavailable", hint=hint)
    return found


def start(path: str) -> None:
    """Has the command `belljar` start a daemon, which then belongs to no process of ours. Of several that do so at
    once, the daemon's own lock decides which stays."""
    with _starting:
        if _listens(path):
            return
        environment = {**os.environ, "BELLJAR_SOCKET": path}
        try:
            ran = subprocess.run(
                [_binary(), "--json", "ps"],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = f"the daemon did not start within {_START_SECONDS:.0f} seconds"
            raise DaemonError(message, code="daemon_unavailable", hint="its log says why") from None
        except OSError as error:
            raise DaemonError(f"the daemon cannot be started: {error}", code="daemon_unavailable") from error
        if ran.returncode != 0:
            raise _failure(ran.stderr)


def _listens(path: str) -> bool:
    """Whether a daemon can be reached there by this user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _failure(stderr: bytes) -> DaemonError:
    """What the command said, as an object with `message` and `hint` on its last line."""
    text = stderr.decode("utf-8", "replace").strip()
    try:
        said = json.loads(text.splitlines()[-1])
        return DaemonError(str(said["message"]), code="daemon_unavailable", hint=said.get("hint"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return DaemonError(f"the daemon did not start: {text[-2000:]}", code="daemon_unavailable")
