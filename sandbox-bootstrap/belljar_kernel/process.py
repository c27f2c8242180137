"""Calls on processes that the standard library lacks, and the search for strays."""

import ctypes
import os
import posix  # for what runs in a runner: user code may replace functions of `os`
import resource
import signal
import time

from .limits import CROWD, DEPTH, KILL_ROUNDS, RUNNER_INDEXES, STAND_POLL_S

_PR_SET_PDEATHSIG = 1
_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_LAST_IN_LINE = 19
# Copies are tagged with a real-time CPU limit of so many microseconds, which no honest program sets.
_TAGS = 2**40
_TAGS_END = _TAGS + RUNNER_INDEXES
_CAN_TAG = not 0 <= resource.getrlimit(resource.RLIMIT_RTTIME)[1] < _TAGS_END

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(on):
    """Whether processes of the same uid may read this one's memory and open its descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)


def is_dumpable():
    return _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0


def close_inherited():
    """Close what the starter of the sandbox left open: neither the guardian nor the guest may have it."""
    for name in posix.listdir("/proc/self/fd"):
        if int(name) > 2:
            os.closerange(int(name), int(name) + 1)  # ignores that the listing's own descriptor is closed


def adopt_orphans():
    """Become the parent of orphaned descendants, as pid 1 is anyway."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent):
    """Be killed when the parent, which has that pid, dies. Without a pid namespace nothing else would do it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # it died before


def set_name(name):
    """Set the name that process listings show."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def unshare(flags):
    """True if the kernel allowed it."""
    return _libc.unshare(flags) == 0


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
    """Whether there are children, also if none of them has ended."""
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


_halted = False


def halt():
    """Stop all other processes in this pid namespace, in one call, until some are killed.

    A few hundred busy processes would take the CPU time that is needed to find and end them, and would
    fork meanwhile. Stopped processes do neither, and can be killed.
    """
    global _halted
    if os.getpid() == 1:
        send_signal(-1, signal.SIGSTOP)  # control: a_crowd_is_halted_first
        _halted = True


def is_halted():
    return _halted


def resume():
    """Resume all processes, if they were stopped."""
    global _halted
    if _halted:
        _halted = False
        send_signal(-1, signal.SIGCONT)


def tag(index):
    """The tag of the copy with this index and of all its descendants; None if tags cannot be used.

    It is a hard limit on CPU time that only applies to processes with a real-time priority, and there are none
    here. Every child inherits it, whichever session, parent or program it has, and it can only be lowered.
    """
    return _TAGS + index if _CAN_TAG else None


def mark(wanted):
    """Set that tag on this process."""
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (wanted, wanted))
    except (OSError, ValueError):
        pass  # code of the session has lowered it before, which marks it as well


