"""Ends a trial before code of a variable touches anything outside of its process: the session still lives.

What follows cannot be tried out then, and is taken as it is; should it fail when the session wakes, that tells so.
"""

import errno
import posix
import sys

from . import descriptors
from .late_imports import from_stdlib

# How a trial ends that was about to touch something; and one that would run another program in its place.
STATUS, REPLACED = 87, 88

_TOUCHES = frozenset(
    "os.remove os.rename os.rmdir os.mkdir os.truncate os.link os.symlink os.chmod os.chown os.utime os.setxattr "
    "os.removexattr os.chflags os.lchflags os.lockf os.fork os.forkpty os.posix_spawn os.spawn os.system os.killpg "
    "subprocess.Popen signal.pthread_kill socket.connect socket.bind socket.sendto socket.sendmsg sqlite3.connect "
    "fcntl.flock fcntl.lockf syslog.syslog".split()
)
# Python tells nothing of these: modules, with a function of theirs that makes a file, starts a program or sends a signal.
_UNTOLD = (
    ("posix", "mkfifo"),
    ("os", "mkfifo"),
    ("posix", "mknod"),
    ("os", "mknod"),
    ("_posixsubprocess", "fork_exec"),
    ("subprocess", "_fork_exec"),
    ("_signal", "pidfd_send_signal"),
    ("signal", "pidfd_send_signal"),
)
_WRITES = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
_NOWHERE = "/dev/null"
# How it fails to write to a file that can only be read, to cut it and to map it; and how a database tells of that.
_REFUSED, _REFUSED_TO_DATABASE = (errno.EBADF, errno.EINVAL, errno.EACCES), "disk I/O error"
_CAUSES = 100  # no error has more in earnest
# Own references: a cell may replace what the module holds.
_end, _this_process, _can_run = posix._exit, posix.getpid, posix.access


def keep(loading, tell, needed):
    """From here on, end this process where it would touch anything. Before, `tell` is called; what it does itself is let be.
    Descriptors that are open lead nowhere or can only be read, but for those that are `needed`. Code that fails because it
    would write to one of the latter has touched it, too.

    A hook cannot be taken away: this is for a process of its own.
    """
    sys.dont_write_bytecode = True
    own, is_telling = _this_process(), False
    is_refused = descriptors.lead_nowhere(needed)
    from_stdlib("_posixsubprocess")

    def hook(event, arguments):
        if is_telling:
            return
        if event == "open":
            path, _, flags = arguments
            if loading.opens_nowhere or path == _NOWHERE or not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event == "os.kill":
            if arguments[0] == own:
                return  # this touches only the trial
        elif event == "os.exec":
            if _is_program(arguments[0]):
                end(REPLACED)
            return  # it fails by itself
        elif event not in _TOUCHES:
            return
        end(STATUS)

    def end(status):
        nonlocal is_telling
        is_telling = True
        try:
            if _this_process() == own:
                tell()
        finally:
            _end(status)

    def failed(error):
        if is_refused and _is_refused_write(error):
            end(STATUS)

    def untold(*_positional, **_named):
        end(STATUS)

    for module, name in _UNTOLD:
        if name in getattr(sys.modules.get(module), "__dict__", ()):
            sys.modules[module].__dict__[name] = untold
    loading.on_failure = failed
    sys.addaudithook(hook)


def _is_refused_write(error):
    """Whether the error, or what has caused it, may be that of a write to a file that can only be read on trial."""
    for _ in range(_CAUSES):
        if isinstance(error, OSError) and error.errno in _REFUSED:
            return True
        if type(error).__module__ == "sqlite3" and _REFUSED_TO_DATABASE in str(error):
            return True
        error = error.__cause__ or error.__context__
        if error is None:
            break
    return False


def _is_program(path):
    try:
        return _can_run(path, posix.X_OK)
    except (TypeError, ValueError):
        return True
