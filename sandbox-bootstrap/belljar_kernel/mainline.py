"""The main line: the worker that keeps the session's variables, and the checkpoints of its past.

After every cell the worker is asked for a copy, which waits: a checkpoint. The worker itself goes
on, with its threads and connections. When it dies, the newest checkpoint takes its place; `undo`
puts an older one there.
"""

import os
import signal

from . import process, runner, wire
from .handle import CHECKPOINT, FORK, RETIRED, VIEW, WORKER
from .limits import (
    BACK_S,
    CHECKPOINT_PAUSE_S,
    CHECKPOINT_RETRY_S,
    CHECKPOINT_TRIES,
    HALF_S,
    KILLED_POLL_S,
    NAMES_BYTES,
    PROMOTE_HALTED_S,
    PROMOTE_LEAST_S,
    PROMOTE_S,
    SETTLE_S,
    TURN_S,
    VIEW_S,
    WORKER_START_RETRY_S,
    WORKER_START_TRIES,
)
from .memory_limit import MemoryLimit

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
        self.memory_limit = MemoryLimit(self, runners, poller)
        self.hello = None
        self.configure = None
        self.imports = None
        self.worker = None
        self.ring = []  # checkpoints, oldest first
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
        for handle in (self.worker, *self.ring):
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
        is_whole = True
        is_whole = worker.is_whole_within(self._poller.patience(HALF_S))  # control: half_a_message_ends_its_runner
        if not is_whole and self._newest_is_there():
            worker.kill()  # the checkpoint takes its place, and the cell
            return
        worker.forward(text)
        self.memory_limit.watch_soon()

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
        if self.ring and self.ring[-1].pid is None:
            self.ring[-1].control.receive()  # the word that it is there, or its end, may wait to be read
        if not self._has_newest():
            return False
        return self.ring[-1].pid is not None or not self._failed_checkpoints

    def _has_newest(self):
        """Whether a copy of the state before the present cell is there, or on its way."""
        return bool(self.ring) and self.ring[-1].position == self.worker.position

    def _newest_is_there(self):
        """Whether a copy of the state before the present cell can take the worker's place, or can soon."""
        if not self._has_newest():
            return False
        newest = self.ring[-1]
        newest.wait_for(lambda: newest.pid is not None, self._poller.patience(SETTLE_S))
        # It may have ended meanwhile, or been given up because memory is short.
        return newest.pid is not None and self.ring[-1:] == [newest]

    def copy_for_cell(self, cell, text):
        """False if there is nothing to copy or no process to be had."""
        self.memory_limit.watch_soon()
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
        copy = self._runners.spawn(self.ring[-1] if running else self.worker, role)
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
                self.ring.append(checkpoint)

    def _protect_soon(self):
        self._poller.after(_CHECKPOINT_TIMER, CHECKPOINT_PAUSE_S, self._protect_if_there_is_room)

    def _protect_if_there_is_room(self):
        """Or later: until a crowd that was killed makes room there is other work to do."""
        if self._runners.has_room():
            self._protect()
        else:
            self._poller.after(_CHECKPOINT_TIMER, KILLED_POLL_S, self._protect_if_there_is_room)

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
        self.memory_limit.check()

    def forget_checkpoint(self, handle):
        """It has ended, or never came to be."""
        if handle in self.ring:
            self.ring.remove(handle)

    def _trim(self):
        while len(self.ring) > self._runners.limits.checkpoints:
            self.retire(self.ring.pop(0))

    def drop_checkpoints(self):
        while self.ring:
            self.retire(self.ring.pop())

    def retire(self, handle):
        handle.role = RETIRED
        handle.killed = True
        handle.kill()

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
        return sorted(self.worker.position - handle.position for handle in self.ring)

    def undo(self, cells):
        """Put the state of that many cells ago in place. False if there is none."""
        self._protect()
        self._trim()
        wanted = self.worker.position - cells
        target = next((handle for handle in self.ring if handle.position == wanted), None)
        if target is None:
            return False
        newer = self.ring[self.ring.index(target) + 1 :]
        undone = self.worker
        self._runners.wait_for_views(undone)  # what was asked for before this shows what was there before it
        if not self._promote(target):
            return False
        for handle in (undone, *newer):
            self.forget_checkpoint(handle)
            self.retire(handle)
        self._runners.kill_strays(lambda: self._kill_younger(target))
        return True

    def settle_after_undo(self):
        """After the answer, so that it need not wait."""
        self._take_checkpoint()

    def _promote(self, checkpoint):
        """Make it the worker. False if it does not answer; then it is given up."""
        self.ring.remove(checkpoint)
        checkpoint.role = WORKER
        checkpoint.signal(signal.SIGCONT)  # user code may have stopped it
        checkpoint.control.send(wire.pack(wire.PROMOTE))
        # It may be on its way still, or make a copy of itself: then it waits for others that stand still.
        if process.is_halted() and not checkpoint.wait_for(
            lambda: checkpoint.promoted, self._poller.patience(PROMOTE_HALTED_S)
        ):
            process.resume()
        patience = PROMOTE_S
        patience = min(PROMOTE_S, self._poller.patience(TURN_S) / 2)  # control: waits_have_one_budget
        if checkpoint.wait_for(lambda: checkpoint.promoted, max(patience, PROMOTE_LEAST_S)):
            self.worker = checkpoint
            checkpoint.read(not self._runners.bridge.pressed)
            return True
        self.retire(checkpoint)
        return False

    def _kill_younger(self, checkpoint):
        """Kill processes that were started since that state was put by: it knows nothing of them."""
        return process.kill_younger(checkpoint.pid, self._runners.kept())

    # The end of a worker and the start of a fresh one.

    def worker_ended(self, handle, exit_code):
        """Its last words were taken. The daemon is told when another can take cells."""
        self.memory_limit.reserve.release()
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
        while self.ring and not was_reset:
            if self._promote(self.ring[-1]):
                self._runners.kill_strays(lambda worker=self.worker: self._kill_younger(worker))
                after = {"restored": self.worker.state_of}
                unrun = self._unrun(handle, cell)
                self._tell_end(handle, 0 if unrun else cell, exit_code, after)
                if unrun:
                    self._runners.kill_condemned()
                    self._take_checkpoint()
                    self._send_cell(cell, unrun)
                else:
                    self._protect_soon()
                return
        self.drop_checkpoints()
        self._runners.kill_condemned()
        self._runners.killed(process.kill_descendants(self._runners.kept()))
        self._at_worker_start.append(lambda: self._tell_end(handle, cell, exit_code, LOST))
        if not handle.has_spoken and not was_reset:
            self._start_worker_later()  # it ended before it could say a word
        else:
            self.start_worker()

    def _unrun(self, handle, cell):
        """The cell that died with the worker, if it can be given to the next one as it is.

        An earlier cell may have spoilt the worker so that it dies of the next thing it is sent. What
        had not begun has had no effect, and the state that it was meant for is in place again; or that
        state never was, because the cell before said that it is done and was not. Only once: whatever
        it is, it may be the cell after all.
        """
        if not cell or handle.begun or handle.killed or handle.interrupted:
            return None
        if self.worker.position != handle.position and handle.back_from == handle.asked_back:
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
            runner.enter(given, self._workspace)
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
