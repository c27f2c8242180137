"""The work that Belljar and its peers all do: the same code, in the same loops, with the same bounds.

A contestant is an object with these methods; what it cannot do stands in its `absent`, by the work's name:

    open(science)               a new session; with `science` one where SCIENCE has run
    run(session, code)          runs a cell; the text of its last expression
    close(session)              removes the session
    output(session, code)       runs a cell; the bytes of output that arrived at the caller
    deadline(session, code, s)  runs a cell that has to end after `s` seconds; the session to go on with
    die(session)                runs a cell that ends its own process; the session to go on with
    calls(session, count)       runs a cell that calls a function of the host `count` times
    processes(session)          the numbers of the processes that are there for this session alone
"""

import dataclasses
import time
from functools import partial

import measure
from measure import absent, milliseconds, repeat, summary, timed, value

SCIENCE = "import numpy as np\nimport pandas as pd\nimport matplotlib.pyplot as plt"
FRAME = 'frame = pd.DataFrame({"a": range(1000), "b": range(1000)})'
LINES = 200_000
LINE = "a line of output that is about as long as most lines are"
BLOCKS, BLOCK = 1000, 65_536
# Parts of the output come first. A contestant that needs longer than this for one of them is measured by that part, as
# the time of some grows with the square of what was printed.
STAGES, STAGE_SECONDS = (0.02, 0.1), 3
ENDLESS = "while True:\n    pass"
DEADLINE_SECONDS = 0.5
IDLE_SECONDS = 0.1
CALLS = 200
DEATHS = 5
# Between a removal and the next start.
REST_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Work:
    name: str
    label: str
    better: str = "less"


WORKS = [
    Work("start", "new session to the first result"),
    Work("start_science", "new session with numpy, pandas and pyplot imported, to the first result"),
    Work("remove", "remove a session"),
    Work("hot", "cell `1+1`, back to back"),
    Work("idle", "cell `1+1`, after 100 ms of idling"),
    Work("assign", "cell `n = 1`, back to back"),
    Work("change", "cell `items.append(1)`, back to back"),
    Work("science_hot", "cell `1+1`, back to back, science imported"),
    Work("science_use", "cell `frame.a.sum()`, back to back, science imported"),
    Work("call", "call of a host function out of a cell"),
    Work("bulk", f"output in blocks of 64 KiB, {BLOCKS * BLOCK // 1_000_000} MB", "more"),
    Work("lines", f"output by {LINES:,} short prints", "more"),
    Work("deadline", "endless loop: from its deadline to the next result"),
    Work("death", "cell that ends its own process: to the next result"),
    Work("memory", "memory (PSS) of an idle session's own processes"),
]
LABELS = {work.name: work.label for work in WORKS}


def bulk_code(blocks):
    """Code with its bytes of output."""
    return f"block = 'x' * {BLOCK - 1}\nfor n in range({blocks}):\n    print(block)", blocks * BLOCK


def lines_code(lines):
    return f"for n in range({lines}):\n    print({LINE!r})", lines * (len(LINE) + 1)


class Wrong(Exception):
    """A cell was answered, but not with its result."""


