"""Variables come back exactly as they were, whatever code of the session their classes bring along."""

import importlib.util
import os
import unittest

from snapshot_harness import SnapshotTest, stream_of

CLASSES = """
import collections
class D(dict):
    def __setitem__(self, key, value): dict.__setitem__(self, key, value * 2)
class L(list):
    def append(self, item): list.append(self, item * 2)
    def extend(self, items): list.extend(self, [each * 2 for each in items])
class O(collections.OrderedDict):
    def __setitem__(self, key, value): super().__setitem__(key, value * 2)
class S(set):
    def __init__(self, first, second): super().__init__([first, second])
class F(frozenset):
    def __new__(cls, first, second): return super().__new__(cls, [first, second])
class C(collections.Counter):
    def update(self, *_): pass
class DD(collections.defaultdict):
    def __init__(self, label): super().__init__(list); self.label = label
class Q(collections.deque):
    def __init__(self, most): super().__init__([1, 2, 3], most)
    def append(self, item): raise ValueError
class B(bytearray):
    def __init__(self): super().__init__(b'ab')
class I(int):
    def __new__(cls, value): return super().__new__(cls, value * 2)
class P(collections.namedtuple('P', 'x y')):
    def __new__(cls, x): return super().__new__(cls, x, x)
class Slots:
    __slots__ = ('a', '__b')
    def __init__(self, a): object.__setattr__(self, 'a', a); object.__setattr__(self, '_Slots__b', self)
    def __setattr__(self, name, value): raise AttributeError(name)
"""


class Exact(SnapshotTest):
    def test_classes_that_change_what_they_are_given_give_back_what_they_hold(self):
        self.run_ok(CLASSES + "d = D(a=2); d.note = 1\nl = L([1, 2]); l.note = l\no = O(); o['z'] = 1; o['a'] = 2\ns = S(1, 2); s.note = 1\nf = F(1, 2); f.note = 1")
        self.run_ok("c = C(); c['x'] = 3\ndd = DD('here'); dd[1].append(2)\nq = Q(2); q.note = 1\nb = B()\ni = I(2); i.note = 1\np = P(7)\nslots = Slots(5)\nagain = [d, slots]")
        asked = (
            "(d, d.note, list(l), l.note is l, list(o.items()), s, s.note, f, f.note, c, dict(dd), dd.default_factory, dd.label,"
            " list(q), q.maxlen, q.note, b, i, i.note, p, type(p) is P, slots.a, slots._Slots__b is slots, again[0] is d)"
        )
        before = self.value(asked)
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run(asked, cell=3).value, before)

    def test_what_a_class_says_of_itself_is_followed(self):
        self.run_ok(
            "class Own(dict):\n    __slots__ = ('a',)\n    def __getstate__(self): return [self.a]\n    def __setstate__(self, state): self.a = state[0] + 1\n"
            "own = Own(x=1); own.a = 1\n"
            "class Args(int):\n    def __new__(cls, a, b): return super().__new__(cls, a + b)\n    def __getnewargs__(self): return 1, int(self) - 1\nargs = Args(2, 3)"
        )
        kernel, _ = self.wake(self.take())
        self.assertEqual(kernel.run("(own, own.a, args, type(args) is Args)", cell=2).value, "({'x': 1}, 2, 5, True)")

    def test_code_that_the_load_calls_finds_modules_functions_and_classes_of_the_session(self):
        self.run_ok(
            "class Locked:\n    def __init__(self): self.lock = threading.Lock()\n    def __getstate__(self): return {}\n"
            "    def __setstate__(self, _state): self.lock = threading.Lock()\n"
            "class Key:\n    def __init__(self, n): self.n = n\n    def __hash__(self): return spread(self.n)\n    def __eq__(self, other): return self.n == other.n\n"
            "import threading\ndef spread(n): return hash((n, Marker.salt))\nclass Marker: salt = 3\n"
        )
        self.run_ok("locked = Locked()\nkeyed = {Key(1): 'one'}\nfirst = 1")
        order = self.value("[each for each in globals() if each[0] != '_']")
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        kernel, _ = self.wake(snapshot, state_of=2)
        self.assertEqual(kernel.run("(locked.lock.locked(), keyed[Key(1)])", cell=3).value, "(False, 'one')")
        self.assertEqual(kernel.run("[each for each in globals() if each[0] != '_']", cell=4).value, order)

    def test_a_load_that_fails_leaves_no_names(self):
        self.run_ok("import pickle\nx = 1\nclass Late:\n    def __setstate__(self, _state):\n        if armed(): raise ValueError('late')\n    def __getstate__(self): return 1\ndef armed(): import os; return os.path.exists('armed')\nlate = Late()")
        snapshot = self.take()
        self.run_ok("open('armed', 'w').close()")
        kernel = self.fresh()
        answer = self.load(kernel, stream_of(snapshot))
        self.assertIn("late", answer["report"]["error"])
        self.assertEqual(kernel.run("[each for each in ('x', 'Late', 'late', 'armed') if each in globals()]", cell=1).value, "[]")

    def test_a_large_one_that_cannot_be_loaded_again_is_left_out(self):
        self.run_ok("import os\nlarge = [bytes([each]) * 1_000_000 for each in range(70)]\nclass Bad:\n    def __reduce__(self): return int, ('no number',)\nclass Dies:\n    def __reduce__(self): return os._exit, (4,)\nbad = Bad()\nlast = 1")
        snapshot = self.take()
        self.assertEqual(list(snapshot.missing), ["bad"])
        self.run_ok("bad = Dies()")
        snapshot = self.take()
        self.assertIn("ended the process", snapshot.missing["bad"])
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("(len(large), large[69][:1], last)", cell=3).value, "(70, b'E', 1)")

    def test_what_cannot_be_loaded_beside_all_names_is_told(self):
        self.run_ok("import os, sys\nclass Name(str):\n    def __reduce__(self): return int, ('no number',)\nsys.path.append(Name('x'))\nx = 1")
        snapshot = self.take()
        self.assertEqual(snapshot.last[0], b"X")
        self.assertIn(b"the settings of the interpreter: it cannot be loaded again", snapshot.last[1])

    def test_cells_begin_where_the_session_went(self):
        self.run_ok("import os; os.mkdir('sub')")
        self.run_ok("%cd sub")
        here = self.value("os.getcwd()")
        snapshot = self.take()
        kernel, report = self.wake(snapshot)
        self.assertEqual((kernel.run("os.getcwd()", cell=4).value[-5:], report["missing"]), (here[-5:], []))
        self.assertEqual(kernel.run("import os; os.getcwd()", cell=5).value[-5:], here[-5:])
        os.rmdir(os.path.join(self.kernel.workspace, "sub"))
        kernel, report = self.wake(snapshot)
        self.assertIn("%cd", [each["name"] for each in report["missing"]])

    def test_settings_of_libraries_come_back_and_modules_of_the_session_are_told(self):
        self.run_ok("import decimal; decimal.getcontext().prec = 7; decimal.getcontext().traps[decimal.Inexact] = True\nopen('of_mine.py', 'w').write('n = 1')\nimport of_mine, json; of_mine.n = 2")
        snapshot = self.take()
        self.assertEqual(list(snapshot.missing), ["of_mine"])
        kernel, _ = self.wake(snapshot)
        asked = "(decimal.getcontext().prec, decimal.getcontext().traps[decimal.Inexact], of_mine.n)"
        self.assertEqual(kernel.run(asked, cell=2).value, "(7, True, 2)")


