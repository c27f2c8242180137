"""Finds what ends the process that loads a snapshot: the load is tried in processes of their own until one gets through.

Only a snapshot whose plain load has failed is treated so. What the code of variables does to files and to other processes
is done in each try, as it was done in the load that has failed. Buffers are not filled there, and so take no memory.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import mmap
import posix  # not `os`, whose functions user code may replace
import time

from . import copies, descriptors, process
from .limits import (
    COMPUTE_OOM_SCORE,
    PACK_POLL_GROWTH,
    PACK_POLL_MAX_S,
    PACK_POLL_S,
    WAKE_DEATHS,
    WAKE_IMPORT_S,
    WAKE_SHARES,
    WAKE_STEP_S,
    WAKE_SWEEPS,
    WAKE_TRIALS_S,
)
from .snapshot import death
from .snapshot_partial import Steps

_NUMBER, _MAY_IMPORT, _BYTES, _IS_DONE = range(4)
_WORD_BYTES = 8

_TOO_MANY = f"it was not tried: {WAKE_DEATHS} things before it end the process that loads them"
_TOO_LATE = "it was not tried: the time for that went to things before it, which end the process or hold it up"


def steps(load):
    """The steps for a load that can get through. `load` does all of it with the steps that it is given, and is called in
    processes of their own."""
    deadly, left = {}, WAKE_TRIALS_S
    words = memoryview(mmap.mmap(-1, 4 * _WORD_BYTES)).cast("q")  # shared with the process that tries
    with _Leftovers() as leftovers:
        while len(deadly) < WAKE_DEATHS:
            reason, took = _ended(load, deadly, words, left)
            leftovers.end()
            left -= took
            number = words[_NUMBER]
            if words[_IS_DONE] or number in deadly:
                return Steps(deadly)  # it got through, or nothing more can be found out
            if reason is None:
                # The step that was under way is not known to get through, but those before it are.
                return Steps(deadly, until=max(*deadly, number - 1), beyond=_TOO_LATE) if deadly else Steps(deadly)
            deadly[number] = reason
    return Steps(deadly, until=max(deadly), beyond=_TOO_MANY)


def _ended(load, deadly, words, most_s):
    """Why the process ended that has tried the load, unless it has used up its time, or could not begin; and how long it
    took, as the sum of pauses: a sandbox that is paused must not count."""
    words[:] = memoryview(bytes(words.nbytes)).cast("q")
    try:
        child = copies.silently(posix.fork)
    except OSError:
        return None, 0.0
    if child == 0:
        _try(load, deadly, words)
    pause, took, silent, last = PACK_POLL_S, 0.0, 0.0, None
    share_s = most_s / WAKE_SHARES
    while True:
        ended, status = posix.waitpid(child, posix.WNOHANG)
        if ended:
            told = f"loading it ended the process ({death(posix.waitstatus_to_exitcode(status))})"
            return told if words[_NUMBER] else None, took  # the first step comes before any code of the session
        time.sleep(pause)
        took += pause
        now = words[_NUMBER], words[_BYTES]
        silent = silent + pause if now == last else 0.0
        last = now
        most_silent_s = max(WAKE_IMPORT_S if words[_MAY_IMPORT] else WAKE_STEP_S, share_s)
        if silent >= most_silent_s or took >= most_s:
            posix.kill(child, _signal.SIGKILL)
            posix.waitpid(child, 0)
            told = f"loading it made no progress for {most_silent_s:.0f} s"
            return told if silent >= most_silent_s else None, took
        pause = min(pause * PACK_POLL_GROWTH, PACK_POLL_MAX_S)


def _try(load, deadly, words):
    """In a process of its own, whose group and descriptors are not those of the session."""
    own = posix.getpid()

    def mark(number, may_import):
        if posix.getpid() == own:  # not in a process that code of a variable has forked
            words[_NUMBER], words[_MAY_IMPORT] = number, may_import

    def mark_read(count):
        if posix.getpid() == own:
            words[_BYTES] += count

    try:
        posix.setsid()
        process.set_oom_score(COMPUTE_OOM_SCORE)
        descriptors.lead_nowhere(kept=())
        try:
            load(Steps(deadly, mark=mark, mark_read=mark_read))
        except BaseException:
            pass  # the load that follows tells of it
        if posix.getpid() == own:
            words[_IS_DONE] = True
    finally:
        posix._exit(0)


def untouched_memory(size):
    """A buffer that takes memory only where something is written to it; a `bytearray` is filled with zeros at once."""
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _Leftovers:
    """Ends the processes that code of variables has left behind."""

    def __enter__(self):
        self._handler = _signal.getsignal(_signal.SIGCHLD)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # no handler of a module sees these children
        self._earlier = set(process.children())
        process.adopt_orphans()
        return self

    def end(self):
        try:
            for _ in range(WAKE_SWEEPS):
                left = set(process.children()) - self._earlier
                for pid in left:
                    posix.kill(pid, _signal.SIGKILL)
                for pid in left:
                    posix.waitpid(pid, 0)
                if not left:
                    return
        except OSError:
            pass  # the guardian ends them with the session

    def __exit__(self, *_error):
        process.adopt_orphans(False)
        if self._handler is not None:
            _signal.signal(_signal.SIGCHLD, self._handler)