class Contest:
    """Does all the work with one contestant; `emit` is told each figure as soon as it is there."""

    def __init__(self, contestant, emit, only=None):
        self.contestant, self.emit, self.only = contestant, emit, only
        self.session = None

    def wants(self, name):
        if self.only and name not in self.only:
            return False
        if reason := self.contestant.absent.get(name):
            self.emit(name, absent(reason))
            return False
        return True

    def attempt(self, name, measured):
        """A work that fails is told as such and costs no other."""
        if not self.wants(name):
            return
        try:
            self.emit(name, measured())
        except Exception as problem:
            self.emit(name, absent(f"failed: {' '.join(str(problem).split())[:200] or type(problem).__name__}"))

    def all(self):
        self.starts()
        self.session = self.contestant.open(False)
        self.answer("1+1", "2")
        self.attempt("memory", self.memory)
        self.attempt("hot", lambda: self.cells("1+1", "2", 2000, 3))
        self.attempt("idle", lambda: self.cells("1+1", "2", 40, 8, before=lambda: time.sleep(IDLE_SECONDS)))
        self.attempt("assign", lambda: self.cells("n = 1", None, 1000, 2))
        self.attempt("change", self.change)
        self.attempt("call", self.calls)
        self.attempt("bulk", lambda: self.output(bulk_code, BLOCKS))
        self.attempt("lines", lambda: self.output(lines_code, LINES))
        self.attempt("deadline", self.deadline)
        self.attempt("death", self.death)
        self.contestant.close(self.session)
        self.science()

    def starts(self):
        """Starts and removals are measured together, as each needs the other."""
        removals = []

        def measured():
            times, end = [], time.monotonic() + 8
            while len(times) < 15 and (not times or time.monotonic() < end):
                began = time.perf_counter()
                session = self.contestant.open(False)
                self.contestant.run(session, "1+1")
                times.append(time.perf_counter() - began)
                removals.append(timed(partial(self.contestant.close, session)))
                # What a removal leaves to be done after its answer is not part of the next start.
                time.sleep(REST_SECONDS)
            # The first one finds caches cold that every later one has; it is left out if there are others.
            return milliseconds(times[1:] or times)

        self.attempt("start", measured)
        if removals or "remove" in self.contestant.absent:
            self.attempt("remove", lambda: milliseconds(removals[1:] or removals))

    def answer(self, code, expected):
        answer = self.contestant.run(self.session, code)
        if expected is not None and answer != expected:
            raise Wrong(f"{code!r} gave {answer!r}")

    def cells(self, code, expected, count, seconds, before=None):
        """A result that is lost now and then is counted, and costs the contestant no figure."""
        wrong = []

        def cell():
            try:
                self.answer(code, expected)
            except Wrong as problem:
                wrong.append(problem)

        repeat(cell, 20, 1)
        wrong.clear()
        times = repeat(cell, count, seconds, before)
        if len(wrong) == len(times):
            raise wrong[0]
        return {**milliseconds(times), **({"wrong": len(wrong)} if wrong else {})}

    def change(self):
        self.answer("items = []", None)
        return self.cells("items.append(1)", None, 1000, 3)

    def calls(self):
        self.contestant.calls(self.session, 1)
        base = repeat(lambda: self.contestant.calls(self.session, 1), 10, 1)
        many = repeat(lambda: self.contestant.calls(self.session, CALLS + 1), 10, 4)
        return milliseconds([(seconds - min(base)) / CALLS for seconds in many])

    def output(self, code_of, count):
        def rate(count):
            code, size = code_of(count)
            began = time.perf_counter()
            arrived = self.contestant.output(self.session, code)
            took = time.perf_counter() - began
            if arrived < size:
                raise RuntimeError(f"{arrived:,} of {size:,} bytes arrived")
            return size / took / 1e6

        for part in STAGES:
            began = time.monotonic()
            partial_rate = rate(int(count * part))
            if time.monotonic() - began > STAGE_SECONDS:
                return {**summary([partial_rate], "MB/s"), "part": part}
        rates, end = [], time.monotonic() + 8
        while len(rates) < 3 and (not rates or time.monotonic() < end):
            rates.append(rate(count))
        return summary(rates, "MB/s")

    def remember(self):
        """Something that the session should still know later; contestants without state have nothing to remember."""
        if "change" not in self.contestant.absent:
            self.answer("kept = [41, 1]", None)

    def kept(self):
        if "change" in self.contestant.absent:
            return "none"
        try:
            return "kept" if self.contestant.run(self.session, "sum(kept)") == "42" else "lost"
        except Exception:
            return "lost"

    def after(self, mishap, less):
        """The seconds of a mishap and of the next cell, beyond `less`, and whether variables are there afterwards."""
        times, kept, end = [], set(), time.monotonic() + 10
        while len(times) < DEATHS and (not times or time.monotonic() < end):
            self.remember()
            began = time.perf_counter()
            self.session = mishap()
            self.contestant.run(self.session, "1+1")
            times.append(time.perf_counter() - began - less)
            kept.add(self.kept())
        return {**milliseconds(times), "variables": "lost" if "lost" in kept else kept.pop()}

    def deadline(self):
        def mishap():
            return self.contestant.deadline(self.session, ENDLESS, DEADLINE_SECONDS)

        return self.after(mishap, DEADLINE_SECONDS)

    def death(self):
        return self.after(lambda: self.contestant.die(self.session), 0)

    def memory(self):
        size = measure.pss_bytes(self.contestant.processes(self.session))
        if not size:
            raise RuntimeError("only root may read it")
        return value(size / 1e6, "MB")

    def science(self):
        self.session = None
        self.attempt("start_science", self.science_start)
        self.attempt("science_hot", lambda: self.cells("1+1", "2", 1000, 2))
        self.attempt("science_use", lambda: self.cells('int(frame["a"].sum())', "499500", 1000, 2))
        if self.session:
            self.contestant.close(self.session)

    def science_start(self):
        """The last one of several is measured, as the first reads the packages from the disk."""
        for _ in range(1 if self.contestant.slow else 2):
            if self.session:
                self.contestant.close(self.session)
            began = time.perf_counter()
            self.session = self.contestant.open(True)
            self.answer("1+1", "2")
            took = time.perf_counter() - began
        self.answer(FRAME, None)
        return milliseconds([took])
