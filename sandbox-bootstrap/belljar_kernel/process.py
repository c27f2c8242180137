"""Calls on processes that the standard library lacks, and the search for strays."""

import ctypes
import os
import posix  # for what runs in a runner: user code may replace functions of `os`
import signal

from .limits import CROWD, KILL_ROUNDS

_PR_SET_DUMPABLE = 4
_PR_GET_DUMPABLE = 3
_PR_SET_CHILD_SUBREAPER = 36

_LAST_IN_LINE = 19

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(on):
    """Whether processes of the same uid may read this one's memory and open its descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)


def is_dumpable():
    return _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0


def close_inherited():
    """What the starter of the sandbox left open is neither ours nor the guest's."""
    for name in posix.listdir("/proc/self/fd"):
        if int(name) > 2:
            os.closerange(int(name), int(name) + 1)  # passes over the one of the listing


def adopt_orphans():
    """Become the parent of orphaned descendants, as pid 1 is anyway."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def unshare(flags):
    """True if the kernel let us."""
    return _libc.unshare(flags) == 0


def give_way():
    """Let the guardian go first: a few hundred busy processes could keep it from ending them.

    Where all of them share a quota of CPU time, they do not take precedence over each other. Where
    there is none, the machine's own processes would go first too, and cells be slow beside them:
    there we only give up what the guardian was given.
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
    """It can be raised, and lowered again to what was inherited from the guardian."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        pass  # a help for the out-of-memory killer, not a need


def count_children():
    """Children of this process that have not been waited for; quick where there are none."""
    try:
        posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
        count = 0
        for thread in posix.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                count += len(file.read().split())
        return count
    except OSError:
        return 0


def exit_code(status):
    """As in `subprocess`: n for an exit, negative for a signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def reap():
    """Children that have ended, with their exit codes, one after the other."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, exit_code(status)


def has_children():
    """Also if none of them has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # it changed its uid; only possible where the sandbox lets it


def kill_descendants(spared):
    """Kill all descendants of this process but the `spared` and theirs, also as fast as they fork.

    Only descendants are looked at, so that this is safe outside of a pid namespace too.
    """
    own_pid = os.getpid()
    if own_pid == 1 and not spared:
        # At once for all of them, so that no fork can slip through.
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return
    _kill_rounds(lambda processes: _descendants(processes, own_pid, spared), spared)


def descendants():
    """Pids of all living descendants of this process."""
    return _descendants(_processes(), os.getpid(), frozenset())


def kill_younger(pid, spared):
    """Kill descendants of ours that started after process `pid`, but not the `spared` and theirs.

    The start is known to a hundredth of a second; within one, pids tell, because they ascend.
    """
    own_pid = os.getpid()

    def select(processes):
        oldest = processes.get(pid)
        if oldest is None:
            return []
        return [
            each
            for each in _descendants(processes, own_pid, spared)
            if (processes[each].started, each) > (oldest.started, pid) and processes[each].session not in spared
        ]

    _kill_rounds(select, spared)


def kill_session(session, spared):
    """Kill what is left of a session whose leader, a descendant of ours, has ended."""
    own_pid = os.getpid()
    _kill_rounds(
        lambda processes: [
            pid for pid in _descendants(processes, own_pid, frozenset()) if processes[pid].session == session
        ],
        spared,
    )


def _kill_rounds(select, spared):
    """Kill what is selected until nothing is.

    A crowd of busy processes takes the CPU time that it needs to find them, and forks meanwhile. In
    a pid namespace of our own one call stops them all; what lives on is then let go on.
    """
    for _ in range(KILL_ROUNDS):
        processes = _processes()
        crowded = os.getpid() == 1 and len(processes) > len(spared) + CROWD
        if crowded:
            stood = {pid for pid, row in processes.items() if row.is_stopped}
            send_signal(-1, signal.SIGSTOP)
            processes = _processes()
        found = select(processes)
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        if crowded:
            for pid in set(processes).difference(found, stood):
                send_signal(pid, signal.SIGCONT)
        if crowded or not found:
            return


class _Row:
    __slots__ = ("is_stopped", "parent", "session", "started")

    def __init__(self, is_stopped, parent, session, started):
        self.is_stopped = is_stopped
        self.parent = parent
        self.session = session
        self.started = started  # in clock ticks since the machine's start


def is_alive(pid):
    return _row(str(pid)) is not None


def _row(name):
    """None if there is no such process, or a zombie."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            # The command may hold spaces and parentheses: the fields start after the last one.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return _Row(fields[0] == b"T", int(fields[1]), int(fields[3]), int(fields[19]))


def _processes():
    """All living processes by pid; zombies do not count."""
    rows = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return rows  # no descriptor is left; there is nothing better to do than to go on
    for name in names:
        row = _row(name) if name.isdigit() else None
        if row is not None:
            rows[int(name)] = row
    return rows


def _descendants(processes, root, spared):
    children = {}
    for pid, row in processes.items():
        children.setdefault(row.parent, []).append(pid)
    found = []
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in spared:
                found.append(pid)
                waiting.append(pid)
    return found
