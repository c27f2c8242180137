"""Digests of what variables hold, by which two sessions are compared."""

import importlib.util
import sys
import tracemalloc
import unittest

from harness import KERNEL, KernelTest

sys.path.insert(0, KERNEL)
from belljar_kernel.digests import CannotDigestError, _Digest  # noqa: E402
from belljar_kernel.digests import Digests as DigestsOfKernel  # noqa: E402
from belljar_kernel.limits import DIGEST_BYTES, DIGEST_CHUNK_BYTES  # noqa: E402


class DigestTest(KernelTest):
    def digests(self, **options):
        answer = self.kernel.variables(digests=True, **options)
        return {variable["name"]: variable["digest"] for variable in answer["variables"]}

    def assert_same(self, first, second):
        """What the two expressions give has the same digest."""
        self.run_ok(f"first = {first}\nsecond = {second}")
        found = self.digests()
        self.assertIsNotNone(found["first"], first)
        self.assertEqual(found["first"], found["second"], (first, second))

    def assert_all_differ(self, *expressions):
        self.run_ok("\n".join(f"n{number} = {each}" for number, each in enumerate(expressions)))
        found = self.digests()
        digests = [found[f"n{number}"] for number in range(len(expressions))]
        self.assertNotIn(None, digests)
        self.assertEqual(len(set(digests)), len(expressions), digests)

    def assert_none(self, *names):
        found = self.digests()
        self.assertEqual([found[name] for name in names], [None] * len(names))


