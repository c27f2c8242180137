"""Variables that are packed in a copy and loaded into a fresh worker."""

import importlib.util
import os
import struct
import time
import unittest

from snapshot_harness import HEADER, TOKEN, SnapshotTest, stream_of

OVER_BUDGET = "reading the variables took more memory than checkpoints may have"


class Whole(SnapshotTest):
    def test_variables_come_back_with_identity_in_another_sandbox(self):
        self.run_ok("a = [1, 'two', {3: 4.0}]\nb = a\nc = [a, a]\na.append(a)\ndef f(x):\n    return x + n\nn = 5")
        snapshot = self.take()
        self.assertEqual((snapshot.state_of, snapshot.missing, snapshot.manifest["variables"]), (1, {}, 5))
        kernel, report = self.wake(snapshot)
        self.assertEqual((report["restored"], report["missing"]), (5, []))
        run = kernel.run("(b is a, c[0] is c[1] is a, a[3] is a, f(1), f.__globals__ is globals(), a[:3])", cell=2)
        self.assertEqual(run.value, "(True, True, True, 6, True, [1, 'two', {3: 4.0}])", run.end)

    def test_the_manifest_says_what_was_sent(self):
        self.run_ok("import json\nx = bytearray(3 << 20)\nf = open('f.txt', 'w')\ng = (i for i in x)")
        snapshot = self.take()
        manifest = snapshot.manifest
        sizes = [len(section) for section in snapshot.sections]
        self.assertEqual((manifest["format"], manifest["sections"], manifest["bytes"]), (1, len(sizes), sum(sizes)))
        self.assertEqual((manifest["variables"], list(snapshot.missing)), (3, ["g"]))
        self.assertEqual([each["name"] for each in manifest["files"]], ["f"])
        self.assertGreaterEqual(manifest["modules"], 1)

    def test_large_arrays_travel_as_sections_of_their_own(self):
        self.run_ok("import pickle\nclass Big:\n    def __reduce_ex__(self, _): return bytes, (pickle.PickleBuffer(bytes(2 << 20)),)\nx = Big()")
        snapshot = self.take()
        self.assertEqual([len(section) for section in snapshot.sections[1:]], [2 << 20])
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("len(x)", cell=2).value, str(2 << 20))

    def test_names_that_are_kept_stay_as_they_are(self):
        self.run_ok("x = 1\ny = 2")
        snapshot = self.take()
        kernel = self.fresh()
        kernel.configure({"x": "given anew"})
        answer = self.load(kernel, stream_of(snapshot), keep=["x"])
        self.assertEqual(answer["report"]["restored"], 1)
        self.assertEqual(kernel.run("(x, y)", cell=2).value, "('given anew', 2)")

    def test_a_traceback_shows_the_source_of_a_cell_before_the_sleep(self):
        self.run_ok("def f():\n    return 1 / 0  # the very line")
        kernel, _ = self.wake(self.take())
        self.assertIn("the very line", kernel.run("f()", cell=2).end["exception"]["traceback"])

    def test_what_was_not_flushed_is_written_once(self):
        self.run_ok("f = open('log.txt', 'w')\nf.write('one\\n'); f.flush(); f.write('two\\n')")
        snapshot = self.take()
        with open(os.path.join(self.kernel.workspace, "log.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "one\n")  # packing has not written it
        kernel, report = self.wake(snapshot)
        self.assertEqual([each["name"] for each in report["reopened"]], ["f"])
        kernel.run("f.write('three\\n'); f.close()", cell=2)
        with open(os.path.join(self.kernel.workspace, "log.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "one\ntwo\nthree\n")

    def test_a_file_or_module_that_is_gone_costs_only_the_names_that_need_it(self):
        self.run_ok("open('gone.txt', 'w').write('x')\nf = open('gone.txt')\nopen('gone_mod.py', 'w').write('class K: pass')\nimport gone_mod\nk = [gone_mod.K()]\nx = 1")
        snapshot = self.take()
        for name in ("gone.txt", "gone_mod.py"):
            os.unlink(os.path.join(self.kernel.workspace, name))
        self.run_ok("import shutil; shutil.rmtree('__pycache__', True)")
        kernel, report = self.wake(snapshot)
        missing = {each["name"]: each["reason"] for each in report["missing"]}
        self.assertEqual(set(missing), {"f", "gone_mod", "k"})
        self.assertIn("gone_mod could not be imported", missing["k"])
        self.assertEqual(report["restored"], 1)
        self.assertEqual(kernel.run("(x, 'k' in globals())", cell=2).value, "(1, False)")

    def test_the_randomness_goes_on_where_it_was(self):
        self.run_ok("import random; random.seed(1)")
        snapshot = self.take()
        kernel, _ = self.wake(snapshot)
        expected = self.value("[random.random() for _ in range(3)]")
        self.assertEqual(kernel.run("[random.random() for _ in range(3)]", cell=2).value, expected)

    def test_handlers_of_the_root_logger_come_back(self):
        self.run_ok("import logging; logging.basicConfig(level=logging.INFO, format='said: %(message)s')")
        kernel, _ = self.wake(self.take())
        self.assertIn("said: hello", kernel.run("import logging; logging.info('hello')", cell=2).stderr)


class Counted(SnapshotTest):
    """The guardian's count goes on from the state that was loaded."""

    def woken(self, state_of=7):
        self.run_ok("x = 1")
        return self.wake(self.take(), state_of=state_of)[0]

    def test_undo_goes_back_to_it_and_no_further(self):
        kernel = self.woken()
        self.kernel = kernel
        kernel.run("x = int(2)", cell=8)
        kernel.run("x = 3", cell=9)
        self.assertEqual(self.undo(3)["code"], "out_of_reach")
        self.assertEqual(self.undo(2)["state_of"], 7)
        self.assertEqual(self.undo(1)["message"], "there is nothing to undo")
        self.assertEqual(kernel.run("x", cell=10).value, "1")

    def test_a_cell_that_dies_leads_back_to_it(self):
        kernel = self.woken()
        run = kernel.run("import os; os._exit(1)", cell=8)
        self.assertEqual(run.end["after"], {"restored": 7}, run.end)
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_the_next_connection_hears_of_it(self):
        kernel = self.woken()
        kernel.hang_up()
        kernel.listen()
        kernel.accept().upgrade()
        self.assertEqual(kernel.hello()["state_of"], 7)

    def test_nothing_is_loaded_after_a_cell_or_twice(self):
        kernel = self.woken()
        for other in (self.kernel, kernel):
            other.send(type="restore", request=9, token=TOKEN, path="/nowhere", state_of=1, keep=[])
            refused = other.expect("refused", request=9)
            self.assertEqual(refused["code"], "out_of_reach", refused)

    def test_an_older_state_is_packed_as_long_as_there_is_a_checkpoint(self):
        for n in range(4):
            self.run_ok(f"x = int({n})")
        self.run_ok("x = 'plain'")  # is repeated, and has no checkpoint
        for state_of, value in ((2, "1"), (4, "3"), (5, "'plain'")):
            snapshot = self.take(state_of=state_of)
            self.assertEqual(snapshot.state_of, state_of)
            kernel, _ = self.wake(snapshot, state_of=state_of)
            self.assertEqual(kernel.run("x", cell=9).value, value)
        self.kernel.send(type="snapshot", request=3, token=TOKEN, path="/nowhere", state_of=77, urgent=False, takes_turns=False, bytes=1)
        self.assertEqual(self.kernel.expect("refused", request=3)["code"], "out_of_reach")

    def test_a_snapshot_of_a_woken_session_is_as_good(self):
        kernel = self.woken()
        kernel.run("def f(): return x", cell=8)
        self.kernel = kernel
        again, _ = self.wake(self.take(), state_of=8)
        self.assertEqual(again.run("f()", cell=9).value, "1")


class WhileCellsRun(SnapshotTest):
    def test_the_copy_is_stopped_while_a_cell_runs_and_goes_on_after_it(self):
        self.run_ok("import time\nclass Slow:\n    def __reduce__(self):\n        open('steps', 'a').write('x'); time.sleep(0.1); return int, ()\nslow = [Slow() for _ in range(30)]")
        data, snapshot = self.begin_snapshot()
        self.kernel.expect("snapshotting")
        steps = os.path.join(self.kernel.workspace, "steps")
        self.wait_until(lambda: os.path.exists(steps), "the copy packs")
        run = self.kernel.submit("print('up')\ntime.sleep(2)")
        self.kernel.wait_for_output(run, "up\n")
        time.sleep(0.3)
        before = os.path.getsize(steps)
        time.sleep(1)
        self.assertLessEqual(os.path.getsize(steps), before + 1)
        self.kernel.finish(run)
        self.assertIsNone(self.kernel.expect("snapshot_ended", timeout=30)["reason"])
        data.close()
        self.assertEqual(snapshot.missing, {})

    def test_an_urgent_one_goes_on(self):
        self.run_ok("import time\nclass Slow:\n    def __reduce__(self): time.sleep(0.1); return int, ()\nslow = [Slow() for _ in range(5)]")
        run = self.kernel.submit("print('up')\ntime.sleep(60)")
        self.kernel.wait_for_output(run, "up\n")
        snapshot = self.take(urgent=True)
        self.assertEqual((snapshot.state_of, snapshot.missing), (1, {}))
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)

    def test_one_that_a_client_waits_for_takes_turns_with_cells(self):
        self.run_ok("import time\nclass Slow:\n    def __reduce__(self): time.sleep(0.1); return int, ()\nslow = [Slow() for _ in range(5)]")
        run = self.kernel.submit("print('up')\ntime.sleep(60)")
        self.kernel.wait_for_output(run, "up\n")
        began = time.monotonic()
        snapshot = self.take(urgent=True, takes_turns=True)
        self.assertEqual((snapshot.state_of, snapshot.missing), (1, {}))
        self.assertGreater(time.monotonic() - began, 3)
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)

    def test_it_ends_when_the_daemon_gives_it_up(self):
        self.run_ok("import time\nclass Slow:\n    def __reduce__(self): time.sleep(5); return int, ()\nslow = Slow()")
        data, _ = self.begin_snapshot()
        self.kernel.expect("snapshotting")
        self.kernel.send(type="snapshot", request=60, token=TOKEN, path=data.path, urgent=False, takes_turns=False, bytes=1)
        self.assertEqual(self.kernel.expect("refused", request=60)["code"], "busy")
        self.kernel.send(type="end_snapshot", request=50)
        self.assertEqual(self.kernel.expect("snapshot_ended", request=50)["reason"], "the daemon has given it up")
        self.kernel.send(type="end_snapshot", request=50)
        self.assertEqual(self.value("1"), "1")
        self.wait_until(lambda: len(self.runners()) <= 4, "its processes are gone")
        data.close()

    def test_the_next_one_begins_when_one_that_was_given_up_has_ended(self):
        self.run_ok(
            "import os, time\nballast = bytearray(64 * 1024 * 1024)\nclass Slow:\n    def __reduce__(self):\n"
            "        while not os.path.exists('fast'): time.sleep(0.01)\n        return int, ()\nslow = Slow()"
        )
        given_up, _ = self.begin_snapshot()
        self.kernel.expect("snapshotting", request=50)
        with open(os.path.join(self.kernel.workspace, "fast"), "w", encoding="utf-8"):
            self.kernel.send(type="end_snapshot", request=50)
        data, snapshot = self.begin_snapshot(request=52)
        self.assertEqual(self.kernel.expect("snapshot_ended", request=50)["reason"], "the daemon has given it up")
        self.kernel.expect("snapshotting", request=52)
        self.assertIsNone(self.kernel.expect("snapshot_ended", request=52)["reason"])
        data.close()
        given_up.close()
        self.assertEqual(snapshot.missing, {})

    def test_a_reset_ends_it(self):
        self.run_ok("import time\nclass Slow:\n    def __reduce__(self): time.sleep(5); return int, ()\nslow = Slow()")
        data, _ = self.begin_snapshot()
        self.kernel.expect("snapshotting")
        self.kernel.send(type="reset", request=2)
        self.assertEqual({self.kernel.next_frame()["type"] for _ in range(2)}, {"snapshot_ended", "reset_done"})
        data.close()


class Hostile(SnapshotTest):
    def packed(self, body, **options):
        self.run_ok("import os, time, signal, sys\nkept = 'as it was'\nclass Evil:\n    def __reduce__(self):\n        " + body.replace("\n", "\n        ") + "\nevil = Evil()")
        snapshot = self.take(**options)
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("(kept, 'evil' in globals())", cell=2).value, "('as it was', False)")
        self.assertEqual(self.value("kept"), "'as it was'")
        return snapshot.missing["evil"]

    def test_one_that_loops_is_left_out(self):
        self.assertIn("no progress", self.packed("while True: pass"))

    def test_one_that_raises_anything_is_left_out(self):
        self.assertIn("SystemExit", self.packed("raise SystemExit(3)"))

    def test_one_that_kills_its_process_is_left_out(self):
        self.assertIn("signal 9", self.packed("os.kill(os.getpid(), signal.SIGKILL)"))

    def test_one_that_exits_is_left_out(self):
        self.assertIn("exit code 5", self.packed("os._exit(5)"))

    def test_one_that_gives_itself_for_ever_is_left_out(self):
        self.assertIn("nested too deeply", self.packed("return list, ([Evil()],)"))

    def test_one_that_cannot_be_loaded_again_is_left_out(self):
        self.assertIn("cannot be loaded", self.packed("return int, ('no number',)"))
        self.assertIn("ended the process", self.packed("return os._exit, (4,)"))

    def test_one_that_forks_sends_nothing_twice(self):
        self.run_ok("import os\nclass Forks:\n    def __reduce__(self):\n        os.fork(); return int, (3,)\nforks = Forks()\nkept = 1")
        snapshot = self.take()
        self.assertEqual([kind for kind, _ in snapshot.records if kind not in b"PS"], [b"E"])
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("(forks, kept)", cell=2).value, "(3, 1)")
        self.wait_until(lambda: len(self.runners()) <= 4, "what it forked is gone")

    def test_more_than_may_be_sent_is_given_up_and_said(self):
        self.run_ok("class Endless:\n    def __reduce__(self): return list, (), None, iter(lambda: b'x' * 100_000, 1)\nendless = Endless()")
        snapshot = self.take(bytes=10 << 20)
        self.assertEqual(snapshot.last[0], b"X")
        self.assertIn(b"too_large", snapshot.last[1])

    def test_no_tool_can_be_called(self):
        self.kernel.configure(tools=[{"name": "pay", "description": "", "parameters": {"type": "object", "properties": {}}}])
        self.run_ok("class Calls:\n    def __reduce__(self): pay(); return int, ()\nc = Calls()\nclass Later:\n    def __reduce__(self): return eval, ('pay()', {'pay': pay})\nlater = Later()")
        snapshot = self.take()
        self.assertIn("ToolError", snapshot.missing["c"])
        self.assertEqual(self.kernel.seen_calls, [])

    def test_what_a_daemon_that_lies_sends_changes_nothing(self):
        self.run_ok("x = 1")
        good = b"".join(stream_of(self.take()))
        piece = lambda data: HEADER.pack(ord("P"), len(data)) + data  # noqa: E731
        end = HEADER.pack(ord("S"), 0)
        streams = {
            "nothing": b"",
            "cut": good[:100],
            "cut at its end": good[:-1],
            "garbage": os.urandom(5000),
            "no pickle": piece(b"garbage" + struct.pack(">Q", 0)) + end,
            "a huge record": HEADER.pack(ord("P"), 2**32 - 1) + b"x" * 5000,
            "buffers that are not there": piece(b"\x80\x05N." + struct.pack(">Q", 2**60)) + end,
            "given up": HEADER.pack(ord("X"), 2) + b"{}",
        }
        for what, stream in streams.items():
            with self.subTest(what):
                kernel = self.fresh()
                answer = self.load(kernel, [stream])
                self.assertTrue(answer["report"]["error"], answer)
                self.assertEqual((answer["report"]["restored"], kernel.run("'x' in globals()", cell=1).value), (0, "False"))
                kernel.close()

    def test_a_load_that_ends_the_process_is_told_and_the_next_worker_is_fresh(self):
        self.run_ok("import pickle")
        dies = b"\x80\x05cos\n_exit\nK\x07\x85R." + struct.pack(">Q", 0)
        kernel = self.fresh()
        answer = self.load(kernel, [HEADER.pack(ord("P"), len(dies)) + dies + HEADER.pack(ord("S"), 0)])
        self.assertEqual((answer["type"], answer["request"]), ("refused", 51))
        self.assertIn("while it loaded", answer["message"])
        self.assertEqual(kernel.next_frame()["type"], "worker_replaced")
        self.assertEqual(kernel.run("1", cell=1).value, "1")


