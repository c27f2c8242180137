"""llm-sandbox: a container for each session, one out of its pool, or one with IPython in it."""

import importlib.metadata
import logging

from llm_sandbox import SandboxSession
from llm_sandbox.interactive import InteractiveSandboxSession
from llm_sandbox.pool import PoolConfig, PooledSandboxSession, create_pool_manager

import engine
import images
import measure
from contestants.base import NO_CALLS, NO_STATE, Contestant
from contestants.docker_cli import as_script
from work import SCIENCE

# The virtual environment that it would make needs a package index inside of the container.
OPTIONS = {"lang": "python", "skip_environment_setup": True}
POOLED = 2
ANSWER_SECONDS = 15


def make(variant):
    logging.disable()
    return {"plain": Plain, "pooled": Pooled, "interactive": Interactive}[variant]()


class Plain(Contestant):
    slow = True

    def __init__(self):
        super().__init__()
        self.version = importlib.metadata.version("llm-sandbox")
        self.lacks(NO_CALLS, "call")
        self.lacks(NO_STATE, "assign", "change", "start_science", "science_hot", "science_use")

    def image(self, science):
        return engine.SCIENCE if science else engine.BASE

    def open(self, science):
        session = SandboxSession(image=self.image(science), runtime_configs={"labels": engine.labels()}, **OPTIONS)
        session.open()
        return session

    def run(self, session, code):
        done = session.run(as_script(code))
        if done.exit_code:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def output(self, session, code):
        return len(session.run(code).stdout)

    def deadline(self, session, code, seconds):
        try:
            session.run(code, timeout=seconds)
        except Exception:
            return session
        raise RuntimeError("it ended by itself")

    def die(self, session):
        session.run("import os; os._exit(1)")
        return session

    def close(self, session):
        session.close()

    def processes(self, session):
        return measure.in_pid_namespaces_of(engine.first_process(session.container.id))


class Pooled(Plain):
    def __init__(self):
        super().__init__()
        self.lacks("the container belongs to the pool, as in llm-sandbox", "memory")
        self.pool = create_pool_manager(
            config=PoolConfig(min_pool_size=POOLED, max_pool_size=POOLED), image=images.name(engine.BASE),
            runtime_configs={"labels": engine.labels()}, **OPTIONS,
        )  # fmt: skip

    def open(self, _):
        session = PooledSandboxSession(self.pool)
        session.open()
        return session

    def end(self):
        self.pool.close()


class Interactive(Plain):
    """Every cell has a deadline, as one that hangs is waited for until then."""

    def run(self, session, code):
        done = session.run(as_script(code), timeout=ANSWER_SECONDS)
        if done.exit_code:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def __init__(self):
        super().__init__()
        for work in ("assign", "change", "start_science", "science_hot", "science_use"):
            del self.absent[work]
        self.lacks("waits until its own time is over for the answer of a process that is gone", "death")

    def open(self, science):
        session = InteractiveSandboxSession(
            image=images.name(self.image(science)), runtime_configs={"labels": engine.labels()}, **OPTIONS
        )
        session.open()
        if science:
            self.run(session, SCIENCE)
        return session
