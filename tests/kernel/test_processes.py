"""Ends of workers, fork cells, reset, and what is left of their processes."""

import ast
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest

from harness import Kernel, KernelTest, is_alive

KILLED = {"type": "cell_lost", "cell": 1, "killed": True}


class Crashes(KernelTest):
    def test_os_exit_is_a_lost_cell_with_its_code(self):
        run = self.kernel.run("import os\ntry:\n    os._exit(139)\nexcept BaseException:\n    pass")
        lost = {"type": "cell_lost", "cell": 1, "exit_code": 139, "killed": False, "after": {"restored": 0}}
        self.assertEqual(run.end, lost)
        self.assertEqual(run.both, "")

    def test_a_segfault_is_a_lost_cell_with_its_signal(self):
        run = self.kernel.run("import os, signal\nprint('so far')\nos.kill(os.getpid(), signal.SIGSEGV)")
        self.assertEqual((run.end["type"], run.end["exit_code"]), ("cell_lost", -signal.SIGSEGV))
        self.assertEqual(run.stdout, "so far\n")

    def test_a_fresh_worker_has_the_seed_only(self):
        self.kernel.configure({"a": 1})
        self.run_ok("b = 2")
        self.kernel.send(type="reset", request=1)
        self.kernel.expect("reset_done")
        self.assertEqual(self.value("a, 'b' in globals()"), "(1, False)")

    def test_a_crash_between_cells_is_told(self):
        self.run_ok(
            "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(0.5), os._exit(5))).start()"
        )
        self.kernel.expect("worker_replaced", exit_code=5, after={"restored": 1})
        self.assertEqual(self.value("1"), "1")

    def test_children_of_a_lost_worker_are_killed(self):
        run = self.kernel.submit(
            "import subprocess, os\np = subprocess.Popen(['sleep', '1000'])\n"
            "q = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    print('daemon', os.getpid(), flush=True)\n"
            "    import time; time.sleep(1000)\n"
            "print('children', p.pid, q.pid)\nos.wait()\nimport time; time.sleep(1000)"
        )
        pids = []
        while len(pids) < 3:
            self.kernel.step(run)
            pids = [int(word) for word in re.findall(r"\d+(?=[ \n])", run.stdout)]
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.assertTrue(run.end["killed"])
        self.assertEqual(run.end["exit_code"], -signal.SIGTERM)
        self.wait_until(lambda: not any(map(is_alive, pids)), "the children end")

    def test_a_broken_frame_of_the_worker_costs_only_the_worker(self):
        run = self.kernel.run(
            "import os, time\nfor fd in range(800, 1000):\n    try: os.write(fd, b'\\xff' * 64)\n"
            "    except OSError: pass\ntime.sleep(60)"
        )
        while run.end is None or run.end["type"] != "cell_lost":
            self.kernel.step(run)
        self.assertEqual(self.value("1"), "1")

    def test_closing_all_descriptors_costs_only_the_worker(self):
        run = self.kernel.run("import os\nos.closerange(0, 4096)")
        self.assertEqual(run.end["type"], "cell_lost")
        self.assertEqual(self.value("1"), "1")


