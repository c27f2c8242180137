"""Which steps of a load are not taken: those that are known to end the process, and what could not be tried in time."""

import os
import pickle
import shutil
import socket
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

from harness import KERNEL


class SlowFile:
    """Gives each part only after a pause."""

    def __init__(self, pieces, pause):
        self._pieces, self._pause = pieces, pause

    def read(self, size):
        time.sleep(self._pause)
        return self._pieces.read(size)

    def readline(self):
        return self._pieces.readline()

    def readinto(self, target):
        return self._pieces.readinto(target)


class Rehearsed(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, KERNEL)
        self.addCleanup(sys.path.remove, KERNEL)
        from belljar_kernel import snapshot_make, snapshot_rehearsal

        self.rehearsal, self.make = snapshot_rehearsal, snapshot_make
        self.set(snapshot_make, "loading", types.SimpleNamespace(name="a variable", homes={}))

    def set(self, thing, name, value):
        patch = mock.patch.object(thing, name, value, create=True)
        patch.start()
        self.addCleanup(patch.stop)

    def not_taken(self, steps, most):
        """The reasons by the numbers of the steps that are not taken."""
        reasons = {}
        for number in range(1, most + 1):
            try:
                steps.begin()
            except Exception as error:
                reasons[number] = str(error)
        return reasons

    def dies_at(self, number):
        def load(steps):
            for each in range(1, 101):
                try:
                    steps.begin()
                except Exception:
                    continue
                if each == number:
                    os._exit(4)

        return load

    def test_a_long_value_that_is_read_makes_progress(self):
        from belljar_kernel import snapshot_partial, snapshot_records

        self.set(self.rehearsal, "WAKE_STEP_S", 0.4)
        self.set(self.rehearsal, "WAKE_SHARES", 1000)
        data = pickle.dumps(tuple(range(70_000)), 5)

        def load(steps):
            steps.begin()
            pieces = snapshot_records.Pieces([data], steps.mark_read)
            snapshot_partial.Unpickler(SlowFile(pieces, 0.1)).load()

        self.assertEqual(self.not_taken(self.rehearsal.steps(load), 9), {})

    def test_a_step_has_a_share_of_the_time_before_it_counts_as_one_that_never_ends(self):
        self.set(self.rehearsal, "WAKE_STEP_S", 0.2)
        self.set(self.rehearsal, "WAKE_TRIALS_S", 16)

        def load(steps):
            steps.begin()
            time.sleep(1)

        self.assertEqual(self.not_taken(self.rehearsal.steps(load), 9), {})

    def test_one_that_never_ends_is_found_when_its_share_is_over(self):
        self.set(self.rehearsal, "WAKE_STEP_S", 0.2)
        self.set(self.rehearsal, "WAKE_TRIALS_S", 4)

        def load(steps):
            for each in (1, 2, 3):
                try:
                    steps.begin()
                except Exception:
                    continue
                if each == 2:
                    time.sleep(100)

        reasons = self.not_taken(self.rehearsal.steps(load), 9)
        self.assertEqual(set(reasons), {2})
        self.assertIn("no progress", reasons[2])

    def test_when_the_time_is_over_after_a_death_what_was_not_tried_is_left_out(self):
        self.set(self.rehearsal, "WAKE_TRIALS_S", 1.5)
        dies = self.dies_at(2)

        def load(steps):
            dies(steps)  # the first hundred steps
            for _ in range(1000):
                steps.begin()
                time.sleep(0.02)

        reasons = self.not_taken(self.rehearsal.steps(load), 1100)
        self.assertIn("exit code 4", reasons.pop(2))
        first = min(reasons)
        self.assertGreater(first, 100)
        self.assertEqual(set(reasons), set(range(first, 1101)))
        self.assertEqual(len(set(reasons.values())), 1)
        self.assertIn("not tried", reasons[first])

    def test_when_the_time_is_over_without_a_death_all_is_loaded(self):
        self.set(self.rehearsal, "WAKE_TRIALS_S", 0.5)

        def load(steps):
            for _ in range(1000):
                steps.begin()
                time.sleep(0.02)

        self.assertEqual(self.not_taken(self.rehearsal.steps(load), 1100), {})

    def test_a_trial_that_could_not_begin_has_not_got_through(self):
        lead_nowhere, began = self.rehearsal.descriptors.lead_nowhere, []
        real_fork = os.fork

        def fork():
            began.append(True)
            return real_fork()

        def fails_later(kept):
            if len(began) > 1:
                raise OSError
            lead_nowhere(kept=kept)

        self.set(self.rehearsal.posix, "fork", fork)
        self.set(self.rehearsal.descriptors, "lead_nowhere", fails_later)
        reasons = self.not_taken(self.rehearsal.steps(self.dies_at(5)), 100)
        self.assertEqual(set(reasons), set(range(5, 101)))
        self.assertIn("not tried", reasons[6])

    def test_a_buffer_that_is_not_filled_takes_no_memory(self):
        before = self.resident()
        held = self.rehearsal.untouched_memory(256 << 20)
        self.assertEqual((len(held), held[1000]), (256 << 20, 0))
        self.assertLess(self.resident() - before, 64 << 20)
        held.close()

    def test_a_buffer_that_nothing_can_hold_is_passed_and_has_its_size(self):
        from belljar_kernel import snapshot_records

        for size, passes in ((7, True), (6, False), (8, False)):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                theirs.sendall(b"P\0\0\0\4data" + b"P\0\0\0\3end" + b"S\0\0\0\0")
                reader = snapshot_records.Reader(ours)
                if passes:
                    reader.pass_section(size)
                else:
                    self.assertRaises(snapshot_records.Broken, reader.pass_section, size)

    def resident(self):
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_an_import_from_its_folder_leaves_the_paths_in_their_order(self):
        folder = "/nonexistent/folder of it"
        self.make.loading.homes = {"json": folder}
        paths = [folder, *sys.path, folder]
        self.set(sys, "path", list(paths))
        self.make._import("json")
        self.assertEqual(sys.path, paths)

    def test_a_folder_that_the_module_itself_adds_stays_where_that_put_it(self):
        folder = tempfile.mkdtemp(prefix="belljar-test-")
        self.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "adds_its_folder.py"), "w", encoding="ascii") as file:
            file.write("import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\n")
        self.make.loading.homes = {"adds_its_folder": folder}
        self.set(sys, "path", list(sys.path))
        self.addCleanup(sys.modules.pop, "adds_its_folder", None)
        paths = list(sys.path)
        self.make._import("adds_its_folder")
        self.assertEqual(sys.path, [folder, *paths])


if __name__ == "__main__":
    unittest.main()
