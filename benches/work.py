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
STAGES, STAGE_SECONDS = (0.02, 0.1), 2
ENDLESS = "while True:\n    pass"
DEADLINE_SECONDS = 0.5
IDLE_SECONDS = 0.1
CALLS = 200
WARM_UPS, WARM_UP_SECONDS = 20, 0.5
# Between a removal and the next start.
REST_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Work:
    """`count` and `seconds` bound its loop, for all contestants alike: after either nothing begins any more, but one
    repetition is always made. The seconds are enough for Belljar to reach the count; who takes longer for each has a
    smaller `n` in the report."""

    name: str
    label: str
    count: int = 1
    seconds: float = 0


WORKS = [
    Work("start", "new session to the first result", 12, 5),
    Work("start_science", "new session with numpy, pandas and pyplot imported, to the first result"),
    Work("remove", "remove a session"),
    Work("hot", "cell `1+1`, back to back", 2000, 2),
    Work("idle", "cell `1+1`, after 100 ms of idling", 30, 4),
    Work("assign", "cell `n = 1`, back to back", 1000, 2),
    Work("change", "cell `items.append(1)`, back to back", 1000, 3),
    Work("science_hot", "cell `1+1`, back to back, science imported", 1000, 1.5),
    Work("science_use", "cell `frame.a.sum()`, back to back, science imported", 1000, 1.5),
    Work("call", "call of a host function out of a cell", 10, 2),
    Work("bulk", f"output in blocks of 64 KiB, {BLOCKS * BLOCK // 1_000_000} MB", 3, 3),
    Work("lines", f"output by {LINES:,} short prints", 3, 3),
    Work("deadline", "endless loop: from its deadline to the next result", 5, 4),
    Work("death", "cell that ends its own process: to the next result", 5, 3),
    Work("memory", "memory (PSS) of an idle session's own processes"),
]
LABELS = {work.name: work.label for work in WORKS}
BOUNDS = {work.name: (work.count, work.seconds) for work in WORKS}


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
        removals = self.starts()
        self.answer("1+1", "2")
        self.attempt("memory", self.memory)
        self.attempt("hot", lambda: self.cells("hot", "1+1", "2"))
        self.attempt("idle", lambda: self.cells("idle", "1+1", "2", before=lambda: time.sleep(IDLE_SECONDS)))
        self.attempt("assign", lambda: self.cells("assign", "n = 1", None))
        self.attempt("change", self.change)
        self.attempt("call", self.calls)
        self.attempt("bulk", lambda: self.output("bulk", bulk_code, BLOCKS))
        self.attempt("lines", lambda: self.output("lines", lines_code, LINES))
        self.attempt("deadline", self.deadline)
        self.attempt("death", self.death)
        last = timed(partial(self.contestant.close, self.session))
        # A session in which nothing else was done says more, where there are such.
        self.attempt("remove", lambda: milliseconds(removals[1:] or removals or [last]))
        self.science()

    def starts(self):
        """Starts and removals, one by one; gives the seconds of the removals. The last session is the one that all else is
        done in, so that who takes seconds for either does each once less."""
        times, removals, (count, seconds) = [], [], BOUNDS["start"]
        is_measured = "start" not in self.contestant.absent and (not self.only or "start" in self.only)
        if self.contestant.slow or not is_measured:
            count = 1
        end = time.monotonic() + seconds
        while True:
            began = time.perf_counter()
            self.session = self.contestant.open(False)
            self.contestant.run(self.session, "1+1")
            times.append(time.perf_counter() - began)
            if len(times) >= count or time.monotonic() >= end:
                break
            removals.append(timed(partial(self.contestant.close, self.session)))
            # What a removal leaves to be done after its answer is not part of the next start.
            time.sleep(REST_SECONDS)
        # The first one finds caches cold that every later one has; it is left out if there are others.
        self.attempt("start", lambda: milliseconds(times[1:] or times))
        return removals

    def answer(self, code, expected):
        answer = self.contestant.run(self.session, code)
        if expected is not None and answer != expected:
            raise Wrong(f"{code!r} gave {answer!r}")

    def cells(self, name, code, expected, before=None):
        """A result that is lost now and then is counted, and costs the contestant no figure."""
        wrong = []

        def cell():
            try:
                self.answer(code, expected)
            except Wrong as problem:
                wrong.append(problem)

        repeat(cell, WARM_UPS, WARM_UP_SECONDS)
        wrong.clear()
        times = repeat(cell, *BOUNDS[name], before)
        if len(wrong) == len(times):
            raise wrong[0]
        return {**milliseconds(times), **({"wrong": len(wrong)} if wrong else {})}

    def change(self):
        self.answer("items = []", None)
        return self.cells("change", "items.append(1)", None)

    def calls(self):
        self.contestant.calls(self.session, 1)
        base = repeat(lambda: self.contestant.calls(self.session, 1), WARM_UPS, WARM_UP_SECONDS)
        many = repeat(lambda: self.contestant.calls(self.session, CALLS + 1), *BOUNDS["call"])
        return milliseconds([(seconds - min(base)) / CALLS for seconds in many])

    def output(self, name, code_of, amount):
        def rate(amount):
            code, size = code_of(amount)
            began = time.perf_counter()
            arrived = self.contestant.output(self.session, code)
            took = time.perf_counter() - began
            if arrived < size:
                raise RuntimeError(f"{arrived:,} of {size:,} bytes arrived")
            return size / took / 1e6

        for part in STAGES:
            began = time.monotonic()
            partial_rate = rate(int(amount * part))
            if time.monotonic() - began > STAGE_SECONDS:
                return {**summary([partial_rate], "MB/s"), "part": part}
        rates, (count, seconds) = [], BOUNDS[name]
        end = time.monotonic() + seconds
        while len(rates) < count and (not rates or time.monotonic() < end):
            rates.append(rate(amount))
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

    def after(self, name, mishap, less):
        """The seconds of a mishap and of the next cell, beyond `less`, and whether variables are there afterwards."""
        times, kept, (count, seconds) = [], set(), BOUNDS[name]
        end = time.monotonic() + seconds
        while len(times) < count and (not times or time.monotonic() < end):
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

        return self.after("deadline", mishap, DEADLINE_SECONDS)

    def death(self):
        return self.after("death", lambda: self.contestant.die(self.session), 0)

    def memory(self):
        size = measure.pss_bytes(self.contestant.processes(self.session))
        if not size:
            raise RuntimeError("only root may read it")
        return value(size / 1e6, "MB")

    def science(self):
        self.session = None
        self.attempt("start_science", self.science_start)
        self.attempt("science_hot", lambda: self.cells("science_hot", "1+1", "2"))
        self.attempt("science_use", lambda: self.cells("science_use", 'int(frame["a"].sum())', "499500"))
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