class Kill(KernelTest):
    def test_partial_output_survives_a_kill(self):
        run = self.kernel.submit("import time\nprint('Start sleeping...')\ntime.sleep(60)")
        self.kernel.wait_for_output(run, "...\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.assertEqual(run.end, {**KILLED, "exit_code": -15, "after": {"restored": 0}})
        self.assertEqual(run.stdout, "Start sleeping...\n")

    def test_a_cell_that_ignores_sigterm_is_killed_after_the_grace(self):
        run = self.kernel.submit(
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\nwhile True: pass"
        )
        self.kernel.wait_for_output(run, "deaf\n")
        started = time.monotonic()
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.assertGreater(time.monotonic() - started, 0.09)
        self.assertEqual(run.end["exit_code"], -9)

    def test_a_kill_of_an_ended_cell_is_ignored(self):
        self.run_ok("x = 1")
        self.kernel.send(type="kill", cell=1, grace_ms=0)
        self.assertEqual(self.value("x"), "1")

    def test_a_cell_that_ends_within_the_grace_was_too_late(self):
        self.run_ok("x = 0")
        run = self.kernel.submit(
            "import signal\nclass Stop(Exception): pass\ndef stop(*a): raise Stop\nsignal.signal(signal.SIGTERM, stop)\n"
            "try:\n    print('ready')\n    while True: pass\nexcept Stop:\n    pass\nx = 1"
        )
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=2000)
        self.kernel.finish(run)
        self.assertEqual((run.end["type"], run.end["killed"]), ("cell_lost", True))
        self.assertEqual(self.value("x"), "0")

    def test_a_busy_main_line_refuses_other_cells(self):
        # It blocks for short times only: Python does not notice a signal that comes right before it blocks.
        run = self.kernel.submit("import time\nprint('ready')\nwhile True: time.sleep(0.01)")
        self.kernel.wait_for_output(run, "ready\n")
        refused = self.kernel.run("1")
        self.assertEqual((refused.end["type"], refused.end["code"]), ("refused", "busy"))
        self.kernel.send(type="interrupt", cell=run.cell)
        self.kernel.finish(run)


class ForkCells(KernelTest):
    def test_changes_of_a_fork_cell_are_dropped(self):
        self.run_ok("x = [1]")
        run = self.run_ok("x.append(2)\nprint('in the copy')\nx", mode="fork")
        self.assertEqual((run.stdout, run.value), ("in the copy\n", "[1, 2]"))
        self.assertEqual(self.value("x"), "[1]")

    def test_a_crash_of_a_fork_cell_keeps_the_state(self):
        self.run_ok("x = 7")
        run = self.kernel.run("import os\nprint('x', x)\nos._exit(9)", mode="fork")
        self.assertEqual(run.end, {**KILLED, "cell": 2, "exit_code": 9, "killed": False, "after": "kept"})
        self.assertEqual(run.stdout, "x 7\n")
        self.assertEqual(self.value("x"), "7")

    def test_main_runs_beside_fork_cells_and_output_is_told_apart(self):
        slow = self.kernel.submit("import time\nprint('fork')\ntime.sleep(60)", mode="fork")
        self.kernel.wait_for_output(slow, "fork\n")
        main = self.kernel.run("print('main')\n1")
        self.assertEqual((main.stdout, main.value), ("main\n", "1"))
        self.kernel.send(type="kill", cell=slow.cell, grace_ms=50)
        self.kernel.finish(slow)
        self.assertEqual((slow.end["type"], slow.end["killed"]), ("cell_lost", True))
        self.assertEqual(self.value("2"), "2")

    def test_a_fork_cell_can_be_interrupted(self):
        run = self.kernel.submit("print('ready')\nwhile True: pass", mode="fork")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="interrupt", cell=run.cell)
        self.assertEqual(self.kernel.finish(run).end["status"], "interrupted")

    def test_processes_of_a_fork_cell_end_with_it(self):
        run = self.run_ok("import subprocess\nsubprocess.Popen(['sleep', '1000']).pid", mode="fork")
        self.wait_until(lambda: not is_alive(int(run.value)), "the process ends")

    def test_a_fork_cell_has_a_loop_of_its_own(self):
        self.run_ok(
            "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n        ticks += 1\n"
            "        await asyncio.sleep(0.005)\ntask = asyncio.create_task(tick())\nawait asyncio.sleep(0)"
        )
        self.assertEqual(self.run_ok("await asyncio.sleep(0.01, 'x')", mode="fork").value, "'x'")
        before = int(self.value("ticks"))
        self.wait_until(lambda: int(self.value("ticks")) > before, "the task of the main line goes on")

    def test_fork_cells_with_threads_in_the_worker_warn_nobody(self):
        self.run_ok("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
        self.assertEqual(self.run_ok("1", mode="fork").both, "")
        run = self.run_ok("import os\nif os.fork() == 0: os._exit(0)\nos.wait()[1]")
        self.assertEqual((run.both, run.value), ("", "0"))


    def test_who_is_stopped_while_a_copy_is_made_holds_nobody_up(self):
        self.run_ok("import os, signal; x, worker, stops = 1, os.getpid(), 'between'")
        # The process between the two forks stops itself, and later the copy does, too.
        self.run_ok(
            "def stop():\n    if stops == 'both' or os.getppid() == worker: os.kill(os.getpid(), signal.SIGSTOP)\n"
            "os.register_at_fork(after_in_child=stop)"
        )
        self.assertEqual(self.run_ok("x", mode="fork").value, "1")
        self.run_ok("stops = 'both'")
        self.assertEqual(self.run_ok("x", mode="fork").value, "1")
        self.assertEqual(self.value("x"), "1")

    def test_a_lack_of_descriptors_is_told_as_such(self):
        self.run_ok("import os\nheld = []\ntry:\n    while True: held.append(os.dup(0))\nexcept OSError: pass")
        for _ in range(6):  # also where some of those that are handed over have a place
            run = self.kernel.run("1", mode="fork")
            self.assertEqual(run.end.get("code"), "no_descriptors", run.end)
            self.run_ok("os.close(held.pop())")
        self.kernel.send(type="variables", request=3, private=False)
        self.kernel.expect("refused", request=3, code="no_descriptors")
        self.run_ok("for fd in held: os.close(fd)")
        self.assertEqual(self.run_ok("1", mode="fork").value, "1")


class Reset(KernelTest):
    def test_reset_gives_a_fresh_worker_with_the_seed(self):
        self.kernel.configure({"a": 1})
        self.run_ok("b = 2")
        self.kernel.send(type="reset", request=11)
        self.kernel.expect("reset_done", request=11)
        self.assertEqual(self.value("a, 'b' in globals()"), "(1, False)")

    def test_reset_ends_a_running_cell_first(self):
        run = self.kernel.submit("print('ready')\nwhile True: pass")
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="reset", request=12)
        self.kernel.finish(run)
        self.assertEqual(run.end, {**KILLED, "exit_code": -9, "after": "lost"})
        self.kernel.expect("reset_done", request=12)