class ShortOfMemory(SnapshotTest):
    limits = {"memory_bytes": 150 << 20, "checkpoint_bytes": 60 << 20}

    def test_the_copy_goes_before_checkpoints_and_says_why(self):
        self.run_ok("x = 1")
        self.run_ok("class Eats:\n    def __reduce__(self):\n        import time\n        held = bytearray(100 << 20)\n        for at in range(0, len(held), 4096): held[at] = 1\n        time.sleep(20)\n        return int, ()\neats = Eats()")
        data, _ = self.begin_snapshot()
        self.kernel.expect("snapshotting")
        ended = self.kernel.expect("snapshot_ended", timeout=20)
        self.assertEqual(ended["reason"], OVER_BUDGET)
        self.assertEqual(self.undo(1)["state_of"], 1)  # the checkpoints are there
        data.close()


class OverBudget(SnapshotTest):
    """The copy may take less memory than the variables have. It waits behind them, as memory is looked at once a second."""

    limits = {"memory_bytes": 2**30, "checkpoint_bytes": 60 << 20}
    waits = "\nclass Waits:\n    def __reduce__(self):\n        import time\n        time.sleep(2)\n        return int, ()\nwaits = Waits()"

    def test_reading_many_small_objects_copies_their_pages_and_is_given_up(self):
        self.run_ok("x = [[n] for n in range(1_000_000)]" + self.waits)
        data, snapshot = self.begin_snapshot()
        self.kernel.expect("snapshotting")
        self.assertEqual(self.kernel.expect("snapshot_ended", timeout=60)["reason"], OVER_BUDGET)
        data.close()
        self.assertNotEqual(snapshot.last[0], b"E", "nothing says that it is whole")
        self.assertEqual(self.value("(len(x), x[-1])"), "(1000000, [999999])")

    def test_reading_one_large_object_copies_nothing(self):
        self.run_ok("x = bytearray(300 << 20)" + self.waits)  # so large that it is not loaded on trial
        self.assertEqual(self.take().missing, {})


