"""Checkpoints: what a lost cell leaves."""

import os
import signal
import time

from checkpoint_harness import CheckpointTest
from harness import is_alive

LETHAL = {
    "while True: pass": "kill",
    "sum(range(10**13))": "kill",
    "import ctypes; ctypes.string_at(0)": -signal.SIGSEGV,
    "import os; os._exit(3)": 3,
    "import os; os._exit(0)": 0,
    "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "import os; os.killpg(0, 9)": -signal.SIGKILL,
    "import ctypes; ctypes.CDLL(None).regcomp(bytes(1000), b'(' * 10**7, 1)": -signal.SIGSEGV,  # too deep in C
    "import os\nos.closerange(0, 4096)": 1,
}


# It dies of the next cell that it is sent, and of nothing else.
_SPOIL_THE_WORKER = """
import gc, threading
def spoil():
    runner = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Runner")
    usual = runner._host_frame
    runner._host_frame = lambda frame: 1 / 0 if frame["type"] == "cell" else usual(frame)
threading.Timer(AFTER_S, spoil).start()
"""


class Rollback(CheckpointTest):
    def test_after_every_lethal_cell_the_state_is_as_before(self):
        self.run_ok("fn = lambda v: v + 1\nbig = bytes(10**7)\nf = open('x', 'w+')\nprint('kept', file=f, flush=True)")
        for code, exit_code in LETHAL.items():
            with self.subTest(code=code):
                run = self.lose(code, exit_code)
                self.assertEqual(run.end["after"], {"restored": 1})
                check = self.kernel.run("fn(len(big)), f.seek(0), f.read()", mode="fork")
                self.assertEqual(check.value, r"(10000001, 0, 'kept\n')")

    def test_what_the_lost_cell_changed_is_undone(self):
        self.run_ok("x = [1]")
        self.lose("x.append(2); y = 3; import os; os._exit(1)")
        self.assertEqual(self.value("x, 'y' in globals()"), "([1], False)")

    def test_several_in_a_row_and_each_protected(self):
        self.run_ok("x = 0")
        for number in range(5):
            run = self.run_ok(f"x += 1\nassert x == {number + 1}")
            self.assertTrue(run.end["protected"])
            self.assertEqual(self.lose("import os; os._exit(1)").end["after"], {"restored": run.cell})

    def test_a_cell_that_follows_at_once_and_dies_is_protected(self):
        for number in range(20):
            self.run_ok(f"x = {number}")
            lost = self.kernel.run("import os; os.kill(os.getpid(), 9)")
            self.assertEqual(lost.end["after"], {"restored": lost.cell - 1})
            check = self.kernel.run("x", mode="fork")
            self.assertEqual(check.end.get("status"), "success", check.end)
            self.assertEqual(check.value, str(number))

    def test_the_seed_and_the_tools_that_came_meanwhile_are_kept(self):
        self.kernel.configure({"a": 1})
        self.run_ok("x = 1")
        self.kernel.configure({"a": 2}, [{"name": "t", "description": "", "parameters": {"type": "object"}}])
        self.lose("import os; os._exit(1)")
        self.assertEqual(self.value("a, x, t"), "(2, 1, <tool t>)")

    def test_tools_work_after_a_rollback(self):
        self.kernel.tools["t"] = lambda: 5
        self.kernel.configure({}, [{"name": "t", "description": "", "parameters": {"type": "object"}}])
        self.assertEqual(self.value("t()"), "5")
        self.lose("import os; os._exit(1)")
        self.assertEqual(self.value("t(), await tools.aio.t()"), "(5, 5)")

    def test_processes_of_the_lost_cell_are_killed_and_earlier_ones_live_on(self):
        earlier = int(self.value("import subprocess as s\ns.Popen(['sleep', '1000'], start_new_session=True).pid"))
        run = self.kernel.submit("print(s.Popen(['sleep', '1000'], start_new_session=True).pid)\nwhile True: pass")
        self.kernel.wait_for_output(run, "\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.wait_until(lambda: not is_alive(int(run.stdout)), "the later one ends")
        self.assertTrue(is_alive(earlier))
        self.kernel.send(type="reset", request=1)
        self.kernel.expect("reset_done")
        self.wait_until(lambda: not is_alive(earlier), "the earlier one ends")

    def test_a_death_between_cells_goes_back_too(self):
        self.run_ok("x = 1")
        self.run_ok("import threading, os, time\nthreading.Timer(0.5, os._exit, (5,)).start()")
        self.kernel.expect("worker_replaced", exit_code=5, after={"restored": 2})
        self.assertEqual(self.value("x"), "1")

    def test_a_cell_that_a_spoilt_worker_could_not_begin_runs_after_all(self):
        self.run_ok("x = int(1)")
        self.run_ok(_SPOIL_THE_WORKER.replace("AFTER_S", "0.3"))
        self.wait_until(lambda: len(self.runners()) == 4, "three checkpoints")
        time.sleep(0.6)
        run = self.kernel.submit("x + 1")
        self.kernel.wait_for_output(run, "the worker failed: ZeroDivisionError\n")
        self.kernel.expect("worker_replaced", after={"restored": 2})
        self.kernel.finish(run)
        self.assertEqual((run.end["type"], run.value), ("cell_done", "2"))

    def test_a_cell_that_cannot_begin_is_tried_no_more_than_twice(self):
        self.run_ok("x = 1")
        self.run_ok(_SPOIL_THE_WORKER.replace("AFTER_S", "0") + "\nspoil()")
        run = self.kernel.submit("x + 1")
        self.kernel.wait_for_output(run, "the worker failed: ZeroDivisionError\n")
        self.kernel.expect("worker_replaced", after={"restored": 2})
        self.kernel.finish(run)
        self.assertEqual((run.end["type"], run.end["after"]), ("cell_lost", {"restored": 2}))

    def test_a_stopped_checkpoint_is_woken(self):
        self.run_ok("x = int(1)")
        worker = int(self.value("import os; os.getpid()"))
        self.wait_until(lambda: len(self.runners()) == 4, "three checkpoints")
        for pid in self.runners():
            if pid != worker:
                os.kill(pid, signal.SIGSTOP)
        self.assertEqual(self.lose("os._exit(1)").end["after"], {"restored": 2})

    def test_checkpoints_that_died_are_passed_over(self):
        self.run_ok("x = int(1)")
        self.wait_until(lambda: len(self.runners()) == 3, "two checkpoints")
        worker = int(self.kernel.run("import os; os.getppid() and os.getpid()").value)
        self.wait_until(lambda: len(self.runners()) == 4, "three checkpoints")
        newest = max(pid for pid in self.runners() if pid != worker)
        lost = self.lose(f"os.kill({newest}, 9); os._exit(1)")
        self.assertEqual((lost.end["after"], lost.end["older"]), ({"restored": 1}, True))
        worker = int(self.value("import os; os.getpid()"))
        self.wait_until(lambda: len(self.runners()) == 4, "three checkpoints")
        for pid in sorted(self.runners(), key=lambda pid: pid == worker):
            os.kill(pid, signal.SIGKILL)
        self.kernel.expect("worker_replaced", after="lost", exit_code=-9)
        self.assertEqual(self.value("'x' in globals()"), "False")
        self.assertEqual(self.lose("import os; os._exit(1)").end["after"], {"restored": self.kernel.next_cell - 1})

    def test_a_copy_that_is_slow_to_come_is_waited_for(self):
        # The copy takes as long as on a machine that has no time for it.
        self.run_ok("import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(1)); x = 1")
        self.run_ok("x = 2")
        self.assertEqual(self.lose("os._exit(1)").end["after"], {"restored": 2})
        self.assertEqual(self.value("x"), "2")

    def test_a_state_whose_checkpoint_died_is_put_by_again_before_the_next_cell(self):
        worker = int(self.value("import os; x = 1; os.getpid()"))
        self.wait_until(lambda: len(self.runners()) == 3, "two checkpoints")
        os.kill(max(pid for pid in self.runners() if pid != worker), signal.SIGKILL)
        self.wait_until(lambda: len(self.runners()) == 2, "one checkpoint")
        self.assertEqual(self.lose("os._exit(1)").end["after"], {"restored": 1})

    def test_the_worker_goes_first_when_memory_is_short(self):
        score = "open('/proc/self/oom_score_adj').read().strip()"
        worker = int(self.value("import os; os.getpid()"))
        self.wait_until(lambda: len(self.runners()) == 3, "two checkpoints")
        scores = []
        for pid in self.runners():
            if pid != worker:
                with open(f"/proc/{pid}/oom_score_adj", encoding="ascii") as file:
                    scores.append(int(file.read()))
        self.assertLess(max(scores), 600)
        # The guardian goes last, because without it no checkpoint can take over.
        with open(f"/proc/{self.kernel.process.pid}/oom_score_adj", encoding="ascii") as file:
            self.assertLess(int(file.read()), min(scores))
        self.assertEqual(self.kernel.run(score, mode="fork").value, "'980'")
        self.lose("os._exit(1)")
        self.assertEqual(self.value(score), "'980'")

    def test_a_fork_cell_of_a_checkpoint_is_first_to_go_too(self):
        run = self.kernel.submit("print('up')\nimport time; time.sleep(60)")
        self.kernel.wait_for_output(run, "up\n")
        score = self.kernel.run("open('/proc/self/oom_score_adj').read().strip()", mode="fork")
        self.assertEqual(score.value, "'980'")


class NeverThere(CheckpointTest):
    def test_where_every_copy_ends_at_once_cells_are_unprotected_and_say_so(self):
        self.run_ok("import os, time; x = 1")
        self.run_ok("ends = True\nos.register_at_fork(after_in_child=lambda: ends and os._exit(0))")
        self.assertFalse(self.run_ok("time.sleep(0.3); after = 1").end["protected"])
        self.assertFalse(self.run_ok("ends = False; time.sleep(0.3)").end["protected"])
        self.assertTrue(self.run_ok("time.sleep(0.3)").end["protected"])
        self.assertEqual(self.lose("os._exit(9)").end["after"], {"restored": 5})
        self.assertEqual(self.value("after"), "1")


class SwitchedOff(CheckpointTest):
    limits = {"checkpoints": 0}

    def test_a_death_costs_the_state_and_nobody_is_warned_of_what_was_chosen(self):
        for run in (self.run_ok("x = 1"), self.run_ok("x = int(2)")):
            self.assertTrue(run.end["protected"])
        self.assertEqual(len(self.runners()), 1)
        self.assertEqual(self.lose("import os; os._exit(1)").end["after"], "lost")
        self.assertEqual(self.value("'x' in globals()"), "False")
        self.assertEqual(self.undo(1)["code"], "out_of_reach")
        busy = self.kernel.submit("print('up')\nwhile True: pass")
        self.kernel.wait_for_output(busy, "up\n")
        refused = self.kernel.run("1", mode="fork")
        self.assertEqual(refused.end["code"], "busy")
        self.kernel.send(type="variables", request=3, private=False)
        self.assertEqual(self.kernel.expect("refused", request=3)["code"], "busy")


class OneOnly(CheckpointTest):
    limits = {"checkpoints": 1}

    def test_one_protects_and_undoes_nothing(self):
        for number in range(5):
            self.run_ok(f"x = int({number})")
        self.wait_until(lambda: len(self.runners()) == 2, "one checkpoint")
        self.assertEqual(self.lose("import os; os._exit(1)").end["after"], {"restored": 5})
        self.assertEqual(self.value("int(x)"), "4")
        self.wait_until(lambda: len(self.runners()) == 2, "one checkpoint")
        self.assertEqual(self.undo(1)["message"], "there is nothing to undo")


class AtRest(CheckpointTest):
    """Checkpoints are made when the session rests; how many cells follow each other without one is up to the machine."""

    limits = {"checkpoints_at_rest": True}

    def test_a_session_that_rests_is_saved(self):
        self.run_ok("x = int(1)")
        self.wait_until(lambda: len(self.runners()) == 3, "checkpoints of before and after it are made")
        self.assertEqual(self.lose("import os; os._exit(1)").end["after"], {"restored": 1})
        self.assertEqual(self.value("x"), "1")

    def test_a_death_in_quick_succession_goes_back_to_what_it_says(self):
        for _ in range(5):
            for _ in range(20):
                self.assertTrue(self.run_ok(f"x = int({self.kernel.next_cell + 1})").end["protected"])
            end = self.lose("import os; os._exit(1)").end
            restored = end["after"]["restored"]
            self.assertEqual(end.get("older", False), restored != end["cell"] - 1)
            seen = self.value(f"seen = globals().get('x', 0); x = int({self.kernel.next_cell + 1}); seen")
            self.assertEqual(seen, str(restored))

    def test_fork_cells_never_see_an_older_state(self):
        for n in range(20):
            self.run_ok(f"x = int({n})")
            running = self.kernel.submit("print('up'); import time; time.sleep(60)")
            self.kernel.wait_for_output(running, "up\n")
            copy = self.kernel.run("x", mode="fork")
            self.assertIn((copy.end["type"], copy.end.get("code") or copy.value), (("cell_done", str(n)), ("refused", "busy")))
            self.kernel.send(type="kill", cell=running.cell, grace_ms=0)
            self.kernel.finish(running)


class Budget(CheckpointTest):
    """Where no counter of the sandbox's own is there, as here, memory is summed up every second."""

    limits = {"memory_bytes": 120 * 2**20, "checkpoint_bytes": 40 * 2**20}

    def test_above_the_sessions_memory_only_the_newest_stays(self):
        for _ in range(4):
            self.run_ok("x = 1")
        run = self.run_ok("b = bytearray(b'x') * (130 * 2**20)")
        self.wait_until(lambda: len(self.runners()) == 2, "the older ones are dropped")
        run = self.run_ok("import time; time.sleep(1.5)")
        self.assertTrue(run.end["protected"])
        self.assertEqual(self.lose("import os; os._exit(1)").end["after"], {"restored": run.cell})

    def test_a_cell_that_takes_more_than_there_is_goes_and_only_that(self):
        self.run_ok("x = 1")
        for mode, after in (("main", {"restored": 1}), ("fork", "kept")):
            lost = self.kernel.run("b = bytearray(b'x') * (500 * 2**20)\nimport time; time.sleep(5)", mode=mode).end
            self.assertEqual((lost["type"], lost["exit_code"], lost["after"]), ("cell_lost", -9, after))
            self.assertTrue(lost["out_of_memory"])
        bomb = "b = bytearray(b'x') * (500 * 2**20)\nimport time; time.sleep(5)"
        run = self.run_ok(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {bomb!r}]).returncode")
        self.assertEqual(run.value, "-9")
        self.assertEqual(self.value("x"), "1")

    def test_memory_that_is_shared_counts(self):
        self.run_ok("x = 1")
        bomb = "import mmap, time\nm = mmap.mmap(-1, 500 * 2**20)\nm.write(bytes(len(m)))\ntime.sleep(5)"
        lost = self.kernel.run(bomb).end
        self.assertEqual((lost["type"], lost["exit_code"], lost.get("out_of_memory")), ("cell_lost", -9, True))
        self.assertEqual(self.value("x"), "1")

    def test_what_goes_on_after_its_cell_is_held_too(self):
        self.run_ok("x = 1")
        grow = "def grow():\n    time.sleep(0.2)\n    global b\n    b = bytearray(b'x') * (500 * 2**20)"
        self.run_ok(f"import threading, time\n{grow}\nthreading.Thread(target=grow, daemon=True).start()")
        self.kernel.expect("worker_replaced", exit_code=-9)
        self.assertEqual(self.value("x, 'b' in globals()"), "(1, False)")
        bomb = "b = bytearray(b'x') * (500 * 2**20)\nimport time; time.sleep(60)"
        self.run_ok(f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {bomb!r}])")
        self.wait_until(lambda: self.value("p.poll()") == "-9", "the process is killed")

    def test_many_small_processes_are_held_together(self):
        bomb = "b = bytearray(b'x') * (40 * 2**20)\nimport time; time.sleep(600)"
        self.run_ok(f"import subprocess, sys\nall = [subprocess.Popen([sys.executable, '-c', {bomb!r}]) for _ in range(24)]")
        # Within the patience of a test, which is less than a second for each of them.
        self.wait_until(lambda: int(self.value("sum(p.poll() is None for p in all)")) <= 4, "those that fit are left")
        self.assertEqual(self.value("{p.poll() for p in all} <= {None, -9}"), "True")

    def test_it_goes_too_when_copies_fill_the_budget_and_the_result_says_so(self):
        self.run_ok("b = bytearray(b'x') * (80 * 2**20)")
        run = self.run_ok("for i in range(0, len(b), 4096): b[i] = 1\nimport time; time.sleep(2.5)")
        self.assertFalse(run.end["protected"])
        self.assertTrue(self.run_ok("1").end["protected"])


