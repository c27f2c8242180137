"""The guardian's runners: how they start, what they send, how they end."""

import os
import signal

from . import process, runner, wire
from .handle import RunnerHandle
from .limits import (
    REAP_BUSY_S,
    REAP_IDLE_S,
    REAP_WITHOUT_PIDFD_S,
    REAPED_REMEMBERED,
    RUNNER_INDEXES,
    WORKER_START_RETRY_S,
    WORKER_START_TRIES,
    Limits,
)


class Runners:
    """All runners of the sandbox. `main` is the worker that keeps the session's variables.

    `hello` and `configure` are the daemon's latest frames of these kinds, for workers to come.
    """

    def __init__(self, poller, bridge, computes, workspace, on_hopeless):
        self._poller = poller
        self.bridge = bridge
        self._computes = computes
        self._workspace = workspace
        self._on_hopeless = on_hopeless
        self.limits = Limits()
        self.hello = None
        self.configure = None
        self.main = None
        self._handles = {}  # by index, the main worker included
        self._by_pid = {}
        self._next_index = 0
        self._reaped = {}  # pid -> exit code of orphans, in case one turns out to be a runner
        self._at_worker_start = []  # frames that tell of it
        self._failed_starts = 0  # in a row

    def send(self, frame):
        self.bridge.send(wire.encode_json(frame))

    def refuse(self, code, message, frame):
        """Say that a frame of the daemon was not accepted."""
        refused = {"type": "refused", "code": code, "message": message, "request": None, "cell": None}
        for key in ("request", "cell"):
            if isinstance(frame.get(key), int):
                refused[key] = frame[key]
        self.send(refused)

    def all(self):
        return list(self._handles.values())

    def by_index(self, index):
        return self._handles.get(index)

    def of_cell(self, cell):
        for handle in self._handles.values():
            if handle.cell and handle.cell == cell:
                return handle
        return None

    def running_cells(self):
        return sorted(handle.cell for handle in self._handles.values() if handle.cell)

    def start_main_cell(self, cell, text):
        self.main.begin_cell(cell)
        self.main.forward(text)
        self._reap_soon()

    def start_fork_cell(self, cell, text):
        """Ask the main worker for a copy of itself. False if that cannot be."""
        handle = self._new_handle()
        if handle is None:
            return False
        handle.begin_cell(cell)
        try:
            message = wire.pack(wire.SPAWN, wire.encode_json(handle.index))
            self.main.control.send(message, handle.runner_descriptors())
        except BlockingIOError:
            self._drop(handle)
            return False
        handle.close_runner_ends()
        handle.forward(text)
        handle.read(not self.bridge.pressed)
        self._reap_soon()
        return True

    def runner_message(self, handle, kind, payload):
        if kind == wire.CELL_DONE and handle.cell:
            self._poller.cancel(("kill", handle.index))
            handle.end_cell()
            self.bridge.send(payload)
        elif kind == wire.RELAY:
            handle.drain()  # so that what was printed before comes before
            self.bridge.send(payload)
        elif kind == wire.VARIABLES_DONE and handle.variables_request is not None:
            handle.variables_request = None
            self.bridge.send(payload)
        elif kind == wire.PRESENT and handle.pid is None:
            self._runner_present(handle)
        elif kind == wire.SPAWN_FAILED and handle is self.main:
            self._spawn_failed(payload)
        elif kind == wire.PRESENT:
            self._failed_starts = 0
        else:
            self.runner_broken(handle)

    def runner_broken(self, handle):
        handle.kill()

    def _runner_present(self, handle):
        pid = handle.control.peer_pid
        self._by_pid[pid] = handle
        alive = handle.set_pid(pid, self._reap)
        # Asked for before the pid was known.
        if handle.killed:
            handle.kill()
        elif handle.interrupted:
            handle.signal(signal.SIGINT)
        if not alive and pid in self._reaped:
            self._runner_ended(handle, self._reaped.pop(pid))

    def _spawn_failed(self, payload):
        try:
            handle = self._handles.get(int(payload))
        except ValueError:
            return
        if handle is not None and handle is not self.main and handle.pid is None:
            cell = handle.cell
            self._drop(handle)
            self.refuse("no_process", "the sandbox cannot start another process", {"cell": cell})

    def start_worker(self):
        """A fresh worker with the seed only."""
        handle = self._new_handle()
        pid = None
        if handle is not None:
            # Held back until the worker can handle it; it would end it before.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                pid = os.fork()
            except OSError:
                self._drop(handle)
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        if pid is None:
            process.kill_descendants(self._living())
            self._reap()
            self._start_worker_later()
            return
        if pid == 0:
            runner.enter(handle.runner_descriptors(), self._workspace, handle.index)
        handle.close_runner_ends()
        self.main = handle
        self._by_pid[pid] = handle
        handle.set_pid(pid, self._reap)
        handle.read(not self.bridge.pressed)
        for text in (self.hello, self.configure):
            if text is not None:
                handle.forward(text)
        for frame in self._at_worker_start:
            self.send(frame)
        self._at_worker_start = []

    def _start_worker_later(self):
        """Where processes or memory are short, try again for a while."""
        self._failed_starts += 1
        if self._failed_starts >= WORKER_START_TRIES:
            self._on_hopeless()
        else:
            self._poller.after("worker", WORKER_START_RETRY_S, self.start_worker)

    def _runner_ended(self, handle, exit_code):
        handle.take_last_words()
        if handle is self.main:
            self._end_unborn(exit_code)
            process.kill_descendants(self._living() - {handle.pid})
        else:
            process.kill_session(handle.pid)
        self._runner_lost(handle, exit_code)
        if handle is self.main:
            self.main = None
            if handle.variables_request is not None:
                self.refuse("no_process", "the worker ended", {"request": handle.variables_request})
            self._at_worker_start += [{"type": "reset_done", "request": request} for request in handle.resets]
            if not self._at_worker_start:
                self._at_worker_start = [{"type": "worker_replaced", "exit_code": exit_code}]
            if handle.control.peer_pid is None:
                self._start_worker_later()  # it ended before it could say a word
            else:
                self.start_worker()

    def _end_unborn(self, exit_code):
        """Copies that the main worker was asked for and that have not shown up when it ended."""
        for handle in list(self._handles.values()):
            if handle.pid is None:
                handle.take_last_words()
            if handle.pid is None:
                self._runner_lost(handle, exit_code)

    def _runner_lost(self, handle, exit_code):
        cell = handle.cell
        handle.end_cell()
        if cell:
            self.send({"type": "cell_lost", "cell": cell, "exit_code": exit_code, "killed": handle.killed})
        self._drop(handle)

    def _new_handle(self):
        index = self._next_index
        while index in self._handles:
            index = (index + 1) % RUNNER_INDEXES
        self._next_index = (index + 1) % RUNNER_INDEXES
        try:
            handle = RunnerHandle(self, self._poller, index)
        except OSError:
            return None
        self._handles[index] = handle
        return handle

    def _drop(self, handle):
        self._poller.cancel(("kill", handle.index))
        self._handles.pop(handle.index, None)
        self._by_pid.pop(handle.pid, None)
        handle.close()

    def _living(self):
        return frozenset(self._by_pid) | self._computes.pids()

    def _reap(self):
        """Collect every child that has ended; orphans become children of the guardian."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            exit_code = process.exit_code(status)
            handle = self._by_pid.get(pid)
            if handle is not None:
                self._runner_ended(handle, exit_code)
            elif not self._computes.ended(pid, exit_code):
                self._reaped.pop(pid, None)
                self._reaped[pid] = exit_code
                if len(self._reaped) > REAPED_REMEMBERED:
                    del self._reaped[next(iter(self._reaped))]

    def reap_regularly(self):
        self._reap()
        self._reap_soon()

    def _reap_soon(self):
        busy = any(handle.cell or handle.resets for handle in self._handles.values())
        pause = REAP_BUSY_S if busy else REAP_IDLE_S
        if busy and not all(handle.is_watched() for handle in self._handles.values()):
            pause = REAP_WITHOUT_PIDFD_S
        # Not put off by a cell that starts: they may come faster than the pause.
        self._poller.within("reap", pause, self.reap_regularly)
