"""A runner's descriptors, whatever user code made of their flags.

Code that goes over all descriptors, to make them non-blocking for example, meets these too. That is
no reason for the worker to die of it.
"""

import posix  # not `os`, whose functions user code may replace


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
