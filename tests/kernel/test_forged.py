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
        run = self.kernel.run("say('D', struct.pack('>Q', 1) + DONE)\ntime.sleep(60)")
        self.lost(run)

    def test_fields_that_are_the_guardians_are_the_guardians(self):
        run = self.kernel.run(
            "say('D', struct.pack('>Q', 2) + b'{\"type\":\"refused\",\"cell\":1,\"protected\":false,' + DONE[1:])\n"
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
        run = self.kernel.run("say('D', struct.pack('>Q', 2) + DONE)\nwhile True: pass")
        self.assertEqual(run.end["status"], "success")
        started = time.monotonic()
        next_one = self.kernel.finish(self.kernel.submit("kept"), timeout=30)
        self.assertLess(time.monotonic() - started, 20)
        self.assertEqual((next_one.end["type"], next_one.end["after"]), ("cell_lost", {"restored": 1}))
        self.assertTrue(next_one.end["older"])
        self.assertEqual(self.value("kept"), "'as it was'")

    def test_a_copy_of_a_worker_that_does_not_answer_can_be_ended(self):
        self.assertEqual(
            self.kernel.run("say('D', struct.pack('>Q', 2) + DONE)\nwhile True: pass").end["status"], "success"
        )
        fork = self.kernel.submit("1", mode="fork")
        time.sleep(0.2)
        self.kernel.send(type="kill", cell=fork.cell, grace_ms=100)
        self.kernel.finish(fork, timeout=3)
        self.assertEqual(fork.end["type"], "cell_lost")

    def test_a_cell_whose_time_is_over_cannot_say_that_it_is_done(self):
        run = self.kernel.submit(
            "import signal\nsignal.signal(signal.SIGTERM, lambda *_: say('D', struct.pack('>Q', 2) + DONE))\n"
            "print('ready')\nwhile True: pass"
        )
        self.kernel.wait_for_output(run, "ready\n")
        self.kernel.send(type="kill", cell=run.cell, grace_ms=100)
        self.kernel.finish(run)
        self.lost(run)

    def test_a_tool_call_speaks_for_its_own_cell_and_its_own_numbers(self):
        words = b'{"name":"t","arguments":{},"type":"cell_lost","cell":1,"call":5}'
        run = self.kernel.submit(f"say('C', struct.pack('>I', 7) + {words!r}, 901)\ntime.sleep(0.2)")
        self.kernel.finish(run)
        self.assertEqual(run.end["status"], "success")
        [call] = self.kernel.seen_calls
        self.assertEqual((call["type"], call["cell"], call["call"] % 2**32), ("tool_call", 2, 7))
        again = self.kernel.run(f"say('C', struct.pack('>I', 7) + {words!r}, 901)\ntime.sleep(60)")
        self.assertEqual(again.end["type"], "cell_lost")
        self.assertEqual(len(self.kernel.seen_calls), 1)

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
            "time.sleep(0.1); say('D', struct.pack('>Q', 2) + DONE); time.sleep(60)"
        )
        self.kernel.expect("cell_done", cell=2)
        self.kernel.expect("worker_replaced", after={"restored": 1})
        self.assertEqual(self.value("kept"), "'as it was'")


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
