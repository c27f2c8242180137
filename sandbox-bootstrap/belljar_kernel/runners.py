"""The guardian's runners: how copies are asked for, what runners send, how they end."""

import itertools
import signal
import time

from . import memory, process, wire
from .handle import CHECKPOINT, FORK, RETIRED, VIEW, WORKER, RunnerHandle
from .inbox import Inbox
from .limits import (
    COPY_END_S,
    HALT_S,
    NAMES_BYTES,
    ORPHANED_S,
    REAP_BUSY_S,
    REAP_IDLE_S,
    REAP_WITHOUT_PIDFD_S,
    REAPED_REMEMBERED,
    RESET_POLL_S,
    RESET_S,
    RUNNER_INDEXES,
    SAID_BYTES,
    SETTLE_S,
    SWEEP_S,
    Limits,
)
from .mainline import MainLine
from .strays import Strays


class Runners:
    """All runners of the sandbox; `line` says which of them are the main line's."""

    def __init__(self, poller, bridge, code_checks, workspace, on_hopeless):
        self._poller = poller
        self.bridge = bridge
        self._code_checks = code_checks
        self.limits = Limits()
        self.inbox = Inbox(poller)
        self.call_numbers = itertools.count()
        self.line = MainLine(self, poller, workspace, on_hopeless)
        self._handles = {}  # by index
        self._by_pid = {}
        self._next_index = 0
        self._takes = {
            wire.DISPLAY: self._displayed,
            wire.CELL_BEGUN: self._cell_begun,
            wire.CELL_DONE: self._cell_done,
            wire.BACK: self._back,
            wire.HURRY: self._hurried,
            wire.VARIABLES_DONE: self._listed,
            wire.PRELOADED: self._preloaded,
            wire.PRESENT: self._present,
            wire.PROMOTED: self._promoted,
            wire.SPAWN_FAILED: self._spawn_failed,
        }
        self.strays = Strays(poller, self.reap)
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
        """Pids of processes that are not strays."""
        runners = (pid for pid, handle in self._by_pid.items() if handle.role != RETIRED)
        return self._code_checks.pids().union(runners, self.inbox.pids())

    def kept(self, but=None):
        """The processes to keep when strays are killed."""
        copies = [handle for handle in self.all() if handle.role in (FORK, VIEW) and handle is not but]
        there = {handle.pid for handle in copies if handle.pid is not None}
        coming = {process.tag(handle.index) for handle in copies if handle.pid is None}
        if coming:
            # A process that is kept as a coming copy, by its tag, may be something else.
            self._poller.within("sweep", SWEEP_S, self._sweep)
        return process.Kept(self.living(), there, coming - {None})

    def _sweep(self):
        self.strays.note(process.kill_left_behind(None, self.kept()))

    # Handles.

    def new_handle(self, role):
        """None if the descriptors for it are not available."""
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
        """Ask a runner for a copy of itself. None if that is not possible."""
        handle = self.new_handle(role)
        if handle is None:
            return None
        handle.parent, handle.state_of, handle.position = parent, parent.state_of, parent.position
        try:
            what = [handle.index, role == CHECKPOINT, process.tag(handle.index)]
            message = wire.pack(wire.SPAWN, wire.encode_json(what))
            parent.control.send(message, handle.runner_descriptors(self.inbox.runner_end()))
        except OSError:
            self.drop(handle)
            return None
        handle.close_runner_ends()
        handle.read(not self.bridge.pressed)
        if role == CHECKPOINT:
            memory.may_hide(parent.pid)
        return handle

    def set_pid(self, handle, pid):
        """False if the process is gone already or its end cannot be watched."""
        self._by_pid[pid] = handle
        return handle.set_pid(pid, lambda: self._has_ended(handle))

    def drop(self, handle):
        self._poller.cancel(("kill", handle.index))
        self._poller.cancel(("back", handle.index))
        self._poller.cancel(("end", handle.index))
        self._handles.pop(handle.index, None)
        if self._by_pid.pop(handle.pid, None) is not None:
            memory.let_go(handle.pid)
        handle.close()

    # Messages of runners. User code can forge all of them: they can end the runner's own cell, show something in it
    # and answer what was asked, and nothing else is trusted.

    def runner_message(self, handle, kind, payload):
        if handle.role == RETIRED and handle.pid is not None:
            return  # it has been killed
        take = self._takes.get(kind) if handle.pid is not None or kind == wire.PRESENT else None
        if take is None or len(payload) > SAID_BYTES or not take(handle, payload):
            self.runner_broken(handle)

    def runner_called(self, handle, kind, payload):
        if handle.role in (CHECKPOINT, RETIRED):
            return
        if kind != wire.TOOL_CALL or not wire.CALL.size <= len(payload) <= SAID_BYTES:
            self.runner_broken(handle)
            return
        call, is_of_cell = handle.calls.begin(payload, self.limits.tool_calls)
        if call is not None:
            handle.drain()
            cell = handle.cell if is_of_cell else 0
            own = {"type": "tool_call", "call": call, "cell": cell or None}
            self.bridge.send_said(own, payload[wire.CALL.size :])

    def tool_answered(self, call, text):
        """Pass the answer to the runner that made the call. An answer to a call that has ended is dropped."""
        any(handle.calls.answer(call, text) for handle in self.all())

    def _displayed(self, handle, payload):
        handle.drain()  # so that earlier output comes first
        handle.displays += 1
        if handle.cell and handle.displays <= self.limits.displays:
            self.bridge.send_said({"type": "display", "cell": handle.cell}, payload)
        return True

    def _cell_begun(self, handle, payload):
        handle.begun, handle.names = True, payload if len(payload) <= NAMES_BYTES else b""
        return bool(handle.cell)

    def _cell_done(self, handle, payload):
        told, redo_bytes = wire.DONE.unpack_from(payload) if len(payload) >= wire.DONE.size else (0, 0)
        if told != handle.cell or not told:
            # Code of an earlier cell may have reported the end of that cell too early, and this is the real end.
            is_known = False
            is_known = 0 < told <= handle.newest_cell  # control: an_end_may_be_told_twice
            return is_known
        is_late = False
        is_late = handle.killed  # control: a_killed_cell_is_not_done
        if is_late:
            return True
        self._poller.cancel(("kill", handle.index))
        is_main, cell = handle is self.line.worker, handle.cell
        # A cell in a copy cannot harm the main line.
        protected = self.line.has_way_back() if is_main else True
        handle.end_cell()
        own = {"type": "cell_done", "cell": cell, "protected": protected, "as_before": handle.as_before}
        answer_from = wire.DONE.size + redo_bytes
        self.bridge.send_said(own, payload[answer_from:])
        if is_main:
            self.line.cell_done(cell, payload[wire.DONE.size : answer_from])
        else:
            self._end_soon(handle)
        return True

    def _end_soon(self, copy):
        """End a copy that has answered. Nothing else would if its code continues: it has no cell and no deadline."""
        key = ("kill", copy.index)
        self._poller.after(key, COPY_END_S, lambda: self.end(copy))  # control: copies_that_answered_end

    def _back(self, handle, payload):
        if handle.asked_back and payload == wire.CELL.pack(handle.asked_back):
            handle.back_from = handle.asked_back
            self._poller.cancel(("back", handle.index))
        return True

    def _hurried(self, handle, _payload):
        if not self.bridge.pressed:
            handle.drain()
        return True

    def _listed(self, handle, payload):
        request, handle.variables_request = handle.variables_request, None
        if request is None:
            return False
        self.bridge.send_said({"type": "variables", "request": request, "as_before": handle.as_before}, payload)
        self._end_soon(handle)
        return True

    def _preloaded(self, handle, payload):
        request, handle.preload_request = handle.preload_request, None
        if request is None:
            return False
        self.bridge.send_said({"type": "preloaded", "request": request}, payload)
        return True

    def _promoted(self, handle, _payload):
        handle.promoted = True
        return handle.role == WORKER

    def _present(self, handle, payload):
        handle.has_spoken = True
        if handle.pid is None:
            self._runner_present(handle, payload)
            return True
        self.line.worker_present()
        return handle is self.line.worker

    def runner_broken(self, handle):
        handle.kill()

    def runner_hung_up(self, handle):
        """A copy that hangs up before its first message never comes: code of the session may end every copy at once."""
        if handle.pid is None and self.by_index(handle.index) is handle:
            if handle.killed:
                self.end(handle)
            else:
                self._copy_missing(handle)

    def _runner_present(self, handle, payload):
        """The copy reports its pid. Any descendant of a runner can pose as a copy, but no other process can."""
        parent, handle.parent = handle.parent, None
        if parent is not None:
            memory.shows_again(parent.pid)
        pid = wire.PID.unpack(payload)[0] if len(payload) == wire.PID.size else 0
        is_gone = not process.is_there(pid)
        if is_gone and pid not in self._reaped:
            self._copy_missing(handle)
            return
        if pid in self._by_pid or pid in self.living() or not (is_gone or process.comes_of_us(pid)):
            # Code of the runner that was asked for a copy poses as the copy.
            self._copy_missing(handle)
            if parent is not None:
                self.runner_broken(parent)
            return
        alive = self.set_pid(handle, pid)
        # These were requested before the pid was known.
        if handle.killed:
            handle.kill()
        elif handle.interrupted:
            handle.signal(signal.SIGINT)
        if not alive and pid in self._reaped:
            self._runner_ended(handle, self._reaped.pop(pid))
        elif handle.role == CHECKPOINT:
            memory.expect(pid)
            self.line.checkpoint_present()

    def _spawn_failed(self, parent, payload):
        try:
            handle = self._handles.get(int(payload))
        except ValueError:
            return False
        if handle is not None and handle.pid is None and handle.parent is parent:
            self._copy_missing(handle)
        return True

    def wait_for_views(self, parent):
        """Wait until the views that this runner was asked for exist or have failed, so that it may end."""
        for handle in self.all():
            if handle.pid is None and handle.parent is parent and handle.role == VIEW:
                handle.wait_for(lambda view=handle: view.pid is not None, self._poller.patience(SETTLE_S))

    def _copy_missing(self, handle):
        cell, request = handle.cell, handle.variables_request
        self.line.forget_checkpoint(handle)
        self.drop(handle)
        if handle.role == CHECKPOINT:
            self.line.checkpoint_failed()
        if cell or request is not None:
            frame = {"cell": cell} if cell else {"request": request}
            self.refuse("no_process", "the sandbox cannot start another process", frame)

    # How runners end.

    def end(self, handle):
        """Kill a runner; a copy that does not exist yet is not waited for."""
        if handle.pid is not None:
            handle.kill()
            return
        self._list_failed(handle)
        self.line.forget_checkpoint(handle)
        self._copy_lost(handle, -signal.SIGKILL)

    def end_late(self, handle):
        """End a runner at the deadline of its cell: the others are stopped until all that it started is found."""
        if handle.pid is not None:
            process.halt()
            self._poller.after("resume", HALT_S, process.resume)
        self.end(handle)

    def end_all(self):
        """Kill all processes that were ever started here, and wait for their end. False if some do not end.

        The caller handles the end of the worker: its exit code, or None if it had ended before.
        """
        worker, of_worker, deadline = self.line.worker, None, time.monotonic() + RESET_S
        self._code_checks.stop()
        self.strays.forget_condemned()
        for handle in self.all():
            handle.killed = True
            self._refuse_list(handle, "busy", "the session was reset meanwhile")
        while True:
            process.kill_all()
            for pid, exit_code in process.reap():
                if worker is not None and pid == worker.pid:
                    of_worker = exit_code
                else:
                    self._child_ended(pid, exit_code)
            if not process.has_children():
                break
            if time.monotonic() > deadline:
                return False, None
            time.sleep(RESET_POLL_S)
        for handle in self.all():
            if handle is not worker:
                self.line.forget_checkpoint(handle)
                self._copy_lost(handle, -signal.SIGKILL)
        return True, of_worker

    def _has_ended(self, handle):
        """The pidfd of the runner reports its end, or an earlier pidfd of the same number did."""
        self.reap()
        if self._by_pid.get(handle.pid) is handle and not process.is_alive(handle.pid):
            # It becomes a child of the guardian when the process ends that forked it. Or never, if code of the session
            # posed as a copy: then its exit code stays unknown.
            handle.look_no_more()
            self._poller.after(("end", handle.index), ORPHANED_S, lambda: self._ended_unseen(handle))
            self._poller.within("reap", REAP_WITHOUT_PIDFD_S, self.reap_regularly)

    def _ended_unseen(self, handle):
        self.reap()
        if self._by_pid.get(handle.pid) is handle:
            self._runner_ended(handle, -signal.SIGKILL)

    def _list_failed(self, handle):
        self._refuse_list(
            handle, "no_process", "the list took too long, or a variable ended the process when it was shown"
        )

    def _refuse_list(self, handle, code, message):
        """Tell the daemon that a requested listing of variables will not come."""
        request, handle.variables_request = handle.variables_request, None
        if request is not None:
            self.refuse(code, message, {"request": request})

    def _runner_ended(self, handle, exit_code):
        handle.take_last_words()
        self._settle_copies(handle, exit_code)
        self._list_failed(handle)
        if handle is self.line.worker:
            self.line.worker_ended(handle, exit_code)
            return
        self.line.forget_checkpoint(handle)
        if handle.role in (FORK, VIEW):
            self.strays.kill(lambda: self._kill_left_behind(handle))
        self._copy_lost(handle, exit_code)
        if handle.role in (CHECKPOINT, RETIRED):
            self.line.memory_limit.check_soon()

    def _kill_left_behind(self, copy):
        found = []
        found = process.kill_left_behind(copy.pid, self.kept(copy))  # control: copies_end_with_descendants
        return found

    def _copy_lost(self, handle, exit_code):
        cell = handle.cell
        handle.end_cell()
        if cell:
            self.send(handle.lost(cell, exit_code, "kept"))
        self.drop(handle)

    def _settle_copies(self, parent, exit_code):
        """Wait for copies that have not reported when the runner ends that was asked for them.

        As long as a copy may be on its way, it holds its end of the control channel open. When the
        worker ends, the other copies are waited for, too: their pids have to be known before strays are
        killed.
        """
        for handle in self.all():
            if handle.pid is None and parent in (handle.parent, self.line.worker):
                # A stopped copy cannot report, and a copy that did not in all the time of a cell never will.
                patience = 0 if process.is_halted() else self._poller.patience(SETTLE_S)
                handle.wait_for(lambda copy=handle: copy.pid is not None, patience)
                if handle.pid is None and handle.parent is parent and self.by_index(handle.index) is handle:
                    self._refuse_list(handle, "busy", "the process ended that holds the variables")
                    self.line.forget_checkpoint(handle)
                    self._copy_lost(handle, exit_code)

    def reap(self):
        """Collect every child that has ended; orphans become children of the guardian."""
        for pid, exit_code in process.reap():
            self._child_ended(pid, exit_code)

    def _child_ended(self, pid, exit_code):
        handle = self._by_pid.get(pid)
        if handle is not None:
            self._runner_ended(handle, exit_code)
            return
        if self._code_checks.ended(pid, exit_code) or self.inbox.ended(pid) or self.line.memory_limit.reserve.ended(pid):
            return
        memory.let_go(pid)
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
        # `within`, since cells may start faster than the pause and must not put the reaping off.
        self._poller.within("reap", pause, self.reap_regularly)

