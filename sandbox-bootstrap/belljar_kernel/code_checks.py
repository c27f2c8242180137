"""Checks and evaluates code in separate processes, forked from the guardian, which has no user data."""

import os
import signal

from . import compute, names, process, wire
from .limits import COMPUTES, NAMES_MEMORY_BYTES, NAMES_MS
from .poller import READ

_READ_BYTES = 64 * 1024


class CodeChecks:
    def __init__(self, poller, send):
        self._poller = poller
        self._send = send
        self._jobs = {}  # pid -> job

    def start(self, frame, limits):
        """Evaluate an expression. False if too many run already."""
        request = int(frame["request"])
        expression, values = str(frame["expression"]), dict(frame["values"])
        timeout_ms, memory_bytes = int(frame["timeout_ms"]), int(frame["memory_bytes"])
        compute.preload()
        job = _Compute(request, timeout_ms)
        return self._launch(job, memory_bytes, lambda: compute.answer(expression, values, limits.repr_chars))

    def start_names(self, frame, limits):
        """List the names that code assigns. False if too many run already."""
        code = str(frame["code"])
        job = _Names(int(frame["request"]), NAMES_MS)
        return self._launch(job, NAMES_MEMORY_BYTES, lambda: wire.encode_json(names.assigned(code, limits.names)))

    def _launch(self, job, memory_bytes, work):
        if len(self._jobs) >= COMPUTES:
            return False
        read_end, write_end = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(read_end)
            os.close(write_end)
            return False
        if pid == 0:
            compute.child(write_end, job.timeout_ms, memory_bytes, work)
        os.close(write_end)
        os.set_blocking(read_end, False)
        job.descriptor = read_end
        self._jobs[pid] = job
        self._poller.watch(read_end, READ, lambda _events: self._receive(pid, job))
        self._poller.after(("compute", pid), job.timeout_ms / 1000, lambda: self._time_out(pid, job))
        return True

    def pids(self):
        return frozenset(self._jobs)

    def ended(self, pid, exit_code):
        """A child of the guardian has ended. False if it was none of these processes."""
        job = self._jobs.get(pid)
        if job is None:
            return False
        job.exit_code = exit_code
        self._finish(pid, job)
        return True

    def stop(self):
        for pid, job in self._jobs.items():
            job.stopped = True
            process.send_signal(pid, signal.SIGKILL)

    def _receive(self, pid, job):
        if job.receive() is None:
            # The process has answered or died; either way it is not needed any more.
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
        self._send(job.frame())


class _Job:
    def __init__(self, request, timeout_ms):
        self.request = request
        self.descriptor = None
        self.timeout_ms = timeout_ms
        self.timed_out = self.stopped = False
        self.exit_code = None
        self._answer = bytearray()

    def receive(self):
        """Number of bytes that came; None at the end."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return 0
        self._answer += data
        return len(data) or None


class _Names(_Job):
    def frame(self):
        try:
            found = wire.decode_json(self._answer.decode())
        except ValueError:
            found = []  # too much to parse
        return {"type": "names", "request": self.request, "names": found}


class _Compute(_Job):
    def frame(self):
        return {"type": "computed", "request": self.request, "outcome": self._outcome()}

    def _outcome(self):
        kind, text = bytes(self._answer[:1]), self._answer[1:].decode("utf-8", "replace")
        if kind == compute.VALUE:
            return {"value": text}
        if kind == compute.ERROR:
            return {"error": text}
        if self.stopped:
            return {"error": compute.error_text("RuntimeError", "the session was reset")}
        if self.timed_out or self.exit_code == -signal.SIGXCPU:
            return {"error": compute.error_text("TimeoutError", f"longer than {self.timeout_ms} ms")}
        if self.exit_code == -signal.SIGKILL:
            return {"error": compute.error_text("MemoryError", "the memory was not enough")}
        return {"error": compute.error_text("RuntimeError", f"the process ended with {self.exit_code}")}
