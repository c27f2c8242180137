"""A bare interpreter of the host behind two pipes."""

import json
import platform
import subprocess
import sys

import measure
from contestants.base import NO_CALLS, Contestant

# Runs what a line of JSON holds; behind the output follows a line with the text of the last expression, or the error.
LOOP = r"""
import ast, json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    value = error = None
    try:
        tree = ast.parse(json.loads(line))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
    except Exception as problem:
        error = repr(problem)
    print("\0" + json.dumps([error, "" if value is None else repr(value)]), flush=True)
"""


def make(_):
    return Pipe()


class Pipe(Contestant):
    version = platform.python_version()

    def __init__(self):
        super().__init__()
        self.lacks(NO_CALLS, "call")
        self.lacks("the host's Python need not have the packages", "start_science", "science_hot", "science_use")
        self.lacks("has none; the process would have to be killed, and its variables with it", "deadline")

    def open(self, _):
        return subprocess.Popen([sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def exchange(self, session, code):
        session.stdin.write(json.dumps(code) + "\n")
        session.stdin.flush()
        size = 0
        for line in session.stdout:
            if line.startswith("\0"):
                error, answer = json.loads(line[1:])
                if error:
                    raise RuntimeError(error)
                return answer, size
            size += len(line)
        raise EOFError("the interpreter has ended")

    def run(self, session, code):
        return self.exchange(session, code)[0]

    def output(self, session, code):
        return self.exchange(session, code)[1]

    def close(self, session):
        session.stdin.close()
        session.stdout.close()
        session.wait()

    def die(self, session):
        try:
            self.run(session, "import os; os._exit(1)")
        except EOFError:
            self.close(session)
            return self.open(False)
        raise RuntimeError("it lives")

    def processes(self, session):
        return measure.descendants(session.pid)
