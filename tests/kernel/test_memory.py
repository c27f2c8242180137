"""Who goes, and when, where memory or CPU time is short: moments that no real load meets on demand."""

import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from harness import KERNEL

sys.path.insert(0, KERNEL)
from belljar_kernel import memory_limit, mainline, runners  # noqa: E402
from belljar_kernel.handle import CHECKPOINT, WORKER  # noqa: E402

MIB = 2**20
WORKER_PID, CHECKPOINT_PID = 20, 21


class MemoryThatGrowsWhileItIsMeasured(unittest.TestCase):
    def setUp(self):
        self.killed = []
        limits = SimpleNamespace(memory_bytes=120 * MIB, checkpoint_bytes=40 * MIB, checkpoints=8)
        worker = SimpleNamespace(pid=WORKER_PID, role=WORKER, cell=2, kill=lambda: self.killed.append(WORKER_PID))
        checkpoint = SimpleNamespace(pid=CHECKPOINT_PID, role=CHECKPOINT, cell=0, killed=False, kill=self.retired)
        handles = SimpleNamespace(limits=limits, all=lambda: [worker, checkpoint])
        self.line = mainline.MainLine(handles, SimpleNamespace(after=lambda *_: None), "/nowhere", None)
        self.line.worker = worker
        self.line.ring.append(checkpoint)

    def retired(self):
        self.killed.append(CHECKPOINT_PID)

    def watch(self, *totals):
        """One look at the memory, in which each sum is the next of these."""
        sums = iter(totals)
        with (
            mock.patch.object(memory_limit.memory.MemoryWatch, "is_held", lambda *_: False),
            mock.patch.object(memory_limit.memory, "total", lambda _pids: next(sums) * MIB),
            mock.patch.object(memory_limit.memory, "held_alone", lambda _pid: 70 * MIB),
            mock.patch.object(memory_limit.memory, "resident", lambda _pid: 90 * MIB),
            mock.patch.object(memory_limit.memory, "resident_with_files", lambda _pid: 90 * MIB),
            mock.patch.object(memory_limit.process, "descendants", lambda: [WORKER_PID, CHECKPOINT_PID]),
            mock.patch.object(memory_limit.process, "send_signal", lambda pid, _number: self.killed.append(pid)),
        ):
            self.line.memory_limit.watch()

    def test_copies_that_came_between_two_looks_cost_the_checkpoint_and_not_the_cell(self):
        self.watch(140, 170, 170)
        self.assertEqual(self.killed, [CHECKPOINT_PID])

    def test_a_cell_that_takes_too_much_itself_goes(self):
        self.watch(140, 250, 250)
        self.assertEqual(self.killed, [WORKER_PID])


class ACrowdThatStandsStill(unittest.TestCase):
    def setUp(self):
        self.killed = []
        poller = SimpleNamespace(within=lambda *_: None, patience=lambda seconds: seconds)
        self.runners = runners.Runners(poller, None, None, "/nowhere", None)

    def kill_strays(self, halted, crowded):
        with (
            mock.patch.object(runners.process, "is_halted", lambda: halted),
            mock.patch.object(runners.process, "is_crowded", lambda _most: crowded),
        ):
            self.runners.strays.kill(lambda: self.killed.append(1) or [])

    def test_it_is_killed_when_the_end_of_its_cell_is_told_and_before_anything_is_started(self):
        self.kill_strays(halted=True, crowded=True)
        self.assertEqual((self.killed, self.runners.strays.has_room()), ([], False))
        self.runners.strays.wait_for_room()
        self.assertEqual((self.killed, self.runners.strays.has_room()), ([1], True))

    def test_a_few_are_killed_at_once_and_so_is_what_runs(self):
        self.kill_strays(halted=True, crowded=False)
        self.kill_strays(halted=False, crowded=True)
        self.assertEqual(self.killed, [1, 1])
