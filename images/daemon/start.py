#!/usr/bin/env python3
"""Starts the daemon in a container, if it can work there.

The engine mounts folders of the daemon's home into sandboxes by their paths on the host, and the daemon knows sandboxes by
their processes on the host. So its home has to be at one path inside and out, and its processes have to be the host's. The
engine says whether they are; where one is not, this ends with exit code 64, instead of a daemon that cannot start a sandbox.
"""

import http.client
import json
import os
import re
import socket
import stat
import sys
from pathlib import PurePosixPath
from typing import Any, NoReturn

HOME = os.environ.get("BELLJAR_HOME", "/var/lib/belljar")
ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
#: Seconds in which the engine has to answer.
ENGINE_SECONDS = 20
#: The exit code for a wrong way to call it, after which systemd's unit does not start it again either.
USAGE = 64
#: User ids of a container that are those of the host.
SAME_IDS = ["0", "0", "4294967295"]


class Engine(http.client.HTTPConnection):
    """The engine's API, at its socket."""

    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=ENGINE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ENGINE_SECONDS)
        self.sock.connect(self._path)


def refuse(message: str, hint: str) -> NoReturn:
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(USAGE)


def engine_path(address: str) -> str:
    path = address.removeprefix("unix://")
    try:
        if address.startswith("unix://") and stat.S_ISSOCK(os.stat(path).st_mode):
            return path
    except OSError:
        pass
    refuse(f"the engine's socket is not at `{address}`", "start the container with `-v /var/run/docker.sock:/var/run/docker.sock`")


def own_id(mounts: str) -> str | None:
    """The id of this container: the engine keeps its `/etc/hostname` in a folder of that name."""
    found = re.search(r"/([0-9a-f]{64})/hostname /etc/hostname ", mounts)
    return found[1] if found else None


def inspected(path: str, container: str) -> dict[str, Any]:
    engine = Engine(path)
    try:
        engine.request("GET", f"/containers/{container}/json")
        answer = engine.getresponse()
        found = json.loads(answer.read())
        if answer.status != 200 or not isinstance(found, dict):
            raise ValueError(f"{answer.status} {answer.reason}")
        return found
    except (OSError, ValueError, http.client.HTTPException) as why:
        refuse(f"the engine at `{path}` does not know this container: {why}",
               "mount the socket of the engine that runs this container, and no other")  # fmt: skip
    finally:
        engine.close()


def fault(container: dict[str, Any], home: str, uid_map: str) -> tuple[str, str] | None:
    """What keeps a daemon from working in this container, and what to do; None if nothing does."""
    place = PurePosixPath(home)
    if not place.is_absolute() or ".." in place.parts:
        return f"`BELLJAR_HOME` is `{home}`", "name an absolute path of the host"
    if container.get("HostConfig", {}).get("PidMode") != "host":
        return "the container has process ids of its own, by which no sandbox can be known", "start it with `--pid=host`"
    if uid_map.split() != SAME_IDS:
        return "the engine maps the user ids of this container to others", "start it with `--userns=host`"
    above = [mount for mount in container.get("Mounts", []) if place.is_relative_to(mount["Destination"])]
    nearest = max(above, key=lambda mount: len(PurePosixPath(mount["Destination"]).parts), default=None)
    same = f"start the container with `-v {home}:{home}`"
    if nearest is None:
        return f"the daemon's home `{home}` is no folder of the host, so that the engine cannot mount what is in it", same
    if nearest.get("Type") != "bind" or PurePosixPath(nearest["Source"]) != PurePosixPath(nearest["Destination"]):
        return (
            f"the daemon's home is `{home}` in this container and `{nearest['Source']}` on the host, and the engine knows only the latter",
            same,
        )
    if not nearest.get("RW", False):
        return f"the daemon's home `{home}` is there to read only", same
    return None


def main() -> None:
    path = engine_path(ENGINE)
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        container = own_id(table.read()) or socket.gethostname()
    with open("/proc/self/uid_map", encoding="utf-8") as table:
        uid_map = table.read()
    wrong = fault(inspected(path, container), HOME, uid_map)
    if wrong is not None:
        refuse(*wrong)
    os.environ["BELLJAR_HOME"] = HOME
    command = ["belljar", "daemon", "--system", *sys.argv[1:]]
    try:
        os.execvp(command[0], command)
    except OSError as why:
        refuse(f"the daemon cannot be started: {why}", "build the image again, with `make image-daemon`")


if __name__ == "__main__":
    main()
