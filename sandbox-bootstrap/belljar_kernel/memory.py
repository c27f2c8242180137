"""How much memory the sandbox uses."""

import os
import time

from . import process
from .limits import BRIM_BYTES, BRIM_S, LOOK_CROWD, LOOK_S, ROLLUP_S, ROLLUP_SLACK_BYTES

_rollups = {}  # by pid, descriptors of `smaps_rollup`
_awaited = {}  # by pid, until when its descriptor may come
_ROLLUPS = 64  # more than there are checkpoints
_ROLLUP_BYTES = 8192
_nameless_ends = {}  # by device and inode, the largest extent that was seen
_NAMELESS_KEPT = 4096
_NAMELESS = b"/dev/zero (deleted)"  # the system's name for shared memory without one
# `(in use, bound, statistics, prefix of the names in them)`, cgroup v2 and v1.
_COUNTERS = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat", b""),
    (
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        b"total_",
    ),
)


def _in_memory():
    """Folders of the sandbox's own whose files take memory."""
    if os.getpid() != 1:
        return ()  # they are the host's
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ()
    kinds = {row[4]: row[row.index(b"-") + 1] for row in rows}
    return tuple(folder for folder in (b"/tmp", b"/dev/shm") if kinds.get(folder) == b"tmpfs")


_IN_MEMORY = _in_memory()


class MemoryWatch:
    """Reads the sandbox's own counter; where there is none, sums up the shares of the runners."""

    def __init__(self):
        self._counters = None
        self._looked_at = 0.0
        self._brimful_since = None

    def is_held(self, limits):
        """Whether the system itself ends processes when the sandbox takes more memory than it has."""
        if self._counters is None:
            self._counters = _own_counters(limits.memory_bytes + limits.checkpoint_bytes)
        return bool(self._counters)

    def take_turn(self, pause):
        """Whether it is time to measure again; a sum costs more than a counter."""
        now = time.monotonic()
        if not self._counters and now < self._looked_at + pause:
            return False
        self._looked_at = now
        return True

    def in_use(self, limits, pids):
        """Bytes. A page that checkpoints share counts once."""
        if not self.is_held(limits):
            return total(pids)
        used = _number(self._counters[0]) or 0
        # The statistics cost more to read, and matter only above the session's memory.
        return used - self._cached(b"inactive_file") if used > limits.memory_bytes else used

    def is_brimful(self, bound):
        """Whether nearly all memory, without the file cache, has been in use for a good while.

        The host's kernel may then spend its time on reading the same pages of programs in again and again,
        rather than end a process.
        """
        used = _number(self._counters[0]) or 0
        now = time.monotonic()
        if used <= bound - BRIM_BYTES or used - self._cached(b"inactive_file", b"active_file") <= bound - BRIM_BYTES:
            self._brimful_since = None
        elif self._brimful_since is None:
            self._brimful_since = now
        return self._brimful_since is not None and now >= self._brimful_since + BRIM_S

    def _cached(self, *keys):
        _, _, statistics, prefix = self._counters
        return sum(_statistics(statistics, {prefix + key for key in keys}))


def _own_counters(most):
    """The counters whose limit is the sandbox's; a counter with a larger limit includes other processes, too."""
    for counters in _COUNTERS:
        bound = _number(counters[1])
        if bound is not None and bound <= most:
            return counters
    return ()


def _number(path):
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None  # not there, or `max`


def _statistics(path, keys):
    try:
        with open(path, "rb") as file:
            rows = [line.split() for line in file]
        return [int(row[1]) for row in rows if row[0] in keys]
    except (OSError, ValueError, IndexError):
        return []


class _Stillness:
    """Keeps all other processes stopped while pages are counted: a crowd at once, else when counting takes long.

    A process that forks holds the lock of its pages, and hundreds of busy processes leave it no CPU time to release
    it: the guardian would wait for each of them, and notice the end of a cell much too late.
    """

    def __enter__(self):
        self._was_halted = process.is_halted()
        self._until = time.monotonic() + LOOK_S
        if process.is_crowded(LOOK_CROWD):
            process.halt()
        return self

    def each(self, pids):
        for pid in pids:
            if time.monotonic() > self._until and not process.is_halted():
                process.halt()
            yield pid

    def __exit__(self, *_):
        if not self._was_halted:
            process.resume()


def total(pids):
    """What processes use together, where a page that n processes share counts as an nth for each."""
    with _Stillness() as still:
        shares = [_share(pid) for pid in still.each(pids)]
        nameless = _nameless(still.each(pids))
    own, shared = sum(share - shared for share, shared in shares), sum(shared for _, shared in shares)
    return _with_files(own, shared, nameless)


