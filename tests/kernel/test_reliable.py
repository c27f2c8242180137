"""Frames are numbered, kept until they are acknowledged, and sent again: none is lost or doubled."""

import random
import time

from harness import KernelTest, Run
from websocket_client import Closed


class Reliable(KernelTest):
    def reconnect(self, received=None):
        """Connect anew as a daemon that had only dealt with so many frames when it died."""
        if received is not None:
            self.kernel.received = received
        self.kernel.hang_up()
        self.kernel.listen()
        return self.kernel.start()

    def test_frames_that_were_not_dealt_with_come_again(self):
        self.kernel.acknowledges = False
        self.run_ok("print('one')")
        before = self.kernel.received
        run = self.run_ok("print('two')\n2")
        self.assertEqual(self.reconnect(received=before)["state_of"], run.cell)
        again = self.kernel.finish(Run(run.cell))
        self.assertEqual((again.stdout, again.value), ("two\n", "2"))
        self.assertEqual(self.value("3"), "3")

    def test_acknowledged_frames_are_forgotten(self):
        self.kernel.acknowledges = False
        self.run_ok("1")
        self.kernel.send(type="ack", received=1)
        self.value("2")
        # A daemon whose journal has no trace of the first frame is told that it is not sent again.
        self.assertEqual(self.reconnect(received=0)["resumes_after"], 1)
        self.kernel.received = 1
        self.assertEqual(self.kernel.expect("cell_done")["cell"], 2)

    def test_what_was_never_sent_cannot_be_acknowledged(self):
        self.run_ok("1")
        self.kernel.send(type="ack", received=5)
        with self.assertRaises((Closed, OSError)):
            self.kernel.receive(5)
        self.kernel.start()
        with self.assertRaises((Closed, OSError)):
            self.reconnect(received=99)
        self.kernel.received = 1
        self.kernel.start()
        self.assertEqual(self.value("1"), "1")

    def test_a_second_hello_is_refused(self):
        with self.assertRaises((Closed, OSError)):
            self.kernel.hello()

    def test_a_daemon_that_dies_at_any_frame_sees_each_frame_once_and_in_order(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                self.die_at_random(random.Random(seed))

    def die_at_random(self, chance):
        kernel, lines = self.kernel, 400
        run = kernel.submit(
            f"import time\nfor i in range({lines}):\n    print('x' * {chance.choice((10, 3000))}, i)\n"
            f"    if i % 50 == 0: time.sleep(0.002)\n"
        )
        kernel.acknowledges = False
        output, ended, durable = b"", None, (b"", kernel.received)
        while ended is None:
            frame = kernel.receive()
            if frame["type"] == "output":
                self.assertEqual(frame["cell"], run.cell)
                output += frame["data"]
            else:
                self.assertEqual((frame["type"], frame["cell"]), ("cell_done", run.cell))
                ended = frame
            event = chance.random()
            if event < 0.3:
                durable = (output, kernel.received)
                kernel.send(type="ack", received=kernel.received)
            elif event < 0.4:
                durable = (output, kernel.received)  # it died before it could say so
            elif event < 0.6:
                output, kernel.received = durable
                ended = None
                self.reconnect()
        numbers = [int(line.split()[1]) for line in output.decode().splitlines()]
        self.assertEqual(numbers, list(range(lines)))
        kernel.send(type="ack", received=kernel.received)


class Bounded(KernelTest):
    limits = {"unacknowledged_bytes": 200_000, "output_bytes": 2**40}

    def test_a_daemon_that_does_not_acknowledge_holds_up_the_cell(self):
        self.kernel.acknowledges = False
        run = self.kernel.submit("for i in range(1000):\n    print('x' * 10_000)\n'end'")
        taken = 0
        with self.assertRaises(TimeoutError):
            while self.kernel.step(run, 0.5):
                taken = len(run.stdout)
        self.assertLess(taken, 400_000)
        self.kernel.acknowledges = True
        self.kernel.send(type="ack", received=self.kernel.received)
        self.assertEqual(self.kernel.finish(run).value, "'end'")
        self.assertEqual(len(run.stdout), 1000 * 10_001)

    def test_a_held_up_cell_can_be_killed_and_the_state_is_as_before(self):
        self.run_ok("x = 1")
        self.kernel.acknowledges = False
        run = self.kernel.submit("x = 2\nwhile True: print('x' * 10_000)")
        with self.assertRaises(TimeoutError):
            while self.kernel.step(run, 0.5):
                pass
        self.kernel.send(type="kill", cell=run.cell, grace_ms=50)
        self.kernel.finish(run)
        self.assertEqual(run.end["after"], {"restored": 1})
        self.kernel.send(type="ack", received=self.kernel.received)
        self.assertEqual(self.value("x"), "1")


class WithoutADaemon(KernelTest):
    def test_a_cell_goes_on_and_its_end_is_told_later(self):
        run = self.kernel.submit("import time\nprint('up')\ntime.sleep(0.2)\nprint('x' * 5000)\nx = 1\n'end'")
        self.kernel.wait_for_output(run, "up\n")
        self.kernel.hang_up()
        time.sleep(0.5)
        self.kernel.listen()
        hello = self.kernel.start()
        self.assertEqual((hello["running"], hello["state_of"]), ([], run.cell))
        self.assertEqual(self.kernel.finish(run).value, "'end'")
        self.assertEqual(run.stdout, "up\n" + "x" * 5000 + "\n")

    def test_a_death_meanwhile_is_told_too(self):
        self.run_ok("x = 1")
        run = self.kernel.submit("import os, time\nprint('up')\ntime.sleep(0.2)\nos._exit(4)")
        self.kernel.wait_for_output(run, "up\n")
        self.kernel.hang_up()
        time.sleep(0.5)
        self.kernel.listen()
        self.assertEqual(self.kernel.start()["state_of"], 1)
        self.assertEqual(self.kernel.finish(run).end["after"], {"restored": 1})
        self.assertEqual(self.value("x"), "1")
