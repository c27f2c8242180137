"""What code in a cell can do by writing to the kernel's own channels in its process."""

import time

from harness import KernelTest, is_alive

# `say(kind, payload)` writes a message to the guardian, on the control channel or on that of tools.
SAY = """
import os, struct, time
def say(kind, payload, descriptor=900):
    message = struct.pack(">IB", len(payload), ord(kind)) + payload
    while message:
        message = message[os.write(descriptor, message):]
DONE = (b'{"status":"success","reason":"ok","exit_code":0,"result":null,"exception":null,"duration_ms":1.0,'
        b'"displays_dropped":0,"live":{"threads":0,"tasks":0,"children":0}}')
"""


class Forged(KernelTest):
    def setUp(self):
        super().setUp()
        self.run_ok(SAY + "kept = 'as it was'")

    def lost(self, run):
        self.assertEqual((run.end["type"], list(run.end["after"])), ("cell_lost", ["restored"]), run.end)
        self.assertEqual(self.value("kept"), "'as it was'")

    def test_no_frame_of_the_daemons_protocol_can_be_sent(self):
        for kind in "FHRZ":
            frame = b'{"type":"refused","code":"busy","message":"","request":null,"cell":2}'
            self.lost(self.kernel.run(f"say({kind!r}, {frame!r})\ntime.sleep(60)"))

    def test_the_end_of_another_cell_cannot_be_told(self):
        for cell in (3, 2**64 - 1):
            self.lost(self.kernel.run(f"say('D', struct.pack('>QH', {cell}, 0) + DONE)\ntime.sleep(60)"))

    def test_fields_that_are_the_guardians_are_the_guardians(self):
        run = self.kernel.run(
            "say('D', struct.pack('>QH', 2, 0) + b'{\"type\":\"refused\",\"cell\":1,\"protected\":false,' + DONE[1:])\n"
            "time.sleep(0.2)"
        )
        self.assertEqual((run.end["type"], run.end["cell"], run.end["protected"]), ("cell_done", 2, True))

    def test_words_that_are_no_json_do_not_get_out_of_their_frame(self):
        run = self.kernel.submit(
            "for words in (b'', b'{', b'\\xff', b'{\"mime\":{}},\"cell\":9', b'[' * 100000): say('Y', words)"
        )
        self.kernel.finish(run)
        self.assertEqual(run.end["status"], "success")
        self.assertTrue(all(frame["cell"] == run.cell for frame in run.frames))

    def test_a_cell_that_is_said_to_be_done_and_runs_on_does_not_keep_the_next_one(self):
        run = self.kernel.run("say('D', struct.pack('>QH', 2, 0) + DONE)\nwhile True: pass")
        self.assertEqual(run.end["status"], "success")
        started = time.monotonic()
        next_one = self.kernel.submit("kept")
        self.kernel.expect("worker_replaced", timeout=30, after={"restored": 1})
        self.assertEqual(self.kernel.finish(next_one).value, "'as it was'")
        self.assertLess(time.monotonic() - started, 20)

    def test_a_cell_that_is_said_to_be_done_and_runs_on_is_ended_though_no_other_comes(self):
        run = self.kernel.run("say('D', struct.pack('>QH', 2, 0) + DONE)\nwhile True: pass")
        self.assertEqual(run.end["status"], "success")
        self.kernel.expect("worker_replaced", timeout=30, after={"restored": 1})
        self.assertEqual(self.value("kept"), "'as it was'")

    def test_an_end_that_is_told_twice_costs_no_cell(self):
        for _ in range(10):
            cell = self.kernel.next_cell + 1
            run = self.kernel.run(f"say('D', struct.pack('>QH', {cell}, 0) + DONE)\ntime.sleep(0.01)")
            self.assertEqual(run.end["status"], "success")
            self.assertEqual(self.value("time.sleep(0.02); kept"), "'as it was'")

    def test_an_end_of_long_ago_costs_no_cell(self):
        self.run_ok("say('D', struct.pack('>QH', 1, 0) + DONE)")
        self.assertEqual(self.value("kept"), "'as it was'")

    def test_what_repeats_a_cell_is_plain_also_where_a_name_comes_twice(self):
        deep = "b'{\"x\":' + b'[' * 20000 + b']' * 20000 + b',\"x\":1}'"
        run = self.kernel.run(f"deep = {deep}\nsay('D', struct.pack('>QH', 2, len(deep)) + deep + DONE)\ntime.sleep(0.05)")
        self.assertEqual((run.end["status"], run.end["harmless"]), ("success", False))
        # A worker that repeated this would end at once, as would the next one.
        self.lost(self.kernel.run("os._exit(3)"))

    def test_a_copy_of_a_worker_that_does_not_answer_can_be_ended(self):
        self.assertEqual(
            self.kernel.run("say('D', struct.pack('>QH', 2, 0) + DONE)\nwhile True: pass").end["status"], "success"
        )
        fork = self.kernel.submit("1", mode="fork")
        time.sleep(0.2)
        self.kernel.send(type="kill", cell=fork.cell, grace_ms=100)
        self.kernel.finish(fork, timeout=3)
        self.assertEqual(fork.end["type"], "cell_lost")

    def test_a_cell_whose_time_is_over_cannot_say_that_it_is_done(self):
        run = self.kernel.submit(
            "import signal\nsignal.signal(signal.SIGTERM, lambda *_: say('D', struct.pack('>QH', 2, 0) + DONE))\n"
            "print('ready')\nwhile True: pass"
        )
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.lost(run)

    def test_a_tool_call_speaks_for_its_own_cell_under_a_number_of_the_guardian(self):
        words = b'{"name":"t","arguments":{},"type":"cell_lost","cell":1,"call":5}'
        forged = f"for n in (7, 7, 2**32 - 1): say('C', struct.pack('>IQ', n, 0) + {words!r}, 901)"
        # They are calls only while the cell runs, and a guardian on a busy machine comes to them late.
        run = self.kernel.run(forged + "\ntime.sleep(1.5)")
        self.assertEqual(run.end["status"], "success")
        self.assertEqual([(call["type"], call["cell"]) for call in self.kernel.seen_calls], [("tool_call", 2)] * 3)
        self.assertEqual(len({call["call"] for call in self.kernel.seen_calls}), 3)

    def test_no_process_can_take_the_place_of_a_copy_in_the_name_of_the_worker(self):
        # A thread reads the guardian's wish for a checkpoint in the kernel's place, and says that it is the copy.
        self.kernel.submit(
            "import threading, socket\n"
            "def steal():\n"
            "    channel = socket.socket(fileno=os.dup(904))\n"
            "    while True:\n"
            "        data, got, _, _ = channel.recvmsg(65536, socket.CMSG_SPACE(28))\n"
            "        for level, kind, value in got:\n"
            "            say('P', struct.pack('>i', os.getpid()), struct.unpack('7i', value[:28])[0])\n"
            "threading.Thread(target=steal, daemon=True).start()\n"
            "time.sleep(0.1); say('D', struct.pack('>QH', 2, 0) + DONE); time.sleep(60)"
        )
        self.kernel.expect("cell_done", cell=2)
        self.kernel.expect("worker_replaced", after={"restored": 1})
        self.assertEqual(self.value("kept"), "'as it was'")


