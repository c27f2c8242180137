"""A sleep destroys nothing: no file, no record of the stream, and no name for the fault of another one."""

import os
import socket
import sys
import threading
import tracemalloc
import types
import unittest

from harness import KERNEL
from snapshot_harness import SnapshotTest, stream_of

REMOVES = (
    "import os, shutil\nos.mkdir('kept'); open('kept/file', 'w').close()\n"
    "class Folder:\n    def __init__(self, path): self.path = path\n    def __del__(self):\n"
    "        import shutil; shutil.rmtree(getattr(self, 'path', 'kept'), True)\n"
)


class Ends(SnapshotTest):
    """What is half loaded does not end: its `__del__` may delete what belongs to the session."""

    def is_there(self):
        return os.path.exists(os.path.join(self.kernel.workspace, "kept", "file"))

    def test_nothing_ends_where_a_name_cannot_be_loaded_on_trial(self):
        self.run_ok(REMOVES + "class Bad:\n    def __reduce__(self): return int, ('no number',)\nfolder = [Folder('kept'), Bad()]")
        snapshot = self.take()
        self.assertIn("cannot be loaded", snapshot.missing["folder"])
        self.assertTrue(self.is_there())

    def test_nothing_ends_where_a_load_fails_or_something_is_lost(self):
        self.run_ok(
            REMOVES + "open('gone_mod.py', 'w').write('class K: pass')\nimport gone_mod\n"
            "class Late:\n    def __setstate__(self, _state):\n        if os.path.exists('armed'): raise ValueError('late')\n    def __getstate__(self): return 1\n"
            "half = [Folder('kept'), Late()]; lost = Folder('kept'); lost.other = gone_mod.K()"
        )
        snapshot = self.take()
        workspace = self.kernel.workspace
        open(os.path.join(workspace, "armed"), "w").close()
        kernel = self.fresh()
        self.assertIn("late", self.load(kernel, stream_of(snapshot))["report"]["error"])
        self.assertEqual(kernel.run("import gc; gc.collect(); 'half' in globals()", cell=2).value, "False")
        self.assertTrue(self.is_there())
        os.unlink(os.path.join(workspace, "armed"))
        os.unlink(os.path.join(workspace, "gone_mod.py"))
        self.run_ok("shutil.rmtree('__pycache__', True)")
        kernel, report = self.wake(snapshot)
        self.assertEqual({each["name"] for each in report["missing"]}, {"gone_mod", "lost"})
        kernel.run("import gc; gc.collect()", cell=2)
        self.assertTrue(self.is_there())

    def test_a_load_that_fails_writes_nothing_to_files_and_changes_no_settings(self):
        self.run_ok(
            "import os, sys\nos.mkdir('sub'); os.environ['MINE'] = 'yes'; sys.path.append('/mine'); os.chdir('sub')\n"
            "class Late:\n    def __setstate__(self, _state): raise_if_armed()\n    def __getstate__(self): return 1\n"
            "def raise_if_armed():\n    if os.path.exists('armed'): raise ValueError('late')\n"
            "log = open('log.txt', 'a'); _ = log.write('once')\nlate = Late()"
        )
        snapshot = self.take()
        sub = os.path.join(self.kernel.workspace, "sub")
        open(os.path.join(sub, "armed"), "w").close()
        kernel = self.fresh()
        self.assertIn("late", self.load(kernel, stream_of(snapshot))["report"]["error"])
        asked = "import gc, os, sys; gc.collect(); ('MINE' in os.environ, '/mine' in sys.path, os.getcwd().endswith('sub'))"
        self.assertEqual(kernel.run(asked, cell=2).value, "(False, False, False)")
        self.assertEqual(os.path.getsize(os.path.join(sub, "log.txt")), 0)
        os.unlink(os.path.join(sub, "armed"))
        kernel, _ = self.wake(snapshot)
        kernel.run("log.flush()", cell=2)
        with open(os.path.join(sub, "log.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "once")


class Modules(SnapshotTest):
    def test_modules_below_packages_are_there_under_their_names(self):
        self.run_ok(
            "import os\nos.mkdir('pk'); open('pk/__init__.py', 'w').close(); open('pk/sub.py', 'w').write('v = 1')\n"
            "os.mkdir('pk/deep'); open('pk/deep/__init__.py', 'w').close(); open('pk/deep/er.py', 'w').write('v = 2')\n"
            "import os.path, xml.dom.minidom, xml.etree.ElementTree as ET, concurrent.futures, pk.sub, pk.deep.er"
        )
        asked = "(pk.sub.v, pk.deep.er.v, xml.etree.ElementTree is ET, callable(xml.dom.minidom.parse), concurrent.futures.__name__)"
        before = self.value(asked)
        snapshot = self.take()
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run(asked, cell=9).value, before)
        os.unlink(os.path.join(self.kernel.workspace, "pk", "sub.py"))
        self.run_ok("import shutil; shutil.rmtree('pk/__pycache__', True)")
        kernel, report = self.wake(snapshot)
        self.assertIn("pk.sub", [each["name"] for each in report["missing"]])
        self.assertEqual(kernel.run("pk.deep.er.v", cell=9).value, "2")

    def test_modules_of_the_session_are_found_where_it_found_them(self):
        self.run_ok(
            "import os, sys\nos.mkdir('lib'); open('lib/of_path.py', 'w').write('import os\\nclass K: v = os.environ[\"MINE\"]')\n"
            "os.mkdir('sub'); open('sub/of_folder.py', 'w').write('class K: pass')\n"
            "sys.path.insert(0, os.path.abspath('lib')); os.environ['MINE'] = 'yes'; os.chdir('sub')\n"
            "from of_path import K; import of_folder\nthings = K(), of_folder.K()"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {"of_path", "of_folder"})  # imported anew
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run("(things[0].v, type(things[1]) is of_folder.K)", cell=9).value, "('yes', True)")

    def test_the_folder_stays_that_of_the_cell_whatever_is_copied_before(self):
        self.run_ok("import os\nclass Where:\n    def __reduce__(self): return os.getcwd, ()\nwhere = Where(); os.mkdir('sub'); os.chdir('sub')")
        for _ in range(2):
            self.take()  # of the checkpoint, which is copied for each snapshot
        kernel, _ = self.wake(self.take())
        self.assertEqual(kernel.run("os.path.basename(where)", cell=9).value, "'sub'")

    def test_a_module_is_found_in_the_folder_of_an_earlier_cell(self):
        self.run_ok(
            "import os\nos.makedirs('sub/pack'); open('sub/of_folder.py', 'w').write('class K: pass'); open('sub/pack/__init__.py', 'w').write('')\n"
            "open('sub/pack/within.py', 'w').write('class L: pass'); os.chdir('sub')\n"
            "def make():\n    import of_folder, pack.within; return of_folder.K(), pack.within.L()\nthings = make()"
        )
        self.run_ok("x = [1]")  # it begins in the workspace again
        kernel, report = self.wake(self.take())
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run("[type(each).__module__ for each in things], os.path.basename(os.getcwd())", cell=9).value, "(['of_folder', 'pack.within'], 'workspace')")


