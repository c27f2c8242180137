"""What code in a cell can do to keep the guardian from its work, or to outlive its own end."""

import os
import re
import time

from harness import KERNEL, KernelTest, is_alive
from test_forged import SAY

LIMITS_OF_DAEMON = os.path.join(KERNEL, "..", "src", "protocol", "limits.rs")
# Four processes that send messages in the name of the worker, for as long as they live.
FLOOD = """
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        data = struct.pack('>IB', 0, ord('Q')) * 800
        while True:
            os.write(900, data)
time.sleep(0.3)
"""


class Hostile(KernelTest):
    def setUp(self):
        super().setUp()
        self.run_ok(SAY + "kept = 'as it was'")

    def kill(self, run):
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)

    def is_restored(self, run):
        self.assertEqual((run.end["type"], list(run.end["after"])), ("cell_lost", ["restored"]), run.end)
        self.assertEqual(self.value("kept"), "'as it was'")


class Held(Hostile):
    """The guardian answers in time, whatever runners say or do not say."""

    def test_processes_that_send_for_ever_do_not_put_off_the_end_of_their_worker(self):
        for ending in ("os._exit(3)", "print('ready', flush=True)\nwhile True: pass"):
            run = self.kernel.submit(FLOOD + ending)
            if "ready" in ending:
                self.kernel.wait_for_output(run, "ready\n")
                self.kill(run)
            self.kernel.finish(run, timeout=10)
            self.is_restored(run)

    def test_checkpoints_that_do_not_answer_have_one_budget_together(self):
        self.run_ok(
            "import sys\nsys.modules['belljar_kernel.runner'].Runner._become_worker = lambda self: time.sleep(1000)"
        )
        for n in range(5):
            self.run_ok(f"x{n} = 1")
        run = self.kernel.submit("print('ready')\nwhile True: pass")
        self.kernel.wait_for_output(run, "ready\n")
        self.kill(run)
        self.kernel.finish(run, timeout=14)
        self.is_restored(run)

    def test_all_waits_of_one_end_are_shorter_than_the_daemon_waits(self):
        with open(LIMITS_OF_DAEMON, encoding="utf-8") as file:
            report_s = int(re.search(r"KILL_REPORT: Duration = Duration::from_secs\((\d+)\)", file.read())[1])
        with open(os.path.join(KERNEL, "belljar_kernel", "limits.py"), encoding="utf-8") as file:
            turn_s = float(re.search(r"^TURN_S = (.+)$", file.read(), re.MULTILINE)[1])
        # The rest is for what takes CPU time, on a machine that has other things to do.
        self.assertLessEqual(turn_s, report_s * 0.6)


class Outliving(Hostile):
    """What belongs to a cell ends with the cell."""

    def pid_of(self, run):
        self.kernel.wait_for_output(run, "\n")
        return int(run.stdout.split()[0])

    def test_a_copy_that_says_that_it_is_done_ends(self):
        run = self.kernel.submit(
            "print(os.getpid(), flush=True)\nsay('D', struct.pack('>Q', 2) + DONE)\ntime.sleep(1000)", mode="fork"
        )
        pid = self.pid_of(run)
        self.kernel.finish(run)
        self.assertEqual(run.end["type"], "cell_done")
        self.wait_until(lambda: not is_alive(pid), "the copy ends")

    def test_a_process_of_the_main_line_cannot_pass_for_one_of_a_copy(self):
        fork = self.kernel.submit("print(os.getpid(), flush=True)\ntime.sleep(1000)", mode="fork")
        copy = self.pid_of(fork)
        run = self.kernel.submit(
            "import resource\n"
            f"for line in open('/proc/{copy}/limits'):\n"
            "    if line.startswith('Max realtime timeout'): tag = int(line.split()[-2])\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n    resource.setrlimit(resource.RLIMIT_RTTIME, (tag, tag))\n"
            "    print(os.getpid(), flush=True)\n    time.sleep(1000)\n"
            "while True: pass"
        )
        pid = self.pid_of(run)
        self.kill(run)
        self.kernel.finish(run)
        self.wait_until(lambda: not is_alive(pid), "the child ends")
        self.assertTrue(is_alive(copy))
        self.kill(fork)
        self.kernel.finish(fork)

    def test_a_process_of_one_copy_cannot_pass_for_one_of_another(self):
        older = self.kernel.submit("print(os.getpid(), flush=True)\ntime.sleep(1000)", mode="fork")
        copy = self.pid_of(older)
        run = self.kernel.submit(
            "import resource\n"
            f"for line in open('/proc/{copy}/limits'):\n"
            "    if line.startswith('Max realtime timeout'): tag = int(line.split()[-2])\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n    if os.fork(): os._exit(0)\n"
            "    os.setsid()\n    resource.setrlimit(resource.RLIMIT_RTTIME, (tag, tag))\n"
            "    print(os.getpid(), flush=True)\n    time.sleep(1000)\n"
            "time.sleep(1000)",
            mode="fork",
        )
        pid = self.pid_of(run)
        self.kill(run)
        self.kernel.finish(run)
        self.wait_until(lambda: not is_alive(pid), "the child ends")
        self.assertTrue(is_alive(copy))
        self.kill(older)
        self.kernel.finish(older)

    def test_what_a_living_copy_has_started_stays(self):
        fork = self.kernel.submit(
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    os.setsid()\n"
            "    print(os.getpid(), flush=True)\n    time.sleep(1000)\n"
            "time.sleep(1000)",
            mode="fork",
        )
        pid = self.pid_of(fork)
        self.kernel.send(type="variables", request=5, private=False)
        self.kernel.expect("variables", request=5)
        run = self.kernel.submit("print('ready')\nwhile True: pass")
        self.kernel.wait_for_output(run, "ready\n")
        self.kill(run)
        self.kernel.finish(run)
        self.is_restored(run)
        time.sleep(0.2)
        self.assertTrue(is_alive(pid))
        self.kill(fork)
        self.kernel.finish(fork)
        self.wait_until(lambda: not is_alive(pid), "its process ends with it")

    def test_what_a_checkpoint_has_started_ends_with_the_cell(self):
        self.run_ok(
            "import sys\nkind = sys.modules['belljar_kernel.runner'].Runner\nplain = kind._say_present\n"
            "def present(self):\n"
            "    plain(self)\n"
            "    if self._waits and os.fork() == 0:\n"
            "        os.setsid()\n        open('pid', 'w').write(str(os.getpid()))\n        time.sleep(1000)\n"
            "kind._say_present = present"
        )
        path = os.path.join(self.kernel.workspace, "pid")
        self.wait_until(lambda: os.path.exists(path) and os.path.getsize(path), "it runs")
        run = self.kernel.submit("print('ready')\nwhile True: pass")
        self.kernel.wait_for_output(run, "ready\n")
        with open(path, encoding="ascii") as file:
            pid = int(file.read())
        self.assertTrue(is_alive(pid))
        self.kill(run)
        self.kernel.finish(run)
        self.is_restored(run)
        self.wait_until(lambda: not is_alive(pid), "the child of the checkpoint ends")
