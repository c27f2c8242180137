"""I/O on a runner's descriptors that works no matter how user code changed their flags.

Code that changes all descriptors, to make them non-blocking for example, also changes these. The
worker must not die of that.
"""

import array
import fcntl
import posix  # not `os`, whose functions user code may replace
import termios


def send_all(descriptor, data, write=posix.write):
    left = memoryview(data)
    while left:
        try:
            left = left[write(descriptor, left) :]
        except BlockingIOError:
            posix.set_blocking(descriptor, True)


def receive(socket, how):
    """What `how()` receives from the socket, waiting for it if need be."""
    while True:
        try:
            return how()
        except BlockingIOError:
            posix.set_blocking(socket.fileno(), True)


def bytes_waiting(descriptor):
    """How many bytes wait to be read from a pipe; works with either end of it."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