class Digests(DigestTest):
    def test_only_who_asks_for_digests_gets_them(self):
        self.run_ok("a = 1")
        self.assertNotIn("digest", self.kernel.variables()["variables"][0])
        self.assertRegex(self.digests()["a"], r"^2:[0-9a-f]{32}$")

    def test_what_lies_beyond_the_preview_tells_values_apart(self):
        self.assert_all_differ(
            "list(range(1000))",
            "[*range(999), -1]",
            "{n: n for n in range(1000)}",
            "{n: -n if n == 999 else n for n in range(1000)}",
            "'x' * 10000",
            "'x' * 9999 + 'y'",
            "bytearray(10**6)",
            "bytearray(10**6 - 1) + b'1'",
            "{'a': 1, 'b': 2}",
            "{'a': 2, 'b': 1}",
            "[[[[[1]]]]]",
            "[[[[[2]]]]]",
            "__import__('array').array('d', [0.0] * 1000)",
            "__import__('array').array('d', [0.0] * 999 + [1.0])",
        )

    def test_values_that_only_resemble_each_other_differ(self):
        self.assert_all_differ(
            "1", "True", "1.0", "'1'", "b'1'", "bytearray(b'1')", "(1,)", "[1]", "{1}", "frozenset({1})", "{1: 1}", "1 + 0j",
            "None", "[]", "()", "{}", "['a', 'b']", "['ab']", "[['a'], 'b']", "[['a', 'b']]", "range(3)", "[0, 1, 2]",
            "0.0", "-0.0", "10**5000", "10**5000 + 1", "'\\udcff'",
        )  # fmt: skip

    def test_the_same_content_has_the_same_digest(self):
        self.assert_same("[n for n in range(100)]", "list(range(100))")
        # Sets lie in another order in each process, and here too.
        self.assert_same("{8, 0, 'a', ('b', 1)}", "{('b', 1), 'a', 0, 8}")
        self.assert_same("{'a': 1, 'b': {'c': 2, 'd': 3}}", "{'b': {'d': 3, 'c': 2}, 'a': 1}")
        self.assert_same("float('nan')", "-float('nan')")
        self.assert_same("__import__('decimal').Decimal('1.10')", "__import__('decimal').Decimal('1.10')")

    def test_moments_differ_by_their_zone(self):
        self.run_ok("from datetime import *\nzone = timezone(timedelta(hours=2))")
        at = "datetime(2026, 1, 2, 3, 4"
        self.assert_all_differ(f"{at})", f"{at}, tzinfo=timezone.utc)", f"{at}, tzinfo=zone)", f"{at}, fold=1)", "zone")
        self.assert_same(f"{at}, tzinfo=zone)", f"{at}, tzinfo=timezone(timedelta(hours=2)))")

    def test_functions_differ_by_what_they_do(self):
        self.run_ok(
            "def make(n, step=1):\n    def f(x, step=step):\n        '''Adds.'''\n        return x + n + step\n    return f\n"
            "a = make(1); b = make(2); c = make(1, 2); d = make(1)\ndef e(x): return {x: 1}\n"
        )
        self.run_ok("\n\n\ndef g(x): return {x: 1}\ng.__qualname__ = 'e'\nh = [e]")
        found = self.digests()
        self.assertEqual((found["a"], found["e"]), (found["d"], found["g"]))
        self.assertEqual(len({found[name] for name in "abcegh"}), 5)
        # Other versions of Python compile the same text to other code.
        for name in "ah":
            self.assertEqual(found[name].partition(":")[0], f"2-{sys.implementation.cache_tag}")

    def test_what_is_too_much_has_no_digest_and_costs_only_itself(self):
        self.run_ok(
            "a = 1\nwide = [0] * 1_100_000\nloop = []\nloop.append(loop)\nlarge = bytes(65 * 2**20)\nshared = []\n"
            "for _ in range(40): shared = [shared, shared]\nz = 2"
        )
        self.assert_none("wide", "loop", "large", "shared")
        found = self.digests()
        self.assertTrue(found["a"] and found["z"])

    def test_long_lists_of_numbers_and_texts_have_digests(self):
        self.assert_same("[n for n in range(200_000)]", "list(range(200_000))")
        self.assert_all_differ("[*range(199_999), -1]", "['x'] * 200_000", "['x'] * 199_999 + ['y']")

    def test_the_items_of_a_list_are_hashed_as_they_are_alone(self):
        for item in (0, -1, 2**64 - 1, 2**64, -(2**64), True, None, 0.5, -0.0, "", "é", "\udcff", "x" * 256, "x" * 257):
            whole = _Digest(DIGEST_BYTES)
            whole.add([item])
            apart = _Digest(DIGEST_BYTES)
            apart._begin(b"list", 1)
            apart.add(item)
            self.assertEqual(whole.text(), apart.text(), item)

    def test_many_short_items_are_charged(self):
        for item in (0, 0.5, "xyz"):
            with self.assertRaises(CannotDigestError):
                _Digest(1000).add([item] * 1000)

    def test_each_part_is_charged_once(self):
        count = DIGEST_BYTES * 5 // 8
        for value in ("x" * count, "é" * count, 1 << 4 * count, bytes(count)):
            self.assertTrue(DigestsOfKernel().of(value))
            with self.assertRaises(CannotDigestError):
                DigestsOfKernel().of([value, value])

    def test_a_long_text_is_never_whole_in_memory_a_second_time(self):
        start = "é" * 8 * DIGEST_CHUNK_BYTES + "\N{BAR CHART}\udcff"
        first, same, other = (start + end for end in "aab")
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        digest, of_same, of_other = (DigestsOfKernel().of(text) for text in (first, same, other))
        self.assertEqual((digest == of_same, digest == of_other), (True, False))
        self.assertLess(tracemalloc.get_traced_memory()[1], 10 * DIGEST_CHUNK_BYTES)

    def test_no_code_of_the_session_runs_for_a_digest(self):
        # A preview looks at the first 20 items of a list, so the last one is met only by the digest.
        self.run_ok(
            "import collections, datetime, numbers\n"
            "def ran(self, *_): raise SystemExit(open('ran', 'w').close())\n"
            "names = ('eq', 'hash', 'repr', 'str', 'len', 'iter', 'getattribute', 'reduce', 'buffer', 'array', 'index',\n"
            "    'float', 'bool', 'getitem', 'bytes', 'sizeof', 'format', 'instancecheck', 'subclasscheck', 'call')\n"
            "hooks = {f'__{name}__': ran for name in names}\n"
            "class Meta(type):\n    pass\n"
            "class ByMeta(metaclass=Meta): pass\n"
            "by_meta = ByMeta()\n"
            "hostile = [type(base.__name__, (base,), {'__module__': base.__module__}) for base in\n"
            "    (object, int, str, list, dict, tuple, bytes, bytearray, set, datetime.timedelta, datetime.datetime, float)]\n"
            "ndarray = type('ndarray', (), {'__module__': 'numpy'})\n"
            "frame = type('DataFrame', (), {'__module__': 'pandas.core.frame'})\n"
            "made = [kind() for kind in hostile if kind is not hostile[-2]] + [ndarray(), frame()]\n"
            "made.append(hostile[-2](2026, 1, 1))\n"
            "zone = datetime.timezone(hostile[-3](hours=1)); made.append(datetime.datetime(2026, 1, 1, tzinfo=zone))\n"
            "def function(): pass\nfunction.__kwdefaults__ = hostile[4](); made.append(function)\n"
            "behind = [[0] * 20 + [each] for each in made]\n"
            "for kind in [*hostile, ndarray, frame]:\n"
            "    for name in hooks: setattr(kind, name, ran)\n"
            "for name in hooks: setattr(Meta, name, ran)\n"
            "for number, each in enumerate(behind): globals()[f'b{number:02}'] = each\n"
            "count = len(behind)\nb_meta = [0] * 20 + [by_meta]\n"
            "del made, behind, hostile, ndarray, frame, by_meta, ByMeta, Meta, zone, function, kind, each"
        )
        found = self.digests()
        self.assertEqual({found[name] for name in found if name.startswith("b")}, {None})
        self.assertEqual(sum(name.startswith("b") for name in found), 17)
        self.assertEqual(self.value("__import__('os').path.exists('ran')"), "False")

    def test_a_value_that_ends_the_process_that_shows_it_leaves_the_others_their_digests(self):
        self.run_ok("import os\nclass Deadly:\n    def __repr__(self): os._exit(4)\na = 1; d = Deadly(); z = 2")
        views = {each["name"]: each for each in self.kernel.variables(digests=True)["variables"]}
        self.assertTrue(views["a"]["digest"] and views["z"]["digest"])
        self.assertIsNone(views["d"].get("digest"))


