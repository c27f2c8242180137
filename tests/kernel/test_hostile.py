"""What code in a cell can do to keep the guardian from its work, or to outlive its own end."""

import os
import re
import time

from harness import KERNEL, KernelTest, is_alive
from test_forged import SAY

BACK_S = 10  # as in the guardian's limits
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
        with open(os.path.join(KERNEL, "guardian", "src", "limits.rs"), encoding="utf-8") as file:
            turn_ms = re.search(r"^pub const TURN: Duration = ms\((.+)\);$", file.read(), re.MULTILINE)[1]
        # The rest is for what takes CPU time, on a machine that has other things to do.
        self.assertLessEqual(int(turn_ms.replace("_", "")) / 1000, report_s * 0.6)


class Outliving(Hostile):
    """What belongs to a cell ends with the cell."""

    def pid_of(self, run):
        self.kernel.wait_for_output(run, "\n")
        return int(run.stdout.split()[0])

    def test_a_copy_that_says_that_it_is_done_ends(self):
        run = self.kernel.submit(
            "print(os.getpid(), flush=True)\nsay('D', struct.pack('>QH', 2, 0) + DONE)\ntime.sleep(1000)", mode="fork"
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
            "import sys\nkind = sys.modules['belljar_kernel.runner'].Runner\nplain = kind._show_size\n"
            "def show(self):\n"
            "    plain(self)\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n        open('pid', 'w').write(str(os.getpid()))\n        time.sleep(1000)\n"
            "kind._show_size = show"
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


# A connection that takes an hour to close, as `lingers`: another process holds its other end and reads nothing.
LINGER = """
import array, socket, threading
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(1)
lingers = socket.create_connection(server.getsockname()); peer, _ = server.accept()
lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 3600)); lingers.setblocking(False)
try:
    while True: lingers.send(b'x' * 65536)
except BlockingIOError: pass
if os.fork() == 0:
    os.setsid(); lingers.close(); time.sleep(1000)
peer.close()
"""
# Sends it on everything that leads to the guardian, which has enough to read before.
SEND = """
for _ in range(10): os.write(900, struct.pack('>IB', 0, ord('Y')) * 3000)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [lingers.fileno()]))]
sent = []
for number in range(900, 907):
    try:
        channel = socket.socket(fileno=os.dup(number))
        channel.sendmsg([struct.pack('>IB', 0, ord('Q'))], rights, socket.MSG_DONTWAIT)
        sent.append(number)
    except OSError: pass
threading.Thread(target=lingers.close, daemon=True).start()
print('sent', sent, flush=True)
"""


class Descriptors(Hostile):
    """The guardian is never the one that has to close what code has sent."""

    def test_a_connection_that_lingers_holds_up_nobody(self):
        for ending in ("os._exit(3)", "time.sleep(1000)"):
            run = self.kernel.submit(LINGER + SEND + ending)
            self.kernel.wait_for_output(run, "\n")
            self.assertEqual(run.stdout, "sent [906]\n")
            if "sleep" in ending:
                self.kill(run)
            self.kernel.finish(run)
            self.is_restored(run)
        # What should take them in the guardian's place is held up; sessions go on, and so do their checkpoints.
        self.assertTrue(self.run_ok("x = 1").end["protected"])
        run = self.kernel.run("os._exit(3)")
        self.assertEqual(run.end["after"], {"restored": run.cell - 1})

    def test_who_takes_descriptors_can_be_killed(self):
        self.run_ok(
            "import signal\n"
            "for name in os.listdir('/proc'):\n"
            "    try:\n"
            "        if open(f'/proc/{name}/comm').read() == 'belljar-inbox\\n' "
            "and os.getppid() == int(open(f'/proc/{name}/stat').read().split()[3]): os.kill(int(name), 9)\n"
            "    except OSError: pass"
        )
        self.run_ok("x = 1")
        run = self.kernel.run("os._exit(3)")
        self.assertEqual(run.end["after"], {"restored": run.cell - 1})

    def test_who_takes_descriptors_ends_with_the_guardian(self):
        guardian = self.kernel.process.pid
        inbox = None
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    pid, command, _, parent = file.read().split()[:4]
            except OSError:
                continue
            if command == "(belljar-inbox)" and int(parent) == guardian:
                inbox = int(pid)
        self.assertIsNotNone(inbox)
        self.kernel.process.kill()
        self.kernel.process.wait()
        self.wait_until(lambda: not is_alive(inbox), "it is gone")

    def test_no_process_but_one_of_a_runner_can_be_named_as_a_copy(self):
        for named in ("os.getppid()", "1", "os.getpid()", "threading.get_native_id()"):
            run = self.kernel.submit(
                "import threading, socket\n"
                "def steal():\n"
                "    channel = socket.socket(fileno=os.dup(904))\n"
                "    while True:\n"
                "        data, got, _, _ = channel.recvmsg(65536, socket.CMSG_SPACE(28))\n"
                "        for level, kind, value in got:\n"
                f"            say('P', struct.pack('>i', {named}), struct.unpack('7i', value[:28])[0])\n"
                "threading.Thread(target=steal, daemon=True).start()\n"
                "time.sleep(0.1)\n"
                f"say('D', struct.pack('>QH', {self.kernel.next_cell + 1}, 0) + DONE); time.sleep(60)"
            )
            self.kernel.expect("cell_done", cell=run.cell)
            # The worker is replaced at once, and not only when it has not come back for `BACK`.
            self.kernel.expect("worker_replaced", timeout=BACK_S / 2, after={"restored": 1})
            self.assertEqual(self.value("kept"), "'as it was'")
            self.kernel.send(type="undo", request=8, cells=1)
            self.kernel.expect("undone", request=8)


class Sizes(Hostile):
    limits = {"memory_bytes": 300 * 2**20, "checkpoint_bytes": 64 * 2**20}

    def test_a_checkpoint_cannot_show_the_size_of_what_it_was(self):
        # It shows what it is, keeps that alive in another process, and becomes a program that takes more than there is.
        self.run_ok(
            "import ctypes, sys\nkind = sys.modules['belljar_kernel.runner'].Runner\nplain = kind._show_size\n"
            "grow = \"import os, time; open('pid', 'w').write(str(os.getpid())); x = b'x' * (500 << 20); time.sleep(99)\"\n"
            "libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)\n"
            "top = ctypes.c_void_p((ctypes.addressof(stack) + (1 << 16) - 64) & ~63)\n"
            "pause = ctypes.cast(libc.pause, ctypes.c_void_p)\n"
            "CLONE_VM, SIGCHLD = 0x100, 17\n"
            "def show(self):\n"
            "    plain(self)\n"
            "    libc.clone(pause, top, CLONE_VM | SIGCHLD, None)\n"
            "    os.execv(sys.executable, ['python3', '-c', grow])\n"
            "kind._show_size = show\n"
        )
        path = os.path.join(self.kernel.workspace, "pid")
        self.wait_until(lambda: os.path.exists(path) and os.path.getsize(path), "it grows", 30)
        with open(path, encoding="ascii") as file:
            pid = int(file.read())
        self.wait_until(lambda: not is_alive(pid), "it is ended", 20)
