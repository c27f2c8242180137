"""Background cells: threads of the main line, each with an output, an end and interrupts of its own.

They share the variables of all other cells. Beside each waits a thread of the kernel for the guardian's word that the cell has
to end: the first thread may be busy with another cell, or be in C code, during which no signal handler runs.
"""

import _thread
import fcntl
import posix  # not `os`, whose functions user code may replace
import threading
import time

from . import wire
from .cells import outcome_of
from .rich import Shown

# The descriptors that come with a cell: where it writes, and where it hears that it has to end.
_DESCRIPTORS = 3

_fcntl = fcntl.fcntl
_Thread = threading.Thread  # own references: a cell may replace what the modules hold
_start_thread = _thread.start_new_thread
_get_ident = _thread.get_ident
_now = time.perf_counter


class BackgroundCells:
    def __init__(self, runner, streams, interrupts, cells):
        self.runner = runner
        self.streams = streams
        self.interrupts = interrupts
        self.cells = cells
        self._running = {}  # by the ids of their threads

    def begin(self, frame, descriptors):
        """Start the thread of a cell. That the cell has ended is reported in any case."""
        above = self.runner.own_descriptors().stop
        cell = _BackgroundCell(self, frame, [])
        try:
            cell.hold(descriptors, above)
            if len(descriptors) != _DESCRIPTORS:
                raise RuntimeError("no descriptors are left for the cell: close some files")
            compiled = self.cells.compile_beside(frame)
            _Thread(target=cell.run, args=(compiled,), name=f"belljar-cell-{cell.number}", daemon=True).start()
        except BaseException as error:
            cell.end(self.cells.failed_beside(error, frame), 0)

    def here(self):
        """The cell that this thread runs."""
        return self._running.get(_get_ident())

    def count(self):
        return len(self._running)

    def enter(self, cell):
        self._running[_get_ident()] = cell

    def leave(self):
        self._running.pop(_get_ident(), None)

    def forget(self):
        """In a copy, which has none of their threads."""
        self._running.clear()


class _Held:
    """A descriptor of a cell, out of the way of user code, which may close it all the same and give its number away."""

    def __init__(self, descriptor, above):
        try:
            self.number = _fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
            posix.close(descriptor)
        except (OSError, ValueError):
            self.number = descriptor  # there is no number left above
        self._file = _file_of(self.number)

    def close(self):
        try:
            if _file_of(self.number) == self._file:
                posix.close(self.number)
        except OSError:
            pass  # user code has closed it


def _file_of(descriptor):
    found = posix.fstat(descriptor)
    return found.st_dev, found.st_ino


class _BackgroundCell:
    def __init__(self, all_cells, frame, descriptors):
        self.number = frame["cell"]
        self._frame = frame
        self.shown = Shown()
        self._all = all_cells
        self._descriptors = descriptors
        self._interrupt = None

    def hold(self, descriptors, above):
        for each in descriptors:
            self._descriptors.append(_Held(each, above))

    def run(self, compiled):
        """The main function of the cell's thread."""
        everything = self._all
        started = _now()
        try:
            everything.enter(self)
            everything.streams.divert(*(each.number for each in self._descriptors[:2]))
            self._interrupt = everything.interrupts.of_this_thread()
            try:
                _start_thread(self._watch, (self._descriptors.pop(),))
                outcome = everything.cells.run_beside(compiled)
            finally:
                self._interrupt.stop()
        except BaseException as error:
            if self._interrupt is not None:
                self._interrupt.stop()
            outcome = everything.cells.failed_beside(error, self._frame)
        duration_ms = (_now() - started) * 1000
        if not everything.runner.is_own_process():
            # This is a child that the cell forked and that ran to the end of the cell.
            posix._exit(outcome["exit_code"] or (outcome["status"] != "success"))
        everything.leave()
        everything.streams.restore()
        self.end(outcome, duration_ms)

    def _watch(self, orders):
        """Wait until the cell has to end; the guardian hangs up when it has ended."""
        try:
            while posix.read(orders.number, 1):
                self._interrupt.interrupt()
        except OSError:
            pass  # user code has closed the descriptor
        finally:
            orders.close()

    def end(self, outcome, duration_ms):
        """Report how the cell went. All that it has written is in its pipes."""
        for descriptor in self._descriptors:
            descriptor.close()
        runner = self._all.runner
        outcome.update(duration_ms=duration_ms, displays_dropped=self.shown.dropped, live=runner.live())
        try:
            answer = wire.encode_json(outcome)
        except BaseException as error:
            why = {"type": type(error).__name__, "value": "the result could not be encoded", "repr": "", "traceback": ""}
            failed = outcome_of("failure", "exception", exception=why)
            answer = wire.encode_json({**outcome, **failed})
        runner.send(wire.BACKGROUND_DONE, wire.CELL.pack(self.number) + answer)