class WhileACellRuns(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.run_ok("x = [1]")
        self.busy = self.kernel.submit("x.append(2)\nprint('up')\nwhile True: pass")
        self.kernel.wait_for_output(self.busy, "up\n")

    def test_fork_cells_see_the_state_before_it(self):
        run = self.kernel.run("x.append(3); print('out'); x", mode="fork")
        self.assertEqual((run.value, run.stdout, run.end["as_before"]), ("[1, 3]", "out\n", self.busy.cell))
        lost = self.kernel.run("import os; os._exit(7)", mode="fork")
        self.assertEqual((lost.end["type"], lost.end["after"]), ("cell_lost", "kept"))
        self.kernel.send(type="interrupt", cell=self.busy.cell)
        done = self.kernel.finish(self.busy)
        self.assertEqual((done.end["status"], done.end["as_before"]), ("interrupted", None))
        self.assertEqual(self.value("x"), "[1, 2]")
        self.assertIsNone(self.kernel.run("x", mode="fork").end["as_before"])

    def test_variables_are_those_before_it(self):
        listed = self.kernel.variables()
        self.assertEqual((listed["as_before"], listed["variables"][0]["preview"]), (self.busy.cell, "[1]"))
        self.kernel.send(type="kill", cell=self.busy.cell, grace_ms=100)
        self.kernel.finish(self.busy)
        self.assertIsNone(self.kernel.variables()["as_before"])

    def test_a_fork_cell_outlives_the_loss_of_the_cell(self):
        fork = self.kernel.submit("import time\nprint('go')\ntime.sleep(0.3)\nx", mode="fork")
        self.kernel.wait_for_output(fork, "go\n")
        self.kernel.send(type="kill", cell=self.busy.cell, grace_ms=100)
        self.kernel.finish(self.busy)
        self.assertEqual(self.kernel.finish(fork).value, "[1]")

    def test_undo_has_to_wait(self):
        refused = self.undo(1)
        self.assertEqual((refused["code"], refused["request"]), ("busy", 8))
