"""The main line: the worker that keeps the session's variables, and the checkpoints of its past.

After every cell the worker is asked for a copy, which waits: a checkpoint. The worker itself goes
on, with its threads and connections. When it dies, the newest checkpoint takes its place; `undo`
puts an older one there.
"""

import os
import signal
import time

from . import harmless, process, runner, wire
from .handle import CHECKPOINT, FORK, RETIRED, VIEW, WORKER
from .limits import (
    BACK_S,
    CHECKPOINT_BUSY_S,
    CHECKPOINT_PAUSE_S,
    CHECKPOINT_RETRY_S,
    CHECKPOINT_TRIES,
    HALF_S,
    KILLED_POLL_S,
    NAMES_BYTES,
    PROMOTE_HALTED_S,
    PROMOTE_LEAST_S,
    PROMOTE_S,
    REDO_ALL_BYTES,
    REDO_CELLS,
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

    `hello`, `configure` and `imports` are the daemon's latest frames of these kinds, for future workers;
    `imports` with its request.
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
        self._at_worker_start = []  # functions that send the frames which wait for a worker
        self._failed_starts = 0  # in a row
        self._failed_checkpoints = 0  # of the present state
        self._unsaved_since = None  # when the first cell ended whose changes no checkpoint holds

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
        """Pass on seed and tools, also to checkpoints: going back does not bring back the old ones."""
        self.configure = text
        for handle in (self.worker, *self.ring):
            if handle is not None:
                handle.forward(text)
        for checkpoint in self.ring:
            checkpoint.given_later = checkpoint.given_later or bool(checkpoint.redo)

    def preload(self, request, text, bind):
        """Import modules before any checkpoint is made, so that the modules are in memory once and shared by all."""
        if bind:
            self.imports = (request, text)
        self.drop_checkpoints()
        self._send_imports(self.worker, (request, text))
        self._take_checkpoint()

    def _send_imports(self, worker, imports):
        worker.preload_request, text = imports
        worker.forward(text)

    # Cells.

    def start_cell(self, cell, text, code):
        if self._may_wait():
            self._poller.cancel(_CHECKPOINT_TIMER)
            self._ask_back()
        else:
            self._protect()
        self._started, self._code = text, code
        self._send_cell(cell, text)

    def _send_cell(self, cell, text):
        worker = self.worker
        worker.begin_cell(cell)
        is_whole = True
        is_whole = worker.is_whole_within(self._poller.patience(HALF_S))  # control: half_a_message_ends_its_runner
        if not is_whole and self._newest_is_there():
            worker.kill()  # the checkpoint takes its place, and the cell
            return
        worker.forward(text)
        self.memory_limit.watch_soon()

    def cell_done(self, cell, redo):
        """The cell has been answered. The checkpoint of the state after it is made soon, off the answer's way.

        If it is known what repeats the cell, that is kept with the newest checkpoint instead.
        """
        if harmless.is_redo(redo) and self._has_newest() and not self.ring[-1].given_later:
            kept = self.ring[-1].redo
            if len(kept) < REDO_CELLS and sum(len(each) for _, each in kept) + len(redo) <= REDO_ALL_BYTES:
                kept.append((cell, redo))
        self.worker.state_of = self.worker.last_cell = cell
        self.worker.position += 1
        self._failed_checkpoints = 0
        if self._unsaved_since is None and not self._has_newest():
            self._unsaved_since = time.monotonic()
        self._protect_soon()

    def _may_wait(self):
        """Whether the session gets no checkpoint before its next cell, because it has not rested."""
        if not self._runners.limits.checkpoints_at_rest or self._unsaved_since is None:
            return False
        return bool(self.ring) and time.monotonic() < self._unsaved_since + CHECKPOINT_BUSY_S

    def has_way_back(self):
        """Whether a state can be restored that is as near as the session wants it to be."""
        return self.is_protected() or bool(self.ring and self._runners.limits.checkpoints_at_rest)

    def is_protected(self):
        """Whether the state before the present cell can be restored.

        A copy that was just requested counts as present, unless such requests have failed before.
        """
        if self.ring and self.ring[-1].pid is None:
            self.ring[-1].control.receive()  # its report that it is present, or its end, may wait to be read
        if not self._has_newest():
            return False
        return self.ring[-1].pid is not None or not self._failed_checkpoints

    def _has_newest(self):
        """Whether a copy of the state before the present cell exists, or is being made."""
        return bool(self.ring) and self.ring[-1].reaches() == self.worker.position

    def _newest_is_there(self):
        """Whether a copy of the state before the present cell can take the worker's place, or can soon."""
        if not self._has_newest():
            return False
        newest = self.ring[-1]
        newest.wait_for(lambda: newest.pid is not None, self._poller.patience(SETTLE_S))
        # The checkpoint may have ended meanwhile, or been given up because memory is short.
        return newest.pid is not None and self.ring[-1:] == [newest]

    def copy_for_cell(self, cell, text):
        """False if there is nothing to copy or no process is available."""
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
        if running:
            self._repeat(copy, self.ring[-1].redo, self.ring[-1].given_later)
        prepare(copy)
        copy.forward(text)
        return True

    # Checkpoints.

    def _take_checkpoint(self):
        if self._runners.limits.checkpoints and self.hello is not None:
            checkpoint = self._runners.spawn(self.worker, CHECKPOINT)
            if checkpoint is not None:
                self.ring.append(checkpoint)
                self._unsaved_since = None

    def _protect_soon(self):
        self._poller.after(_CHECKPOINT_TIMER, CHECKPOINT_PAUSE_S, self._protect_if_there_is_room)

    def _protect_if_there_is_room(self):
        """Put the checkpoint off while a killed crowd still takes the room for processes."""
        if self._runners.strays.has_room():
            self._protect()
        else:
            self._poller.after(_CHECKPOINT_TIMER, KILLED_POLL_S, self._protect_if_there_is_room)

    def _protect(self):
        """Make a checkpoint of the present state, unless there is one."""
        self._poller.cancel(_CHECKPOINT_TIMER)
        self._ask_back()
        if self.is_idle() and not self._has_newest():
            self._take_checkpoint()

    def _ask_back(self):
        worker = self.worker
        if worker is not None and not worker.cell and worker.asked_back != worker.last_cell:
            worker.asked_back = worker.last_cell
            worker.control.send(wire.pack(wire.ARE_YOU_BACK, wire.CELL.pack(worker.last_cell)))
            self._expect_back(worker)  # control: done_is_done

    def _expect_back(self, worker):
        """The worker reported the end of the last cell, but may still run its code."""
        self._poller.after(("back", worker.index), BACK_S, lambda: self._not_back(worker))

    def _not_back(self, worker):
        if self._runners.bridge.pressed:
            self._expect_back(worker)  # its messages are not read at present
        elif not worker.wait_for(lambda: worker.back_from == worker.asked_back, self._poller.patience(HALF_S)):
            worker.kill()

    def checkpoint_failed(self):
        """There was no process or no memory for the checkpoint, or it ended before it reported."""
        self._failed_checkpoints += 1
        if self._failed_checkpoints < CHECKPOINT_TRIES:
            self._poller.after(_CHECKPOINT_TIMER, CHECKPOINT_RETRY_S, self._protect_if_there_is_room)

    def checkpoint_present(self):
        self._failed_checkpoints = 0
        self._trim()
        self.memory_limit.check_soon()

    def forget_checkpoint(self, handle):
        """The checkpoint has ended, or was never made."""
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
        """Start a fresh worker and end everything else: all checkpoints and copies, and all of their processes."""
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
        """For how many cells back there are checkpoints, in order."""
        reached = {place for handle in self.ring for place in range(handle.position, handle.reaches() + 1)}
        return sorted(self.worker.position - place for place in reached)

    def undo(self, cells):
        """Restore the state of that many cells ago. False if there is no checkpoint of it."""
        self._protect()
        self._trim()
        wanted = self.worker.position - cells
        reaching = (handle for handle in reversed(self.ring) if handle.position <= wanted <= handle.reaches())
        target = next(reaching, None)
        if target is None:
            return False
        newer = self.ring[self.ring.index(target) + 1 :]
        undone = self.worker
        del target.redo[wanted - target.position :]
        self._runners.wait_for_views(undone)  # listings that were requested before the undo show the state before it
        if not self._promote(target):
            return False
        for handle in (undone, *newer):
            self.forget_checkpoint(handle)
            self.retire(handle)
        self._runners.strays.kill(lambda: self._kill_younger(target))
        self._repeat_cells()
        return True

    def settle_after_undo(self):
        """Make the next checkpoint after the answer, so that the answer need not wait."""
        if not self._has_newest():
            self._take_checkpoint()

    def _promote(self, checkpoint):
        """Make the checkpoint the worker. False if it does not answer; then it is given up."""
        self.ring.remove(checkpoint)
        checkpoint.role = WORKER
        checkpoint.signal(signal.SIGCONT)  # user code may have stopped it
        checkpoint.control.send(wire.pack(wire.PROMOTE))
        # The checkpoint may still be forking, or be making a copy of itself: then it waits for stopped processes.
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

    def _repeat_cells(self):
        """Bring the promoted checkpoint to the state of the cells after it that needed no checkpoint.

        Before that it is copied, so that undo reaches those cells, too; not while a crowd waits to be killed.
        """
        worker = self.worker
        redo, worker.redo = worker.redo, []
        given_later, worker.given_later = worker.given_later, False
        if not redo:
            return
        if not self._runners.strays.has_condemned():
            self._take_checkpoint()
            if self._has_newest():
                self.ring[-1].redo, self.ring[-1].given_later = redo, given_later
        self._repeat(worker, redo, given_later)
        worker.state_of, worker.position = redo[-1][0], worker.position + len(redo)

    def _repeat(self, handle, redo, given_later):
        """Have a runner repeat cells; what was given after them is given again, because it came later."""
        handle.repeat(redo)
        if redo and given_later:
            handle.forward(self.configure)

    def _kill_younger(self, checkpoint):
        """Kill processes that were started after the checkpoint was made: its state knows nothing of them."""
        return process.kill_younger(checkpoint.pid, self._runners.kept())

    # The end of a worker and the start of a fresh one.

    def worker_ended(self, handle, exit_code):
        """The worker's last messages were handled. The daemon is told when another worker can take cells."""
        self.memory_limit.reserve.release()
        cell, was_reset = handle.cell, bool(handle.resets)
        handle.end_cell()
        self.worker = None
        self._runners.drop(handle)
        if handle.preload_request is not None and not handle.killed:
            # The next worker would die of the imports, too.
            self.imports = None
            message = f"the process ended while it imported modules (exit code {exit_code})"
            self._runners.refuse("no_process", message, {"request": handle.preload_request})
        if process.is_crowded():
            process.halt()  # dying processes take CPU time, too: the checkpoint gets its share before strays are killed
        while self.ring and not was_reset:
            if self._promote(self.ring[-1]):
                self._runners.strays.kill(lambda worker=self.worker: self._kill_younger(worker))
                self._repeat_cells()
                after = {"restored": self.worker.state_of}
                unrun = self._unrun(handle, cell)
                self._tell_end(handle, 0 if unrun else cell, exit_code, after)
                if unrun:
                    self._runners.strays.kill_condemned()
                    if not self._has_newest():
                        self._take_checkpoint()
                    self._send_cell(cell, unrun)
                else:
                    self._protect_soon()
                return
        self.drop_checkpoints()
        self._runners.strays.kill_condemned()
        self._runners.strays.killed(process.kill_descendants(self._runners.kept()))
        self._at_worker_start.append(lambda: self._tell_end(handle, cell, exit_code, LOST))
        if not handle.has_spoken and not was_reset:
            self._start_worker_later()  # it ended before its first message
        else:
            self.start_worker()

    def _unrun(self, handle, cell):
        """The frame of the cell that died with the worker, if the next worker can run it unchanged.

        An earlier cell may have spoilt the worker so that it dies of the next message. A cell that had not
        begun has had no effect, and the state that it was meant for is restored; or that state never existed,
        because the previous cell was reported as done and was not. This is tried only once, since the cell
        itself may be the cause after all.
        """
        if not cell or handle.begun or handle.killed or handle.interrupted:
            return None
        if self.worker.position != handle.position and handle.back_from == handle.asked_back:
            return None
        text, self._started = self._started, None
        return text

    def names_of_lost(self, code):
        """Which names the last lost cell may have assigned; None if they are unknown, or `code` is not its code."""
        lost, names = self._lost
        if code != lost:
            return None
        try:
            found = wire.decode_json(names.decode())
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            return None  # user code forged the runner's message
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
        """Start a fresh worker that has only the seed, the tools and the preloaded modules."""
        handle = self._runners.new_handle(WORKER)
        pid = None
        if handle is not None:
            # SIGINT is blocked until the worker can handle it; before that, it would end the worker.
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
            self._send_imports(handle, self.imports)
        told, self._at_worker_start = self._at_worker_start, []
        for tell in told:
            tell()
        self._take_checkpoint()

    def _start_worker_later(self):
        """If processes or memory are short, try again for a while."""
        self._failed_starts += 1
        if self._failed_starts >= WORKER_START_TRIES:
            self._on_hopeless()
        else:
            self._poller.after("worker", WORKER_START_RETRY_S, self.start_worker)

    def worker_present(self):
        self._failed_starts = 0