class Files(SnapshotTest):
    def test_what_is_written_after_the_sleep_goes_on_as_before(self):
        self.run_ok(
            "bom = open('bom', 'w', encoding='utf-8-sig'); bom.write('a\\n')\nappended = open('appended', 'a', encoding='utf-16'); appended.write('a\\n')\n"
            "ended = open('ended', 'w', newline='\\r\\n'); ended.write('a\\n'); ended.flush()\nraw = open('raw', 'w', newline=''); raw.write('a\\r\\n')\n"
            "within = open('within', 'wb'); within.write(b'abc'); within.flush(); within.seek(1); within.write(b'X')\n"
            "both = open('both', 'w+'); both.write('abc'); both.flush(); both.seek(1)\nnew = open('new', 'x'); new.write('a')"
        )
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        kernel, _ = self.wake(snapshot)
        done = kernel.run(
            "[each.write('b\\n') for each in (bom, appended, ended, raw)]; within.write(b'Y'); new.write('b')\nrest = both.read()\n"
            "for each in (bom, appended, ended, raw, within, both, new): each.close()\n"
            "[open(name, 'rb').read() for name in ('bom', 'ended', 'raw', 'within', 'both', 'new')], open('appended', encoding='utf-16').read(), rest",
            cell=9,
        )
        expected = [b"\xef\xbb\xbfa\nb\n", b"a\r\nb\r\n", b"a\r\nb\n", b"aXY", b"abc", b"ab"], "a\nb\n", "bc"
        self.assertEqual(done.value, repr(expected), done.end)


