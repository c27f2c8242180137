"""The guardian's end of a socket pair to a runner; never blocks."""

import array
import fcntl
import os
import select
import socket
import struct
import termios

from .limits import CONTROL_READ_BYTES, RUNNER_QUEUE_BYTES
from .poller import READ, WRITE
from .wire import MessageReader, WireError

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)


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
        self._socket, self.runner_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        # Then the kernel says who sent a message, and a runner cannot lie about its pid.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._reader = MessageReader()
        self._queue = bytearray()
        self._reading = False
        self._ended = False
        self._received = 0  # bytes
        self.peer_pid = None
        self.descriptor = None  # that came with the first message

    def read(self, on):
        self._reading = on
        self._watch()

    def send(self, message, descriptors=None):
        """Queue a message; descriptors go with its first byte and stay the caller's to close."""
        if self._ended:
            return
        if not self._queue:
            try:
                sent = self._send_some(message, descriptors)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the runner is gone, which its pid tells
            if sent == len(message):
                return
            message = memoryview(message)[sent:]
            descriptors = None if sent else descriptors
        if descriptors:
            # Rare enough to be refused: the runner does not read, so it is no use to ask it.
            raise BlockingIOError
        self._queue += message
        if len(self._queue) > RUNNER_QUEUE_BYTES:
            self._on_broken()
            return
        self._watch()

    def _send_some(self, message, descriptors):
        if not descriptors:
            return self._socket.send(message)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        return self._socket.sendmsg([message], [rights])

    def wait(self, seconds):
        """Like `receive`, but for that long if nothing is there yet."""
        if self._ended:
            return False
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.poll(max(seconds, 0) * 1000)
        return self.receive()

    def receive(self):
        """Read once and handle the messages that are whole. False at the end or if nothing came."""
        try:
            if self.peer_pid is None:
                data, ancillary, _, _ = self._socket.recvmsg(CONTROL_READ_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
                for level, kind, value in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                        self.peer_pid = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0]
                    elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        self._take_descriptors(value)
            else:
                data = self._socket.recv(CONTROL_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._ended = True
            self._watch()
            self._on_end()
            return False
        self._received += len(data)
        self._reader.feed(data)
        return self.handle_read()

    def receive_rest(self):
        """Handle what has been sent up to now; processes that the runner left behind may go on to send."""
        end = float("inf")
        end = self._received + bytes_waiting(self._socket.fileno())  # control: last_words_have_an_end
        while self._received < end and self.receive():
            pass

    def _take_descriptors(self, value):
        for descriptor in memoryview(value[: len(value) // 4 * 4]).cast("i").tolist():
            if self.descriptor is None:
                self.descriptor = descriptor
            else:
                os.close(descriptor)

    def handle_read(self):
        """Handle the messages that were read and are whole. False if it has ended."""
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
        self._poller.forget(self._socket.fileno())
        self._socket.close()
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        self.close_runner_end()

    def close_runner_end(self):
        self.runner_end.close()

    def _watch(self):
        if self._ended:
            self._poller.forget(self._socket.fileno())
            return
        events = (READ if self._reading else 0) | (WRITE if self._queue else 0)
        self._poller.watch(self._socket.fileno(), events, self._ready)

    def _ready(self, events):
        if events & WRITE and self._queue:
            self._flush()
        if events & ~WRITE:
            if self._reading:
                self.receive()
            else:
                # A hang-up, which is reported unasked. What was sent before it is read later.
                self._queue.clear()
                self._watch()

    def _flush(self):
        try:
            del self._queue[: self._socket.send(self._queue)]
        except BlockingIOError:
            pass
        except OSError:
            self._queue.clear()  # the runner is gone
        self._watch()


def bytes_waiting(descriptor):
    """How many bytes wait to be read from a pipe or a socket."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