def _share(pid):
    """All that a process uses, and how much of it is shared memory."""
    share, shared = _mapped(pid, b"Pss:", b"Pss_Shmem:")
    if not share:
        if _is_awaited(pid):
            return 0, 0  # it is about to show its size, or to show it again
        # The process hides its memory, or has ended. What it shares with others counts in full then.
        own, shared = _kibibytes(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:")
        share = own + shared
    return share, shared


def resident(pid):
    """Memory of a process, shared or not, except for what a disk backs; quick to read."""
    return sum(_kibibytes(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:"))


def resident_with_files(pid):
    """The same, with the files that lie in memory."""
    return _with_files(*_kibibytes(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:"))


def held_alone(pid):
    """Memory that the end of this process would free; an upper bound if it hides its memory."""
    return held_by_each([pid])[pid]


def held_by_each(pids):
    """By pid, the memory that the end of that process alone would free."""
    with _Stillness() as still:
        return {pid: _alone(pid) for pid in still.each(pids)}


def _alone(pid):
    alone = sum(_mapped(pid, b"Private_"))
    return alone if alone or _is_awaited(pid) else sum(_kibibytes(f"/proc/{pid}/status", b"RssAnon:"))


def _with_files(own, shared, nameless=0):
    """Shared memory may be mapped files or not; no page is counted twice, at the price that some are not counted."""
    return own + max(shared, nameless + sum(map(_files, _IN_MEMORY)))


def _nameless(pids):
    """Shared memory that is no file. A process can release its pages while they stay allocated, so all of it counts."""
    ends = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                for line in file:
                    if _NAMELESS in line:
                        span, _, offset, device, inode = line.split()[:5]
                        start, end = span.split(b"-")
                        key = (device, inode)
                        extent = int(offset, 16) + int(end, 16) - int(start, 16)
                        # Pages that are no longer mapped stay allocated as long as any part is mapped.
                        ends[key] = max(ends.get(key, 0), _nameless_ends.get(key, 0), extent)
        except (OSError, ValueError):
            continue  # it has ended, or hides: then its own pages are all that can be seen
    if len(_nameless_ends) > _NAMELESS_KEPT:
        _nameless_ends.clear()
    _nameless_ends.update(ends)
    return sum(ends.values())


def _files(folder):
    try:
        room = os.statvfs(folder)
    except OSError:
        return 0
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def expect(pid):
    """Expect the descriptor through which a checkpoint, which hides its memory from others, shows its size."""
    if pid not in _rollups:
        _awaited[pid] = time.monotonic() + ROLLUP_S


def may_hide(pid):
    """Expect that a process hides its memory for a moment, while it makes a checkpoint; but not again and again."""
    _awaited.setdefault(pid, time.monotonic() + ROLLUP_S)


def shows_again(pid):
    _awaited.pop(pid, None)


def _is_awaited(pid):
    return time.monotonic() < _awaited.get(pid, 0)


def hold(pid, descriptor):
    """Keep the descriptor of a process that may not have reported yet that it is a checkpoint, or never will."""
    let_go(pid)
    if not os.path.exists(f"/proc/{pid}"):
        os.close(descriptor)
        return
    _rollups[pid] = descriptor
    if len(_rollups) > _ROLLUPS:
        let_go(next(iter(_rollups)))


def let_go(pid):
    _awaited.pop(pid, None)
    descriptor = _rollups.pop(pid, None)
    if descriptor is not None:
        os.close(descriptor)


def _mapped(pid, *keys):
    """Sums of `smaps_rollup`, for which the host's kernel walks all pages. Zeros if the process hides its memory."""
    descriptor = _rollups.get(pid)
    if descriptor is None:
        return _kibibytes(f"/proc/{pid}/smaps_rollup", *keys)
    try:
        seen, *sums = _sums(os.pread(descriptor, _ROLLUP_BYTES, 0).splitlines(), (b"Rss:", *keys))
    except (OSError, ValueError):
        seen, sums = 0, [0] * len(keys)
    # The process may run another program by now, while the descriptor shows the memory from when it was opened.
    hides = sum(_kibibytes(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:")) > seen + ROLLUP_SLACK_BYTES
    return [0] * len(keys) if hides else sums


def _kibibytes(path, *keys):
    """For each key, the sum in bytes of the lines that start with it."""
    try:
        with open(path, "rb") as file:
            return _sums(file, keys)
    except (OSError, ValueError):
        return [0] * len(keys)


def _sums(lines, keys):
    totals = [0] * len(keys)
    for line in lines:
        for index, key in enumerate(keys):
            if line.startswith(key):
                totals[index] += int(line.split()[1]) * 1024
    return totals
