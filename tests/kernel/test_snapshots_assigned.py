"""What cells assign to attributes of modules comes back, or is reported by name."""

import os
import unittest

from snapshot_harness import SnapshotTest, stream_of

SET = (
    "import json as j, math, string, sys, xml.dom\nfrom os import path as p\nopen('mymodule.py', 'w').write('counter = 1\\nother = [0]\\nkept = 5')\nimport mymodule\n"
    "math.tau = 4; math.FOO = shared = [1, [2]]; string.digits, xml.dom.MINE = 'x', {'a': shared}; p.MINE: int = 3\n"
    "mymodule.counter += 1; mymodule.counter += 1; setattr(j, 'SET', 'by setattr'); del string.whitespace; delattr(string, 'printable')\n"
    "for sys.tracebacklimit in (7,): pass\nsys.argv = ['prog', 'x']\n"
    "def later():\n    import calendar\n    calendar.MINE = (1, 2)\nlater(); del p"
)
ASKED = (
    "math.tau, math.FOO is shared is xml.dom.MINE['a'], shared, string.digits, __import__('posixpath').MINE, mymodule.counter, j.SET, "
    "hasattr(string, 'whitespace'), hasattr(string, 'printable'), sys.tracebacklimit, sys.argv, __import__('calendar').MINE, mymodule.kept"
)


class Assigned(SnapshotTest):
    def missing(self, report):
        return {each["name"]: each["reason"] for each in report["missing"]}

    def test_values_that_cells_assign_to_modules_come_back(self):
        self.run_ok(SET)
        before = self.value(ASKED)
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"mymodule"})
        self.assertIn("cells assigned", snapshot.missing["mymodule"])
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run(ASKED, cell=9).value, before)
        self.assertEqual(kernel.run("[name for name in globals() if '.' in name]", cell=10).value, "[]")

    def test_they_come_back_from_the_second_sleep_as_well(self):
        self.run_ok("import math\nmath.tau = 4")
        kernel, _ = self.wake(self.take())
        kernel.run("x = [1]", cell=9)
        again = self.take(kernel)
        other = self.fresh()
        self.assertIsNone(self.load(other, stream_of(again))["report"]["error"])
        self.assertEqual(other.run("math.tau", cell=11).value, "4")

    def test_what_cannot_be_packed_or_is_the_sessions_own_is_reported_by_name(self):
        self.run_ok(
            "import math, string, threading\nclass Mine: pass\nmath.lock = threading.Lock(); math.lock.acquire(); math.generator = (each for each in ())\n"
            "string.mine = Mine(); string.function = lambda: 1; math.kept = 3"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"math.lock", "math.generator", "string.mine", "string.function"})
        self.assertIn("own is back", snapshot.missing["string.function"])
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("math.kept, hasattr(math, 'lock')", cell=9).value, "(3, False)")

    def test_a_module_that_is_gone_loses_only_what_was_assigned_to_it(self):
        self.run_ok("import math\nopen('gone_mod.py', 'w').close()\nimport gone_mod\ngone_mod.x = 1; math.tau = 4")
        snapshot = self.take()
        os.unlink(os.path.join(self.kernel.workspace, "gone_mod.py"))
        self.run_ok("import shutil; shutil.rmtree('__pycache__', True)")
        kernel, report = self.wake(snapshot)
        self.assertEqual(set(self.missing(report)), {"gone_mod", "gone_mod.x"})
        self.assertEqual(kernel.run("math.tau", cell=9).value, "4")

    def test_a_load_that_fails_assigns_nothing(self):
        self.run_ok(
            "import math, os\nclass Late:\n    def __setstate__(self, _state):\n        if os.path.exists('armed'): raise ValueError('late')\n    def __getstate__(self): return 1\n"
            "math.tau = 4; late = Late()"
        )
        snapshot = self.take()
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        kernel = self.fresh()
        self.assertIn("late", self.load(kernel, stream_of(snapshot))["report"]["error"])
        self.assertEqual(kernel.run("import math; int(math.tau)", cell=2).value, "6")
        kernel, report = self.wake(snapshot, partial=True)
        self.assertEqual(set(self.missing(report)), {"late"})
        self.assertEqual(kernel.run("math.tau", cell=9).value, "4")

    def test_more_than_are_kept_are_told(self):
        self.run_ok("import math\n" + "\n".join(f"math.a{n} = {n}" for n in range(1001)))
        self.assertEqual(set(self.take().missing), {"attributes of modules"})


if __name__ == "__main__":
    unittest.main()