def _tag_of(pid):
    """The tag of a process; None on the main line, unless its code has set one itself, which only harms it."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max realtime timeout"):
                    most = line.split()[-2]
                    return int(most) if _CAN_TAG and most.isdigit() and int(most) < _TAGS_END else None
    except (OSError, ValueError, IndexError):
        pass
    return None


class Kept:
    """The processes to keep: the pids `living`, all descendants of those that are `copies`, and copies that are still
    `coming`, by their tags."""

    def __init__(self, living, copies, coming):
        self.living = living
        self.copies = copies
        self.coming = coming


def kill_all():
    """Kill everything that descends from this process."""
    if os.getpid() == 1:
        # One call for all of them, so that no fork can slip through.
        send_signal(-1, signal.SIGKILL)
    else:
        _kill_rounds(lambda processes: _descendants(processes, os.getpid(), frozenset()), False)


def descendants():
    """Pids of all living descendants of this process."""
    return _descendants(_processes(), os.getpid(), frozenset())


def kill_descendants(kept):
    """Kill all descendants of this process but those.

    Only descendants are looked at, so that this is safe outside of a pid namespace too.
    """
    return _kill_rounds(lambda processes: _strays(processes, kept), True)


def kill_younger(pid, kept):
    """Likewise, but only those that started after process `pid`.

    The start is known to a hundredth of a second; within one, pids decide, because they ascend.
    """

    def select(processes):
        oldest = processes.get(pid)
        if oldest is None:
            return []
        found = _strays(processes, kept)
        return [each for each in found if (processes[each].started, each) > (oldest.started, pid)]

    return _kill_rounds(select, True)


def kill_left_behind(session, kept):
    """Kill the remaining processes of copies that have ended: of one copy by its session, of all by their tags."""

    def select(processes):
        found = _strays(processes, kept)
        return [pid for pid in found if processes[pid].session == session or _tag_of(pid) is not None]

    return _kill_rounds(select, False)


def _strays(processes, kept):
    """Descendants of this process except those that are kept. Processes that a checkpoint has started are not kept.

    Descendants of a copy are below it, because it adopts its orphans, or in its session, which no other process can
    enter. The tag of an existing copy proves nothing: code can read it, and set it on itself.
    """
    found = _descendants(processes, os.getpid(), kept.copies)
    found = [pid for pid in found if pid not in kept.living and processes[pid].session not in kept.copies]
    return [pid for pid in found if _tag_of(pid) not in kept.coming] if kept.coming else found


def _kill_rounds(select, at_once):
    """Kill the selected processes, until the selection has none that was not killed before.

    A process that is told to stop in the middle of a fork still makes its child, perhaps after the listing. The child
    stops at its start, and a killed process makes none. So where all can be stopped, this ends soon. It ends when all
    remaining processes are stopped: a copy that is just being forked would stop unnoticed, and for ever. If not
    `at_once`, other processes are stopped only for a crowd, or if the selected ones fork faster than they are killed.
    Returns the killed pids, which may not be gone yet.
    """
    global _halted
    killed = {}  # pid -> when it was started: numbers are used again
    for attempt in range(KILL_ROUNDS):
        if at_once or attempt or is_crowded():
            halt()
        processes = _processes()
        found = [pid for pid in select(processes) if killed.get(pid) != processes[pid].started]
        for pid in found:
            killed[pid] = processes[pid].started
            send_signal(pid, signal.SIGKILL)
        if not found and (not _halted or _all_stand(processes, killed)):
            break
        if not found:
            time.sleep(STAND_POLL_S)
    if _halted:
        for pid in set(processes).difference(killed):
            send_signal(pid, signal.SIGCONT)
        _halted = False
    return list(killed)


def _all_stand(processes, killed):
    """Whether none of these can be in the middle of a fork."""
    return all(row.stands for pid, row in processes.items() if pid not in killed and pid != os.getpid())


def is_there(pid):
    """Whether the process exists, also as a zombie: until it is reaped, it counts towards the limit on processes."""
    return os.path.exists(f"/proc/{pid}")


def is_crowded(most=CROWD):
    """Whether there are so many processes that each gets little CPU time; False without a pid namespace of our own."""
    try:
        return os.getpid() == 1 and sum(map(str.isdigit, os.listdir("/proc"))) > most
    except OSError:
        return True


class _Row:
    __slots__ = ("parent", "session", "stands", "started")

    def __init__(self, state, parent, session, started):
        self.stands = state in b"Tt"
        self.parent = parent
        self.session = session
        self.started = started  # in clock ticks since the machine's start


def comes_of_us(pid):
    """Whether the process is a descendant of this one; it may have ended, but not been reaped."""
    each = pid
    for _ in range(DEPTH):
        row = _row(str(each), True)
        if row is not None and row.parent == os.getpid():
            return True
        if row is None and each == pid:
            return False
        # An ancestor that is gone has left its children to another process, so the search begins again.
        each = pid if row is None else row.parent
    return False


def is_alive(pid):
    return _row(str(pid)) is not None


def _row(name, with_zombies=False):
    """None if there is no such process, or a zombie."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            # The command may hold spaces and parentheses: the fields start after the last one.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X") and not with_zombies:
        return None
    return _Row(fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


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
