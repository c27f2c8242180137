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

    def test_objects_are_made_when_plain_values_are_set_and_others_are_set_behind_them(self):
        self.run_ok(
            "import sys\nopen('rules.py', 'w').write('limit, names = 1, []\\nclass Rule:\\n    def __init__(self): self.v = limit, names\\n    def __reduce__(self): return Rule, ()')\n"
            "import rules, math\nclass Part:\n    def __reduce__(self): return make, ()\ndef make(): return Part() if base else 1 / 0\n"
            "base = [1]; rules.limit = 9; rules.names = ['a', {'b': (1, 2)}]; rules.parts = [Part()]; del math.tau; sys.argv = ['mine']\n"
            "rule = rules.Rule(); loop = rules.loop = []; loop.append(loop)"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"rules"})
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        asked = "rule.v, rule.v[1] is rules.names, rules.limit, type(rules.parts[0]) is Part, hasattr(math, 'tau'), sys.argv, rules.loop is loop"
        self.assertEqual(kernel.run(asked, cell=9).value, "((9, ['a', {'b': (1, 2)}]), True, 9, True, False, ['mine'], True)")

    def test_what_constructors_do_to_plain_values_while_they_are_loaded_is_undone(self):
        self.run_ok(
            "open('reg.py', 'w').write('names = counts = parts = None\\nclass Rule:\\n    def __init__(self, n):\\n        self.n = n; names.append(n); parts[0].add(len(parts[0]))\\n        counts[\"all\"] = counts.get(\"all\", 0) + 1; counts[\"by\"].append(self)\\n"
            "    def __reduce__(self): return Rule, (self.n,)')\n"
            "import reg; reg.names = []; reg.counts = {'by': []}; reg.parts = (set(), 'x'); names, seen = reg.names, reg.parts[0]\n"
            "rule = reg.Rule('a'); reg.counts['by'].clear()"
        )
        asked = "reg.names, reg.counts, reg.parts, rule.n, names is reg.names, seen is reg.parts[0]"
        before = self.value(asked)
        self.assertEqual(before, "(['a'], {'by': [], 'all': 1}, ({0}, 'x'), 'a', True, True)")
        kernel, report = self.wake(self.take())
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run(asked, cell=9).value, before)

    def test_a_load_that_fails_assigns_nothing(self):
        self.run_ok(
            "import math, os\nclass Late:\n    def __setstate__(self, _state):\n        if os.path.exists('armed'): raise ValueError('late')\n    def __getstate__(self): return 1\n"
            "import sys; math.tau = 4; math.FOO = 1; del math.e; sys.argv = ['mine']; late = Late()"
        )
        snapshot = self.take()
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        kernel = self.fresh()
        self.assertIn("late", self.load(kernel, stream_of(snapshot))["report"]["error"])
        asked = "import math, sys; int(math.tau), int(math.e), hasattr(math, 'FOO'), sys.argv == ['mine']"
        self.assertEqual(kernel.run(asked, cell=2).value, "(6, 2, False, False)")
        kernel, report = self.wake(snapshot, partial=True)
        self.assertEqual(set(self.missing(report)), {"late"})
        self.assertEqual(kernel.run("math.tau", cell=9).value, "4")

    def test_a_value_that_is_not_filled_in_a_load_in_part_is_not_left_in_its_module(self):
        self.run_ok(
            "import os, sys\nopen('mine.py', 'w').write('names = [0]')\nimport mine\n"
            "for n in range(20):\n    open(f'm{n}.py', 'w').write('import os\\nif os.path.exists(\"armed\"): os._exit(3)')\n    globals()[f'm{n}'] = __import__(f'm{n}')\n"
            "mine.names = ['a', 'b']; x = 1"
        )
        snapshot = self.take()
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        kernel, report = self.wake(snapshot, partial=True)
        self.assertIn("mine.names", self.missing(report))
        self.assertEqual(kernel.run("import mine; mine.names, x", cell=9).value, "([0], 1)")

    def test_more_than_are_kept_are_told(self):
        self.run_ok("import math\n" + "\n".join(f"math.a{n} = {n}" for n in range(1001)))
        missing = self.take().missing
        self.assertEqual(set(missing), {"attributes of modules"})
        self.assertIn("more than 1000", missing["attributes of modules"])
        for _ in range(18):
            self.run_ok(f"x = {'math.' * 12_000!r}")
        self.assertRegex(self.take().missing["attributes of modules"], "more than 1000 .*; .*too much code")

    def test_cells_that_are_too_long_are_told_and_the_newest_are_looked_at_first(self):
        self.run_ok("import math\nmath.early = 1")
        self.run_ok(f"data = [{'0.,' * 30_000}]")  # it has no attribute
        self.assertEqual(self.take().missing, {})
        self.run_ok(f"data = [{'0.,' * 30_000}]; math.long = 2")
        for n in range(18):
            self.run_ok(f"x = {'math.' * 12_000!r}; math.a{n} = {n}")
        snapshot = self.take()
        self.assertRegex(snapshot.missing["attributes of modules"], "too much code.*; cells of more than 65536 characters")
        kernel, _ = self.wake(snapshot)
        asked = "import math; math.a17, math.a2, hasattr(math, 'long'), hasattr(math, 'a0')"
        self.assertEqual(kernel.run(asked, cell=99).value, "(17, 2, False, False)")

    def test_cells_that_are_not_remembered_are_told(self):
        self.run_ok("import math; math.tau = 4")
        for _ in range(999):
            self.run_ok("x = abs(1)")
        self.assertEqual(self.take().missing, {})
        self.run_ok("x = abs(1)")
        self.assertIn("only the last 1000 cells", self.take().missing["attributes of modules"])

    def test_a_thing_that_does_not_say_its_class_costs_only_itself(self):
        self.run_ok(
            "import math, types, weakref\nclass Thing: pass\nthing = Thing(); dead = weakref.proxy(thing); dead.x = 1; del thing\n"
            "class Lazy:\n    @property\n    def __class__(self): raise RuntimeError('not yet')\n"
            "lazy = Lazy(); lazy.x = 1; nameless = types.ModuleType('nameless'); nameless.x = 1; nameless.__name__ = None\nmath.tau = 4"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"dead", "lazy", "nameless"})
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("math.tau", cell=9).value, "4")

    def test_what_stands_among_the_modules_and_in_them_may_fail_to_answer(self):
        self.run_ok(
            "import math, string, sys\nclass Fails:\n    def __getattr__(self, name): raise RuntimeError(name)\n"
            "class Lazy:\n    @property\n    def __class__(self): raise RuntimeError('not yet')\n"
            "sys.modules['fails'] = Fails(); sys.modules['lazy'] = Lazy(); vars(string)['lazy'] = Lazy(); x = 1"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"string.lazy"})
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_one_that_does_not_say_its_class_is_no_harm_to_a_load_in_part(self):
        self.run_ok(
            "import os\nclass Lazy:\n    @property\n    def __class__(self):\n        if os.path.exists('armed'): raise RuntimeError('not yet')\n        return Lazy\n"
            "class Late:\n    def __setstate__(self, _state):\n        if os.path.exists('armed'): raise ValueError('late')\n    def __getstate__(self): return 1\n"
            "lazy = Lazy(); late = Late(); both = [lazy]"
        )
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        kernel, report = self.wake(snapshot, partial=True)
        self.assertEqual(set(self.missing(report)), {"late"})
        self.assertEqual(kernel.run("both[0] is lazy", cell=9).value, "True")


if __name__ == "__main__":
    unittest.main()