class Twice(SnapshotTest):
    """Code of the session that a load calls has counted and listed its object before the sleep already."""

    def test_what_constructors_do_to_variables_and_classes_is_undone(self):
        before = self.same(
            "import collections\ncount, names, by, seen = 0, [], {'all': 0, 'deep': ([], {})}, set()\n"
            "tally, groups, last, ordered = collections.Counter(), collections.defaultdict(list), collections.deque(maxlen=2), collections.OrderedDict()\n"
            "class Plain: pass\nmixed = [Plain()]; first = mixed[0]; tied = [names]; tied.append(tied)\n"
            "class Rule:\n    made, listed = 0, []\n    def __init__(self, n):\n        global count\n        count += 1; Rule.made += 1; Rule.listed.append(n); self.n = n; names.append(n); by['all'] += 1; by['deep'][0].append(n); by['deep'][1][len(names)] = n\n"
            "        seen.add(len(names)); tally[n] += 1; groups[n].append(n); last.append(len(names)); ordered[len(names)] = n; mixed.append(n)\n"
            "    def __reduce__(self): return Rule, (self.n,)\nrule = Rule('a'); other = Rule('b')",
            "count, names, by, seen, tally, groups, last, ordered, mixed[1:], mixed[0] is first, tied[0] is names, tied[1] is tied, Rule.made, Rule.listed, rule.n",
        )
        expected = "(2, ['a', 'b'], {'all': 2, 'deep': (['a', 'b'], {1: 'a', 2: 'b'})}, {1, 2}, "
        self.assertTrue(before.startswith(expected), before)
        self.assertTrue(before.endswith("['a', 'b'], True, True, True, 2, ['a', 'b'], 'a')"), before)

    def test_what_setstate_does_is_undone_in_a_load_in_part_too(self):
        self.run_ok(
            "import os\nnames = []\nclass Rule:\n    def __getstate__(self): return 1\n    def __setstate__(self, _state): names.append('again')\n"
            "class Late(Rule):\n    def __setstate__(self, _state):\n        names.append('late')\n        if os.path.exists('armed'): raise ValueError('late')\n"
            "rule = Rule(); late = Late()"
        )
        snapshot = self.take()
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        kernel, report = self.wake(snapshot, partial=True)
        self.assertEqual([each["name"] for each in report["missing"]], ["late"])
        self.assertEqual(kernel.run("names, type(rule) is Rule", cell=9).value, "([], True)")

    def test_a_value_that_was_given_stays_as_it_is(self):
        self.run_ok("names = []\nclass Rule:\n    def __init__(self): names.append('a')\n    def __reduce__(self): return Rule, ()\nrule = Rule()")
        snapshot = self.take()
        kernel = self.fresh()
        kernel.configure({"names": ["given"]})
        self.assertIsNone(self.load(kernel, stream_of(snapshot), keep=["names"])["report"]["error"])
        self.assertEqual(kernel.run("names, type(rule).__name__", cell=2).value, "(['given'], 'Rule')")

    def test_a_container_that_is_too_large_to_be_copied_is_told_by_name_if_its_length_changed(self):
        self.run_ok(
            "names, same, within = list(range(10_000)), [0] * 10_001, [list(range(10_000))]\n"
            "class Rule:\n    def __init__(self): names.append(1); same[0] += 1; within[0].append(1)\n    def __reduce__(self): return Rule, ()\n"
            "rule = Rule(); few = []"
        )
        kernel, report = self.wake(self.take())
        told = {each["name"]: each["reason"] for each in report["missing"]}
        self.assertEqual(set(told), {"names", "within"})
        self.assertIn("has changed its length", told["names"])
        self.assertEqual(kernel.run("len(names), len(within[0]), type(rule) is Rule", cell=9).value, "(10002, 10002, True)")

    def test_keys_that_hash_otherwise_once_they_are_whole_cost_no_load(self):
        self.run_ok(
            "import collections\nclass Key:\n    def __hash__(self): return hash(getattr(self, 'pos', None))\n"
            "key, ordered = Key(), collections.OrderedDict(); key.home = ordered; key.pos = 1, 2; ordered[key] = 1; kept = 1"
        )
        kernel, report = self.wake(self.take())
        self.assertIsNone(report["error"])
        self.assertEqual(kernel.run("len(ordered), kept", cell=9).value, "(1, 1)")

    def test_a_load_that_changes_nothing_leaves_everything_in_place(self):
        self.same(
            "import sys\nhere, modules, paths = globals(), sys.modules, sys.path\nclass Key:\n    calls = []\n    def __hash__(self): return 1\n    def __eq__(self, other): Key.calls.append(1); return self is other\n"
            "keyed = {Key(): 1}; late = [keyed, here]; kept = 1\nclass Has:\n    def __reduce__(self): return Has, ()\nhas = Has()",
            "here is globals(), modules is sys.modules, paths is sys.path, late[0] is keyed, len(keyed), Key.calls, len(here) > 9, kept",
        )


