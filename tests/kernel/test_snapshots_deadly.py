"""Variables that end the process that loads them, or hold it up: a load in part gets by them, and leaves out only them."""

import os
import time
import unittest

from harness import is_alive
from snapshot_harness import SnapshotTest, stream_of

# Done when the session wakes, and not when it is saved.
DEADLY = (
    "import os, signal, sys, time\n"
    "def do(code):\n    if os.path.exists('armed'): exec(code, {'os': os, 'signal': signal, 'time': time})\n    return code\n"
    "class Late:\n    def __init__(self, code): self.code = code\n    def __reduce__(self): return do, (self.code,)\n"
    "class Filled:\n    def __init__(self, code): self.code = code\n    def __setstate__(self, state): self.__dict__ = state; do(self.code)\n"
    "class Key:\n    def __init__(self, code): self.code = code\n    def __hash__(self): do(getattr(self, 'code', '')); return 1\n"
)


class Deadly(SnapshotTest):
    def saved(self, code):
        """The snapshot; from here on its variables do harm when they are loaded."""
        self.run_ok(f"{DEADLY}{code}")
        snapshot = self.take()
        self.assertEqual(snapshot.missing, {})
        open(os.path.join(self.kernel.workspace, "armed"), "w").close()
        return snapshot

    def wake_in_part(self, snapshot):
        kernel, report = self.wake(snapshot, partial=True)
        return kernel, {each["name"]: each["reason"] for each in report["missing"]}

    def test_a_load_that_dies_is_refused_and_in_part_all_but_what_kills_is_loaded(self):
        snapshot = self.saved(
            "shared = [1, [2]]\nby_call = [Late('os._exit(4)'), shared]; filled = Filled('os.kill(os.getpid(), signal.SIGKILL)')\n"
            "segfaults = {'deep': [Late('os.abort()')]}; ends_well = Late('os._exit(0)'); keyed = {Key('os._exit(6)'): 1}\n"
            "holds = {'filled': filled}; group = Late('os.killpg(0, 9)')\n"
            "after = shared; big = bytearray(300_000); last = {'a': shared}; fine = Filled('1')"
        )
        kernel = self.fresh()
        answer = self.load(kernel, stream_of(snapshot))
        self.assertEqual((answer["type"], answer["code"]), ("refused", "no_process"), answer)
        kernel.close()
        kernel, missing = self.wake_in_part(snapshot)
        self.assertEqual(set(missing), {"by_call", "filled", "segfaults", "ends_well", "keyed", "holds", "group"})
        self.assertIn("ended the process (exit code 4)", missing["by_call"])
        self.assertIn("signal 9", missing["filled"])
        self.assertIn("signal 6", missing["segfaults"])
        self.assertIn("exit code 0", missing["ends_well"])
        asked = "shared is after is last['a'], shared, len(big), fine.code, 'by_call' in globals()"
        self.assertEqual(kernel.run(asked, cell=9).value, "(True, [1, [2]], 300000, '1', False)")

    def test_one_that_never_ends_is_left_out_after_a_while(self):
        snapshot = self.saved("import collections\nloops = Filled('while True: time.sleep(60)'); x = [1]; y = x")
        begun = time.monotonic()
        kernel, missing = self.wake_in_part(snapshot)
        self.assertEqual(set(missing), {"loops"})
        self.assertIn("no progress for 15 s", missing["loops"])
        self.assertGreater(time.monotonic() - begun, 14)
        self.assertEqual(kernel.run("x is y", cell=9).value, "True")

    def test_after_twelve_deaths_the_rest_is_left_out(self):
        snapshot = self.saved("before = [0]\nfor n in range(14): globals()[f'dies{n:02}'] = Late('os._exit(4)')\nafter = [1]\ndef double(x): return 2 * x")
        kernel, missing = self.wake_in_part(snapshot)
        self.assertEqual(set(missing), {f"dies{n:02}" for n in range(14)} | {"after"})
        self.assertIn("exit code 4", missing["dies11"])
        self.assertIn("12 things before it", missing["dies12"])
        self.assertEqual(kernel.run("double(before[0] + 1)", cell=9).value, "2")

    def test_a_module_that_ends_the_process_is_lost_with_what_needs_it(self):
        self.run_ok("open('ends_mod.py', 'w').write('class K: pass')\nimport ends_mod\nthing = ends_mod.K(); kind = ends_mod.K; x = 1")
        snapshot = self.take()
        self.run_ok("import shutil; open('ends_mod.py', 'w').write('import os; os._exit(3)'); shutil.rmtree('__pycache__', True)")
        kernel, missing = self.wake_in_part(snapshot)
        self.assertEqual(set(missing), {"ends_mod", "thing", "kind"})
        self.assertIn("exit code 3", missing["thing"])
        self.assertEqual(kernel.run("x", cell=9).value, "1")

    def test_what_it_leaves_behind_ends_and_nothing_is_printed_twice(self):
        told = "open('pids', 'a').write(str(os.getpid()) + '\\\\n')"
        leaves = f"print('loaded')\\nif os.fork() == 0:\\n    os.setsid()\\n    if os.fork() == 0: {told}; time.sleep(600)\\n    os._exit(0)\\nwhile not os.path.exists('pids'): time.sleep(0.01)\\nos._exit(4)"
        snapshot = self.saved(f"leaves = Late(\"{leaves}\")\nsays = Late(\"print('said')\"); x = 1")
        kernel, missing = self.wake_in_part(snapshot)
        self.assertEqual(set(missing), {"leaves"})
        with open(os.path.join(self.kernel.workspace, "pids"), encoding="ascii") as file:
            pids = [int(line) for line in file]
        self.assertTrue(pids)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        self.assertEqual(kernel.run("x", cell=9).value, "1")
        self.assertEqual(b"".join(data for _, data in kernel.idle_output), b"said\n")

    def test_what_forks_and_goes_on_counts_for_itself_only(self):
        snapshot = self.saved("goes_on = Late('if os.fork(): os._exit(5)'); x = [1]; y = x")
        kernel, missing = self.wake_in_part(snapshot)
        self.assertEqual(set(missing), {"goes_on"})
        self.assertEqual(kernel.run("x is y", cell=9).value, "True")


if __name__ == "__main__":
    unittest.main()
