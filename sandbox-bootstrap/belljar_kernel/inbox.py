"""A process that takes descriptors from runners in the guardian's place.

A checkpoint hides its memory from all others, but lets the guardian read its size, through a descriptor that only the
checkpoint can open. Code of the session can send any other descriptor instead, and the receiver has to close it, which
can take long: a connection that lingers, a huge file without a name. So the guardian receives no descriptors from
runners. This process does, and passes on to the guardian only those that it waits for. If this process is blocked or
killed, checkpoints only seem larger.
"""

import os
import re
import socket

from . import memory, process
from .poller import READ

NAME = "belljar-inbox"
_DESCRIPTORS = 4096
_ROLLUP = re.compile(r"/proc/([0-9]+)/smaps_rollup")


class Inbox:
    def __init__(self, poller):
        self._poller = poller
        self._pid = None
        self._socket = self._runner_end = None

    def runner_end(self):
        """The descriptor on which runners send; raises OSError if the process cannot be started."""
        if self._pid is None:
            self._open()
        return self._runner_end.fileno()

    def pids(self):
        return set() if self._pid is None else {self._pid}

    def ended(self, pid):
        """A child of the guardian has ended. False if it was not the inbox."""
        if pid != self._pid:
            return False
        self._poller.forget(self._socket.fileno())
        self._socket.close()
        self._runner_end.close()
        self._pid = None
        return True

    def _open(self):
        # Datagrams, so that an incomplete message cannot hold back another one.
        receives, sends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        guardian = os.getpid()
        pid = os.fork()
        if pid == 0:
            _serve(guardian, receives, its)
        receives.close()
        its.close()
        ours.setblocking(False)
        self._pid, self._socket, self._runner_end = pid, ours, sends
        self._poller.watch(ours.fileno(), READ, lambda _events: self._receive())

    def _receive(self):
        try:
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        for descriptor in descriptors:
            memory.hold(_rollup_of(descriptor), descriptor)


def _serve(guardian, receives, passes_on):
    """In a fork of the guardian; does not return."""
    try:
        # A datagram socket does not report that the guardian has closed its end.
        process.end_with_parent(guardian)
        kept = sorted((receives.fileno(), passes_on.fileno()))
        for first, last in zip((0, kept[0] + 1, kept[1] + 1), (*kept, _DESCRIPTORS)):
            os.closerange(first, last)
        os.setsid()
        process.set_name(NAME)
        while True:
            _, descriptors, _, _ = socket.recv_fds(receives, 1, 1)
            for descriptor in descriptors:
                if _rollup_of(descriptor) is not None:
                    socket.send_fds(passes_on, [b"r"], [descriptor])
                os.close(descriptor)
    finally:
        os._exit(0)


def _rollup_of(descriptor):
    """The pid of the process whose size the descriptor shows; None if it is something else."""
    found = _ROLLUP.fullmatch(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found and int(found[1])
