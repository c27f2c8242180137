"""The main line: the worker that keeps the session's variables, and the checkpoints of its past.

After every cell the worker is asked for a copy, which waits: a checkpoint. The worker itself goes
on, with its threads and connections. When it dies, the newest checkpoint takes its place; `undo`
puts an older one there.
"""

import os
import signal
import time

from . import memory, process, runner, wire
from .ballast import Ballast
from .handle import CHECKPOINT, FORK, RETIRED, VIEW, WORKER
from .limits import (
    BACK_S,
    BUDGET_SCARCE,
    BURY_POLL_S,
    CHECKPOINT_PAUSE_S,
    CHECKPOINT_RETRY_S,
    CHECKPOINT_TRIES,
    MEMORY_ALARM_S,
    MEMORY_CHECK_S,
    MEMORY_PART,
    MEMORY_SUM_S,
    NAMES_BYTES,
    PROMOTE_LEAST_S,
    PROMOTE_S,
    TURN_S,
    VIEW_S,
    WORKER_START_RETRY_S,
    WORKER_START_TRIES,
)

_MEMORY_TIMER = "memory"
_CHECKPOINT_TIMER = "checkpoint"
LOST = "lost"


class MainLine:
    """`worker` is None only while a fresh one cannot be started.

    `hello`, `configure` and `imports` are the daemon's latest frames of these kinds, for workers to
    come; `imports` with its request.
    """

    def __init__(self, runners, poller, workspace, on_hopeless):
        self._runners = runners
        self._poller = poller
        self._workspace = workspace
        self._on_hopeless = on_hopeless
        self._memory = memory.MemoryWatch()
        self.ballast = Ballast()
        self._ending = set()  # pids that were killed for their memory, and may still have it
        self.hello = None
        self.configure = None
        self.imports = None
        self.worker = None
        self._ring = []  # checkpoints, oldest first
        self._started = None  # the newest cell, as the daemon sent it
        self._code = None  # of that cell
        self._lost = (None, b"")  # the code of the last cell that was lost, and names that it may have assigned
        self._at_worker_start = []  # frames that tell of it
        self._failed_starts = 0  # in a row
        self._failed_checkpoints = 0  # of the present state

    def state_of(self):
        return 0 if self.worker is None else self.worker.state_of

    def is_idle(self):
        return self.worker is not None and not self.worker.cell and not self.worker.resets

    # Frames of the daemon for more than one runner.

    def greet(self, text):
        first, self.hello = self.hello is None, text
        for handle in self._runners.all():
            handle.forward(text)
        self._trim()
        if first and self.worker is not None:
            self._take_checkpoint()
        return first

    def set_up(self, text):
        """Seed and tools, also for checkpoints: going back does not bring back the old ones."""
        self.configure = text
        for handle in (self.worker, *self._ring):
            if handle is not None:
                handle.forward(text)

    def preload(self, request, text):
        """Checkpoints come after it, so that what was imported is there once and shared by all."""
        self.imports = (request, text)
        self.drop_checkpoints()
        self._send_imports(self.worker)
        self._take_checkpoint()

    def _send_imports(self, worker):
        worker.preload_request, text = self.imports
        worker.forward(text)

    # Cells.

    def start_cell(self, cell, text, code):
        self._protect()
        self._started, self._code = text, code
        self._send_cell(cell, text)

    def _send_cell(self, cell, text):
        worker = self.worker
        if worker.back_from != worker.asked_back:
            # It said that the last cell is done, and may still run it.
            self._poller.after(("back", worker.index), BACK_S, worker.kill)  # control: done_is_done
        worker.begin_cell(cell)
        self.worker.forward(text)
        self._poller.within(_MEMORY_TIMER, MEMORY_CHECK_S, self._watch_memory)

    def cell_done(self, cell):
        """It has been answered. Soon, off its way, the state that it left is put by."""
        self.worker.state_of = self.worker.last_cell = cell
        self.worker.position += 1
        self._failed_checkpoints = 0
        self._protect_soon()

    def is_protected(self):
        """Whether the state before the present cell can be had back.

        A copy that was just asked for is as good as one that is there, unless such have failed before.
        """
        if self._ring and self._ring[-1].pid is None:
            self._ring[-1].control.receive()  # the word that it is there, or its end, may wait to be read
        if not self._has_newest():
            return False
        return self._ring[-1].pid is not None or not self._failed_checkpoints

    def _has_newest(self):
        """Whether a copy of the state before the present cell is there, or on its way."""
        return bool(self._ring) and self._ring[-1].position == self.worker.position

    def copy_for_cell(self, cell, text):
        """False if there is nothing to copy or no process to be had."""
        self._poller.within(_MEMORY_TIMER, MEMORY_CHECK_S, self._watch_memory)
        return self._copy(FORK, text, lambda copy: copy.begin_cell(cell))

    def copy_for_view(self, request, text):
        def prepare(copy):
            copy.variables_request = request
            self._poller.after(("kill", copy.index), VIEW_S, lambda: self._runners.end(copy))

        return self._copy(VIEW, text, prepare)

    def has_source(self):
        """Whether there is a state at rest that can be copied."""
        return self.is_idle() or (self.worker is not None and not self.worker.resets and self.is_protected())

    def _copy(self, role, text, prepare):
        running = self.worker.cell
        copy = self._runners.spawn(self._ring[-1] if running else self.worker, role)
        if copy is None:
            return False
        copy.as_before = running or None
        prepare(copy)
        copy.forward(text)
        return True

    # Checkpoints.

    def _take_checkpoint(self):
        if self._runners.limits.checkpoints and self.hello is not None:
            checkpoint = self._runners.spawn(self.worker, CHECKPOINT)
            if checkpoint is not None:
                self._ring.append(checkpoint)

    def _protect_soon(self):
        self._poller.after(_CHECKPOINT_TIMER, CHECKPOINT_PAUSE_S, self._protect_if_there_is_room)

    def _protect_if_there_is_room(self):
        """Or later: until a crowd that was killed makes room there is other work to do."""
        if self._runners.has_room():
            self._protect()
        else:
            self._poller.after(_CHECKPOINT_TIMER, BURY_POLL_S, self._protect_if_there_is_room)

    def _protect(self):
        """Put the present state by, unless that was done."""
        self._poller.cancel(_CHECKPOINT_TIMER)
        worker = self.worker
        if worker is not None and not worker.cell and worker.asked_back != worker.last_cell:
            worker.asked_back = worker.last_cell
            worker.control.send(wire.pack(wire.ARE_YOU_BACK, wire.CELL.pack(worker.last_cell)))
        if self.is_idle() and not self._has_newest():
            self._take_checkpoint()

    def checkpoint_failed(self):
        """There was no process or no memory for it, or it ended before it was there."""
        self._failed_checkpoints += 1
        if self._failed_checkpoints < CHECKPOINT_TRIES:
            self._poller.after(_CHECKPOINT_TIMER, CHECKPOINT_RETRY_S, self._protect_if_there_is_room)

    def checkpoint_present(self):
        self._failed_checkpoints = 0
        self._trim()
        self.check_memory()

    def forget_checkpoint(self, handle):
        """It has ended, or never came to be."""
        if handle in self._ring:
            self._ring.remove(handle)

    def _trim(self):
        while len(self._ring) > self._runners.limits.checkpoints:
            self._retire(self._ring.pop(0))

    def drop_checkpoints(self):
        while self._ring:
            self._retire(self._ring.pop())

    def _retire(self, handle):
        handle.role = RETIRED
        handle.killed = True
        handle.kill()

    def _watch_memory(self):
        begun = time.monotonic()
        self._look_at_memory()
        pause = max(MEMORY_CHECK_S, (time.monotonic() - begun) / MEMORY_PART)
        if any(handle.cell for handle in self._runners.all()):
            self._poller.after(_MEMORY_TIMER, pause, self._watch_memory)
        elif not self._memory.is_held(self._runners.limits):
            # Threads and processes of earlier cells may go on.
            self._poller.after(_MEMORY_TIMER, max(MEMORY_SUM_S, pause), self._watch_memory)

    def _look_at_memory(self):
        if process.is_halted():
            return  # for the end of a cell, which comes first
        held = self._memory.is_held(self._runners.limits)
        sizes = {} if held else {pid: memory.resident(pid) for pid in self._active()}
        # Pages that they share count for each of them here: that may be too much, or not.
        crowded = sum(sizes.values()) > self._bound()
        due = self._memory.take_turn(MEMORY_ALARM_S if crowded else MEMORY_SUM_S)
        relieved = due and self.check_memory()
        if not held:
            self._end_gluttons(sizes, due and not relieved)
        else:
            self._help_the_system()

    def _help_the_system(self):
        """Where it ends what takes too much, but too late or too little of it."""
        if self._ring:
            self.ballast.keep(self._memory.in_use(self._runners.limits, ()), self._bound())
        if self._memory.is_brimful(self._bound()):
            sizes = {pid: memory.resident(pid) for pid in self._active()}
            for pid in sorted(sizes, key=sizes.get)[-1:]:
                self._end_glutton(pid)

    def _end_glutton(self, pid):
        for handle in self._runners.all():
            if handle.pid == pid:
                handle.out_of_memory = True
        self._ending.add(pid)
        process.send_signal(pid, signal.SIGKILL)

    def _bound(self):
        limits = self._runners.limits
        return limits.memory_bytes + (limits.checkpoint_bytes if limits.checkpoints else 0)

    def _active(self):
        """Processes that can take more memory. What waits to be used only seems large, for what it shares."""
        waiting = {handle.pid for handle in self._runners.all() if not handle.cell and handle is not self.worker}
        living = process.descendants()
        self._ending.intersection_update(living)
        return [pid for pid in living if pid not in waiting and pid not in self._ending]

    def _lasting(self):
        """All processes but those that are about to end."""
        ending = {handle.pid for handle in self._runners.all() if handle.role == RETIRED}
        return [pid for pid in process.descendants() if pid not in ending and pid not in self._ending]

    def _end_gluttons(self, sizes, together):
        """Kill the largest processes when there is no more memory, as the system does where it is told to.

        What all of them take `together` costs more to know, and comes after checkpoints that can go.
        """
        largest = max(sizes, key=sizes.get, default=None)
        if largest is not None and memory.resident_with_files(largest) > self._bound():
            self._end_glutton(largest)
        elif together:
            excess = memory.total(self._lasting()) - self._bound()
            if excess > 0 and self.check_memory():
                return  # memory has grown since the checkpoints were looked at, and one of them was enough
            # Measured anew, because they grow: by the time of the sum another may be the largest.
            alone = memory.held_by_each(sizes) if excess > 0 else {}
            for pid in sorted(alone, key=alone.get, reverse=True):
                if excess <= 0:
                    return
                excess -= alone[pid]
                self._end_glutton(pid)

    def check_memory(self):
        """Above the session's own memory checkpoints go, one at a time, the oldest first.

        The newest protects the cell that runs. It goes only if without it the session would keep
        to its memory: then copies of changed pages, which are not the cell's fault, fill the
        budget. If the cell itself takes too much, it is its worker that has to go. True if one went.
        """
        if not self._ring or self.worker is None:
            return False
        if any(handle.role == RETIRED for handle in self._runners.all()):
            return False  # what it held is free only when it has ended
        limits = self._runners.limits
        pids = [handle.pid for handle in (self.worker, *self._ring) if handle.pid]
        in_use = self._memory.in_use(limits, pids) - self.ballast.held()
        if in_use <= limits.memory_bytes:
            return False
        if len(self._ring) == 1:
            if in_use <= limits.memory_bytes + limits.checkpoint_bytes * BUDGET_SCARCE:
                return False
            if in_use - memory.held_alone(self._ring[0].pid) > limits.memory_bytes:
                return False
            # What it shared with a worker that is just ending is not a copy.
            if not memory.held_alone(self.worker.pid):
                return False
        self._retire(self._ring.pop(0))
        return True

    # Going back.

    def reset(self, request):
        """A fresh worker, and nothing of before that lives: no checkpoint, no copy, no process of any of them."""
        self._poller.cancel(_CHECKPOINT_TIMER)
        self._poller.cancel("worker")
        worker = self.worker
        ended, exit_code = self._runners.end_all()
        if not ended:
            self._on_hopeless()
        elif worker is None:
            self._at_worker_start.append(lambda: self._runners.send({"type": "reset_done", "request": request}))
            self.start_worker()
        else:
            worker.resets.append(request)
            worker.take_last_words()
            self.worker_ended(worker, -signal.SIGKILL if exit_code is None else exit_code)

    def reach(self):
        """How many cells back there are checkpoints of, in order."""
        return sorted(self.worker.position - handle.position for handle in self._ring)

    def undo(self, cells):
        """Put the state of that many cells ago in place. False if there is none."""
        self._protect()
        self._trim()
        wanted = self.worker.position - cells
        target = next((handle for handle in self._ring if handle.position == wanted), None)
        if target is None:
            return False
        newer = self._ring[self._ring.index(target) + 1 :]
        undone = self.worker
        if not self._promote(target):
            return False
        for handle in (undone, *newer):
            self.forget_checkpoint(handle)
            self._retire(handle)
        self._kill_younger(target)
        return True

    def settle_after_undo(self):
        """After the answer, so that it need not wait."""
        self._take_checkpoint()

    def _promote(self, checkpoint):
        """Make it the worker. False if it does not answer; then it is given up."""
        self._ring.remove(checkpoint)
        checkpoint.role = WORKER
        checkpoint.signal(signal.SIGCONT)  # user code may have stopped it
        checkpoint.control.send(wire.pack(wire.PROMOTE))
        patience = PROMOTE_S
        patience = min(PROMOTE_S, self._poller.patience(TURN_S) / 2)  # control: waits_have_one_budget
        if checkpoint.wait_for(lambda: checkpoint.promoted, max(patience, PROMOTE_LEAST_S)):
            self.worker = checkpoint
            checkpoint.read(not self._runners.bridge.pressed)
            return True
        self._retire(checkpoint)
        return False

    def _kill_younger(self, checkpoint):
        """Kill processes that were started since that state was put by: it knows nothing of them."""
        found = process.kill_younger(checkpoint.pid, self._runners.kept())
        self._runners.killed(found)

    # The end of a worker and the start of a fresh one.

    def worker_ended(self, handle, exit_code):
        """Its last words were taken. The daemon is told when another can take cells."""
        self.ballast.release()
        cell, was_reset = handle.cell, bool(handle.resets)
        handle.end_cell()
        self.worker = None
        self._runners.drop(handle)
        if handle.preload_request is not None and not handle.killed:
            # The next worker would die of it too.
            self.imports = None
            message = f"the process ended while it imported modules (exit code {exit_code})"
            self._runners.refuse("no_process", message, {"request": handle.preload_request})
        if process.is_crowded():
            process.halt()  # what dies takes CPU time too: a checkpoint has its own before strays are killed
        while self._ring and not was_reset:
            if self._promote(self._ring[-1]):
                self._kill_younger(self.worker)
                after = {"restored": self.worker.state_of}
                unrun = self._unrun(handle, cell)
                self._tell_end(handle, 0 if unrun else cell, exit_code, after)
                if unrun:
                    self._take_checkpoint()
                    self._send_cell(cell, unrun)
                else:
                    self._protect_soon()
                return
        self.drop_checkpoints()
        self._runners.killed(process.kill_descendants(self._runners.kept()))
        self._at_worker_start.append(lambda: self._tell_end(handle, cell, exit_code, LOST))
        if not handle.has_spoken:
            self._start_worker_later()  # it ended before it could say a word
        else:
            self.start_worker()

    def _unrun(self, handle, cell):
        """The cell that died with the worker, if it can be given to the next one as it is.

        An earlier cell may have spoilt the worker so that it dies of the next thing it is sent. What
        had not begun has had no effect, and the state that it was meant for is in place again. Only
        once: whatever it is, it may be the cell after all.
        """
        if not cell or handle.begun or handle.killed or handle.interrupted:
            return None
        if self.worker.position != handle.position:
            return None
        text, self._started = self._started, None
        return text

    def names_of_lost(self, code):
        """Which names the last cell that was lost may have assigned; None if it is not known, or not this."""
        lost, names = self._lost
        if code != lost:
            return None
        try:
            found = wire.decode_json(names.decode())
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            return None  # user code spoke in the runner's name
        return found[: self._runners.limits.names]

    def _tell_end(self, handle, cell, exit_code, after):
        if cell:
            self._lost = (self._code, handle.names[:NAMES_BYTES])
            frame = handle.lost(cell, exit_code, after)
            if after != LOST and self.worker.position != handle.position:
                frame["older"] = True  # there was no checkpoint of the state before the cell
            self._runners.send(frame)
        elif not handle.resets:
            self._runners.send({"type": "worker_replaced", "exit_code": exit_code, "after": after})
        for request in handle.resets:
            self._runners.send({"type": "reset_done", "request": request})

    def start_worker(self):
        """A fresh worker with what it begins with only."""
        handle = self._runners.new_handle(WORKER)
        pid = None
        if handle is not None:
            # Held back until the worker can handle it; it would end it before.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                given = handle.runner_descriptors(self._runners.inbox.runner_end())
                pid = os.fork()
            except OSError:
                self._runners.drop(handle)
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        if pid is None:
            process.kill_descendants(self._runners.kept())
            self._runners.reap()
            self._start_worker_later()
            return
        if pid == 0:
            runner.enter(given, self._workspace, handle.index)
        handle.close_runner_ends()
        self.worker = handle
        self._runners.set_pid(handle, pid)
        handle.read(not self._runners.bridge.pressed)
        for text in (self.hello, self.configure):
            if text is not None:
                handle.forward(text)
        if self.imports is not None:
            self._send_imports(handle)
        told, self._at_worker_start = self._at_worker_start, []
        for tell in told:
            tell()
        self._take_checkpoint()

    def _start_worker_later(self):
        """Where processes or memory are short, try again for a while."""
        self._failed_starts += 1
        if self._failed_starts >= WORKER_START_TRIES:
            self._on_hopeless()
        else:
            self._poller.after("worker", WORKER_START_RETRY_S, self.start_worker)

    def worker_present(self):
        self._failed_starts = 0
