"""Belljar itself, through its API."""

import itertools
import json
import os

import daemon
import engine
import measure
from contestants.base import Contestant

PRELOAD = ["numpy as np", "pandas as pd", "matplotlib.pyplot as plt"]
VARIANTS = {
    "docker": {"sandbox": {"backend": "docker"}},
    "bubblewrap": {"sandbox": {"backend": "bubblewrap"}},
    "rest": {"sandbox": {"backend": "docker", "checkpointing": "idle"}},
    "unprotected": {"sandbox": {"backend": "docker", "checkpoints": 0}},
}


def make(variant):
    return Belljar(VARIANTS[variant])


class Belljar(Contestant):
    def __init__(self, tables):
        super().__init__()
        binary = os.environ["BELLJAR_BINARY"]
        self.version = measure.command_output(binary, "--version").split()[-1]
        self.docker = tables["sandbox"]["backend"] == "docker"
        if not self.docker:
            self.lacks("the host's Python need not have the packages", "start_science", "science_hot", "science_use")
        self.daemon = daemon.Daemon(binary, daemon.toml(tables) + daemon.ROOM).__enter__()
        self.client = self.daemon.client()
        self.names = map("s{}".format, itertools.count())

    def end(self):
        self.daemon.__exit__()

    def open(self, science):
        name = next(self.names)
        more = {"image": engine.SCIENCE if science else engine.BASE} if self.docker else {}
        if science:
            more["preload"] = PRELOAD
        self.client.new(name, **more)
        return name

    def run(self, session, code):
        return self.client.value(session, code)

    def close(self, session):
        self.client.remove(session, wait=False)

    def output(self, session, code):
        """All of it, as events while the cell runs; what is counted is the text in them."""
        return streamed_bytes(self.daemon, session, code)

    def deadline(self, session, code, seconds):
        result = self.client.cell(session, code, seconds)
        if result["status"] != "timeout":
            raise RuntimeError(f"{result['status']}, not a timeout")
        return session

    def die(self, session):
        result = self.client.cell(session, "import os; os._exit(1)")
        if result["status"] != "crashed":
            raise RuntimeError(f"{result['status']}, not a crash")
        return session

    def calls(self, session, count):
        self.client.value(session, f"for _ in range({count}): session_info()")

    def processes(self, session):
        return daemon.sandbox_processes(self.client, session)


def streamed_bytes(served, session, code):
    """Runs a cell with `stream=true` on a connection of its own; gives the bytes of output in its events."""
    client = served.client()
    try:
        body = json.dumps({"code": code, "timeout_s": daemon.CELL_SECONDS}).encode()
        client.send("POST", f"/v1/sessions/{session}/cells?stream=true", body)
        with client.socket.makefile("rb", 1 << 20) as answer:
            return sum(map(output_bytes, events(answer)))
    finally:
        client.close()


def events(answer):
    """The server-sent events of an answer in chunks."""
    while answer.readline().strip():
        pass
    rest = b""
    while size := int(answer.readline(), 16):
        *whole, rest = (rest + answer.read(size)).split(b"\n\n")
        yield from whole
        answer.readline()


def output_bytes(event):
    _, output, data = event.partition(b"\nevent: output\ndata: ")
    return len(json.loads(data)["text"]) if output else 0
