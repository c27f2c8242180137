"""The bridge: upgrade, hello, strictness, reconnect."""

import time
import unittest

from harness import Kernel, KernelTest
from websocket_client import PING, TEXT, Closed, masked_frame


class Bridge(KernelTest):
    def expect_hang_up_and_return(self, frame):
        """After a breach of the protocol the kernel hangs up, comes back, and has lost nothing."""
        self.run_ok("kept = 1")
        self.kernel.connection.send_raw(frame)
        with self.assertRaises((Closed, OSError)):
            while True:
                self.kernel.receive(5)
        self.kernel.start()
        self.assertEqual(self.value("kept"), "1")

    def test_unmasked_frames_are_refused(self):
        self.expect_hang_up_and_return(b"\x81\x02{}")

    def test_reserved_bits_are_refused(self):
        self.expect_hang_up_and_return(masked_frame(TEXT, b"{}", reserved=0x40))

    def test_unknown_opcodes_are_refused(self):
        self.expect_hang_up_and_return(masked_frame(0x3, b"{}"))

    def test_oversized_frames_are_refused_before_they_are_read(self):
        self.expect_hang_up_and_return(b"\x81\xff" + (2**40).to_bytes(8, "big") + b"\0\0\0\0")

    def test_a_flood_of_fragments_is_refused(self):
        flood = masked_frame(TEXT, b"", final=False) + masked_frame(0x0, b"", final=False) * 5000
        self.expect_hang_up_and_return(flood)

    def test_long_control_frames_are_refused(self):
        self.expect_hang_up_and_return(masked_frame(PING, b"x" * 126))

    def test_text_that_is_no_utf8_is_refused(self):
        self.expect_hang_up_and_return(masked_frame(TEXT, b"\xff\xff"))

    def test_pings_are_answered(self):
        self.kernel.connection.send_raw(masked_frame(PING, b"are you there"))
        self.assertEqual(self.kernel.receive(), {"type": "pong", "data": b"are you there"})

    def test_a_flood_of_pings_does_no_harm(self):
        self.kernel.connection.send_raw(masked_frame(PING, b"x" * 100) * 5000)
        run = self.kernel.submit("1")
        while True:
            frame = self.kernel.receive()
            if frame["type"] == "cell_done":
                break
            self.assertEqual(frame["type"], "pong")
        self.assertEqual(frame["cell"], run.cell)

    def test_frames_that_are_not_understood_are_refused_one_by_one(self):
        for text in ("[]", "{}", "nonsense", '{"type": "dance"}', '{"type": "cell", "cell": 1}', '{"type": 3}'):
            self.kernel.connection.send_text(text)
            self.assertEqual(self.kernel.expect("refused")["code"], "malformed")
        self.assertEqual(self.value("1"), "1")

    def test_a_big_cell_comes_through_in_fragments_too(self):
        code = "#" + "x" * 3_000_000 + "\n5"
        self.assertEqual(self.value(code), "5")
        text = b'{"type":"cell","cell":9,"code":"4+4","mode":"main","expression":false}'
        self.kernel.connection.send_raw(
            masked_frame(TEXT, text[:10], final=False) + masked_frame(PING, b"") + masked_frame(0x0, text[10:])
        )
        self.kernel.expect("pong")
        self.assertEqual(self.kernel.expect("cell_done", cell=9)["result"]["repr"], "8")

    def test_the_kernel_reconnects_and_a_running_cell_goes_on(self):
        run = self.kernel.submit(
            "import os, time\nprint('one')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
            "print('two')\nwhile not os.path.exists('end'): time.sleep(0.01)\n'done'"
        )
        self.kernel.wait_for_output(run, "one\n")
        self.kernel.hang_up()
        open(self.kernel.workspace + "/go", "w").close()
        self.kernel.listen()
        hello = self.kernel.start()
        self.assertEqual(hello["running"], [run.cell])
        self.kernel.wait_for_output(run, "two\n")
        open(self.kernel.workspace + "/end", "w").close()
        self.assertEqual(self.kernel.finish(run).value, "'done'")

    def test_what_a_cell_wrote_without_a_daemon_arrives_later_and_whole(self):
        run = self.kernel.submit(
            "import os, time\nprint('one')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
            "for i in range(300): print(str(i) * 2000)\n'end'"
        )
        self.kernel.wait_for_output(run, "one\n")
        self.kernel.hang_up()
        open(self.kernel.workspace + "/go", "w").close()
        self.kernel.listen()
        self.kernel.start()
        self.kernel.finish(run)
        self.assertEqual(run.stdout, "one\n" + "".join(str(i) * 2000 + "\n" for i in range(300)))


