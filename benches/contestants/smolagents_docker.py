"""smolagents' executor in a container."""

import importlib.metadata
import socket

from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import DockerExecutor

import engine
import images
import measure
from contestants.base import NO_CALLS, Contestant
from work import SCIENCE


def make(_):
    return Docker()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Docker(Contestant):
    slow = True

    def __init__(self):
        super().__init__()
        self.version = importlib.metadata.version("smolagents")
        self.lacks(NO_CALLS, "call")
        self.lacks("has none", "deadline")
        self.lacks("waits for ever for the answer of a kernel that is gone", "death")

    def open(self, science):
        session = DockerExecutor(
            [], AgentLogger(level=LogLevel.OFF), port=free_port(), build_new_image=False,
            image_name=images.name(engine.SCIENCE if science else engine.BASE),
            container_run_kwargs={"labels": engine.labels(), "command": images.GATEWAY},
        )  # fmt: skip
        if science:
            self.run(session, SCIENCE)
        return session

    def run(self, session, code):
        return session.run_code_raise_errors(code).output or ""

    def output(self, session, code):
        return len(session.run_code_raise_errors(code).logs)

    def close(self, session):
        session.cleanup()

    def processes(self, session):
        return measure.in_pid_namespaces_of(engine.first_process(session.container.id))
