"""The guardian's runners: how copies are asked for, what runners send, how they end."""

import os
import signal

from . import process, wire
from .handle import CHECKPOINT, FORK, RETIRED, WORKER, RunnerHandle
from .limits import (
    REAP_BUSY_S,
    REAP_IDLE_S,
    REAP_WITHOUT_PIDFD_S,
    REAPED_REMEMBERED,
    RUNNER_INDEXES,
    SETTLE_S,
    Limits,
)
from .mainline import MainLine


class Runners:
    """All runners of the sandbox; `line` says which of them are the main line's."""

    def __init__(self, poller, bridge, computes, workspace, on_hopeless):
        self._poller = poller
        self.bridge = bridge
        self._computes = computes
        self.limits = Limits()
        self.line = MainLine(self, poller, workspace, on_hopeless)
        self._handles = {}  # by index
        self._by_pid = {}
        self._next_index = 0
        self._reaped = {}  # pid -> exit code of orphans, in case one turns out to be a runner

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

    def living(self):
        """Pids of what shall live on."""
        runners = (pid for pid, handle in self._by_pid.items() if handle.role != RETIRED)
        return self._computes.pids().union(runners)

    # Handles.

    def new_handle(self, role):
        """None if the descriptors for it cannot be had."""
        index = self._next_index
        while index in self._handles:
            index = (index + 1) % RUNNER_INDEXES
        self._next_index = (index + 1) % RUNNER_INDEXES
        try:
            handle = RunnerHandle(self, self._poller, index, role)
        except OSError:
            return None
        self._handles[index] = handle
        return handle

    def spawn(self, parent, role):
        """Ask a runner for a copy of itself. None if that cannot be."""
        handle = self.new_handle(role)
        if handle is None:
            return None
        handle.parent, handle.state_of, handle.position = parent, parent.state_of, parent.position
        try:
            message = wire.pack(wire.SPAWN, wire.encode_json([handle.index, role == CHECKPOINT]))
            parent.control.send(message, handle.runner_descriptors())
        except BlockingIOError:
            self.drop(handle)
            return None
        handle.close_runner_ends()
        handle.read(not self.bridge.pressed)
        return handle

    def set_pid(self, handle, pid):
        """False if the process is gone already or its end cannot be watched."""
        self._by_pid[pid] = handle
        return handle.set_pid(pid, self.reap)

    def drop(self, handle):
        self._poller.cancel(("kill", handle.index))
        self._handles.pop(handle.index, None)
        self._by_pid.pop(handle.pid, None)
        handle.close()

    # What runners send.

    def runner_message(self, handle, kind, payload):
        if kind == wire.CELL_DONE and handle.cell:
            self._cell_done(handle, payload)
        elif kind == wire.CELL_BEGUN:
            handle.begun, handle.names = True, payload
        elif kind == wire.RELAY:
            handle.drain()  # so that what was printed before comes before
            self.bridge.send(payload)
        elif kind == wire.VARIABLES_DONE and handle.variables_request is not None:
            handle.variables_request = None
            self.bridge.send(_with(payload, as_before=handle.as_before))
        elif kind == wire.PRELOADED and handle.preload_request is not None:
            handle.preload_request = None
            self.bridge.send(payload)
        elif kind == wire.PRESENT and handle.pid is None:
            self._runner_present(handle)
        elif kind == wire.SPAWN_FAILED:
            self._spawn_failed(handle, payload)
        elif kind == wire.PROMOTED and handle.role == WORKER:
            handle.promoted = True
        elif kind == wire.PRESENT:
            self.line.worker_present()
        else:
            self.runner_broken(handle)

    def runner_broken(self, handle):
        handle.kill()

    def runner_hung_up(self, handle):
        """A checkpoint that has not said a word will not: code of the session may end every copy at once."""
        if handle.role == CHECKPOINT and handle.pid is None and self.by_index(handle.index) is handle:
            self._copy_missing(handle)

    def _cell_done(self, handle, payload):
        self._poller.cancel(("kill", handle.index))
        is_main, cell = handle is self.line.worker, handle.cell
        # The main line is not at stake in a copy.
        protected = self.line.is_protected() if is_main else True
        handle.end_cell()
        self.bridge.send(_with(payload, protected=protected, as_before=handle.as_before))
        if is_main:
            self.line.cell_done(cell)

    def _runner_present(self, handle):
        handle.parent = None
        pid = handle.control.peer_pid
        alive = self.set_pid(handle, pid)
        # Asked for before the pid was known.
        if handle.killed:
            handle.kill()
        elif handle.interrupted:
            handle.signal(signal.SIGINT)
        if not alive and pid in self._reaped:
            self._runner_ended(handle, self._reaped.pop(pid))
        elif handle.role == CHECKPOINT:
            self.line.checkpoint_present()

    def _spawn_failed(self, parent, payload):
        try:
            handle = self._handles.get(int(payload))
        except ValueError:
            return
        if handle is not None and handle.pid is None and handle.parent is parent:
            self._copy_missing(handle)

    def _copy_missing(self, handle):
        cell, request = handle.cell, handle.variables_request
        self.line.forget_checkpoint(handle)
        self.drop(handle)
        if handle.role == CHECKPOINT:
            self.line.checkpoint_failed()
        if cell or request is not None:
            frame = {"cell": cell} if cell else {"request": request}
            self.refuse("no_process", "the sandbox cannot start another process", frame)

    # How they end.

    def _runner_ended(self, handle, exit_code):
        handle.take_last_words()
        self._settle_copies(handle, exit_code)
        if handle.variables_request is not None:
            self.refuse("no_process", "the list took too long, or a variable ended the process when it was shown", {"request": handle.variables_request})
        if handle is self.line.worker:
            self.line.worker_ended(handle, exit_code)
            return
        self.line.forget_checkpoint(handle)
        if handle.role == FORK:
            process.kill_session(handle.pid, self.living())
        self._copy_lost(handle, exit_code)
        if handle.role in (CHECKPOINT, RETIRED):
            self.line.check_memory()

    def _copy_lost(self, handle, exit_code):
        cell = handle.cell
        handle.end_cell()
        if cell:
            self.send(handle.lost(cell, exit_code, "kept"))
        self.drop(handle)

    def _settle_copies(self, parent, exit_code):
        """Copies that have not shown up when the runner ends that was asked for them.

        As long as one may be on its way it holds its end of the control socket open. When the
        worker ends, the others are waited for too: their pids have to be known before strays are
        killed.
        """
        for handle in self.all():
            if handle.pid is None and parent in (handle.parent, self.line.worker):
                handle.wait_for(lambda copy=handle: copy.pid is not None, SETTLE_S)
                if handle.pid is None and handle.parent is parent:
                    self.line.forget_checkpoint(handle)
                    self._copy_lost(handle, exit_code)

    def reap(self):
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
            elif not self._computes.ended(pid, exit_code) and not self.line.ballast.ended(pid):
                self._reaped.pop(pid, None)
                self._reaped[pid] = exit_code
                if len(self._reaped) > REAPED_REMEMBERED:
                    del self._reaped[next(iter(self._reaped))]

    def reap_regularly(self):
        self.reap()
        self.reap_soon()

    def reap_soon(self):
        busy = any(handle.cell or handle.resets for handle in self._handles.values())
        pause = REAP_BUSY_S if busy else REAP_IDLE_S
        if busy and not all(handle.is_watched() for handle in self._handles.values()):
            pause = REAP_WITHOUT_PIDFD_S
        # Not put off by a cell that starts: they may come faster than the pause.
        self._poller.within("reap", pause, self.reap_regularly)


def _with(payload, **fields):
    """A JSON object of a runner, with more fields; the object itself is not read."""
    return payload[:-1] + b"," + wire.encode_json(fields)[1:]
