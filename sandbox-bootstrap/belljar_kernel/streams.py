"""`sys.stdout` and `sys.stderr` of a runner, and the pipes below them.

Nothing is buffered: every write of Python code is in the pipe when it returns, so that it stands in
order with what C code and subprocesses write, and is there when the process is killed. A `print` is one write.

The two streams are two pipes, between which the reader cannot see an order. So a write to the other
stream than the last one waits until the guardian has read what the pipe of the last one holds. That
makes the order of Python's own writes exact, however busy the machine is. The guardian gathers what comes in quick
succession, so it is told that somebody waits. A guardian that is not allowed to
read, because the daemon takes nothing, is waited for like one whose pipe is full, but not longer than
`STREAM_SWITCH_WAIT_S`.

A thread may have pipes of its own (a background cell has). What its Python code writes goes there; C code and
subprocesses know nothing of threads, and write where all else goes.
"""

import _thread
import io
import posix  # not `os`, whose functions user code may replace
import sys
import time

from .descriptor_io import bytes_waiting
from .limits import (
    STREAM_SWITCH_POLL_GROWTH,
    STREAM_SWITCH_POLL_MAX_S,
    STREAM_SWITCH_POLL_S,
    STREAM_SWITCH_WAIT_S,
)

# Own references: a cell may replace what these modules hold.
_write = posix.write
_sleep = time.sleep
_now = time.monotonic
_print = print
_get_ident = _thread.get_ident
_StringIO = io.StringIO


class _Pipe(io.RawIOBase):
    """The binary layer of a stream: descriptor 1 or 2, or what a thread has in its place."""

    def __init__(self, streams, descriptor):
        self._streams = streams
        self._descriptor = descriptor
        self.name = "<stdout>" if descriptor == 1 else "<stderr>"
        self.mode = "wb"

    def fileno(self):
        return self._descriptor

    def writable(self):
        return True

    def isatty(self):
        return False

    def write(self, data):
        outlet = self._streams.outlet()
        if outlet.last != self._descriptor:
            self._streams.switch_to(self._descriptor, outlet)
        descriptor = outlet.descriptors[self._descriptor]
        view = memoryview(data).cast("B")
        size = len(view)
        bytes_written = _write(descriptor, view)
        while bytes_written < size:
            bytes_written += _write(descriptor, view[bytes_written:])
        return size


class _Outlet:
    """Where the output of a thread goes: what it writes to, and the pipes below, both by stream."""

    def __init__(self, descriptors, pipes):
        self.descriptors = descriptors
        self.pipes = pipes
        self.last = 1  # the stream of the last write


class Streams:
    """Both streams, and the spare descriptors from which they are mended."""

    def __init__(self, spare_stdout, spare_stderr, hurry):
        self._spares = {1: spare_stdout, 2: spare_stderr}
        self._hurry = hurry  # tells the guardian to read
        self._main = _Outlet({1: 1, 2: 2}, self._spares)
        self._of_threads = {}
        self._stdout = self._stderr = None

    def divert(self, stdout, stderr):
        """Let what this thread writes go to pipes of its own."""
        pipes = {1: stdout, 2: stderr}
        self._of_threads[_get_ident()] = _Outlet(pipes, pipes)

    def restore(self):
        """Let what this thread writes go where all else goes."""
        self._of_threads.pop(_get_ident(), None)

    def forget_threads(self):
        """In a copy, which has none of the threads of the original, but may get others of the same number."""
        self._of_threads.clear()

    def outlet(self):
        return self._of_threads.get(_get_ident(), self._main)

    def mend(self):
        """Before each cell: restore what an earlier cell changed in `sys` and in the descriptors."""
        posix.dup2(self._spares[1], 1)
        posix.dup2(self._spares[2], 2)
        if self._stdout is None or self._stdout.closed:
            self._stdout = self._text(1)
        if self._stderr is None or self._stderr.closed:
            self._stderr = self._text(2)
        sys.stdout = sys.__stdout__ = self._stdout
        sys.stderr = sys.__stderr__ = self._stderr

    def are_whole(self):
        """Whether the descriptors of both streams are what `mend` makes them."""
        return all(
            posix.fstat(descriptor)[1:3] == posix.fstat(spare)[1:3] for descriptor, spare in self._spares.items()
        )

    def is_own(self, stream):
        """Whether what is written to this stream goes where the output of programs goes, and nowhere else."""
        return stream is self._stdout and self.outlet() is self._main

    def settle(self):
        """Wait until all output was read, so that what other processes write to the pipes next comes after it."""
        self._settle(_now() + STREAM_SWITCH_WAIT_S)

    def _settle(self, deadline):
        for pipe in self.outlet().pipes.values():
            self._wait_until_read(pipe, deadline)

    def _text(self, descriptor):
        return io.TextIOWrapper(
            _Pipe(self, descriptor), encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True
        )

    def switch_to(self, stream, outlet):
        previous, outlet.last = outlet.pipes[outlet.last], stream
        self._wait_until_read(previous, _now() + STREAM_SWITCH_WAIT_S)

    def in_order(self, send, unread):
        """Send a message outside of the pipes so that it keeps its place in their output.

        What was printed before has to be read first, and `unread()`, the bytes of it that are not read
        yet, has to be 0 before more is printed. Both waits are bounded.
        """
        deadline = _now() + STREAM_SWITCH_WAIT_S
        self._settle(deadline)
        send()
        pause = STREAM_SWITCH_POLL_S
        while unread() and _now() < deadline:
            pause = _nap(pause)

    def print(self):
        """The built-in `print`, with one write for all that a call shows on one of these streams."""

        def print(*values, sep=None, end=None, file=None, flush=False):
            shown_on = getattr(sys, "stdout", None) if file is None else file
            if shown_on is None or (shown_on is not self._stdout and shown_on is not self._stderr):
                _print(*values, sep=sep, end=end, file=file, flush=flush)
                return
            gathered = _StringIO(newline="")
            try:
                _print(*values, sep=sep, end=end, file=gathered)
            finally:
                text = gathered.getvalue()
                if text:
                    shown_on.write(text)
            if flush:
                shown_on.flush()

        print.__module__, print.__qualname__, print.__doc__ = "builtins", "print", _print.__doc__
        return print

    def say(self, text):
        """Write a line of the kernel to stderr, even if user code has replaced `sys.stderr`."""
        outlet = self.outlet()
        self.switch_to(2, outlet)
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[_write(outlet.pipes[2], data) :]

    def _wait_until_read(self, descriptor, deadline):
        """Wait until all that the pipe holds now was read: its content has shrunk by that much, or it is empty.

        A thread or a child may continue to write, so that the pipe is never empty.
        """
        bytes_in_pipe = bytes_unread = bytes_waiting(descriptor)
        if bytes_unread:
            self._hurry()
        pause = STREAM_SWITCH_POLL_S
        while bytes_unread > 0 and _now() < deadline:
            pause = _nap(pause)
            before, bytes_in_pipe = bytes_in_pipe, bytes_waiting(descriptor)
            if bytes_in_pipe < before:
                bytes_unread = min(bytes_unread - (before - bytes_in_pipe), bytes_in_pipe)
                pause = STREAM_SWITCH_POLL_S


def _nap(pause):
    """Sleep, and return the next pause. A guardian that is late needs the CPU time that polling takes."""
    _sleep(pause)
    return min(pause * STREAM_SWITCH_POLL_GROWTH, STREAM_SWITCH_POLL_MAX_S)
