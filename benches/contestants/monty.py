"""pydantic-monty: an interpreter of a subset of Python, in worker processes."""

import importlib.metadata
import os

from pydantic_monty import Monty as Pool
from pydantic_monty import MontyError

import measure
from contestants.base import NO_PACKAGES, Contestant

WORKERS = 4
# The most that it allows by default are 1000 for all cells of a session.
CALLS_OF_A_SESSION = 1_000_000


def make(_):
    return Monty()


class Monty(Contestant):
    def __init__(self):
        super().__init__()
        self.version = importlib.metadata.version("pydantic-monty")
        self.lacks(NO_PACKAGES, "start_science", "science_hot", "science_use")
        self.lacks("code cannot end its process", "death")
        self.pool = Pool(min_processes=WORKERS, max_processes=WORKERS)
        self.pool.__enter__()

    def end(self):
        self.pool.__exit__(None, None, None)

    def open(self, _, **limits):
        session = self.pool.checkout(limits={"max_suspensions": CALLS_OF_A_SESSION, **limits})
        return session.__enter__()

    def run(self, session, code):
        return repr(session.feed_run(code))

    def close(self, session):
        session.__exit__(None, None, None)

    def output(self, session, code):
        sizes = []
        session.feed_run(code, print_callback=lambda _, text: sizes.append(len(text)))
        return sum(sizes)

    def deadline(self, session, code, seconds):
        """The deadline belongs to a session, not to a cell: one that has it takes the place of the other."""
        self.close(session)
        session = self.open(False, max_feed_duration_secs=seconds)
        session.feed_run("kept = [41, 1]")
        try:
            session.feed_run(code)
        except MontyError:
            return session
        raise RuntimeError("it ended by itself")

    def calls(self, session, count):
        session.feed_run(f"for _ in range({count}):\n    session_info()", external_lookup={"session_info": dict})

    def processes(self, _):
        """Workers are alike; the idle ones stand for the one that serves the session."""
        children = measure.descendants(os.getpid())
        return [pid for pid in children if "monty" in measure.read(f"/proc/{pid}/comm")][:1]