@unittest.skipUnless(importlib.util.find_spec("numpy"), "needs numpy")
class Arrays(DigestTest):
    def test_arrays_of_one_shape_differ_by_their_elements(self):
        self.run_ok("import numpy as np\nchanged = np.zeros(10**6); changed[-1] = 1")
        self.assert_all_differ(
            "np.zeros(10**6)", "changed", "np.zeros(10**6, 'i8')", "np.zeros((1000, 1000))", "np.zeros(10**6, '>f8')",
            "np.float64(1)", "np.float64(2)", "np.float32(1)", "np.array(1.0)", "np.array(['a', None], object)",
            "np.array(['b', None], object)", "np.array(['2026-01-01'], 'M8[D]')", "np.array(['2026-01-02'], 'M8[D]')",
            "np.zeros((0, 3))", "np.zeros((3, 0))", "np.array(['ab', 'c'])", "np.array(['ab', 'd'])",
        )  # fmt: skip

    def test_how_elements_lie_in_memory_is_no_difference(self):
        self.run_ok("import numpy as np\ngrid = np.arange(1200).reshape(30, 40)")
        self.assert_same("grid", "np.asfortranarray(grid)")
        self.assert_same("grid[::2, ::-1]", "grid[::2, ::-1].copy()")
        self.assert_same("np.broadcast_to(np.array([1, 2]), (3, 2))", "np.array([[1, 2]] * 3)")
        fields = "[('a', 'i1'), ('b', 'i8')]"
        self.run_ok(f"one = np.empty(3, np.dtype({fields}, align=True)); one.view('u1')[:] = 7; other = one.copy()")
        self.run_ok("other.view('u1')[:] = 9; other['a'] = one['a']; other['b'] = one['b']")
        self.assert_same("one", "other")
        self.run_ok("other['b'][2] = 0; found = other")
        self.assertNotEqual(self.digests()["one"], self.digests()["found"])

    def test_what_is_no_plain_array_has_no_digest(self):
        self.run_ok(
            "import numpy as np\nclass Mine(np.ndarray):\n    def __array_finalize__(self, other): pass\n"
            "mine = np.zeros(3).view(Mine); masked = np.ma.array([1]); wide = np.zeros(3, np.longdouble)\n"
            "held = np.array([object()]); large = np.zeros(65 * 2**20, 'u1')[::1]"
        )
        self.assert_none("mine", "masked", "wide", "held", "large")


@unittest.skipUnless(importlib.util.find_spec("pandas"), "needs pandas")
class Tables(DigestTest):
    def test_tables_differ_by_their_cells_index_and_names(self):
        self.run_ok(
            "import pandas as pd\nfrom numpy import arange\n"
            "def frame(**other):\n"
            "    columns = {'n': arange(1000), 'f': arange(1000) / 2, 't': pd.date_range('2026', periods=1000)}\n"
            "    columns |= {'c': pd.Categorical(['x', 'y'] * 500), 'i': pd.array([1, None] * 500, 'Int64')} | other\n"
            "    return pd.DataFrame(columns)"
        )
        self.assert_all_differ(
            "frame()", "frame(n=arange(1000) * 2)", "frame().rename(columns={'n': 'm'})", "frame().set_index('t')",
            "frame(c=pd.Categorical(['x', 'z'] * 500))", "frame()['n']", "frame()['n'].rename('m')", "frame().index",
            "frame(i=pd.array([1, 2] * 500, 'Int64'))", "frame()[['f', 'n']]", "frame()[['n', 'f']]",
        )  # fmt: skip

    def test_how_columns_lie_in_memory_is_no_difference(self):
        self.run_ok("import pandas as pd\nwhole = pd.DataFrame({'a': [1, 2], 'b': [3, 4]})")
        self.run_ok("parts = pd.DataFrame({'a': [1, 2]})\nparts['b'] = [3, 4]")
        self.assert_same("whole", "parts")
        self.assert_same("whole['a']", "parts['a']")

    def test_what_is_too_much_under_a_mask_is_not_copied(self):
        self.run_ok(
            "import numpy as np\nimport pandas as pd\nmany = 9 * 2**20\n"
            "masked = pd.arrays.IntegerArray(np.zeros(many, 'i8'), np.ones(many, bool))\n"
            "forged = pd.array([1], 'Int64'); forged._mask = np.zeros(100, 'i1')\n"
            "under, places = [0] * 20 + [masked], [0] * 20 + [forged]\ndel masked, forged"
        )
        self.assert_none("under", "places")

    def test_parts_that_are_no_parts_of_pandas_are_not_asked(self):
        self.run_ok(
            "import pandas as pd\nclass Hostile:\n    def __getattr__(self, name): open('ran', 'w').close()\n"
            "frame = pd.Series([1])\nheld = [0] * 20 + [frame]\nobject.__setattr__(frame, '_mgr', Hostile())\ndel frame"
        )
        self.assert_none("held")
        self.assertEqual(self.value("__import__('os').path.exists('ran')"), "False")


if __name__ == "__main__":
    unittest.main()
