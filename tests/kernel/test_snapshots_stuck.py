"""A variable that makes no progress, or says much of why it fails, costs the snapshot only itself."""

import os
import sys
import unittest

from harness import KERNEL
from snapshot_harness import SnapshotTest

# Longer than a process may be silent, for each variable that is.
PATIENCE_S = 150


class Silent(SnapshotTest):
    """Code of a variable may keep away the signal by which its process looks at itself."""

    def leave_out(self, code, name):
        self.run_ok(f"import signal, os, time\n{code}\n{name} = Stuck(); x = 1")
        snapshot = self.take(timeout=PATIENCE_S)
        self.assertEqual(set(snapshot.missing), {name})
        self.assertIn("no progress", snapshot.missing[name])
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_one_that_loops_with_the_signal_masked_while_it_is_packed_is_left_out(self):
        self.leave_out(
            "class Stuck:\n    def __reduce__(self):\n        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
            "        while True: pass",
            "stuck",
        )

    def test_one_that_catches_what_is_to_end_it_is_left_out(self):
        self.leave_out(
            "class Stuck:\n    def __reduce__(self):\n        while True:\n            try: time.sleep(1)\n"
            "            except BaseException: pass",
            "stuck",
        )

    def test_one_that_loops_with_the_signal_masked_while_it_is_loaded_on_trial_is_left_out_and_ends(self):
        self.leave_out(
            "import mmap\nos.walk.told = memoryview(mmap.mmap(-1, 8)).cast('q')\ndef made():\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    os.walk.told[0] = os.getpid()\n"
            "    while True: time.sleep(1)\n"
            "class Stuck:\n    def __reduce__(self): return made, ()",
            "stuck",
        )
        self.assertEqual(self.value("os.walk.told[0] > 0, os.path.exists(f'/proc/{os.walk.told[0]}')"), "(True, False)")

    def test_one_that_stops_the_timer_does_not_stop_it_for_the_next(self):
        self.run_ok(
            "import signal\nclass Stops:\n    def __reduce__(self):\n        signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n        return int, ()\n"
            "class Loops:\n    def __reduce__(self):\n        while True: pass\nstops = Stops(); loops = Loops(); x = 1"
        )
        missing = self.take(timeout=PATIENCE_S).missing
        self.assertEqual(set(missing), {"loops"})
        self.assertNotIn("heed", missing["loops"])  # its own process has seen it


class LongReasons(SnapshotTest):
    def test_long_messages_of_errors_are_not_kept(self):
        self.run_ok(
            "class Tells:\n    def __reduce__(self):\n        open('pages', 'a').write(open('/proc/self/statm').read().split()[1] + '\\n')\n"
            "        return int, ()\n"
            "class Bad:\n    def __reduce__(self): raise ValueError('x' * (8 << 20))\n"
            "first = Tells()\nfor n in range(20): globals()[f'bad{n}'] = Bad()\nlast = Tells()"
        )
        missing = self.take().missing
        self.assertEqual(set(missing), {f"bad{n}" for n in range(20)})
        with open(os.path.join(self.kernel.workspace, "pages"), encoding="ascii") as file:
            before, after = (int(line) for line in file.read().split()[:2])
        self.assertLess((after - before) * os.sysconf("SC_PAGE_SIZE"), 64 << 20)  # the messages are 160 MiB


class ShortReasons(unittest.TestCase):
    """Every reason is cut where it is made."""

    def setUp(self):
        sys.path.insert(0, KERNEL)
        self.addCleanup(sys.path.remove, KERNEL)

    def test_messages_and_names_of_classes_are_cut(self):
        from belljar_kernel.limits import MISSING_REASON_CHARS
        from belljar_kernel.snapshot_reasons import message, told

        def fails(_error):
            raise ValueError

        long = "x" * 1_000_000
        of_long_name = type(long, (Exception,), {})
        without_message = type(long, (Exception,), {"__str__": fails})
        for error in (ValueError(long), of_long_name(long), of_long_name(), without_message()):
            for tell in (message, told):
                self.assertLessEqual(len(tell(error)), MISSING_REASON_CHARS)
        self.assertEqual(told(ValueError("no")), "ValueError: no")
        self.assertEqual((message(ValueError("no")), message(ValueError())), ("no", "ValueError"))


if __name__ == "__main__":
    unittest.main()
