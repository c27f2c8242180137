"""smolagents' interpreter in the caller's own process."""

import importlib.metadata

from smolagents.local_python_executor import LocalPythonExecutor

from contestants.base import Contestant
from work import SCIENCE

IMPORTS = ["numpy", "pandas", "matplotlib.pyplot"]
# The most that its interpreter prints into; all output of the work has room.
PRINTED_CHARACTERS = 1 << 30


def make(_):
    return Local()


class Local(Contestant):
    def __init__(self):
        super().__init__()
        self.version = importlib.metadata.version("smolagents")
        self.lacks("lives in the caller's process", "memory")
        self.lacks("its process is the caller's", "death")

    def open(self, science, timeout_seconds=30):
        session = LocalPythonExecutor(
            IMPORTS, max_print_outputs_length=PRINTED_CHARACTERS, additional_functions={"session_info": dict},
            timeout_seconds=timeout_seconds,
        )  # fmt: skip
        session.send_tools({})
        if science:
            self.run(session, SCIENCE)
        return session

    def run(self, session, code):
        return repr(session(code).output)

    def output(self, session, code):
        return len(session(code).logs)

    def deadline(self, session, code, seconds):
        """The deadline belongs to an executor, not to a cell."""
        usual, session.timeout_seconds = session.timeout_seconds, seconds
        try:
            session(code)
        except Exception:
            return session
        finally:
            session.timeout_seconds = usual
        raise RuntimeError("it ended by itself")

    def calls(self, session, count):
        session(f"for _ in range({count}):\n    session_info()")
