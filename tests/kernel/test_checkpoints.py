"""Checkpoints: what a lost cell leaves, and that honest code does not notice them."""

import os
import signal
import time

from harness import KernelTest, is_alive

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


class CheckpointTest(KernelTest):
    def lose(self, code, exit_code=None):
        """Run a cell that dies; a `kill` helps those that would not."""
        run = self.kernel.submit(code)
        if exit_code == "kill":
            time.sleep(0.05)
            self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.assertEqual(run.end["type"], "cell_lost", run.end)
        self.assertEqual(run.end["killed"], exit_code == "kill")
        if isinstance(exit_code, int):
            self.assertEqual(run.end["exit_code"], exit_code)
        return run

    def undo(self, cells):
        self.kernel.send(type="undo", request=8, cells=cells)
        return self.kernel.next_frame()

    def runners(self):
        """Processes of the kernel beside the guardian."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and parent_of(name) == self.kernel.process.pid and is_alive(name) and not is_helper(name):
                found.append(int(name))
        return found


def is_helper(pid):
    """The process that takes descriptors in the guardian's place is no runner, nor is the one that makes them."""
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
            return file.read() in ("belljar-inbox\n", "belljar-zygote\n")
    except OSError:
        return False


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


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
        # As on a machine that has no time for it.
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
        # And the guardian goes last, because without it there is nobody to go on with a checkpoint.
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