class ManyFail(SnapshotTest):
    """However many names fail, each costs only itself."""

    def test_many_that_cannot_be_loaded_are_left_out_by_name(self):
        self.run_ok(
            "import os\nclass Bad:\n    def __reduce__(self): return int, ('no number',)\nclass Dies:\n    def __reduce__(self): return os._exit, (4,)\n"
            "for n in range(12): globals()[f'bad{n}'] = Bad()\nfor n in range(3): globals()[f'dies{n}'] = Dies()\nx = 1"
        )
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {f"bad{n}" for n in range(12)} | {f"dies{n}" for n in range(3)})
        self.assertIn("ended the process", snapshot.missing["dies2"])
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_many_that_end_the_process_are_left_out_by_name(self):
        self.run_ok("import os\nclass Dies:\n    def __reduce__(self): os._exit(3)\nfor n in range(6): globals()[f'dies{n}'] = Dies()\nx = 1")
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), {f"dies{n}" for n in range(6)})
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_more_than_are_listed_are_counted(self):
        self.run_ok("for n in range(250): globals()[f'gen{n}'] = (each for each in ())")
        missing = self.take().missing
        self.assertEqual((len(missing), list(missing)[-1]), (200, "51 more names"))


class Memory(SnapshotTest):
    def test_what_would_copy_much_memory_is_not_tried_out(self):
        self.run_ok(
            "import mmap, os, pickle\nclass Copied:\n    def __init__(self, size): self.size = size\n    def __reduce_ex__(self, _): return made, (pickle.PickleBuffer(bytes(self.size)),)\n"
            "os.walk.tried = tried = mmap.mmap(-1, 1)\ndef made(buffer): os.walk.tried[0] += 1; return Copied(len(bytes(buffer)))\ncopied = Copied(1 << 20)"
        )
        self.take()
        self.assertEqual(self.value("tried[0]"), "1")
        self.run_ok("copied = Copied(257 << 20)")
        self.take()
        self.assertEqual(self.value("tried[0]"), "1")


