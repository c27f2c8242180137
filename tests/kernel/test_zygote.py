"""Python's first process, from which workers come: code of the session can end it, and no more than that."""

import contextlib
import os
import signal
import subprocess
import threading
import time
import unittest

from checkpoint_harness import parent_of
from harness import KERNEL, Kernel, KernelTest, is_alive
from test_processes import UNSHARE, _can_unshare

# Code for a cell that finds the pid of the zygote.
FIND = """
import os, signal
def named(name):
    try: return open(f'/proc/{name}/comm').read() == 'belljar-zygote\\n'
    except OSError: return False
zygote = next(int(name) for name in os.listdir('/proc') if name.isdigit() and named(name)
              and int(open(f'/proc/{name}/stat').read().split()[3]) == os.getppid())
"""


class Storm:
    """Sends a signal to processes again and again."""

    def __init__(self, pids, number, pause=0.003):
        self._pids, self._number, self._pause = pids, number, pause
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self):
        while not self._ended.wait(self._pause):
            for pid in self._pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, self._number)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


class Zygote(KernelTest):
    def zygotes(self):
        """The zygotes that the guardian has. A process that was just made has the zygote's name, too, until it runs."""
        found = []

        def is_settled():
            found[:] = self.named_so()
            return len(found) <= 1

        self.wait_until(is_settled, "what the zygote has made runs")
        return found

    def named_so(self):
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            if parent_of(name) == self.kernel.process.pid and is_alive(name):
                with open(f"/proc/{name}/comm", encoding="ascii", errors="replace") as file:
                    found += [int(name)] if file.read() == "belljar-zygote\n" else []
        return found

    def test_workers_are_children_of_the_guardian(self):
        self.assertEqual(self.value("import os; os.getppid()"), str(self.kernel.process.pid))
        self.assertEqual(len(self.zygotes()), 1)

    def test_an_expression_is_evaluated_after_it_was_killed(self):
        self.run_ok(FIND + "os.kill(zygote, signal.SIGKILL)")
        self.assertEqual(self.kernel.compute("6 * 7"), {"value": "42"})
        self.assertEqual(self.kernel.compute("6 * 8"), {"value": "48"})
        self.assertEqual(len(self.zygotes()), 1)

    def test_a_stopped_one_goes_on(self):
        self.run_ok(FIND + "os.kill(zygote, signal.SIGSTOP)")
        self.assertEqual(self.kernel.compute("6 * 7"), {"value": "42"})

    def test_no_signal_interrupts_it(self):
        before = self.zygotes()
        for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGALRM", "SIGHUP", "SIGRTMIN"):
            self.run_ok(FIND + f"os.kill(zygote, signal.{name})")
            self.assertEqual(self.kernel.compute("6 * 7"), {"value": "42"})
        self.assertEqual(self.zygotes(), before)
        # Nor is anything of that left in a worker.
        self.kernel.send(type="reset", request=3)
        self.kernel.expect("reset_done", request=3)
        self.assertEqual(self.value("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, ())"), "set()")

    def test_one_that_is_stopped_again_and_again_goes_on(self):
        (zygote,) = self.zygotes()
        with Storm(lambda: [zygote], signal.SIGSTOP):
            self.assertEqual(self.kernel.compute("6 * 7"), {"value": "42"})
        self.assertEqual(self.zygotes(), [zygote])

    def test_a_fresh_worker_comes_after_all_others_were_killed(self):
        self.run_ok(FIND + "x = 1")
        for pid in self.zygotes():
            os.kill(pid, signal.SIGKILL)
        self.kernel.send(type="reset", request=3)
        self.kernel.expect("reset_done", request=3)
        self.assertEqual(self.value("'x' in globals()"), "False")

    def test_it_ends_with_the_guardian(self):
        (zygote,) = self.zygotes()
        self.kernel.process.kill()
        self.kernel.process.wait()
        self.wait_until(lambda: not is_alive(zygote), "it is gone")


