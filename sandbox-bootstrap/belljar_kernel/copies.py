"""Copies of a runner's process, made without a trace in the original."""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import posix  # not `os`, whose functions user code may replace
import sys
import warnings

COPY, ORIGINAL, FAILED = "copy", "original", "failed"

# Since then Python warns of a fork while there are threads. Nobody can act on it: the fork is ours,
# and the threads are the user's.
_WARNS = sys.version_info >= (3, 12)
_SILENCE = [("ignore", None, Warning, None, 0)]


def make(part, arrive):
    """Fork a copy. Returns COPY in it; in the original ORIGINAL, or FAILED if there is none.

    It is forked twice, so that it becomes a child of the guardian and `os.wait()` of user code
    never sees it. `part()` is called in between: it is done when the original goes on, so that the
    original finds nothing of its own held by the copy. So is `arrive()`, which the copy calls: what the
    original does next may leave the copy no CPU time to say that it is there.
    """
    handler = _user_handler()
    random_state = _random_state()
    try:
        child = _fork()
    except OSError:
        child = None
    if child == 0:
        here = _become_copy(part)
        _restore_handler(handler)
        _restore_random(random_state)
        try:
            arrive()
        except BaseException:
            posix._exit(1)  # nobody waits for it any more
        try:
            posix.write(here, b"1")
        except OSError:
            pass  # what was in between was killed as a stray, when the original had ended
        posix.close(here)
        return COPY
    failed = child is None or not _has_parted(child)
    if handler is not None:
        _restore_handler(handler)
        _signal_again()
    return FAILED if failed else ORIGINAL


def _become_copy(part):
    """In the first child; returns in the second, with what it writes to when it is there."""
    try:
        posix.setsid()  # out of reach for a `killpg` of the original
        part()
        waits, here = posix.pipe()
        if _fork():
            posix.close(here)
            posix.read(waits, 1)  # a word or the end: the copy is there, or has ended
            posix._exit(0)
        posix.close(waits)
        posix.setsid()
        return here
    except BaseException:
        posix._exit(1)


def _fork():
    """Without a word: what handlers of a fork, of user code or of modules, raise is not for the user."""
    hook, sys.unraisablehook = sys.unraisablehook, _ignore
    if _WARNS:
        filters, warnings.filters = warnings.filters, _SILENCE
    try:
        return posix.fork()
    finally:
        sys.unraisablehook = hook
        if _WARNS:
            warnings.filters = filters


def _ignore(_unraisable):
    pass


def _has_parted(child):
    try:
        return posix.waitpid(child, 0)[1] == 0
    except ChildProcessError:
        return True  # user code ignores SIGCHLD, so the kernel has reaped it; the guardian will see


def _user_handler():
    """User code's handler of SIGCHLD, put aside: it must not be called for a child of ours."""
    handler = _signal.getsignal(_signal.SIGCHLD)
    if not callable(handler):
        return None
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    return handler


def _restore_handler(handler):
    if handler is not None:
        _signal.signal(_signal.SIGCHLD, handler)


def _signal_again():
    """If a child of user code has ended, its signal may have been lost meanwhile."""
    try:
        ended = posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
    except ChildProcessError:
        return
    if ended is not None:
        posix.kill(posix.getpid(), _signal.SIGCHLD)


def _random_state():
    """Python seeds `random` anew in every fork; a copy shall go on as the original would have."""
    random = sys.modules.get("random")
    try:
        return random.Random.getstate(random._inst)
    except Exception:
        return None  # not loaded, or not what it was


def _restore_random(state):
    if state is not None:
        try:
            random = sys.modules["random"]
            random.Random.setstate(random._inst, state)
        except Exception:
            pass
