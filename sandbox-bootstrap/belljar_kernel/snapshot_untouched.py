"""Ends a trial before code of a variable touches anything outside of its process: the session still lives.

What follows cannot be tried out then, and is taken as it is; should it fail when the session wakes, that tells so.
"""

import posix
import sys

# How a trial ends that was about to touch something; and one that would run another program in its place.
STATUS = 87
_REPLACED = 1

_TOUCHES = frozenset(
    "os.remove os.rename os.rmdir os.mkdir os.truncate os.link os.symlink os.chmod os.chown os.utime os.setxattr "
    "os.removexattr os.chflags os.lchflags os.lockf os.fork os.forkpty os.posix_spawn os.spawn os.system os.killpg "
    "subprocess.Popen signal.pthread_kill socket.connect socket.bind socket.sendto socket.sendmsg sqlite3.connect "
    "fcntl.flock fcntl.lockf syslog.syslog".split()
)
_WRITES = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
_NOWHERE = "/dev/null"
# Own references: a cell may replace what the module holds.
_end, _this_process = posix._exit, posix.getpid


def keep(loading, tell):
    """From here on, end this process where it would touch anything. Before, `tell` is called; what it does itself is let be.

    A hook cannot be taken away: this is for a process of its own.
    """
    sys.dont_write_bytecode = True
    own, is_telling = _this_process(), False

    def hook(event, arguments):
        nonlocal is_telling
        if is_telling:
            return
        status = STATUS
        if event == "open":
            path, _, flags = arguments
            if loading.opens_nowhere or path == _NOWHERE or not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event == "os.kill":
            if arguments[0] == own:
                return  # this touches only the trial
        elif event == "os.exec":
            status = _REPLACED
        elif event not in _TOUCHES:
            return
        is_telling = True
        try:
            if status == STATUS and _this_process() == own:
                tell()
        finally:
            _end(status)

    sys.addaudithook(hook)