class Guardian(KernelTest):
    def test_the_worker_holds_none_of_the_guardians_descriptors(self):
        listed = self.value("import os\nsorted(int(n) for n in os.listdir('/proc/self/fd'))")
        low = [number for number in eval(listed) if 2 < number < 800]
        self.assertEqual(len(low), 1)  # the listing itself

    def test_what_the_starter_left_open_is_closed(self):
        with tempfile.TemporaryFile() as secret:
            kernel = Kernel(inherits=[secret.fileno()])
            self.addCleanup(kernel.close)
            kernel.start()
            opened = os.fstat(secret.fileno())
            for pid in (kernel.process.pid, int(kernel.run("import os; os.getpid()").value)):
                held = [os.stat(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if os.path.exists(entry.path)]
                self.assertNotIn((opened.st_dev, opened.st_ino), [(file.st_dev, file.st_ino) for file in held])

    def test_the_worker_is_dumpable_and_first_to_go_when_memory_is_short(self):
        self.assertEqual(self.value("open('/proc/self/oom_score_adj').read().strip()"), "'980'")

    def test_the_guardian_handles_no_signals(self):
        with open(f"/proc/{self.kernel.process.pid}/status", encoding="ascii") as file:
            caught = next(line for line in file if line.startswith("SigCgt")).split()[1]
        self.assertEqual(int(caught, 16), 0)

    def test_bye_ends_everything(self):
        pid = int(self.value("import os; os.getpid()"))
        child = int(self.value("import subprocess; subprocess.Popen(['sleep', '1000']).pid"))
        self.kernel.send(type="bye")
        self.assertEqual(self.kernel.process.wait(5), 0)
        self.wait_until(lambda: not is_alive(pid) and not is_alive(child), "all processes end")

    def test_the_marker_is_printed(self):
        self.assertEqual(self.kernel.process.stdout.readline(), b"INITIALIZED SERVER\n")

    def test_zombies_of_the_sandbox_are_reaped(self):
        run = self.run_ok(
            "import os, time\nr, w = os.pipe()\nif os.fork() == 0:\n    child = os.fork()\n    if child: os.write(w, b'%d' % child)\n"
            "    os._exit(0)\nos.wait()\nint(os.read(r, 100))"
        )
        orphan = int(run.value)
        self.wait_until(lambda: not os.path.exists(f"/proc/{orphan}"), "the orphan is reaped")


class Workspace(KernelTest):
    def test_cells_start_in_the_workspace(self):
        self.assertEqual(self.value("import os; os.getcwd()"), repr(os.path.realpath(self.kernel.workspace)))

    def test_every_cell_starts_there_unless_the_session_keeps_its_folder(self):
        workspace = os.path.realpath(self.kernel.workspace)
        self.run_ok("import os; os.mkdir('sub'); os.chdir('sub'); open('here', 'w').close()")
        self.assertEqual(self.value("os.getcwd()"), repr(workspace))
        self.run_ok("os.chdir('sub'); os.remove('here'); os.rmdir('../sub')")
        self.assertEqual(self.value("os.getcwd()"), repr(workspace))
        self.run_ok("os.mkdir('kept')\n%cd kept")
        self.run_ok("os.chdir('/')")
        self.assertEqual(self.value("os.getcwd()"), repr(workspace + "/kept"))
        kernel = Kernel(limits={"keep_cwd": True})
        self.addCleanup(kernel.close)
        kernel.start()
        kernel.run("import os; os.chdir('/')")
        self.assertEqual(kernel.run("os.getcwd()").value, repr("/"))

    def test_a_workspace_that_cannot_be_entered_is_reported(self):
        kernel = Kernel(arguments=("--workspace", "/does/not/exist"))
        self.addCleanup(kernel.close)
        kernel.start()
        run = kernel.run("1")
        self.assertEqual(run.value, "1")
        said = b"".join(data for _, data in kernel.idle_output).decode() + run.stderr
        self.assertIn("cannot change directory", said)
        self.assertRegex(said, r"process \d+")


UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _can_unshare():
    return subprocess.run([*UNSHARE, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


@unittest.skipUnless(_can_unshare(), "needs a pid namespace")
class PidOne(KernelTest):
    """The guardian as pid 1 of its own namespace."""

    def setUp(self):
        self.kernel = Kernel(prefix=UNSHARE)
        self.addCleanup(self.kernel.close)
        self.assertTrue(self.kernel.start()["probe"]["is_init"])

    def test_processes_that_stop_every_new_one_do_not_hold_it_up(self):
        self.run_ok("import os, signal, time; kept = [1]")
        self.run_ok(
            "for name in filter(str.isdigit, os.listdir('/proc')):\n"
            "    if open(f'/proc/{name}/comm').read() == 'belljar-inbox\\n': os.kill(int(name), 9)\n"
            "time.sleep(0.6)\n"  # the guardian reaps it, and starts another one for the next checkpoint
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    own, until = os.getpid(), time.monotonic() + 2\n"
            "    while time.monotonic() < until:\n"
            "        for pid in range(own + 1, own + 6):\n"
            "            try: os.kill(pid, signal.SIGSTOP)\n"
            "            except OSError: pass\n"
            "    os._exit(0)"
        )
        time.sleep(2.5)  # until they have ended, because they would also stop what the next cell needs
        self.assertEqual(self.value("kept"), "[1]")

    def test_no_number_that_code_chooses_overflows(self):
        run = self.kernel.run(
            "import mmap, os, time\n"
            "zero = os.open('/dev/zero', os.O_RDWR)\n"
            "maps = [mmap.mmap(zero, 4096, offset=2**63 - 2**13) for _ in range(3)]\n"
            "time.sleep(3)"
        )
        self.assertIn(run.end["type"], ("cell_done", "cell_lost"))
        self.assertEqual(self.value("6 * 7"), "42")

    def test_a_copy_takes_along_processes_whose_first_thread_has_ended(self):
        self.run_ok("import os")
        run = self.kernel.run(
            "import ctypes, os, threading, time\n"
            "def tick():\n"
            "    while True: time.sleep(1)\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    os.setsid()\n"
            "    threading.Thread(target=tick).start()\n"
            "    ctypes.CDLL(None).syscall(60, 0)\n"
            "time.sleep(0.3)\n"
            "pid, open(f'/proc/{pid}/stat').read().split()[2]",
            mode="fork",
        )
        pid, state = ast.literal_eval(run.value)
        self.assertEqual(state, "Z")
        self.wait_until(lambda: self.value(f"os.path.exists('/proc/{pid}')") == "False", "it is gone")

    def test_no_signal_from_inside_reaches_the_guardian(self):
        for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "SIGHUP", "SIGSEGV"):
            self.run_ok(f"import os, signal\nos.kill(1, signal.{name})")
        self.assertEqual(self.value("os.getppid()"), "1")

    def test_code_that_kills_everybody_loses_only_itself(self):
        fork = self.kernel.submit("print('up')\nimport time; time.sleep(60)", mode="fork")
        self.kernel.wait_for_output(fork, "up\n")
        self.kernel.submit("import os\nos.kill(-1, 9)")
        ends = {}
        while len(ends) < 2:
            frame = self.kernel.next_frame()
            ends[frame["cell"]] = frame["type"]
        self.assertEqual(ends, {1: "cell_lost", 2: "cell_done"})
        self.assertEqual(self.value("1"), "1")

    def test_when_worker_and_checkpoints_are_killed_the_state_is_lost_and_says_so(self):
        self.run_ok("x = 1")
        run = self.kernel.run("import subprocess, time\nsubprocess.run(['sh', '-c', 'kill -9 -1'])\ntime.sleep(60)")
        self.assertEqual((run.end["type"], run.end["after"]), ("cell_lost", "lost"))
        self.assertEqual(self.value("'x' in globals()"), "False")
        self.assertTrue(self.run_ok("1").end["protected"])

    def test_sockets_that_were_made_non_blocking_are_mended(self):
        self.run_ok("import os")
        flip = "for fd in map(int, os.listdir('/proc/self/fd')):\n  try: os.set_blocking(fd, False)\n  except OSError: pass"
        for n in range(60):
            self.run_ok(flip)
            self.assertEqual(self.value(f"{n} + 1"), str(n + 1))

    def test_processes_that_fork_all_the_time_are_killed_with_their_worker(self):
        run = self.kernel.submit(
            "import os, time\nprint('chain')\nif os.fork() == 0:\n    os.setsid()\n"
            "    while True:\n        if os.fork(): os._exit(0)\n        time.sleep(0.001)\ntime.sleep(60)"
        )
        self.kernel.wait_for_output(run, "chain\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=50)
        self.kernel.finish(run)
        # Checkpoints lead sessions of their own.
        others = "import os\n[n for n in os.listdir('/proc') if n.isdigit() and os.getsid(int(n)) not in (0, int(n))]"
        self.wait_until(lambda: self.value(others) == "[]", "all of them are gone")

    def test_a_crowd_that_stood_still_for_the_end_of_its_cell_is_killed(self):
        run = self.kernel.submit(
            "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(600)\n"
            "print('crowd', flush=True)\ntime.sleep(60)"
        )
        self.kernel.wait_for_output(run, "crowd\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=50)
        self.assertEqual(self.kernel.finish(run).end["after"], {"restored": 0})
        count = "import os\nsum(map(str.isdigit, os.listdir('/proc')))"
        self.wait_until(lambda: int(self.value(count)) < 20, "all of them are gone")

    def test_the_state_before_a_cell_is_put_by_when_the_cell_begins(self):
        """However slow the copy is that holds it: the cell may leave it no time."""
        self.run_ok("import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(0.5))")
        run = self.kernel.submit("print('begun', flush=True)\nwhile True: pass")
        self.kernel.wait_for_output(run, "begun\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=0)
        self.kernel.finish(run)
        self.assertEqual(run.end["after"], {"restored": 1})