class InPart(SnapshotTest):
    def test_what_can_be_loaded_of_a_snapshot_that_fails_is_loaded_when_that_is_asked_for(self):
        self.run_ok(
            "import collections, os\ndef fail_if_armed(what):\n    if os.path.exists('armed'): raise ValueError(what)\n"
            "class Late:\n    def __setstate__(self, _state): fail_if_armed('late')\n    def __getstate__(self): return 1\n"
            "class Key:\n    def __hash__(self): fail_if_armed('hash'); return 1\n"
            "class Calls:\n    def __reduce__(self): return make, ()\ndef make(): fail_if_armed('calls'); return 5\n"
            "late = Late(); holds = {'late': late}; keyed = {Key(): 1}; calls = [Calls()]\n"
            "after = [1, [2]]; same = after; ordered = collections.OrderedDict(a=after); big = bytearray(300_000); by = {Late: 1}"
        )
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        kernel = self.fresh()
        self.assertIn("late", self.load(kernel, stream_of(snapshot))["report"]["error"])
        kernel, report = self.wake(snapshot, partial=True)
        missing = {each["name"]: each["reason"] for each in report["missing"]}
        self.assertEqual(set(missing), {"late", "holds", "keyed", "calls"})
        self.assertIn("ValueError: hash", missing["keyed"])
        asked = "same is after is ordered['a'], after, len(big), by[Late], 'late' in globals()"
        self.assertEqual(kernel.run(asked, cell=9).value, "(True, [1, [2]], 300000, 1, False)")

    def test_a_stream_that_breaks_off_is_not_loaded_in_part(self):
        self.run_ok("x = bytearray(300_000)")
        stream = b"".join(stream_of(self.take()))
        for cut in (len(stream) // 2, len(stream) - 1):
            kernel = self.fresh()
            answer = self.load(kernel, [stream[:cut]], partial=True)
            self.assertTrue(answer["report"]["error"], answer)
            kernel.close()


class Deleted(SnapshotTest):
    def test_a_preloaded_name_that_was_deleted_stays_so(self):
        frame = {"type": "preload", "request": 3, "imports": ["import json", "import math"], "families": [], "bind": True}
        self.kernel.send(**frame)
        self.kernel.expect("preloaded")
        self.run_ok("del json")
        snapshot = self.take()
        kernel = self.fresh()
        kernel.send(**frame)
        kernel.expect("preloaded")
        self.assertIsNone(self.load(kernel, stream_of(snapshot))["report"]["error"])
        self.assertEqual(kernel.run("('json' in globals(), 'math' in globals())", cell=9).value, "(False, True)")


class Watches(unittest.TestCase):
    """The watch for a variable that makes no progress, without a process: its looks are called here."""

    def setUp(self):
        sys.path.insert(0, KERNEL)
        self.addCleanup(sys.path.remove, KERNEL)

    def test_time_in_which_the_daemon_takes_nothing_is_not_the_variables(self):
        from belljar_kernel.limits import PACK_STUCK_LOOKS
        from belljar_kernel.snapshot_watch import Stuck, Watch

        sink = types.SimpleNamespace(sent=5, waits=True)
        watch = Watch(lambda: (sink, 1))
        for _ in range(3 * PACK_STUCK_LOOKS):
            watch.look(None, None)
        sink.waits = False
        with self.assertRaises(Stuck):
            for _ in range(PACK_STUCK_LOOKS + 1):
                watch.look(None, None)

    def test_a_record_that_is_being_sent_says_so_until_it_is_whole(self):
        from belljar_kernel import snapshot_records

        here, there = socket.socketpair()
        with here, there:
            writer = snapshot_records.Writer(here, 10**9)
            sending = threading.Thread(target=writer.write, args=(bytes(snapshot_records.RECORD_BYTES),))
            sending.start()
            there.recv(1)
            self.assertTrue(writer.waits)
            left = snapshot_records.RECORD_BYTES + 4  # the header has five bytes
            while left:
                left -= len(there.recv(left))
            sending.join()
            self.assertFalse(writer.waits)

    def test_what_is_too_large_to_be_held_back_is_not_copied(self):
        from belljar_kernel import snapshot_records

        spool, large = snapshot_records.Spool(2**20, 2**30), bytearray(2**24)
        spool.write(b"a small one")
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        spool.write(large)
        self.assertLess(tracemalloc.get_traced_memory()[1], 2**20)
        self.assertEqual((spool.pieces, spool.written), (None, len(large) + 11))


if __name__ == "__main__":
    unittest.main()
