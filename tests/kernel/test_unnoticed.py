"""Checkpoints behind honest code: it does not notice them, and however many die, nothing grows."""

import os
import time

from checkpoint_harness import CheckpointTest


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
