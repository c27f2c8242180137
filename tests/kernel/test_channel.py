"""The guardian's end of a connection with a runner, without a runner."""

import os
import signal
import struct
import sys
import unittest

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "sandbox-bootstrap")))

from belljar_kernel.channel import Channel  # noqa: E402 - needs the path

MESSAGES = struct.pack(">IB", 0, ord("B")) * 800
ENOUGH = 200_000  # messages; many times what a pipe holds


class StubPoller:
    """A poller that never calls back."""

    def watch(self, *_):
        pass

    def forget(self, *_):
        pass


class TooManyMessagesError(Exception):
    pass


class ChannelTest(unittest.TestCase):
    def test_what_comes_after_the_end_of_a_runner_is_not_waited_for(self):
        handled = 0

        def on_message(_kind, _payload):
            nonlocal handled
            handled += 1
            if handled > ENOUGH:
                raise TooManyMessagesError

        channel = Channel(StubPoller(), on_message, lambda: None, lambda: None)
        pipe, _ = channel.runner_ends()
        senders = [os.fork()]
        if 0 in senders:
            while True:
                os.write(pipe, MESSAGES)
        try:
            while channel.sent() < len(MESSAGES):
                pass
            channel.receive_rest()
        finally:
            for pid in senders:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            channel.close()
        self.assertGreaterEqual(handled, len(MESSAGES) // 5)


if __name__ == "__main__":
    unittest.main()
