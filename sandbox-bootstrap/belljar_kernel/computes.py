"""Runs expressions in processes of their own, forked from the guardian, which has no user data."""

import os
import signal

from . import compute, process
from .limits import COMPUTES
from .poller import READ

_READ_BYTES = 64 * 1024


class Computes:
    def __init__(self, poller, send):
        self._poller = poller
        self._send = send
        self._jobs = {}  # pid -> job

    def start(self, frame, repr_chars):
        """False if too many run already."""
        request = int(frame["request"])
        expression, values = str(frame["expression"]), dict(frame["values"])
        timeout_ms, memory_bytes = int(frame["timeout_ms"]), int(frame["memory_bytes"])
        if len(self._jobs) >= COMPUTES:
            return False
        compute.preload()
        read_end, write_end = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(read_end)
            os.close(write_end)
            return False
        if pid == 0:
            compute.child(write_end, expression, values, timeout_ms, memory_bytes, repr_chars)
        os.close(write_end)
        os.set_blocking(read_end, False)
        job = _Job(request, read_end, timeout_ms)
        self._jobs[pid] = job
        self._poller.watch(read_end, READ, lambda _events: self._receive(pid, job))
        self._poller.after(("compute", pid), timeout_ms / 1000, lambda: self._time_out(pid, job))
        return True

    def pids(self):
        return frozenset(self._jobs)

    def ended(self, pid, exit_code):
        """A child has ended. False if it was none of ours."""
        job = self._jobs.get(pid)
        if job is None:
            return False
        job.exit_code = exit_code
        self._finish(pid, job)
        return True

    def stop(self):
        for pid in self._jobs:
            process.send_signal(pid, signal.SIGKILL)

    def _receive(self, pid, job):
        if job.receive() is None:
            # It has answered or died; either way it need not live on.
            process.send_signal(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            job.exit_code = process.exit_code(status)
            self._finish(pid, job)

    def _time_out(self, pid, job):
        job.timed_out = True
        process.send_signal(pid, signal.SIGKILL)

    def _finish(self, pid, job):
        del self._jobs[pid]
        self._poller.cancel(("compute", pid))
        self._poller.forget(job.descriptor)
        while job.receive():
            pass
        os.close(job.descriptor)
        self._send({"type": "computed", "request": job.request, "outcome": job.outcome()})


class _Job:
    def __init__(self, request, descriptor, timeout_ms):
        self.request = request
        self.descriptor = descriptor
        self.timeout_ms = timeout_ms
        self.timed_out = False
        self.exit_code = None
        self._answer = bytearray()

    def receive(self):
        """Bytes that came; None at the end."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        self._answer += data
        return len(data) or None

    def outcome(self):
        kind, text = bytes(self._answer[:1]), self._answer[1:].decode("utf-8", "replace")
        if kind == compute.VALUE:
            return {"value": text}
        if kind == compute.ERROR:
            return {"error": text}
        if self.timed_out or self.exit_code == -signal.SIGXCPU:
            return {"error": compute.error_text("TimeoutError", f"longer than {self.timeout_ms} ms")}
        if self.exit_code == -signal.SIGKILL:
            return {"error": compute.error_text("MemoryError", "the memory was not enough")}
        return {"error": compute.error_text("RuntimeError", f"the process ended with {self.exit_code}")}