TOOL = {"name": "t", "description": "", "parameters": {"type": "object"}, "output": {}}


class ForgedCalls(KernelTest):
    def setUp(self):
        super().setUp()
        self.kernel.configure(tools=[TOOL])
        self.run_ok(SAY + "kept = 'as it was'\ndef call(n, words): say('C', struct.pack('>IQ', n, 0) + words, 901)")

    def forge(self, numbers):
        words = b'{"name":"t","arguments":{"forged":1}}'
        self.run_ok(f"for n in {numbers}: call(n, {words!r})\ntime.sleep(0.1)")

    def cancel(self):
        """Cancel all calls, as the daemon does with those of a cell that has ended."""
        for call in self.kernel.seen_calls:
            error = {"code": "cancelled", "message": "the cell that made this call has ended"}
            self.kernel.send(type="tool_failed", call=call["call"], error=error)
        self.kernel.seen_calls.clear()
        self.kernel.tools["t"] = lambda **arguments: arguments

    def test_half_a_message_costs_no_later_cell(self):
        half = "struct.pack('>IB', 1000, ord('T')) + b'half'"
        later = f"import threading\nthreading.Timer(0.2, os.write, (900, {half})).start()"
        self.kernel.tools["t"] = lambda **arguments: arguments
        for code in (f"os.write(901, {half})", later):
            self.run_ok(code + "\nmine = 'too'")
            time.sleep(0.4)
            next_one = self.kernel.submit("(t(n=1)['n'], mine, kept)")
            self.kernel.expect("worker_replaced", timeout=30)
            self.assertEqual(self.kernel.finish(next_one).value, "(1, 'too', 'as it was')")

    def test_a_message_that_trickles_does_not_hold_up_the_guardian(self):
        trickle = (
            "import threading\ndef trickle():\n    os.write(901, struct.pack('>IB', 1000, ord('T')))\n"
            "    for _ in range(200):\n        os.write(901, b'x')\n        time.sleep(0.2)\n"
            "threading.Thread(target=trickle, daemon=True).start()\ntime.sleep(0.1)\nmine = 'too'"
        )
        self.run_ok(trickle)
        time.sleep(0.3)
        started = time.monotonic()
        next_one = self.kernel.submit("(mine, kept)")
        self.kernel.expect("worker_replaced", timeout=30)
        self.assertEqual(self.kernel.finish(next_one).value, "('too', 'as it was')")
        self.assertLess(time.monotonic() - started, 8)

    def test_forged_numbers_cost_the_next_cell_nothing(self):
        for numbers in ("[2**32 - 1]", "range(9)", "[2**31] * 9"):
            self.kernel.tools.clear()
            self.forge(numbers)
            self.cancel()
            self.assertEqual(self.value("[t(n=n)['n'] for n in range(12)]"), str(list(range(12))))

    def test_an_answer_for_an_earlier_cell_is_for_nobody(self):
        # The answers to what was forged stay in the pipe until the first call, because nothing reads them before.
        self.forge("range(9)")
        self.cancel()
        self.assertEqual(self.value("time.sleep(0.1); t(n=5)"), "{'n': 5}")

    def test_a_flood_of_calls_stays_with_the_guardian(self):
        for words in (b'{"name":"t","arguments":{}}', b"{"):
            flood = f"for n in itertools.count(): call(n, {words!r})"
            run = self.kernel.submit("import itertools\nprint('ready', flush=True)\n" + flood)
            self.kernel.wait_for_output(run, "ready\n")
            time.sleep(1)
            begun = time.monotonic()
            self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
            while True:
                frame = self.kernel.receive()
                if frame["type"] == "cell_lost":
                    break
                self.assertEqual(frame["type"], "tool_call")
                self.kernel.seen_calls.append(frame)
            self.assertLess(time.monotonic() - begun, 5)
            self.assertLessEqual(len(self.kernel.seen_calls), self.kernel.limits["tool_calls"])
            self.assertEqual(frame["after"], {"restored": 1})
            self.kernel.seen_calls.clear()
            self.assertEqual(self.value("kept"), "'as it was'")
            self.run_ok("1")
            self.kernel.send(type="undo", request=3, cells=2)
            self.kernel.expect("undone")

    def test_what_a_flood_left_in_the_pipe_is_not_the_next_cells(self):
        # The pipe is full when the cell ends.
        self.run_ok(
            "os.set_blocking(901, False)\nend, n = time.monotonic() + 0.5, 0\n"
            "words = b'{\"name\":\"t\",\"arguments\":{}}'\n"
            "while time.monotonic() < end:\n"
            "    try: n += os.write(901, struct.pack('>IBIQ', len(words) + 12, ord('C'), n, 0) + words) > 0\n"
            "    except BlockingIOError: pass\n"
            "os.set_blocking(901, True)"
        )
        self.cancel()
        self.assertEqual(self.value("[t(n=n)['n'] for n in range(5)]"), "[0, 1, 2, 3, 4]")
        self.assertLessEqual(len(self.kernel.seen_calls), 2 * self.kernel.limits["tool_calls"])

    def test_calls_that_bring_too_much_are_refused(self):
        self.kernel.tools.clear()
        code = (
            "import threading, time\nrefused = []\n"
            "def big():\n"
            "    try: t(x='y' * (20 << 20))\n"
            "    except ToolError as error: refused.append(error.code)\n"
            "for _ in range(5): threading.Thread(target=big, daemon=True).start()\n"
            "while not refused: time.sleep(0.01)\nset(refused)"
        )
        self.assertEqual(self.value(code), "{'busy'}")
        self.assertLess(len(self.kernel.seen_calls), 5)


class AfterReset(KernelTest):
    def test_nothing_of_before_runs_after_a_reset_not_even_of_a_copy(self):
        code = (
            "import os, time\n"
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
            "    print('pid', os.getpid(), flush=True)\n    time.sleep(1000)\n"
            "time.sleep(1000)"
        )
        pids = []
        for mode in ("main", "fork"):
            run = self.kernel.submit(code, mode=mode)
            while "\n" not in run.stdout:
                frame = self.kernel.next_frame()
                if frame["type"] == "output" and frame["cell"] == run.cell:
                    run.output.append((frame["stream"], frame["data"]))
            pids.append(int(run.stdout.split()[1]))
        self.kernel.send(type="reset", request=5)
        kinds = []
        while "reset_done" not in kinds:
            kinds.append(self.kernel.next_frame()["type"])
        self.assertEqual(sorted(kinds), ["cell_lost", "cell_lost", "reset_done"])
        self.assertEqual([is_alive(pid) for pid in pids], [False, False])
        self.assertEqual(self.value("1"), "1")
