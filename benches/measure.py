"""Loops that end, what is kept of them, and what is known of the machine."""

import concurrent.futures
import datetime
import os
import pathlib
import platform
import statistics
import subprocess
import threading
import time

# The work of the yardstick; about 10 ms on a machine of these years.
YARDSTICK_ROUNDS, YARDSTICK_LOOPS = 15, 200_000
YARDSTICK_PINGS = 300


def timed(work):
    """Seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def repeat(work, count, seconds, before=None):
    """The seconds of up to `count` runs of `work`. None begins once `seconds` are over, but one always runs.

    `before` runs ahead of each and is not counted.
    """
    end = time.monotonic() + seconds
    times = []
    while len(times) < count and (not times or time.monotonic() < end):
        if before:
            before()
        times.append(timed(work))
    return times


def together(works):
    """Runs all `works` at once, each in a thread; gives the seconds from the first start to the last end, and what they
    gave back. A work that fails makes this fail."""
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        gate = threading.Barrier(len(works) + 1)

        def behind_the_gate(work):
            gate.wait()
            return work()

        pending = [pool.submit(behind_the_gate, work) for work in works]
        gate.wait()
        began = time.perf_counter()
        answers = [future.result() for future in pending]
        return time.perf_counter() - began, answers


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def milliseconds(times):
    """What a report says of a list of seconds."""
    return summary([1e3 * seconds for seconds in times], "ms")


def summary(values, unit):
    return {
        "unit": unit, "p50": statistics.median(values), "p95": percentile(values, 95), "least": min(values),
        "most": max(values), "n": len(values),
    }  # fmt: skip


def value(number, unit, **more):
    """A figure that was measured once."""
    return {"unit": unit, "p50": number, "n": 1, **more}


def absent(reason):
    """Stands in a report where a figure would be."""
    return {"absent": reason}


def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def pss_bytes(pids):
    """The memory of processes together; pages that several processes share count for each with its part."""
    return sum(rollup_bytes(pid, "Pss:") for pid in pids)


def rollup_bytes(pid, kind):
    """One kind of a process's memory."""
    lines = read(f"/proc/{pid}/smaps_rollup").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def in_pid_namespaces_of(*pids):
    """All processes of the sandboxes whose first processes are `pids`, without those of sandboxes inside of them."""

    def namespace(pid):
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return None

    wanted = {namespace(pid) for pid in pids} - {None}
    return [other for other in processes() if namespace(other) in wanted]


def descendants(pid):
    """`pid` and all that it and its children have started, as far as their parents live."""
    children = {}
    for other in processes():
        fields = read(f"/proc/{other}/stat").rpartition(")")[2].split()
        if fields:
            children.setdefault(int(fields[1]), []).append(other)
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def cpu_seconds(pid):
    """Processor time of a process so far."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def yardstick():
    """The same work every time, so that a reader sees whether the machine was the same during all of a run.

    `compute_ms`: a loop in Python, as it is after the best of several tries. `switch_us`: a byte there and back between
    two processes that sleep in between, which is what most figures of a report are made of.
    """

    def loop():
        total = 0
        for number in range(YARDSTICK_LOOPS):
            total += number * number
        return total

    compute = repeat(loop, YARDSTICK_ROUNDS, 2)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as echo:

        def ping():
            echo.stdin.write(b".")
            echo.stdout.read(1)

        pings = repeat(ping, YARDSTICK_PINGS, 2)
        echo.stdin.close()
    return {
        "compute_ms": 1e3 * statistics.median(compute), "switch_us": 1e6 * statistics.median(pings),
        "load": os.getloadavg()[0], "at": round(time.monotonic(), 1),
    }  # fmt: skip


def command_output(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def machine():
    """Facts that figures depend on; nothing that names a machine or its owner."""
    model = next((line.split(":", 1)[1].strip() for line in read("/proc/cpuinfo").splitlines()
                  if line.startswith(("model name", "Model"))), platform.machine())  # fmt: skip
    memory = next((int(line.split()[1]) for line in read("/proc/meminfo").splitlines() if line.startswith("MemT")), 0)
    system = next((line.split("=", 1)[1].strip('"') for line in read("/etc/os-release").splitlines()
                   if line.startswith("PRETTY_NAME=")), "Linux")  # fmt: skip
    said = "{{.Server.Version}}"
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "processors": len(os.sched_getaffinity(0)),
        "processor": model,
        "memory_gib": round(memory / 1048576, 1),
        "kernel": platform.release().split("-")[0],
        "system": system,
        "python": platform.python_version(),
        "docker": command_output("docker", "version", "--format", said) or "none",
        "storage": command_output("docker", "info", "--format", "{{.Driver}}") or "none",
        "control_groups": "v2" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else "v1",
        "root": os.geteuid() == 0,
        "commit": command_output("git", "rev-parse", "--short", "HEAD") or "unknown",
    }
