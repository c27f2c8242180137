"""Copies of a runner's process, made without a trace in the original."""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import posix  # not `os`, whose functions user code may replace
import sys
import warnings

COPY, ORIGINAL, FAILED = "copy", "original", "failed"

# Since Python 3.12 a fork while there are threads causes a warning. The user cannot act on it: the fork is the
# kernel's, and the threads are the user's.
_WARNS = sys.version_info >= (3, 12)
_SILENCE = [("ignore", None, Warning, None, 0)]


def make(part, arrive):
    """Fork a copy. Returns COPY in the copy; in the original ORIGINAL, or FAILED if there is no copy.

    The copy is forked twice, so that it becomes a child of the guardian and `os.wait()` of user code
    never sees it. `part()` is called between the two forks, and `arrive()` in the copy; both are done
    before the original continues. So the copy holds nothing of the original by then, and has reported
    to the guardian even if the original then leaves it no CPU time.
    """
    handler = _user_handler()
    state = random_state()
    try:
        child = silently(posix.fork)
    except OSError:
        child = None
    if child == 0:
        here = _become_copy(part)
        _restore_handler(handler)
        restore_random(state)
        try:
            arrive()
        except BaseException:
            posix._exit(1)  # the guardian does not wait for this copy any more
        try:
            posix.write(here, b"1")
        except OSError:
            pass  # the process between the forks was killed as a stray, after the original had ended
        posix.close(here)
        return COPY
    failed = child is None or not _has_parted(child)
    if handler is not None:
        _restore_handler(handler)
        _signal_again()
    return FAILED if failed else ORIGINAL


def _become_copy(part):
    """Runs in the first child; returns in the second, with the descriptor on which it reports its arrival."""
    try:
        posix.setsid()  # out of reach for a `killpg` of the original
        part()
        waits, here = posix.pipe()
        if silently(posix.fork):
            posix.close(here)
            posix.read(waits, 1)  # a byte or the end: the copy has arrived, or has ended
            posix._exit(0)
        posix.close(waits)
        posix.setsid()
        return here
    except BaseException:
        posix._exit(1)


def silently(fork):
    """Errors in the fork handlers of user code or of modules are not shown to the user."""
    hook, sys.unraisablehook = sys.unraisablehook, _ignore
    if _WARNS:
        filters, warnings.filters = warnings.filters, _SILENCE
    try:
        return fork()
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
        return True  # user code ignores SIGCHLD, so the kernel has reaped it; the guardian notices a missing copy


def _user_handler():
    """Put aside user code's handler of SIGCHLD: it must not be called for a child of the kernel."""
    handler = _signal.getsignal(_signal.SIGCHLD)
    if not callable(handler):
        return None
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    return handler


def _restore_handler(handler):
    if handler is not None:
        _signal.signal(_signal.SIGCHLD, handler)


def _signal_again():
    """Send SIGCHLD again if a child of user code has ended, because its signal may have been lost meanwhile."""
    try:
        ended = posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
    except ChildProcessError:
        return
    if ended is not None:
        posix.kill(posix.getpid(), _signal.SIGCHLD)


def random_state():
    """Python seeds `random` anew in every fork; a copy shall continue as the original would have."""
    random = sys.modules.get("random")
    try:
        return random.Random.getstate(random._inst)
    except Exception:
        return None  # not loaded, or not what it was


def restore_random(state):
    if state is not None:
        try:
            random = sys.modules["random"]
            random.Random.setstate(random._inst, state)
        except Exception:
            pass
