"""How much memory the sandbox uses."""

from .limits import MEMORY_CHECK_S, MEMORY_SUM_S

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


class MemoryWatch:
    """Reads the sandbox's own counter; where there is none, sums up the shares of the runners."""

    def __init__(self):
        self._counters = None
        self.pause_s = MEMORY_CHECK_S

    def in_use(self, limits, pids):
        """Bytes. A page that checkpoints share counts once."""
        if self._counters is None:
            self._counters = _own_counters(limits.memory_bytes + limits.checkpoint_bytes)
            self.pause_s = MEMORY_CHECK_S if self._counters else MEMORY_SUM_S
        if not self._counters:
            return sum(map(_share, pids))
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


def _share(pid):
    """What a process uses, where a page that n processes share counts as an nth."""
    return _mapped(pid, b"Pss:")


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
