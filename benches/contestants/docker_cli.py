"""The engine's command line, as a script would use it."""

import subprocess

import engine
import measure
from contestants.base import NO_CALLS, NO_STATE, Contestant

FLAGS = ["--network", "none", "--label", f"{engine.LABEL}={engine.run_label()}"]


def make(variant):
    if not engine.available():
        raise SystemExit(f"there is no engine with the image {engine.BASE}")
    return {"exec": Exec, "run": Run}[variant]()


def as_script(code):
    """A script has no value of its last expression; one that is all of the code is printed."""
    try:
        compile(code, "", "eval")
    except SyntaxError:
        return code
    return f"print({code})"


class Exec(Contestant):
    def __init__(self):
        super().__init__()
        self.version = engine.docker("version", "--format", "{{.Server.Version}}").decode().strip()
        self.lacks(NO_STATE, "assign", "change", "start_science", "science_hot", "science_use")
        self.lacks(NO_CALLS, "call")

    def words(self, session):
        return "exec", session

    def open(self, _):
        return engine.docker("run", "--detach", *FLAGS, engine.BASE, "sleep", "600").decode().strip()

    def run(self, session, code):
        return engine.docker(*self.words(session), "python3", "-c", as_script(code)).decode().strip()

    def output(self, session, code):
        return len(engine.docker(*self.words(session), "python3", "-c", code))

    def fails(self, session, *words):
        """Runs a command that has to fail."""
        command = ["docker", *self.words(session), *words]
        if subprocess.run(command, capture_output=True, timeout=engine.COMMAND_SECONDS).returncode == 0:
            raise RuntimeError("it ended by itself")
        return session

    def deadline(self, session, code, seconds):
        return self.fails(session, "timeout", "--signal=KILL", str(seconds), "python3", "-c", code)

    def die(self, session):
        return self.fails(session, "python3", "-c", "import os; os._exit(1)")

    def close(self, session):
        engine.docker("rm", "-f", session)

    def processes(self, session):
        return measure.in_pid_namespaces_of(engine.first_process(session))


class Run(Exec):
    """A session is nothing but the image's name: all is done anew for each cell."""

    def __init__(self):
        super().__init__()
        self.lacks("every cell is one", "start", "remove")
        self.lacks("there is none between cells", "memory")

    def words(self, session):
        return "run", "--rm", *FLAGS, session

    def open(self, _):
        return engine.BASE

    def close(self, session):
        pass
