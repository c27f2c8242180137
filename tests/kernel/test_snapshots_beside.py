"""Snapshots beside other work: cells in the background, requests of programs, connections that come and go."""

import json
import time
import unittest

from harness import Kernel
from snapshot_harness import SnapshotTest, stream_of
from test_background import BackgroundTest
from test_variables import SHOWN, UNSHARE, _can_unshare


class WithBackground(BackgroundTest, SnapshotTest):
    def test_a_cell_that_ends_beside_leaves_the_state_before_the_main_cell_as_it_is(self):
        self.main("x = 'before'\ngo = []")
        beside = self.begin("import time\nprint('up')\nwhile not go: time.sleep(0.01)\nx = 'beside'")
        self.until(beside, "up\n")
        time.sleep(0.5)  # for the checkpoint
        main = self.begin("go.append(1)\nimport time\nprint('on'); time.sleep(2)\ny = 1", mode="main")
        self.finish(beside)
        fork = self.begin("x", mode="fork")
        self.finish(fork)
        self.assertEqual(fork.end["type"], "cell_done", fork.end)
        self.assertEqual(fork.value, "'before'")
        self.finish(main)
        self.assertTrue(main.end["protected"], main.end)
        snapshot = self.take_snapshot()
        kernel, _ = self.wake(snapshot)
        self.assertEqual(kernel.run("(x, y)", cell=9).value, "('beside', 1)")

    def test_a_snapshot_after_a_background_cell_has_what_it_changed(self):
        beside = self.begin("import time\nprint('up')\nwhile 'go' not in globals(): time.sleep(0.01)\ntime.sleep(1)\nx = 'beside'")
        self.until(beside, "up\n")
        self.main("go = 1\nx = 'main'")
        self.finish(beside)
        snapshot = self.take_snapshot()
        kernel, _ = self.wake(snapshot, state_of=2)
        self.assertEqual(kernel.run("x", cell=9).value, "'beside'")

    def take_snapshot(self):
        return SnapshotTest.take(self)

    def test_a_call_of_a_background_cell_is_its_own(self):
        self.kernel.configure(tools=[{"name": "pay", "description": "", "parameters": {"type": "object", "properties": {}}}])
        self.kernel.tools["pay"] = lambda: 1
        beside = self.begin("import time\nprint('up')\nwhile 'go' not in globals(): time.sleep(0.01)\nprint(pay())\npaid = 1")
        self.until(beside, "up\n")
        main = self.begin("go = 1\nimport time\nwhile 'paid' not in globals(): time.sleep(0.01)\npay()", mode="main")
        self.finish(beside, main)
        self.assertEqual((beside.end["status"], main.end["status"]), ("success", "success"))
        self.assertEqual([call["cell"] for call in self.kernel.seen_calls], [beside.cell, main.cell])

    def test_a_call_can_name_no_other_cell_than_one_that_runs_in_the_background(self):
        self.kernel.configure(tools=[{"name": "pay", "description": "", "parameters": {"type": "object", "properties": {}}}])
        self.kernel.tools["pay"] = lambda: 1
        said = "import os, struct, time\nwords = b'{\"name\":\"pay\",\"arguments\":{}}'\n"
        said += "for cell in (77, 1): os.write(901, struct.pack('>IBIQ', len(words) + 12, ord('C'), 5, cell) + words)\ntime.sleep(0.5)"
        self.main(said)
        self.main("1")
        self.assertEqual([call["cell"] for call in self.kernel.seen_calls], [None, None])


class Connections(SnapshotTest):
    def test_a_new_connection_ends_what_was_packed_for_the_one_before(self):
        self.run_ok("import time\nclass Slow:\n    def __reduce__(self): time.sleep(6); return int, ()\nslow = Slow()")
        data, _ = self.begin_snapshot()
        self.kernel.expect("snapshotting")
        self.kernel.hang_up()
        self.kernel.listen()
        self.kernel.accept().upgrade()
        self.kernel.hello()
        self.assertEqual(self.kernel.expect("snapshot_ended", request=50)["reason"], "the connection to the daemon was lost")
        data.close()
        self.assertEqual(self.kernel.run("1", cell=2).value, "1")


@unittest.skipUnless(_can_unshare(), "needs a pid namespace")
class Programs(SnapshotTest):
    def setUp(self):
        self.kernel = Kernel(limits=self.limits, prefix=(*UNSHARE, "--net"))
        self.addCleanup(self.kernel.close)
        self.assertTrue(self.kernel.start()["probe"]["is_init"])

    def test_what_packs_or_loads_variables_calls_no_tool_by_its_programs_either(self):
        asks = "'|'.join([ask(), ask(lower=['lower']), ask('setsid', '--fork')])"
        self.run_ok(
            SHOWN + f"\nclass Packs:\n    def __reduce__(self): said = {asks}; open('packed', 'w').write(said); return int, ()\n"
            f"class Loads:\n    def __setstate__(self, _state): said = {asks}; open('loaded', 'w').write(said)\n    def __getstate__(self): return 1\n"
            "packs, loads = Packs(), Loads()"
        )
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        kernel = Kernel(limits=self.limits, prefix=(*UNSHARE, "--net"))
        self.addCleanup(kernel.close)
        kernel.start()
        answer = self.load(kernel, stream_of(snapshot))
        self.assertEqual(answer["type"], "restored", answer)
        for of, name in ((self.kernel, "packed"), (kernel, "loaded")):
            # What is loaded begins in the folder where the session was.
            with open(f"{self.kernel.workspace}/{name}", encoding="utf-8") as file:
                said = [json.loads(answer) for answer in file.read().split("|")]
            self.assertEqual([answer["type"] for answer in said], ["tool_failed"] * 3)
            self.assertIn("only a cell can call tools", said[0]["error"]["message"])
            self.assertEqual(of.seen_calls, [])
