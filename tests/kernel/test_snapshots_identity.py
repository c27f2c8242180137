"""Things that libraries, modules and classes of the session have one of, or give a meaning of their own, come back as that."""

import importlib.util
import os
import sys
import unittest

from snapshot_harness import SnapshotTest


class Same(SnapshotTest):
    """`same` compares what an expression gives before and after the sleep."""

    def same(self, code, asked, missing=()):
        self.run_ok(code)
        before = self.value(asked)
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), set(missing))
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        run = kernel.run(asked, cell=9)
        self.assertEqual(run.value, before, run.end["exception"])
        return kernel


class OfModules(Same):
    def test_functions_of_a_module_go_on_with_the_state_of_the_module(self):
        self.same(
            "import random, decimal\nrandint = random.randint; seed = random.seed; own = random.Random(3)\ncontext = decimal.getcontext(); context.prec = 9",
            "randint.__self__ is random._inst is seed.__self__, own is random._inst, context is decimal.getcontext(), context.prec",
        )

    def test_loggers_that_no_name_leads_to_stay_set_up(self):
        self.same(
            "import logging\nlogging.getLogger('quiet').setLevel(50); logging.getLogger('off').disabled = True\n"
            "logging.getLogger('loud').addHandler(logging.NullHandler())",
            "logging.getLogger('quiet').level, logging.getLogger('off').disabled, len(logging.getLogger('loud').handlers)",
        )

    def test_a_logger_that_cannot_be_packed_is_told_and_costs_nothing_else(self):
        self.run_ok("import logging\nclass Mine(logging.Handler):\n    gen = (each for each in ())\nlogging.getLogger('odd').addHandler(Mine())\nlogging.getLogger('quiet').setLevel(50)\nx = 1")
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"Mine", "logging.getLogger('odd')"})
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("x, logging.getLogger('quiet').level", cell=9).value, "(1, 50)")

    def test_what_a_module_of_the_session_has_one_of_keeps_what_was_changed_in_it(self):
        self.run_ok("open('settings_mod.py', 'w').write('class Settings:\\n    debug = False\\nsettings = Settings()\\n')")
        asked = "settings.debug, settings is __import__('settings_mod').settings"
        self.same("from settings_mod import settings\nsettings.debug = True", asked, missing=["settings_mod"])

    def test_patches_by_anything_of_the_session_are_told(self):
        self.run_ok(
            "import functools, json, math, textwrap\njson.loads = functools.lru_cache(lambda text: text)\nmath.half = functools.partial(lambda a, b: a / b, b=2)\n"
            "class Wrapper(textwrap.TextWrapper): pass\ntextwrap.TextWrapper = Wrapper\njson.JSONEncoder.extra = property(lambda self: 1)"
        )
        told = {name for name, reason in self.take().missing.items() if "own is back" in reason}
        self.assertEqual(told, {"json.loads", "math.half", "textwrap.TextWrapper", "json.encoder.JSONEncoder.extra"})

    def test_classes_stay_registered_at_those_of_modules(self):
        self.same("import collections.abc\nclass Items: pass\ncollections.abc.Sequence.register(Items)\nitems = Items()", "isinstance(items, collections.abc.Sequence)")

    def test_settings_of_the_interpreter_stay(self):
        self.same(
            "import os, sys, time, warnings\nos.environ['TZ'] = 'JST-9'; time.tzset(); sys.setrecursionlimit(3210); warnings.simplefilter('error', ResourceWarning)",
            "time.tzname, sys.getrecursionlimit(), warnings.filters[0]",
        )


    def test_filters_for_warnings_of_own_classes_are_told_and_a_low_limit_of_recursion_costs_nothing(self):
        self.run_ok("import sys, warnings\nclass Mine(UserWarning): pass\nwarnings.simplefilter('ignore', Mine)\nx = 1")
        self.run_ok("sys.setrecursionlimit(90)")
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        kernel, report = self.wake(snapshot)
        self.assertEqual([each["name"] for each in report["missing"]], ["warnings.filters"])
        self.assertEqual(kernel.run("x, sys.getrecursionlimit()", cell=9).value, "(1, 90)")