class Unnoticed(CheckpointTest):
    """Honest code does not notice checkpoints."""

    def test_pipes_reach_their_end(self):
        self.run_ok("from subprocess import Popen, PIPE\np = Popen(['cat'], stdin=PIPE, stdout=PIPE)")
        self.run_ok("p.stdin.write(b'hello')")
        self.assertEqual(self.value("p.stdin.close(); p.stdout.read(), p.wait()"), "(b'hello', 0)")

    def test_a_port_can_be_bound_again_at_once(self):
        self.run_ok("import socket\ns = socket.create_server(('127.0.0.1', 0))\nport = s.getsockname()[1]")
        for _ in range(10):
            self.run_ok("s.close()\ns = socket.socket()\ns.bind(('127.0.0.1', port))\ns.listen()")

    def test_a_lock_is_released(self):
        self.run_ok("import fcntl\nf = open('lock', 'w')\nfcntl.flock(f, fcntl.LOCK_EX)")
        self.run_ok("f.close()\ng = open('lock', 'w')\nfcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)")

    def test_no_child_is_seen(self):
        self.run_ok("x = 1")
        run = self.run_ok("import os\ntry: os.wait()\nexcept ChildProcessError: print('none')")
        self.assertEqual(run.stdout, "none\n")
        self.run_ok("import signal\nseen = []\nsignal.signal(signal.SIGCHLD, lambda *a: seen.append(a))")
        self.run_ok("1")
        self.assertEqual(self.value("seen"), "[]")
        self.run_ok("import subprocess; subprocess.run(['true'])")
        self.assertEqual(self.value("len(seen)"), "1")

    def test_threads_and_tasks_tick_on(self):
        self.run_ok(
            "import asyncio, threading, time\nn = [0, 0]\ndef thread():\n    while True: n[0] += 1; time.sleep(0.005)\n"
            "async def task():\n    while True: n[1] += 1; await asyncio.sleep(0.005)\n"
            "threading.Thread(target=thread, daemon=True).start()\nt = asyncio.create_task(task())\nawait asyncio.sleep(0)"
        )
        live = self.run_ok("1").end["live"]
        self.assertEqual(live, {"threads": 1, "tasks": 1, "children": 0})
        before = self.value("tuple(n)")
        time.sleep(0.1)
        after = self.value("tuple(n)")
        self.assertTrue(all(a > b + 3 for a, b in zip(eval(after), eval(before))), (before, after))
        self.lose("import os; os._exit(1)")
        run = self.run_ok("n1 = list(n)\nawait asyncio.sleep(0.05)\nn1 == n, t.done()")
        self.assertEqual((run.value, run.both, self.kernel.idle_output), ("(True, False)", "", []))
        self.assertEqual(run.end["live"], {"threads": 0, "tasks": 0, "children": 0})
        self.assertEqual(self.run_ok("del t\nimport gc; gc.collect()").both, "")
        self.assertEqual(self.value("loop = asyncio.get_event_loop(); loop.run_until_complete(asyncio.sleep(0, 4))"), "4")

    def test_children_are_counted(self):
        run = self.run_ok("import subprocess\np = [subprocess.Popen(['sleep', '1000']) for _ in range(3)]")
        self.assertEqual(run.end["live"]["children"], 3)

    def test_generators_go_on_as_they_should(self):
        expected = self.value("import random\nrandom.seed(1)\nrandom.random()")
        self.run_ok("random.seed(1)")
        self.lose("random.random(); import os; os._exit(1)")
        self.assertEqual(self.value("random.random()"), expected)

    def test_file_positions_are_those_of_the_state(self):
        self.run_ok("f = open('data', 'wb+', buffering=0)\nf.write(b'abc')")
        self.run_ok("f.write(b'def')")
        self.lose("f.write(b'lost'); import os; os._exit(1)")
        self.assertEqual(self.value("f.tell()"), "6")
        self.assertEqual(self.value("f.write(b'x'), f.seek(0), f.read()"), "(1, 0, b'abcdefxost')")

    def test_a_deleted_file_is_freed_with_its_checkpoints(self):
        self.run_ok("import os\nf = open('big', 'wb')\nf.write(b'x' * 1000)\nos.unlink('big')")
        self.run_ok("f.close(); del f")
        self.assertTrue(any("(deleted)" in link for pid in self.runners() for link in links(pid)))
        for _ in range(9):
            self.run_ok("int()")
        self.wait_until(lambda: not any("(deleted)" in link for pid in self.runners() for link in links(pid)), "freed")

    def test_connections_are_dead_after_a_rollback(self):
        self.run_ok("import os, socket\nr, w = os.pipe()\na, b = socket.socketpair()\nos.write(w, b'x')")
        self.lose("os._exit(1)")
        run = self.run_ok(
            "got = os.read(r, 1), a.recv(1)\nfor send in (lambda: os.write(w, b'x'), lambda: a.send(b'x')):\n"
            "    try: send()\n    except BrokenPipeError: got += ('broken',)\ngot"
        )
        self.assertEqual(run.value, "(b'', b'', 'broken', 'broken')")

    def test_strict_warnings_and_at_fork_handlers_do_no_harm(self):
        self.run_ok(
            "import os, threading, time, warnings\nwarnings.simplefilter('error')\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
            "os.register_at_fork(before=lambda: 1/0, after_in_parent=lambda: 1/0, after_in_child=lambda: 1/0)"
        )
        self.assertEqual(self.run_ok("x = 1").end["protected"], True)
        self.lose("os._exit(1)")
        self.assertEqual(self.value("x"), "1")
        self.assertEqual(self.kernel.idle_output, [])


def links(pid):
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    except OSError:
        pass
    return found


class Endurance(CheckpointTest):
    limits = {"checkpoints": 3}

    def test_many_lethal_cells_grow_nothing(self):
        self.run_ok("import os, asyncio\nx = bytes(10**6)\nawait asyncio.sleep(0)")
        sizes = []
        deaths = ["os._exit(1)", "os.kill(os.getpid(), 9)", "import ctypes; ctypes.string_at(0)"]
        for number in range(60):
            self.assertEqual(self.kernel.run(deaths[number % 3]).end["after"], {"restored": 1})
            if number in (19, 59):
                self.wait_until(lambda: len(self.runners()) == 3, "the last checkpoint")
                sizes.append(self.size())
        first, last = sizes
        self.assertEqual(first[:2], last[:2])
        self.assertLess(last[2] - first[2], 512 * 1024)

    def size(self):
        """Descriptors of guardian and worker, memory of the guardian."""
        guardian = self.kernel.process.pid
        with open(f"/proc/{guardian}/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * 4096
        own = self.kernel.run("len(os.listdir('/proc/self/fd'))", mode="fork").value
        time.sleep(0.2)  # until all that has ended is reaped
        return len(os.listdir(f"/proc/{guardian}/fd")), int(own), resident
