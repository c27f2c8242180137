"""Copies of a runner's process, made without a trace in the original."""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import errno
import posix  # not `os`, whose functions user code may replace
import select
import sys
import time
import warnings

from .limits import ARRIVED_LOOK_MS, PARTED_POLL_GROWTH, PARTED_POLL_MAX_S, PARTED_POLL_S, PARTED_S, PARTED_STOPS

COPY, ORIGINAL, FAILED, NO_DESCRIPTORS = "copy", "original", "failed", "no descriptors"
# Exit codes of the process between the two forks.
_PARTED, _BROKEN, _WITHOUT_DESCRIPTORS = 0, 1, 2
_now, _sleep, _poll = time.monotonic, time.sleep, select.poll  # own references: a cell may replace what modules hold
_OUTCOMES = {_PARTED: ORIGINAL, _WITHOUT_DESCRIPTORS: NO_DESCRIPTORS}

# Since Python 3.12 a fork while there are threads causes a warning. The user cannot act on it: the fork is the
# kernel's, and the threads are the user's.
_WARNS = sys.version_info >= (3, 12)
_SILENCE = [("ignore", None, Warning, None, 0)]


def make(part, arrive):
    """Fork a copy. Returns COPY in the copy; in the original ORIGINAL, or FAILED or NO_DESCRIPTORS if there is no copy.

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
    outcome = FAILED if child is None else _wait_until_parted(child)
    if handler is not None:
        _restore_handler(handler)
        _signal_again()
    return outcome


def _become_copy(part):
    """Runs in the first child; returns in the second, with the descriptor on which it reports its arrival."""
    try:
        posix.setsid()  # out of reach for a `killpg` of the original
        part()
        waits, here = posix.pipe()
        copy = silently(posix.fork)
        if copy:
            posix.close(here)
            _wait_for_arrival(copy, waits)
            posix._exit(_PARTED)
        posix.close(waits)
        posix.setsid()
        return here
    except OSError as error:
        posix._exit(_WITHOUT_DESCRIPTORS if error.errno in (errno.EMFILE, errno.ENFILE) else _BROKEN)
    except BaseException:
        posix._exit(_BROKEN)


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


def _wait_for_arrival(copy, waits):
    """Wait, in the process between the forks, until the copy has arrived or has ended."""
    reports, stops = _poll(), 0
    reports.register(waits, select.POLLIN)
    while not reports.poll(ARRIVED_LOOK_MS):
        changed, status = posix.waitpid(copy, posix.WNOHANG | posix.WUNTRACED)
        if changed and posix.WIFSTOPPED(status):
            stops += 1
            posix.kill(copy, _signal.SIGCONT if stops <= PARTED_STOPS else _signal.SIGKILL)


def _wait_until_parted(child):
    """Find out, in the original, how it went. The process between the forks is not waited for if it does not end."""
    until, pause, stops = _now() + PARTED_S, PARTED_POLL_S, 0
    try:
        while True:
            changed, status = posix.waitpid(child, posix.WNOHANG | posix.WUNTRACED)
            if changed and not posix.WIFSTOPPED(status):
                return _OUTCOMES.get(posix.waitstatus_to_exitcode(status), FAILED)
            if changed:
                stops += 1
                posix.kill(child, _signal.SIGCONT)
            if stops > PARTED_STOPS or _now() > until:
                posix.kill(child, _signal.SIGKILL)  # a copy that has arrived stays
            _sleep(pause)
            pause = min(pause * PARTED_POLL_GROWTH, PARTED_POLL_MAX_S)
    except (ChildProcessError, ProcessLookupError):
        return ORIGINAL  # user code ignores SIGCHLD, so the kernel has reaped it; the guardian notices a missing copy


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
