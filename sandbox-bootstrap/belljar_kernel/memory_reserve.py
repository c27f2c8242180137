"""A memory reserve for the moment when no memory is left.

When the sandbox is full, the OOM killer ends the worker first. Files in memory that its cell has
written stay, so the next page that any process needs, even the guardian, would cost a checkpoint,
and the end of the last checkpoint would cost the session its variables. Therefore a process that
does nothing else holds some pages, and in the killer's order it comes between the worker and the
checkpoints.

It is a program of its own: only a process that the session may look into can set its place in that
order, and a fork would show the guardian's memory.
"""

import os
import signal
import sys

from . import process
from .limits import RESERVE_BYTES, RESERVE_FROM, WORKER_OOM_SCORE

_DESCRIPTORS = 4096
_PROGRAM = """
import mmap, signal, sys
score, size = sys.argv[1:]
with open("/proc/self/oom_score_adj", "w") as file:
    file.write(score)
room = mmap.mmap(-1, int(size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(room), mmap.PAGESIZE):
    room[page] = 1
while True:
    signal.pause()
"""


class MemoryReserve:
    def __init__(self):
        self._pid = None

    def held(self):
        """Bytes that are in use only for the reserve."""
        return 0 if self._pid is None else RESERVE_BYTES

    def keep(self, in_use, bound):
        """Make the reserve when memory gets short, but not when it is used up: that would end the worker."""
        short = in_use > bound * RESERVE_FROM
        if self._pid is None:
            if short and in_use + 2 * RESERVE_BYTES < bound:
                self._load(_score(bound))
        elif not short:
            self.release()

    def release(self):
        if self._pid is not None:
            process.send_signal(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None

    def ended(self, pid):
        """A child of the guardian has ended. False if it was not the reserve."""
        if pid != self._pid:
            return False
        self._pid = None
        return True

    def _load(self, score):
        try:
            pid = os.fork()
        except OSError:
            return  # the next check tries again
        if pid == 0:
            _hold(score)
        self._pid = pid


def _score(bound):
    """A score below the worker's by more than the size of the reserve can add: its pages, and less for Python."""
    return WORKER_OOM_SCORE - 2 * RESERVE_BYTES * 1000 // bound


def _hold(score):
    """In a fork of the guardian; does not return."""
    try:
        os.closerange(0, _DESCRIPTORS)
        os.setsid()
        # Python expects the three standard descriptors; no others are passed on.
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        arguments = ["belljar-reserve", "-I", "-S", "-c", _PROGRAM, str(score), str(RESERVE_BYTES)]
        os.execve(sys.executable, arguments, {})
    finally:
        os._exit(0)