class OfClasses(Same):
    def test_classes_that_answer_to_every_name_keep_their_attributes(self):
        self.same(
            "class Any:\n    def __init__(self): self.a = 1\n    def __getattr__(self, name): return lambda *_, **__: None\n"
            "class Inner:\n    def __init__(self): self.inner = {'b': 2}\n    def __getattr__(self, name):\n        try: return self.inner[name]\n        except KeyError: raise AttributeError(name)\n"
            "class Number(int):\n    def __getattr__(self, name): return lambda *_: None\n"
            "class Meta(type):\n    def __getattr__(cls, name): return lambda *_: None\nclass OfMeta(metaclass=Meta): pass\n"
            "open('any_mod.py', 'w').write('class Any:\\n    def __getattr__(self, name): return lambda *_, **__: None\\n')\nimport any_mod\n"
            "any_one, inner, number, of_meta, of_module = Any(), Inner(), Number(4), OfMeta(), any_mod.Any(); number.c = 3; of_meta.d = 4; of_module.e = 5",
            "any_one.__dict__, inner.b, inner.__dict__, number, number.__dict__, of_meta.d, of_module.__dict__",
            missing=["any_mod"],
        )

    def test_exceptions_keep_those_that_led_to_them(self):
        self.run_ok(
            "def after(kind, *arguments):\n    try:\n        try: 1 / 0\n        except ZeroDivisionError as first: raise kind(*arguments) from first\n    except Exception as error: return error.with_traceback(None)\n"
            "class Own(Exception):\n    def __init__(self, a, b): super().__init__(a); self.a, self.b = a, b\n    def __reduce__(self): return Own, (self.a, self.b), {'c': 3}\n"
        )
        self.same(
            "errors = [after(OSError, 2, 'no', 'file'), after(ImportError, 'x'), after(Own, 1, 2), after(KeyError, 'k')]\nfor each in errors: each.__cause__.__traceback__ = None\nerrors[2].c = 3",
            "[(type(each.__cause__), each.__cause__ is each.__context__, each.__suppress_context__) for each in errors], errors[0].filename, errors[2].b, errors[2].c",
        )

    def test_an_object_whose_hash_needs_its_attributes_is_found_in_its_own_sets(self):
        self.same(
            "class Node:\n    def __init__(self, n): self.near = set(); self.by = {}; self.n = n\n    def __hash__(self): return hash(self.__dict__.get('n'))\n    def __eq__(self, other): return self is other\n"
            "one, two = Node(1), Node(2); one.near |= {one, two}; two.near |= {one}; one.by[two] = 'two'; two.by[one] = 'one'",
            "one in one.near, two in one.near, one in two.near, one.by[two], two.by[one]",
        )

    def test_objects_in_the_sets_and_keys_of_each_other_are_hashed_by_their_names(self):
        self.same(
            "class Node:\n    def __init__(self, name): self.near, self.name, self.by = set(), name, {}\n    def __hash__(self): return hash(self.name)\n    def __eq__(self, other): return self.name == other.name\n"
            "class Slot:\n    __slots__ = ('by', 'name')\n    def __init__(self, name): self.by, self.name = {}, name\n    def __hash__(self): return hash(self.name)\n    def __eq__(self, other): return self.name == other.name\n"
            "one, two = Node('one'), Node('two'); one.near |= {one, two}; two.by[one] = 1; graph = {one, two}; slot = Slot('s'); slot.by[slot] = 3; frozen = frozenset([one]); one.frozen = frozen",
            "one in one.near, two in graph, two.by[Node('one')], slot.by[slot], list(one.__dict__), one in one.frozen, one.frozen is frozen",
        )

    @unittest.skipIf(sys.version_info < (3, 10), "needs Python 3.10")
    def test_static_methods_keep_their_attributes(self):
        self.same("class Has:\n    @staticmethod\n    def of(): return 1\nHas.__dict__['of'].tag = 5", "Has.__dict__['of'].tag")

    @unittest.skipIf(sys.version_info < (3, 12), "needs Python 3.12")
    def test_type_aliases_and_parameters_of_types(self):
        self.same(
            "type Number = int | float\ntype Tree[K] = dict[K, 'Tree[K]']\nclass Box[T]:\n    def get[V](self, value: V) -> T: ...\ndef first[Q: int](items: list[Q]) -> Q: return items[0]\nfrom typing import AnyStr",
            "Number.__value__, Number.__module__, Tree.__type_params__, Box.__type_params__[0].__infer_variance__, first.__type_params__[0].__bound__, AnyStr is __import__('typing').AnyStr",
        )

    @unittest.skipIf(sys.version_info < (3, 13), "needs Python 3.13")
    def test_defaults_of_type_variables(self):
        self.same("import typing\nT = typing.TypeVar('T', default=int); P = typing.ParamSpec('P', default=[int])\nclass Box[V = str]: pass", "T.__default__, P.__default__, Box.__type_params__[0].__default__")


class Lost(SnapshotTest):
    def test_a_module_made_by_code_with_something_lost_is_told(self):
        self.run_ok(
            "import types\nopen('gone_mod.py', 'w').write('class K: pass')\nimport gone_mod\nmade = types.ModuleType('made'); made.held = gone_mod.K()\ndef of(item: gone_mod.K): return item\nx = 1"
        )
        self.assertEqual(self.lost_after_sleep(), {"gone_mod", "made", "of"})

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "needs numpy")
    def test_arrays_of_objects_with_something_lost_are_told(self):
        self.run_ok("import numpy as np\nopen('gone_mod.py', 'w').write('class K: pass')\nimport gone_mod\narr = np.array([gone_mod.K(), 1], dtype=object); within = [np.array([[gone_mod.K()]], dtype=object)]\nx = 1")
        self.assertEqual(self.lost_after_sleep(), {"gone_mod", "arr", "within"})

    def lost_after_sleep(self):
        snapshot = self.take()
        os.unlink(os.path.join(self.kernel.workspace, "gone_mod.py"))
        self.run_ok("import shutil; shutil.rmtree('__pycache__', True)")
        kernel, report = self.wake(snapshot)
        self.assertEqual(kernel.run("x", cell=9).value, "1")
        return {each["name"] for each in report["missing"]}


@unittest.skipUnless(importlib.util.find_spec("numpy"), "needs numpy; see `test_what_sleeps`")
class Numpy(Same):
    def test_subclasses_and_masked_arrays_keep_their_attributes_and_memory(self):
        self.same(
            "import numpy as np\nclass Mine(np.ndarray):\n    def __array_finalize__(self, other): self.unit = getattr(other, 'unit', None)\n"
            "own = Mine((3,)); own[:] = 1; own.unit = 'm'\nbase = np.arange(4.0); masked = np.ma.array(base, mask=[0, 1, 0, 0], copy=False); masked.note = 1; masked.harden_mask()\n"
            "of_objects = np.ma.array(np.array([1, None], dtype=object), mask=[1, 0]); of_objects.note = 2; rand = np.random.rand",
            "own, own.unit, masked, masked.note, masked._hardmask, np.shares_memory(masked.data, base), of_objects.note, rand.__self__ is np.random.mtrand._rand",
            missing=["of_objects.memory"],
        )


if __name__ == "__main__":
    unittest.main()