class BackPressure(KernelTest):
    limits = {"output_bytes": 2**40}

    def test_a_daemon_that_does_not_read_holds_up_the_cell_and_takes_no_memory(self):
        run = self.kernel.submit(
            "import sys\nfor i in range(1600):\n    sys.stdout.write('x' * 40000)\n    open('progress', 'w').write(str(i))\n"
            "print('end')"
        )
        progress = []

        def stands_still():
            try:
                with open(self.kernel.workspace + "/progress", encoding="ascii") as file:
                    progress.append(file.read())
            except FileNotFoundError:
                return False
            return len(progress) > 20 and progress[-20] == progress[-1] != ""

        self.wait_until(stands_still, "the cell is held up")
        self.assertLess(int(progress[-1]), 200)
        with open(f"/proc/{self.kernel.process.pid}/statm", encoding="ascii") as file:
            self.assertLess(int(file.read().split()[1]) * 4096, 64 * 2**20)
        self.kernel.finish(run)
        self.assertEqual(len(run.stdout), 1600 * 40000 + 4)

    def test_a_held_up_cell_can_be_killed(self):
        run = self.kernel.submit("while True: print('x' * 100000)")
        self.kernel.wait_for_output(run, "x")
        time.sleep(0.2)
        self.kernel.send(type="kill", cell=run.cell, grace_ms=50)
        self.kernel.finish(run)
        self.assertEqual((run.end["type"], run.end["killed"]), ("cell_lost", True))


class Handshake(unittest.TestCase):
    def setUp(self):
        self.kernel = Kernel()
        self.addCleanup(self.kernel.close)

    def test_a_garbage_upgrade_is_refused_and_the_next_one_served(self):
        for garbage in (b"SSH-2.0-x\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"x" * 10_000, b"POST / HTTP/1.1\r\n\r\n"):
            connection = self.kernel.accept()
            connection.send_raw(garbage)
            with self.assertRaises((Closed, OSError)):
                connection.upgrade()
            connection.close()
        self.assertEqual(self.kernel.start()["version"], 1)

    def test_no_common_version_is_no_connection(self):
        self.kernel.accept().upgrade()
        with self.assertRaises(Closed):
            self.kernel.hello(versions=(2, 3))
        self.kernel.connection.close()
        self.assertEqual(self.kernel.start()["version"], 1)

    def test_hello_has_to_come_first(self):
        self.kernel.accept().upgrade()
        self.kernel.send(type="bye")
        with self.assertRaises(Closed):
            self.kernel.receive()
        self.kernel.connection.close()
        self.assertEqual(self.kernel.start()["version"], 1)

    def test_the_probe_tells_the_truth_on_a_plain_host(self):
        hello = self.kernel.start()
        self.assertTrue(hello["probe"]["not_dumpable"])
        self.assertFalse(hello["probe"]["is_init"])
        self.assertTrue(all(isinstance(finding, bool) for finding in hello["probe"].values()))
        self.assertEqual(hello["running"], [])
        self.assertRegex(hello["python"], r"^3\.\d+\.\d+$")

    def test_the_kernel_waits_for_a_daemon_that_comes_late(self):
        self.kernel._listener.close()
        self.kernel.listen()
        self.assertEqual(self.kernel.start()["version"], 1)

    def test_without_a_daemon_the_sandbox_ends_after_a_while(self):
        self.kernel.limits["orphan_s"] = 1
        self.kernel.start()
        self.kernel.hang_up()
        self.assertEqual(self.kernel.process.wait(10), 0)
