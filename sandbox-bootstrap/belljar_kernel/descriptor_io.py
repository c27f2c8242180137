"""I/O on a runner's descriptors that works no matter how user code changed their flags.

Code that changes all descriptors, to make them non-blocking for example, also changes these. The
worker must not die of that.
"""

import array
import fcntl
import posix  # not `os`, whose functions user code may replace
import termios


def send_all(descriptor, data, write=posix.write):
    unsent = memoryview(data)
    while unsent:
        try:
            unsent = unsent[write(descriptor, unsent) :]
        except BlockingIOError:
            posix.set_blocking(descriptor, True)


def receive(socket, receive_once):
    """Return what `receive_once()` receives from the socket, and wait for it if need be."""
    while True:
        try:
            return receive_once()
        except BlockingIOError:
            posix.set_blocking(socket.fileno(), True)


def bytes_waiting(descriptor):
    """How many bytes wait to be read from a pipe; works with either end of it."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
