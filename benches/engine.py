"""The bare engine: its command line as people use it, and its API for what a container costs at least."""

import http.client
import json
import os
import socket
import subprocess

BASE, SCIENCE = "belljar/base", "belljar/science"
SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
COMMAND_SECONDS = 120
# Every container of a run carries the run's own value, so that what is left can be told from anything else.
LABEL = "org.belljar.bench"


def run_label():
    return os.environ.get("BELLJAR_BENCH_RUN", "single")


def labels():
    return {LABEL: run_label()}


def docker(*words, stdin=None):
    """What the command line prints; an error if it fails."""
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"docker {words[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout


def available(image=BASE):
    try:
        docker("image", "inspect", image)
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        return False
    return True


def first_process(container):
    return int(docker("inspect", "--format", "{{.State.Pid}}", container))


def remove_all_of_this_run():
    """Removes what a contestant has left behind that was ended before it could do so."""
    found = docker("ps", "-aq", "--filter", f"label={LABEL}={run_label()}").decode().split()
    if found:
        docker("rm", "-f", *found)
    return len(found)


class Api(http.client.HTTPConnection):
    def __init__(self):
        super().__init__("localhost", timeout=COMMAND_SECONDS)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)

    def call(self, method, path, body=None):
        data = json.dumps(body) if body is not None else None
        self.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        answer = self.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {said.decode(errors='replace')}")
        return json.loads(said) if said.strip() else None

    def start(self, image=BASE, network="none", command=("sleep", "600")):
        """Creates and starts a container."""
        host = {"NetworkMode": network}
        body = {"Image": image, "Cmd": list(command), "HostConfig": host, "Labels": labels()}
        made = self.call("POST", "/containers/create", body)["Id"]
        self.call("POST", f"/containers/{made}/start")
        return made

    def remove(self, container):
        self.call("DELETE", f"/containers/{container}?force=true&v=true")
