"""Calls on processes that the standard library lacks."""

import ctypes
import posix  # for what runs in a runner: user code may replace functions of `os`
import resource

_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_LAST_IN_LINE = 19

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(on):
    """Whether processes of the same uid may read this one's memory and open its descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)


def adopt_orphans(on=True):
    """Become the parent of orphaned descendants, or leave them to another process again."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def set_name(name):
    """Set the name that process listings show."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def give_way():
    """Lower the priority, so that the guardian goes first: a few hundred busy processes could keep it from ending them.

    Where all of them share a quota of CPU time, they do not take precedence over each other. Where
    there is none, the host's own processes would go first, too, and cells would be slow beside them:
    there, only a higher priority that the guardian was given is dropped.
    """
    own = posix.getpriority(posix.PRIO_PROCESS, 0)
    wanted = _LAST_IN_LINE if _has_cpu_quota() else max(own, 0)
    if wanted > own:
        posix.nice(wanted - own)


def _has_cpu_quota():
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        try:
            with open(path, encoding="ascii") as file:
                return file.read().split()[0] not in ("max", "-1")
        except (OSError, IndexError):
            continue
    return False


def oom_score():
    """How readily the out-of-memory killer takes this process."""
    try:
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def set_oom_score(score):
    """The score can be raised, and lowered again to what was inherited from the guardian."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        pass  # a help for the out-of-memory killer, not a need


def count_threads():
    """Threads of this process, those of libraries included."""
    return posix.stat("/proc/self/task").st_nlink - 2  # two links are the folder's own


def count_children():
    """Children of this process that have not been waited for; quick where there are none."""
    try:
        posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
        return len(children())
    except OSError:
        return 0


def children():
    """The pids of the children of this process that have not been waited for."""
    found = []
    for thread in posix.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


# The tag of all that is no copy and no command. It is lower than those of commands, so that no cell can set one of them.
MAIN_LINE = (1 << 41) - 1


def mark(wanted):
    """Set the guardian's tag on this process: a hard limit on CPU time that only applies to processes with a real-time
    priority, and there are none here. Every child inherits it, whichever session, parent or program it has."""
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (wanted, wanted))
    except (OSError, ValueError):
        pass  # code of the session has lowered it before, which marks it as well
