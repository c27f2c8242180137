"""Raises in what makes no progress while variables are packed or tried out."""

import _signal  # the C half: the other runs through `enum`, which user code may have broken

from .limits import PACK_STUCK_LOOKS


class Stuck(Exception):
    """A variable makes no progress."""


class Watch:
    """Looks once a second; a process that is stopped is not looked at.

    `progress` gives what is written to or read from, and a count of steps. While that waits for the other side, which
    may be slow, no time counts: it is not the variable's, and half a record must not stay in the stream.
    """

    def __init__(self, progress, patient=False):
        self._progress, self._looks_at_most = progress, PACK_STUCK_LOOKS * (2 if patient else 1)
        self._last, self._looks = None, 0

    def begin(self):
        self._looks = 0

    def __enter__(self):
        _signal.signal(_signal.SIGALRM, self.look)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGALRM,))
        _signal.setitimer(_signal.ITIMER_REAL, 1, 1)
        return self

    def __exit__(self, *_error):
        _signal.setitimer(_signal.ITIMER_REAL, 0)

    def look(self, _number, _frame):
        sink, steps = self._progress()
        now = getattr(sink, "written", None) or getattr(sink, "sent", 0), steps
        self._looks = 0 if getattr(sink, "waits", False) or now != self._last else self._looks + 1
        self._last = now
        if self._looks >= self._looks_at_most:
            raise Stuck(f"packing it makes no progress for {self._looks_at_most} s")
