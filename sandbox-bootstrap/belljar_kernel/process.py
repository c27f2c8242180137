"""Calls on processes that the standard library lacks, and the search for strays."""

import ctypes
import os
import signal

from .limits import KILL_ROUNDS

_PR_SET_DUMPABLE = 4
_PR_GET_DUMPABLE = 3
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def set_dumpable(on):
    """Whether processes of the same uid may read this one's memory and open its descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(on), 0, 0, 0)


def is_dumpable():
    return _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0


def adopt_orphans():
    """Become the parent of orphaned descendants, as pid 1 is anyway."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def unshare(flags):
    """True if the kernel let us."""
    return _libc.unshare(flags) == 0


def raise_oom_score(score):
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        pass  # a help for the out-of-memory killer, not a need


def exit_code(status):
    """As in `subprocess`: n for an exit, negative for a signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


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
    _kill_rounds(lambda processes: _descendants(processes, own_pid, spared))


def kill_session(session):
    """Kill what is left of a session whose leader, a descendant of ours, has ended."""
    own_pid = os.getpid()
    _kill_rounds(
        lambda processes: [
            pid for pid in _descendants(processes, own_pid, frozenset()) if processes[pid].session == session
        ]
    )


def _kill_rounds(select):
    for _ in range(KILL_ROUNDS):
        found = select(_processes())
        if not found:
            return
        for pid in found:
            send_signal(pid, signal.SIGKILL)


class _Row:
    __slots__ = ("parent", "session")

    def __init__(self, parent, session):
        self.parent = parent
        self.session = session


def _processes():
    """All living processes by pid; zombies do not count."""
    rows = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return rows  # no descriptor is left; there is nothing better to do than to go on
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command may hold spaces and parentheses: the fields start after the last one.
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            rows[int(name)] = _Row(int(parent), int(session))
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