@unittest.skipUnless(os.environ.get("BELLJAR_LONG") == "1", "a long test: BELLJAR_LONG=1")
class Measured(SnapshotTest):
    """What packing and loading take, without a daemon. Prints."""

    limits = {"memory_bytes": 2**34, "checkpoint_bytes": 2**33}

    def test_times(self):
        kinds = {
            "10 MB of bytes": "x = [bytearray(1 << 20) for _ in range(10)]",
            "100 MB of bytes": "x = [bytearray(1 << 20) for _ in range(100)]",
            "1 GB of bytes": "x = bytearray(1 << 30)",
            "1 M integers in a list": "x = list(range(10**6, 2 * 10**6))",
            "1 M small lists": "x = [[i] for i in range(10**6)]",
            "200 k instances": "class P:\n    def __init__(self, i): self.i = i\nx = [P(i) for i in range(200_000)]",
        }
        try:
            import numpy  # noqa: F401

            kinds.update({f"{size} MB numpy": f"import numpy as np; x = np.ones({size} << 17)" for size in (10, 100, 1024)})
        except ImportError:
            pass
        for what, code in kinds.items():
            self.kernel.send(type="reset", request=1)
            self.kernel.expect("reset_done")
            self.assertEqual(self.kernel.run(code).end["status"], "success")
            begun = time.monotonic()
            snapshot = self.take(timeout=300)
            packed = time.monotonic() - begun
            kernel = self.fresh()
            begun = time.monotonic()
            answer = self.load(kernel, stream_of(snapshot), timeout=300)
            loaded = time.monotonic() - begun
            kernel.close()
            self.assertIsNone(answer["report"]["error"])
            print(f"{what}: {snapshot.manifest['bytes'] / 1e6:.0f} MB, packed in {packed:.2f} s, loaded in {loaded:.2f} s")


