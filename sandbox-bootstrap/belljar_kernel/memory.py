"""How much memory the sandbox uses."""

import os
import time

from .limits import MEMORY_SUM_S

# `(in use, bound, statistics, key of the cache that can be had back at once)`, cgroup v2 and v1.
_COUNTERS = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat", b"inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        b"total_inactive_file",
    ),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Reads the sandbox's own counter; where there is none, sums up the shares of the runners."""

    def __init__(self):
        self._counters = None
        self._summed_at = 0.0

    def is_held(self, limits):
        """Whether the system itself ends what takes more than the sandbox has."""
        if self._counters is None:
            self._counters = _own_counters(limits.memory_bytes + limits.checkpoint_bytes)
        return bool(self._counters)

    def is_due(self):
        """Whether it is time to look again; a sum costs more than a counter."""
        return bool(self._counters) or time.monotonic() >= self._summed_at + MEMORY_SUM_S

    def in_use(self, limits, pids):
        """Bytes. A page that checkpoints share counts once."""
        if not self.is_held(limits):
            self._summed_at = time.monotonic()
            return total(pids)
        in_use, _, statistics, cache_key = self._counters
        used = _number(in_use) or 0
        # The statistics cost more to read, and are of interest only then.
        return used - _statistic(statistics, cache_key) if used > limits.memory_bytes else used


def _own_counters(most):
    """Those whose bound is the sandbox's; a larger one counts for others too."""
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


def _statistic(path, key):
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(key + b" "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def total(pids):
    """What processes use together, where a page that n processes share counts as an nth for each."""
    return sum(_mapped(pid, b"Pss:") for pid in pids)


def resident(pid):
    """Memory of a process that no file backs, shared or not; quick to ask for."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, pages, backed = map(int, file.read().split()[:3])
    except (OSError, ValueError):
        return 0
    return (pages - backed) * _PAGE_BYTES


def held_alone(pid):
    """What would be free without this process."""
    return _mapped(pid, b"Private_")


def _mapped(pid, key):
    """The sum of the lines that start so; the kernel has to walk all pages for it."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(key):
                    total += int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return total
