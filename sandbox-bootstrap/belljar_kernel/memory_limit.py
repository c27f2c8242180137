"""Holds the sandbox to its memory: above it checkpoints go, and then what takes too much."""

import signal
import time

from . import memory, process
from .handle import RETIRED
from .limits import BUDGET_SCARCE, MEMORY_ALARM_S, MEMORY_CHECK_S, MEMORY_PART, MEMORY_SUM_S
from .memory_reserve import MemoryReserve

_TIMER = "memory"


class MemoryLimit:
    """Holds the runners of a sandbox to its memory: first checkpoints go, then the largest process."""

    def __init__(self, line, runners, poller):
        self._line = line
        self._runners = runners
        self._poller = poller
        self._memory = memory.MemoryWatch()
        self.reserve = MemoryReserve()
        self._ending = set()  # pids that were killed for their memory, and may still have it

    def watch_soon(self):
        """Look while a cell runs, and between cells where the system does not hold the sandbox to its memory."""
        self._poller.within(_TIMER, MEMORY_CHECK_S, self.watch)

    def watch(self):
        begun = time.monotonic()
        self._look()
        pause = max(MEMORY_CHECK_S, (time.monotonic() - begun) / MEMORY_PART)
        if any(handle.cell for handle in self._runners.all()):
            self._poller.after(_TIMER, pause, self.watch)
        elif not self._memory.is_held(self._runners.limits):
            # Threads and processes of earlier cells may go on.
            self._poller.after(_TIMER, max(MEMORY_SUM_S, pause), self.watch)

    def _look(self):
        if process.is_halted():
            return  # for the end of a cell, which comes first
        held = self._memory.is_held(self._runners.limits)
        sizes = {} if held else {pid: memory.resident(pid) for pid in self._active()}
        # Pages that they share count for each of them here: that may be too much, or not.
        crowded = sum(sizes.values()) > self._bound()
        due = self._memory.take_turn(MEMORY_ALARM_S if crowded else MEMORY_SUM_S)
        relieved = due and self.check()
        if not held:
            self._end_gluttons(sizes, due and not relieved)
        else:
            self._help_the_system()

    def _help_the_system(self):
        """Where it ends what takes too much, but too late or too little of it."""
        if self._line.ring:
            self.reserve.keep(self._memory.in_use(self._runners.limits, ()), self._bound())
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
        waiting = {handle.pid for handle in self._runners.all() if not handle.cell and handle is not self._line.worker}
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
            if excess > 0 and self.check():
                return  # memory has grown since the checkpoints were looked at, and one of them was enough
            # Measured anew, because they grow: by the time of the sum another may be the largest.
            alone = memory.held_by_each(sizes) if excess > 0 else {}
            for pid in sorted(alone, key=alone.get, reverse=True):
                if excess <= 0:
                    return
                excess -= alone[pid]
                self._end_glutton(pid)

    def check(self):
        """Above the session's own memory checkpoints go, one at a time, the oldest first.

        The newest protects the cell that runs. It goes only if without it the session would keep
        to its memory: then copies of changed pages, which are not the cell's fault, fill the
        budget. If the cell itself takes too much, it is its worker that has to go. True if one went.
        """
        if not self._line.ring or self._line.worker is None:
            return False
        if any(handle.role == RETIRED for handle in self._runners.all()):
            return False  # what it held is free only when it has ended
        limits = self._runners.limits
        pids = [handle.pid for handle in (self._line.worker, *self._line.ring) if handle.pid]
        in_use = self._memory.in_use(limits, pids) - self.reserve.held()
        if in_use <= limits.memory_bytes:
            return False
        if len(self._line.ring) == 1:
            if in_use <= limits.memory_bytes + limits.checkpoint_bytes * BUDGET_SCARCE:
                return False
            if in_use - memory.held_alone(self._line.ring[0].pid) > limits.memory_bytes:
                return False
            # What it shared with a worker that is just ending is not a copy.
            if not memory.held_alone(self._line.worker.pid):
                return False
        self._line.retire(self._line.ring.pop(0))
        return True
