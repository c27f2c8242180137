"""What a class, an exception, a logger or a cache of Python holds is kept, or it is told that it is not."""

import os
import sys
import unittest

from snapshot_harness import SnapshotTest


OF_3_10 = unittest.skipIf(sys.version_info < (3, 10), "errors of names and attributes have no fields before Python 3.10")


class Kept(SnapshotTest):
    def test_a_hash_that_ends_the_process_does_not_end_the_wake(self):
        self.run_ok(
            "import sys\nclass Ends:\n    def __hash__(self):\n        if hasattr(sys, 'armed'): raise SystemExit\n        return 1\n"
            "class Arms:\n    def __getstate__(self): return 1\n    def __setstate__(self, _state): sys.armed = True\n"
            "held = {Ends(): 1}; arms = Arms(); x = 1"
        )
        kernel, _ = self.wake(self.take())
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_attributes_that_are_named_as_those_of_classes_are_kept_beside_them(self):
        self.same(
            "class T: __name__ = 'search'; __mro__ = 1; y = 2\nt = T()\nclass Sub(T): pass",
            "T.__name__, T.__qualname__, t.__name__, T.__dict__['__name__'], t.__mro__, t.y, Sub.__name__, Sub().__name__",
        )

    @OF_3_10
    def test_fields_of_exceptions_are_kept(self):
        self.same(
            "def caught(code):\n    try: exec(code, {})\n    except BaseException as error: return error.with_traceback(None)\n"
            "name, syntax, ended = caught('nothing'), caught('1 +'), SystemExit(1)\nattribute = AttributeError('no', name='gone'); syntax.filename = 'mine.py'; ended.code = 7\n"
            "stop = StopIteration(1); stop.value = 5; unread = UnicodeDecodeError('utf-8', b'abc', 0, 1, 'bad'); unread.start = 1; unread.end = 2\n"
            "class Own(ValueError): __slots__ = ('a', '__b')\nown = Own('x'); own.a = 1; own._Own__b = own; own.c = 3\n"
            "plain = OSError(2, 'gone'); named = OSError(2, 'gone', 'path'); imported = ImportError('no', name='n', path='p')",
            "name.name, attribute.name, (syntax.filename, syntax.lineno, syntax.text), ended.code, stop.value, unread.start, str(unread), "
            "(own.a, own._Own__b is own, own.c), str(plain), str(named), plain.filename, imported.name, imported.path",
        )

    @OF_3_10
    def test_the_object_of_an_attribute_error_is_told_to_be_gone(self):
        self.same("error = AttributeError('no', name='gone', obj=object())", "error.name", ["error.obj"])

    def test_a_logger_beside_the_registry_stays_beside_it(self):
        self.same(
            "import logging\nalone = logging.Logger('app', 10); alone.parent = logging.root; alone.mine = alone",
            "alone is logging.getLogger('app'), alone.level, alone.mine is alone, alone.parent is logging.root, logging.getLogger('app').level, alone.isEnabledFor(10)",
        )

    def test_a_logger_of_another_class_keeps_its_class_and_its_attributes(self):
        self.same(
            "import logging\nclass Mine(logging.Logger):\n    def loud(self): return self.extra\n"
            "logging.setLoggerClass(Mine); mine = logging.getLogger('mine'); below = logging.getLogger('mine.below'); logging.setLoggerClass(logging.Logger)\n"
            "mine.extra = [mine]; alone = Mine('alone'); alone.extra = 1",
            "type(mine) is Mine, mine is logging.getLogger('mine'), mine.loud()[0] is mine, below.parent is mine, type(alone) is Mine, alone.loud(), 'alone' in logging.root.manager.loggerDict",
        )

    def test_entries_of_the_cache_of_lines_that_are_not_plain_cost_nothing(self):
        self.same(
            "import linecache, threading\nlinecache.cache['a'] = (0, None, [threading.current_thread()], 'a'); linecache.cache['b'] = 5\n"
            "linecache.cache['c'] = (1, None, ['line\\n'], 'c'); x = 1",
            "x, linecache.getline('c', 1)",
        )


class Lost(SnapshotTest):
    def test_what_leads_to_something_lost_by_globals_is_left_out(self):
        self.run_ok(
            "open('gone_mod.py', 'w').write('class K: pass\\ndef f(): return K')\nimport gone_mod, types\n"
            "made = {}; exec('def f(): return k', made); made['k'] = gone_mod.K(); f = made['f']; del made\n"
            "ran = {'k': gone_mod.K()}; exec('', ran)\n"
            "of_module = types.FunctionType((lambda: K).__code__, gone_mod.__dict__, 'of_module')\n"
            "def good(): return x\nx = 1\nother = {'y': 2}; exec('def g(): return y', other)"
        )
        snapshot = self.take()
        workspace = self.kernel.workspace
        os.unlink(os.path.join(workspace, "gone_mod.py"))
        self.run_ok("import shutil; shutil.rmtree('__pycache__', True)")
        kernel, report = self.wake(snapshot)
        self.assertEqual({each["name"] for each in report["missing"]}, {"gone_mod", "f", "ran", "of_module"})
        self.assertEqual(kernel.run("good(), other['g']()", cell=9).value, "(1, 2)")


if __name__ == "__main__":
    unittest.main()