class Expressions(KernelTest):
    """What other processes do to one that evaluates an expression is told as that, and soon."""

    LONG = "sum(1 for _ in itertools.count())"

    def evaluators(self):
        ours = {name for name in filter(str.isdigit, os.listdir("/proc")) if parent_of(name) == self.kernel.process.pid}
        return [int(name) for name in ours - self.before]

    def setUp(self):
        super().setUp()
        self.run_ok("x = int(1)")
        time.sleep(0.3)  # until its checkpoint is made
        self.before = set(filter(str.isdigit, os.listdir("/proc")))

    def test_one_that_is_killed_took_neither_too_much_memory_nor_too_long(self):
        for number in (signal.SIGKILL, signal.SIGXCPU):
            with Storm(self.evaluators, number, pause=0.05):
                outcome = self.kernel.compute(self.LONG, timeout_ms=10_000)
            self.assertIn("RuntimeError: something else killed the process", outcome["error"])

    def test_other_signals_do_not_reach_it(self):
        with Storm(self.evaluators, signal.SIGTERM):
            self.assertEqual(self.kernel.compute("sum(range(10 ** 6))"), {"value": "499999500000"})

    def test_one_that_is_stopped_again_and_again_is_given_up(self):
        begun = time.monotonic()
        with Storm(self.evaluators, signal.SIGSTOP):
            outcome = self.kernel.compute(self.LONG, timeout_ms=30_000)
        self.assertIn("RuntimeError: something else stopped the process", outcome["error"])
        self.assertLess(time.monotonic() - begun, 8)

    def test_one_that_was_stopped_once_goes_on(self):
        stopped = []

        def first_time():
            found = [] if stopped else self.evaluators()
            stopped.extend(found)
            return found

        with Storm(first_time, signal.SIGSTOP):
            self.assertEqual(self.kernel.compute("sum(range(10 ** 7))", timeout_ms=9_000), {"value": "49999995000000"})


AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
PYTHON = "/usr/bin/python3"


def _can_be_nobody():
    """Whether the test can run as another user, to whom the kernel's files and a Python are open."""
    command = [*AS_NOBODY, PYTHON, "-I", "-c", f"import os; os.listdir({KERNEL!r})"]
    try:
        return _can_unshare() and subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


@unittest.skipUnless(_can_be_nobody(), "needs a pid namespace and another user")
class ToOthers(unittest.TestCase):
    """The guardian and the zygote hide their memory, from the session's own user, too."""

    def setUp(self):
        self.kernel = Kernel(prefix=(*UNSHARE, *AS_NOBODY), arguments=("--python", PYTHON))
        self.addCleanup(self.kernel.close)
        os.chmod(self.kernel.directory, 0o755)
        os.chmod(self.kernel.bridge_path, 0o777)
        self.kernel.start()

    def test_neither_memory_nor_descriptors_can_be_opened(self):
        code = FIND + (
            "refused = []\n"
            "for pid in (1, zygote):\n"
            "    for act in (lambda: open(f'/proc/{pid}/mem', 'rb'), lambda: os.listdir(f'/proc/{pid}/fd')):\n"
            "        try: act()\n"
            "        except PermissionError: refused.append(pid)\n"
            "refused == [1, 1, zygote, zygote]"
        )
        run = self.kernel.run(code)
        self.assertEqual((run.end.get("status"), run.value), ("success", "True"), run.end)

    def test_a_new_worker_shows_nothing_of_it(self):
        # A cell in a copy outlives the worker and all checkpoints, and looks at once at what comes next.
        code = (
            "import os, signal, time\n"
            "def runners():\n"
            "    for name in filter(str.isdigit, os.listdir('/proc')):\n"
            "        try: line = open(f'/proc/{name}/stat').read().rpartition(') ')[2].split()\n"
            "        except OSError: continue\n"
            "        if line[1] == '1' and int(name) not in others: yield int(name)\n"
            "others = {1, os.getpid()}\n"
            "others.update(pid for pid in runners() if 'belljar' in open(f'/proc/{pid}/comm').read())\n"
            "foreign, until = 0, time.monotonic() + 4\n"
            "for pid in runners(): os.kill(pid, signal.SIGKILL)\n"
            "newest = max(int(name) for name in os.listdir('/proc') if name.isdigit())\n"
            "while time.monotonic() < until:\n"
            "    for pid in range(newest + 1, newest + 6):\n"
            "        try: foreign += os.readlink(f'/proc/{pid}/fd/1') != os.readlink(f'/proc/{pid}/fd/902')\n"
            "        except OSError: pass\n"
            "foreign"
        )
        for _ in range(3):
            self.kernel.run("x = 1")
            self.kernel.submit(code, mode="fork")
            end = self.kernel.expect("worker_replaced")
            while end["type"] == "worker_replaced":  # each of the processes that were killed may have taken the place of one
                end = self.kernel.next_frame()
            self.assertEqual((end["status"], end["result"]["repr"]), ("success", "0"), end)

    def test_one_that_is_started_again_hides_its_memory_too(self):
        self.kernel.run(FIND + "os.kill(zygote, signal.SIGKILL)")
        self.assertEqual(self.kernel.compute("1"), {"value": "1"})
        self.test_neither_memory_nor_descriptors_can_be_opened()
