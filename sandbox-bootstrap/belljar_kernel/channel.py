"""The guardian's ends of the connections with a runner; never blocks.

The guardian sends on a socket, which can also carry descriptors. The runner cannot send on it: a descriptor in the
queue of a socket is closed by the process that owns the queue, and closing it can take as long as its sender likes. So
a runner sends on a pipe, which carries bytes only.
"""

import array
import fcntl
import os
import select
import socket
import termios
import time

from .limits import CONTROL_READ_BYTES, RUNNER_QUEUE_BYTES
from .poller import READ, WRITE
from .wire import MessageReader, WireError


class Channel:
    """Messages from and to one runner.

    `on_message(kind, payload)` is called for each one that comes. A runner that breaks the framing
    or lets too much wait is reported by `on_broken()`, one that closes its end by `on_end()`.
    """

    def __init__(self, poller, on_message, on_broken, on_end):
        self._poller = poller
        self._on_message = on_message
        self._on_broken = on_broken
        self._on_end = on_end
        self._socket, self._runner_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.shutdown(socket.SHUT_RD)  # control: runners_send_no_descriptors
        self._pipe, self._runner_pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self._reader = MessageReader()
        self._queue = bytearray()
        self._reading = False
        self._ended = False
        self._received = 0  # bytes
        self._most_waiting = None

    def runner_ends(self):
        """The runner's descriptors: the one that it sends on, and the one that it receives on."""
        return self._runner_pipe, self._runner_socket.fileno()

    def read(self, on):
        self._reading = on
        self._watch()

    def read_while(self, most_waiting):
        """Read only while no more bytes than that wait to be sent; None: always.

        Not for a well-behaved runner: it may send before it reads, and both would wait for each other.
        """
        if self._most_waiting != most_waiting:
            self._most_waiting = most_waiting
            self._watch()

    def sent(self):
        """Bytes that the runner has sent up to now, read or not."""
        return self._received if self._ended else self._received + bytes_waiting(self._pipe)

    def handled(self):
        """Bytes that the runner had sent by the end of the message that is being handled, or was handled last."""
        return self._received - self._reader.unread()

    def is_whole_by(self, deadline):
        """Whether the message that the runner has begun to send is complete by then; later messages do not count."""
        if not self._reader.unread():
            return True
        begun = self.handled()
        self.receive()  # the rest may be there
        while self._reader.unread() and self.handled() == begun:
            left = deadline - time.monotonic()
            if left <= 0 or not self.wait(left):
                return not self._reader.unread() or self.handled() != begun
        return True

    def send(self, message, descriptors=None):
        """Queue a message; descriptors go with its first byte, and the caller still has to close them.

        Descriptors are rare, so such a message is refused with an OSError if the runner does not read.
        """
        if self._ended:
            return
        if descriptors:
            if self._queue:
                raise BlockingIOError
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            message = memoryview(message)[self._socket.sendmsg([message], [rights]) :]
        elif not self._queue:
            try:
                message = memoryview(message)[self._socket.send(message) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the runner is gone, which the end of its process reports
        self._queue += message
        if len(self._queue) > RUNNER_QUEUE_BYTES:
            self._on_broken()
            return
        self._watch()

    def wait(self, seconds):
        """Like `receive`, but wait that long if nothing is there yet."""
        if self._ended:
            return False
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        waiting.poll(max(seconds, 0) * 1000)
        return self.receive()

    def receive(self):
        """Read once and handle the messages that are whole. False at the end or if nothing came."""
        if self._ended:
            return False
        try:
            data = os.read(self._pipe, CONTROL_READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._ended = True
            self._watch()
            self._on_end()
            return False
        self._received += len(data)
        self._reader.feed(data)
        return self.handle_read()

    def receive_rest(self):
        """Handle only what has been sent up to now; processes that the runner left behind may continue to send."""
        if self._ended:
            return
        end = self._received + bytes_waiting(self._pipe)
        while self._received < end and self.receive():
            pass

    def handle_read(self):
        """Handle the messages that were read and are complete. False if the channel has ended."""
        try:
            while not self._ended:  # a callback may close
                message = self._reader.next()
                if message is None:
                    return True
                self._on_message(*message)
            return False
        except WireError:
            self._ended = True
            self._watch()
            self._on_broken()
            return False

    def close(self):
        if self._socket.fileno() < 0:
            return
        self._ended = True
        self._watch()
        self._socket.close()
        os.close(self._pipe)
        self.close_runner_ends()

    def close_runner_ends(self):
        self._runner_socket.close()
        if self._runner_pipe is not None:
            os.close(self._runner_pipe)
            self._runner_pipe = None

    def _watch(self):
        lags = self._most_waiting is not None and len(self._queue) > self._most_waiting
        reads, writes = self._reading and not self._ended and not lags, self._queue and not self._ended
        self._poller.watch(self._pipe, READ if reads else 0, lambda _events: self.receive())
        self._poller.watch(self._socket.fileno(), WRITE if writes else 0, lambda _events: self._flush())

    def _flush(self):
        try:
            del self._queue[: self._socket.send(self._queue)]
        except BlockingIOError:
            pass
        except OSError:
            self._queue.clear()  # the runner is gone
        self._watch()


def bytes_waiting(descriptor):
    """How many bytes wait to be read from a pipe; works with either end of it."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
