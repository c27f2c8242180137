"""What a cell costs, counted in what does not depend on the machine: processes that are made, and writes."""

import unittest

from checkpoint_harness import CheckpointTest
from harness import Kernel, KernelTest
from test_processes import UNSHARE, _can_unshare

# The number of the last process or thread that was made in this pid namespace. Reading it is a cell that may do anything.
LAST_PID = "int(open('/proc/sys/kernel/ns_last_pid').read())"
CELLS = 10
# The system calls by which this process has written something.
WRITES = "int(open('/proc/self/io').read().split('syscw: ')[1].split()[0])"
LINES = 1000


@unittest.skipUnless(_can_unshare(), "needs a pid namespace")
class Processes(CheckpointTest):
    def setUp(self):
        self.kernel = Kernel(prefix=UNSHARE)
        self.addCleanup(self.kernel.close)
        self.kernel.start()

    def made_by(self, code):
        """How many processes are made for so many of these cells, and for the one that looked before."""
        before = int(self.value(LAST_PID))
        for _ in range(CELLS):
            self.run_ok(code)
        return int(self.value(LAST_PID)) - before

    def test_a_harmless_cell_makes_none(self):
        self.assertEqual(self.made_by("1 + 1"), 1)
        self.assertEqual(self.made_by("x = 2; x"), 1)

    def test_a_cell_that_may_change_anything_makes_one(self):
        self.assertEqual(self.made_by("x = int(1)"), CELLS + 1)

    def test_so_it_does_when_a_loop_was_used(self):
        self.run_ok("import asyncio; await asyncio.sleep(0)")
        self.assertEqual(self.made_by("x = int(1)"), CELLS + 1)

    def test_an_expression_that_leaves_no_trace_makes_none(self):
        self.kernel.compute("1")
        before = int(self.value(LAST_PID))
        for _ in range(CELLS):
            self.assertEqual(self.kernel.compute("len('a,b'.split(','))"), {"value": "2"})
        self.assertEqual(int(self.value(LAST_PID)) - before, 1)
        self.kernel.compute("decimal.Decimal(1)")
        self.assertEqual(int(self.value(LAST_PID)) - before, 3)

    def test_an_installed_library_that_wants_to_be_called_in_children_makes_no_difference(self):
        self.import_installed("os.register_at_fork(after_in_child=lambda: called.append(1))")
        self.assertEqual(self.made_by("1 + 1"), 1)
        self.assertEqual(self.made_by("x = int(1)"), CELLS + 1)
        self.assertEqual(self.value("installed.called"), "[]")
        self.kernel.run("import os; os._exit(1)")
        self.assertEqual(self.value("x, installed.called"), "(1, [1])")
        # The one that is called in this process runs whenever a copy is made.
        self.run_ok("del sys.modules['installed']")
        self.import_installed("os.register_at_fork(before=lambda: None, after_in_child=lambda: None)")
        self.assertEqual(self.made_by("x = int(1)"), 2 * (CELLS + 1))

    def import_installed(self, code):
        self.run_ok(
            "import os, sys, tempfile\n"
            "sys.path.insert(0, tempfile.mkdtemp() + '/site-packages')\n"
            "os.mkdir(sys.path[0])\n"
            f"with open(sys.path[0] + '/installed.py', 'w') as file: file.write({'import os; called = []; ' + code!r})\n"
            "import installed"
        )

    def test_where_more_is_to_be_done_it_makes_two(self):
        self.run_ok("import os; os.register_at_fork(before=lambda: None)")
        self.assertEqual(self.made_by("x = int(1)"), 2 * (CELLS + 1))
        self.kernel.send(type="reset", request=1)
        self.kernel.expect("reset_done")
        self.run_ok("r = open('/etc/passwd')")
        self.assertEqual(self.made_by("x = int(1)"), 2 * (CELLS + 1))
        self.run_ok("r.close()")
        self.assertEqual(self.made_by("x = int(1)"), CELLS + 1)
        self.run_ok("import threading; e = threading.Event(); t = threading.Thread(target=e.wait); t.start()")
        self.assertEqual(self.made_by("x = int(1)"), 2 * (CELLS + 1))
        self.run_ok("e.set(); t.join()")
        self.assertEqual(self.made_by("x = int(1)"), CELLS + 1)


class Writes(KernelTest):
    def test_a_print_is_one(self):
        for code in ("print('short', end='')", "print('a', 2, [3.0])", "print('ä', 'b', sep='\\n', file=sys.stderr)"):
            run = self.run_ok(f"import sys\nbefore = {WRITES}\nfor _ in range({LINES}): {code}\n{WRITES} - before")
            self.assertLessEqual(int(run.value), LINES + 8, code)  # and a few to have what was printed before read
