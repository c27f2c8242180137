"""Ends what makes no progress while variables are packed or tried out.

A process looks at itself first, by a signal, and goes on behind the variable. Code of a variable may keep that signal
away, catch what it raises, or run where no signal is handled; then the process falls silent, and the one that waits for
it kills it.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import mmap
import posix  # not `os`, whose functions user code may replace
import time

from .limits import PACK_POLL_GROWTH, PACK_POLL_MAX_S, PACK_POLL_S, PACK_SILENT_S, PACK_STUCK_LOOKS

_sleep = time.sleep  # an own reference: a cell may replace what the module holds
_WORD_BYTES = 8


class Stuck(Exception):
    """A variable makes no progress."""


def _shared(place):
    return property(lambda self: self._words[place], lambda self, value: self._words.__setitem__(place, value))


class Progress:
    """How far the processes are that pack and try out, in memory that they share with the one that waits for them.

    Names are told by their places. Beats are counted while a process is watched, and are 0 otherwise.
    """

    is_sending, packed, loaded, packer_beats, trial_beats, trial, trial_was_stuck = map(_shared, range(7))

    def __init__(self):
        self._words = memoryview(mmap.mmap(-1, 7 * _WORD_BYTES)).cast("q")
        self.begin()

    def begin(self):
        """Nothing is done yet."""
        self._words[:] = memoryview(bytes(7 * _WORD_BYTES)).cast("q")
        self.packed = self.loaded = -1

    def packer_beat(self, is_on):
        self.packer_beats = self.packer_beats + 1 if is_on else 0

    def trial_beat(self, is_on):
        self.trial_beats = self.trial_beats + 1 if is_on else 0


class Watch:
    """Looks once a second; a process that is stopped is not looked at.

    `progress` gives what is written to or read from, and a count of steps. While that waits for the other side, which
    may be slow, no time counts: it is not the variable's, and half a record must not stay in the stream. `beat` is told
    that the watch is on, again and again, and at the end that it is not.
    """

    def __init__(self, progress, beat=lambda _is_on: None, patient=False):
        self._progress, self._looks_at_most = progress, PACK_STUCK_LOOKS * (2 if patient else 1)
        self._beat, self._is_on = beat, False
        self._last, self._looks = None, 0

    def begin(self):
        self._looks = 0

    def arm(self):
        """Make the signal come, whatever code of a variable has done to it."""
        if self._is_on:
            _signal.signal(_signal.SIGALRM, self.look)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGALRM,))
            _signal.setitimer(_signal.ITIMER_REAL, 1, 1)
            self._beat(True)

    def __enter__(self):
        self._is_on = True
        self.arm()
        return self

    def __exit__(self, *_error):
        self._is_on = False
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        self._beat(False)

    def look(self, _number, _frame):
        sink, steps = self._progress()
        now = getattr(sink, "written", None) or getattr(sink, "sent", 0), steps
        self._looks = 0 if getattr(sink, "waits", False) or now != self._last else self._looks + 1
        self._last = now
        if self._looks >= self._looks_at_most:
            raise Stuck(f"packing it makes no progress for {self._looks_at_most} s")
        self._beat(True)  # not where the variable catches what is raised


class _Silence:
    """How long a process has not beaten: as the sum of pauses, for a sandbox that is paused must not count."""

    def __init__(self):
        self._last, self._lasts = 0, 0.0

    def is_too_long(self, beats, pause):
        self._lasts = self._lasts + pause if beats and beats == self._last else 0.0
        self._last = beats
        return self._lasts >= PACK_SILENT_S


def end_of_packer(packer, progress):
    """How the process ended, as in `subprocess`, and whether it was killed for its silence. A trial that falls silent is
    killed too, and one that is left alone."""
    packers, trials = _Silence(), _Silence()
    pause, was_stuck = PACK_POLL_S, False
    while True:
        ended, status = posix.waitpid(packer, posix.WNOHANG)
        if ended:
            if progress.trial_beats:
                _kill(progress.trial)
            return posix.waitstatus_to_exitcode(status), was_stuck
        _sleep(pause)
        if trials.is_too_long(progress.trial_beats, pause):
            progress.trial_beats, progress.trial_was_stuck = 0, True
            _kill(progress.trial)
        if packers.is_too_long(progress.packer_beats, pause):
            progress.packer_beats, was_stuck = 0, True
            _kill(packer)
        pause = min(pause * PACK_POLL_GROWTH, PACK_POLL_MAX_S)


def _kill(process):
    try:
        posix.kill(process, _signal.SIGKILL)
    except OSError:
        pass  # it has ended by itself