@unittest.skipUnless(os.environ.get("BELLJAR_LONG") == "1", "a long test: BELLJAR_LONG=1")
class Gigabyte(SnapshotTest):
    """One thing of a gigabyte comes back with each of its bytes and with all that leads to it."""

    limits = {"memory_bytes": 2**34, "checkpoint_bytes": 2**33}
    digest = "__import__('hashlib').blake2b(x).hexdigest()"

    def value_in(self, kernel, code):
        run = kernel.finish(kernel.submit(code), timeout=120)
        self.assertEqual(run.end["status"], "success", run.end)
        return run.value

    def comes_back(self, code, identity, change):
        made = f"import random; random.seed(18); block = random.randbytes(1 << 20)\n{code}\nsame = [x, {{'x': x}}]\n{identity}"
        self.assertEqual(self.value_in(self.kernel, made), "True")
        digest = self.value_in(self.kernel, self.digest)
        snapshot = self.take(timeout=300)
        self.assertEqual(snapshot.missing, {})
        self.assertGreaterEqual(snapshot.manifest["bytes"], 2**30)
        kernel, report = self.wake(snapshot, timeout=300)
        self.assertEqual(report["missing"], [])
        kernel.next_cell = self.kernel.next_cell
        self.assertEqual(self.value_in(kernel, self.digest), digest)
        self.assertEqual(self.value_in(kernel, f"same[0] is x and same[1]['x'] is x and {identity}"), "True")
        self.assertEqual(self.value_in(kernel, change), "True", "what is written by one name is read by the other")
        self.assertEqual(self.value_in(self.kernel, self.digest), digest, "and not in the session that slept")

    def test_bytes(self):
        code = "x = bytearray(block) * 1024; view = memoryview(x)"
        self.comes_back(code, "len(x) == 2**30 and view.obj is x", "view[5] ^= 1; x[5] == block[5] ^ 1")

    def test_an_array_of_python(self):
        code = "import array; x = array.array('Q', block) * 1024; view = memoryview(x)"
        identity = "len(x) * x.itemsize == 2**30 and view.obj is x"
        self.comes_back(code, identity, "before = x[5]; view[5] = before ^ 1; x[5] == before ^ 1")

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "needs numpy; see `test_what_sleeps`")
    def test_an_array_of_numpy(self):
        code = "import numpy as np; x = np.empty(1 << 27, 'u8'); row = x.reshape(1024, -1)[3]; step = x[::-2]"
        code += "\nx.reshape(1024, -1)[:] = np.frombuffer(block, 'u8')"
        identity = "x.nbytes == 2**30 and x.flags.owndata and np.shares_memory(row, x) and np.shares_memory(step, x)"
        self.comes_back(code, identity, "row[0] ^= np.uint64(1); bool(x[3 << 17] == x[0] ^ np.uint64(1))")
