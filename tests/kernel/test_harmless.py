"""Cells that provably change nothing but plain values: they need no checkpoint, and nothing of them is lost."""

import contextlib
import os
import signal
import time

from checkpoint_harness import CheckpointTest
from harness import is_alive

DIE = "import os; os._exit(1)"
DONE = b'{"status":"success","reason":"ok","exit_code":0,"result":null,"exception":null,"duration_ms":1.0,'
DONE += b'"displays_dropped":0,"live":{"threads":0,"tasks":0,"children":0}}'


class Harmless(CheckpointTest):
    def test_they_make_no_process(self):
        self.value("int(0)")
        self.wait_until(lambda: len(self.runners()) == 3, "checkpoints of before and after it are made")
        for n in range(20):
            self.run_ok(f"x = {n}; y = x * 2 + 1; x < y, [x, y]\nf'{{x}} {{y:>4}}' if x else 'none'")
        self.assertEqual(len(self.runners()), 3)

    def test_their_values_outlive_the_worker(self):
        self.run_ok("import sys; kept = [1]")
        self.run_ok("x = 2**70; t = 'ä\\n'; f = -0.1; n = None; b = not None")
        self.run_ok("x += 1")
        self.run_ok("f'{x} and {t!r}'")
        self.assertEqual(self.lose(DIE).end["after"], {"restored": 4})
        shown = (2**70 + 1, "ä\n", -0.1, None, True, f"{2**70 + 1} and 'ä\\n'", [1])
        self.assertEqual(self.value("(x, t, f, n, b, _, kept)"), repr(shown))

    def test_undo_reaches_each_of_them_again_and_again(self):
        self.run_ok("a = int(1)")
        for n in range(2, 7):
            self.run_ok(f"a = {n}")
        self.assertEqual(self.undo(2)["state_of"], 4)
        self.assertEqual(self.undo(1)["state_of"], 3)
        self.assertEqual(self.value("a"), "3")
        self.assertEqual(self.undo(2)["state_of"], 2)
        self.assertEqual(self.undo(1)["state_of"], 1)
        self.assertEqual(self.undo(1)["state_of"], 0)
        self.assertEqual(self.value("'a' in globals()"), "False")

    def test_undo_reaches_them_after_a_death(self):
        self.run_ok("a = int(1)")
        self.run_ok("a = 2")
        self.run_ok("a = 3")
        self.lose(DIE)
        self.assertEqual(self.undo(1)["state_of"], 2)
        self.assertEqual(self.value("a"), "2")

    def test_copies_that_are_made_while_a_cell_runs_have_them(self):
        self.run_ok("a = int(1)")
        self.run_ok("a = 2")
        running = self.kernel.submit("import time; a = 9; time.sleep(30)")
        fork = self.kernel.run("a", mode="fork")
        self.assertEqual(fork.value, "2")
        self.kernel.send(type="kill", cell=running.cell, grace_ms=100)
        self.assertEqual(self.kernel.finish(running).end["after"], {"restored": 2})
        self.assertEqual(self.value("a"), "2")

    def test_what_is_seeded_later_counts(self):
        self.run_ok("a = int(1)")
        self.run_ok("a = 2")
        self.kernel.send(type="configure", seed={"a": 7}, given=["a"], tools=[])
        self.assertEqual(self.value("a"), "7")
        self.lose(DIE)
        self.assertEqual(self.value("a"), "7")

    def test_what_is_given_while_a_cell_runs_leaves_the_state_before_it(self):
        """A client may lend tools, and a new daemon gives everything anew."""
        self.run_ok("import time, os; a = int(1)")
        self.run_ok("a = 2")
        self.run_ok("b = 3")
        running = self.kernel.submit("os.mkdir('on')\nwhile not os.path.exists('go'): time.sleep(0.01)\na = 9")
        self.wait_until(lambda: os.path.exists(os.path.join(self.kernel.workspace, "on")), "it runs")
        self.kernel.send(type="configure", seed={"c": 7}, given=["c"], tools=[])
        self.assertEqual(self.kernel.run("(a, b)", mode="fork").value, "(2, 3)")
        os.mkdir(os.path.join(self.kernel.workspace, "go"))
        self.kernel.finish(running)
        self.assertEqual(self.undo(1)["state_of"], 3)
        self.assertEqual(self.undo(1)["state_of"], 2)
        self.assertEqual(self.value("(a, c)"), "(2, 7)")

    def test_what_could_do_more_is_copied(self):
        """Each of these changes something that values of names do not tell."""
        self.run_ok(
            "class Noisy:\n"
            "    def __del__(self): log.append('gone')\n"
            "    def __add__(self, other): log.append('added'); return 1\n"
            "    def __repr__(self): log.append('shown'); return 'noisy'\n"
            "    @property\n"
            "    def size(self): log.append('read'); return 1\n"
            "log = []; noisy = Noisy(); things = [1]"
        )
        for code, left in (
            ("noisy + 1", "added"),
            ("noisy.size", "read"),
            ("noisy", "shown"),
            ("noisy = 1", "gone"),
            ("things += [2]", "things"),
            ("alias = things", "alias"),
            ("pair = [0]; same = pair", "pair"),
        ):
            self.run_ok(code)
            self.lose(DIE)
            traces = "log, things == [1, 2] and 'things', 'alias' in globals() and 'alias'"
            self.assertIn(left, self.value(f"{traces}, 'pair' in globals() and pair is same and 'pair'"), code)

    def test_what_watches_cells_is_copied_with_them(self):
        for watch in (
            "import sys; calls = []; sys.settrace(lambda *_: calls.append(1))",
            "import signal; ticks = []; signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))",
            "import warnings; seen = []; warnings.showwarning = lambda *_: seen.append(1)",
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        ):
            self.run_ok(watch)
            self.wait_until(lambda: len(self.runners()) == 3, "checkpoints of before and after it are made")
            self.run_ok("x = 1")
            self.wait_until(lambda: len(self.runners()) == 4, "a checkpoint is made")
            self.kernel.send(type="reset", request=5)
            self.kernel.expect("reset_done")

    def test_what_every_cell_looks_at_is_copied_with_what_it_does(self):
        """Code of the user that is called by what every cell does could do anything."""
        for hook in (
            "class Key:\n    def __hash__(self): return hash('x')\n"
            "    def __eq__(self, other): calls.append(1); return False\nglobals()[Key()] = 1; None",
            "class Name(str):\n    def __hash__(self): return hash('x')\n"
            "    def __eq__(self, other): calls.append(1); return False\nglobals()[Name('y')] = 1; None",
            "class Finder:\n    def invalidate_caches(self): calls.append(1)\n"
            "sys.path_importer_cache[os.getcwd()] = Finder()",
            "class Key:\n    def __hash__(self): return hash(os.getcwd())\n"
            "    def __eq__(self, other): calls.append(1); return False\n"
            "kept = dict(sys.path_importer_cache); sys.path_importer_cache.clear()\n"
            "sys.path_importer_cache[Key()] = None; sys.path_importer_cache.update(kept)",
            # A key that is found out only when it is asked, and one whose type says that it is `str`.
            "class Key:\n    def __hash__(self): return hash(os.getcwd())\n"
            "    def __eq__(self, other): calls.append(1); raise SystemExit\n"
            "kept = dict(sys.path_importer_cache); sys.path_importer_cache.clear()\n"
            "sys.path_importer_cache[Key()] = None; sys.path_importer_cache.update(kept)",
            "class Type(type):\n    def __hash__(self): return hash(str)\n    def __eq__(self, other): return True\n"
            "class Name(str, metaclass=Type):\n    def __hash__(self): return hash('x')\n"
            "    def __eq__(self, other): calls.append(1); return False\nglobals()[Name('y')] = 1; None",
            "class Pyplot:\n    def get_fignums(self): calls.append(1); return []\n"
            "sys.modules['matplotlib.pyplot'] = Pyplot(); None",
        ):
            with self.subTest(hook):
                self.kernel.send(type="reset", request=5)
                self.kernel.expect("reset_done")
                self.run_ok("import os, sys; calls = []")
                self.run_ok(hook)
                self.run_ok("x = 1")
                self.assertFalse(self.run_ok("x = 2").end["harmless"])
                self.assertNotEqual(self.value("calls"), "[]")

    def test_a_value_whose_type_says_that_it_is_plain_is_not(self):
        self.run_ok(
            "log = []\nclass Type(type):\n    def __hash__(self): return hash(int)\n"
            "    def __eq__(self, other): return True\n"
            "class Number(metaclass=Type):\n    def __add__(self, other): log.append(other); return 1\nn = Number()"
        )
        self.run_ok("x = 1")
        self.assertFalse(self.run_ok("x = n + 7").end["harmless"])
        self.lose(DIE)
        self.assertEqual(self.value("log"), "[7]")

    def test_many_and_large_values_are_copied(self):
        self.run_ok("x = int(1)")
        before = len(self.runners())
        self.run_ok("x = 'a' * 5000")
        self.wait_until(lambda: len(self.runners()) > before, "a checkpoint is made")
        self.lose(DIE)
        self.assertEqual(self.value("len(x)"), "5000")
        for n in range(1100):
            self.run_ok(f"x = {n}")
        self.lose(DIE)
        self.assertEqual(self.value("x"), "1099")

    def test_what_is_no_exact_value_is_copied(self):
        self.run_ok("x = int(1)")
        for code, shown in (("x = 1e308 * 10", "inf"), ("x = '\\udc80'", "'\\udc80'"), ("x = (1, 2)", "(1, 2)")):
            self.run_ok(code)
            self.lose(DIE)
            self.assertEqual(self.value("x"), shown)

    def test_what_others_did_between_cells_is_kept(self):
        thread = "def w():\n    global data; time.sleep(.3); data = 'precious'\n"
        for code in (
            thread + "threading.Thread(target=w).start()",
            thread + "_thread.start_new_thread(w, ())",
            "async def w():\n    global data; await asyncio.sleep(.3); data = 'precious'\nt = asyncio.create_task(w()); None",
            "asyncio.get_running_loop().call_later(.3, globals().update, {'data': 'precious'}); await asyncio.sleep(0)",
            "signal.signal(signal.SIGALRM, lambda *_: (globals().update(data='precious'), "
            "signal.signal(signal.SIGALRM, signal.SIG_DFL)))\nsignal.setitimer(signal.ITIMER_REAL, .3); None",
        ):
            self.run_ok("import _thread, asyncio, signal, threading, time; data = None")
            self.run_ok(code)
            time.sleep(0.8)
            self.assertEqual(self.value("data"), "'precious'", code)
            self.lose(DIE)
            self.assertEqual(self.value("data"), "'precious'", code)

    def test_a_state_that_always_dies_is_given_up_for_the_one_before_it(self):
        for poison in ("after_in_parent=lambda: os._exit(0)", "before=lambda: os._exit(3)", "before=os.abort"):
            self.run_ok("import os; keep = [1]")
            self.run_ok("z = 42")
            self.run_ok("y = 43")
            self.run_ok(f"os.register_at_fork({poison})")
            replaced = 0
            with contextlib.suppress(TimeoutError):
                while self.kernel.expect("worker_replaced", timeout=1):
                    replaced += 1
            self.assertIn(replaced, (1, 2, 3), poison)
            self.assertEqual(self.value("(keep, z, y)"), "([1], 42, 43)", poison)
            self.lose(DIE)
            self.assertEqual(self.value("(keep, z, y)"), "([1], 42, 43)", poison)

    def test_no_finalizer_runs_in_them(self):
        self.run_ok("import gc; n = 0\nclass A:\n    def __del__(self):\n        global n; n += 1")
        for threshold in (1, 20, 60):
            self.run_ok(f"gc.collect(); n = 0; a = A(); a.a = a; del a; gc.set_threshold({threshold}); None")
            for _ in range(20):
                self.run_ok("x = n")
            self.lose(DIE)
            self.assertEqual(self.value("x == n"), "True")
            self.assertEqual(self.value("gc.isenabled()"), "True")

    def test_before_the_last_checkpoint_is_lost_what_may_have_taken_the_memory_goes(self):
        left = self.value("import os, subprocess; p = subprocess.Popen(['sleep', '1000'], start_new_session=True); p.pid")
        for x in range(2):
            self.run_ok(f"x = int({x})")
        worker = int(self.value("os.getpid()"))
        self.wait_until(lambda: len(self.runners()) == 6, "there is a checkpoint of each state")
        *others, _ = sorted(pid for pid in map(int, self.runners()) if pid not in (worker, int(left)))
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: len(self.runners()) == 2, "the guardian has reaped them")
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)
        self.kernel.expect("worker_replaced")
        self.wait_until(lambda: not is_alive(left), "it is gone")
        self.assertEqual(self.value("x"), "1")

    def test_what_is_broken_costs_no_answer(self):
        self.run_ok("import warnings; del warnings.formatwarning")
        self.assertEqual(self.value("6 * 7"), "42")

    def test_files_are_looked_for_only_where_there_can_be_some(self):
        self.run_ok("x = int(1)")
        self.assertTrue(self.run_ok("x = 2").end["harmless"])
        self.assertFalse(self.run_ok("x = int(3)").end["harmless"])

    def test_forged_ones_cost_no_session(self):
        self.run_ok("kept = int(5)\nimport os, struct")
        for forged in (b"{", b"[]", b'{"__builtins__":{}}', b'{"x":[1]}', b"\xff"):
            cell = self.kernel.next_cell + 1
            payload = f"struct.pack('>QH', {cell}, {len(forged)}) + {forged!r} + {DONE!r}"
            self.run_ok(f"p = {payload}\nos.write(900, struct.pack('>IB', len(p), ord('D')) + p)\nNone")
            self.run_ok("later = 1")
            self.lose("os._exit(1)")
            self.assertEqual(self.value("(kept, later)"), "(5, 1)", forged)
            self.run_ok("del later, p")

    def test_a_forged_one_that_no_worker_can_read_ends_none(self):
        self.run_ok("kept = int(5)\nimport os, struct")
        forged = b'{"x":' + b"9" * 5000 + b"}"
        payload = f"struct.pack('>QH', {self.kernel.next_cell + 1}, {len(forged)}) + {forged!r} + {DONE!r}"
        code = f"p = {payload}\nos.write(900, struct.pack('>IB', len(p), ord('D')) + p)\nos._exit(1)"
        cell = self.kernel.submit(code).cell
        self.kernel.expect("cell_done", cell=cell)
        self.kernel.expect("worker_replaced")
        self.assertEqual(self.value("kept"), "5")

