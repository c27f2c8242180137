"""Enforces the sandbox's memory limit: above it checkpoints are dropped, then processes are killed."""

import signal
import time

from . import memory, process
from .handle import RETIRED
from .limits import BUDGET_SCARCE, MEMORY_ALARM_S, MEMORY_CHECK_S, MEMORY_PART, MEMORY_SUM_S
from .memory_reserve import MemoryReserve

_TIMER = "memory"
_CHECK_TIMER = "memory of checkpoints"


class MemoryLimit:
    """Enforces the memory limit of a sandbox: drops checkpoints first, then kills the largest process."""

    def __init__(self, line, runners, poller):
        self._line = line
        self._runners = runners
        self._poller = poller
        self._memory = memory.MemoryWatch()
        self.reserve = MemoryReserve()
        self._ending = set()  # pids that were killed for their memory, and may still have it
        self._is_short = False  # the last check dropped a checkpoint
        self._check_again_at = 0.0

    def watch_soon(self):
        """Watch while a cell runs, and between cells, too, if the system does not enforce the memory limit."""
        self._poller.within(_TIMER, MEMORY_CHECK_S, self.watch)

    def watch(self):
        begun = time.monotonic()
        self._look()
        pause = max(MEMORY_CHECK_S, (time.monotonic() - begun) / MEMORY_PART)
        if any(handle.cell for handle in self._runners.all()):
            self._poller.after(_TIMER, pause, self.watch)
        elif not self._memory.is_held(self._runners.limits):
            # Threads and processes of earlier cells may still run.
            self._poller.after(_TIMER, max(MEMORY_SUM_S, pause), self.watch)

    def _look(self):
        if process.is_halted():
            return  # stopped for the end of a cell, which comes first
        held = self._memory.is_held(self._runners.limits)
        sizes = {} if held else {pid: memory.resident(pid) for pid in self._active()}
        # Shared pages count for each process here, so the sum may be higher than the real use.
        crowded = sum(sizes.values()) > self._bound()
        due = self._memory.take_turn(MEMORY_ALARM_S if crowded else MEMORY_SUM_S)
        relieved = due and self.check()
        if not held:
            self._end_gluttons(sizes, due and not relieved)
        else:
            self._help_the_system()

    def _help_the_system(self):
        """Support the system where it ends processes for memory, but too late or too few of them."""
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
        """Processes that can take more memory. Waiting copies only seem large, because of the pages that they share."""
        waiting = {handle.pid for handle in self._runners.all() if not handle.cell and handle is not self._line.worker}
        living = process.descendants()
        self._ending.intersection_update(living)
        return [pid for pid in living if pid not in waiting and pid not in self._ending]

    def _lasting(self):
        """All processes but those that are about to end."""
        ending = {handle.pid for handle in self._runners.all() if handle.role == RETIRED}
        return [pid for pid in process.descendants() if pid not in ending and pid not in self._ending]

    def _end_gluttons(self, sizes, together):
        """Kill the largest processes when memory is used up, as the system does where it enforces the limit.

        What all of them take `together` costs more to measure, and comes after checkpoints that can be dropped.
        """
        largest = max(sizes, key=sizes.get, default=None)
        if largest is not None and memory.resident_with_files(largest) > self._bound():
            self._end_glutton(largest)
        elif together:
            excess = memory.total(self._lasting()) - self._bound()
            if excess > 0 and self.check():
                return  # memory has grown since the checkpoints were looked at, and one of them was enough
            # Measured anew, because processes grow: after the sum, another one may be the largest.
            alone = memory.held_by_each(sizes) if excess > 0 else {}
            of_worker = self._line.worker and self._line.worker.pid
            for place, pid in enumerate(sorted(alone, key=alone.get, reverse=True)):
                if excess <= 0 or (place and pid == of_worker):
                    return  # the end of the others may be enough, although their parts did not add up to the excess
                excess -= alone[pid]
                self._end_glutton(pid)

    def check_soon(self):
        """Check after the checkpoints have changed, which they may do a thousand times a second."""
        left = self._check_again_at - time.monotonic()
        if left <= 0 or self._is_short:  # what was dropped may not have been enough
            self.check()
        else:
            self._poller.within(_CHECK_TIMER, left, self.check)

    def check(self):
        """Drop one checkpoint if memory is short. True if one was dropped."""
        if any(handle.role == RETIRED for handle in self._runners.all()):
            return False  # what it held is free only when it has ended
        begun = time.monotonic()
        self._is_short = self._drop_if_short()
        ended = time.monotonic()
        self._check_again_at = ended + max(MEMORY_CHECK_S, (ended - begun) / MEMORY_PART)
        return self._is_short

    def _drop_if_short(self):
        """Above the session's own memory, drop one checkpoint, the oldest first. True if one was dropped.

        The newest checkpoint protects the running cell. It is dropped only if the session would keep to its
        memory without it: then copies of changed pages, which are not the cell's fault, fill the budget. If
        the cell itself takes too much, its worker has to end instead.
        """
        if not self._line.ring or self._line.worker is None:
            return False
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
            # Pages that the checkpoint shared with a worker that is just ending are not copies.
            if not memory.held_alone(self._line.worker.pid):
                return False
        self._line.retire(self._line.ring.pop(0))
        return True