@unittest.skipUnless(importlib.util.find_spec("numpy"), "needs numpy; see `test_what_sleeps`")
class Arrays(SnapshotTest):
    def test_arrays_share_the_memory_that_they_shared(self):
        self.run_ok(
            "import array, mmap, numpy as np\n"
            "items = array.array('d', range(4)); of_items = np.frombuffer(items)\n"
            "grid = np.matrix(np.arange(4.0).reshape(2, 2)); part = grid[0, :]; plain = np.asarray(grid)\n"
            "class Mine(np.ndarray): pass\nbase = np.zeros(3); mine = base.view(Mine); mine.note = 1\n"
            "shared = mmap.mmap(-1, 4096); of_map = np.frombuffer(shared, np.uint8)\n"
            "np.seterr(divide='raise'); np.set_printoptions(precision=3)"
        )
        snapshot = self.take()
        self.assertIn("memory of its own", snapshot.missing["of_map.memory"])
        kernel, _ = self.wake(snapshot)
        done = kernel.run("items[1] = 7; base[0] = 9; plain[0, 0] = 6", cell=2)
        self.assertEqual(done.end["status"], "success", done.end)
        asked = "(of_items[1], float(mine[0]), type(mine) is Mine, mine.note, float(grid[0, 0]), float(part[0, 0]), type(grid).__name__)"
        self.assertEqual(kernel.run(f"[*{asked}] == [7.0, 9.0, True, 1, 6.0, 6.0, 'matrix']", cell=5).value, "True")
        self.assertEqual(kernel.run("(np.geterr()['divide'], np.get_printoptions()['precision'])", cell=6).value, "('raise', 3)")
