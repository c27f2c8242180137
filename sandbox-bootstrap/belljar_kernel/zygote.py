"""The zygote: Python's first process, which makes all others for the guardian and never runs user code.

Descriptor 0 is the guardian's socket for requests, descriptor 1 the pipe for the answers; both are in the format of
`wire.py`. Every process that is made is a child of the guardian. No other process can open the zygote's memory, so what
it makes is as Python was at the start, whatever the session's code has done since. Of signals it takes those only that
nobody can block, and so do the processes that evaluate expressions. If the session's code kills the zygote, the guardian
starts another one.
"""

import ctypes
import gc
import os
import signal
import socket
import sys

from . import clones, compute, names, process, runner, wire
from .limits import COMPUTE_OOM_SCORE, CONTROL_READ_BYTES

NAME = "belljar-zygote"
_REQUESTS, _ANSWERS = 0, 1
_MOST_DESCRIPTORS = 7
# Requests, and what comes in answer.
_WORKER, _COMPUTE, _EVALUATOR, _NAMES = ord("W"), ord("E"), ord("L"), ord("N")
_READY, _MADE = ord("R"), ord("P")

_python = ctypes.pythonapi


class Zygote:
    def __init__(self, workspace, worker_mask):
        self._workspace = workspace
        self._worker_mask = worker_mask  # the signals that a new worker blocks
        self._clone = clones.find_clone()
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, _REQUESTS)
        self._reader = wire.MessageReader()
        self._descriptors = []  # of the request that is being read
        self._own_score = process.oom_score()
        try:
            self._scores = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self._scores = None  # a help for the out-of-memory killer, not a need
        with open("/proc/self/comm", encoding="ascii", errors="replace") as file:
            self._usual_name = file.read().strip()

    def serve(self):
        process.set_name(NAME)
        self._answer(_READY, "{}.{}.{}".format(*sys.version_info).encode())
        while True:
            kind, payload = self._receive()
            passed, self._descriptors = self._descriptors, []
            work = self._work(kind, payload, passed)
            pid = self._make(work) if kind == _WORKER else self._make_with_score(work)
            for descriptor in passed:
                os.close(descriptor)
            self._answer(_MADE, wire.PID.pack(pid))

    def _receive(self):
        while True:
            message = self._reader.next()
            if message is not None:
                return message
            data, descriptors, _, _ = socket.recv_fds(
                self._requests, CONTROL_READ_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            if not data:
                os._exit(0)  # the guardian is gone
            self._descriptors += descriptors
            self._reader.feed(data)

    def _answer(self, kind, payload):
        os.write(_ANSWERS, wire.pack(kind, payload))

    def _work(self, kind, payload, passed):
        """The function that the new process runs."""
        if kind == _WORKER:
            return lambda: self._enter_worker(passed)
        if kind == _COMPUTE:
            compute.preload()
            return lambda: _compute(payload, *passed)
        if kind == _EVALUATOR:
            compute.preload()
            return lambda: compute.serve(*passed)
        if kind == _NAMES:
            return lambda: _list_names(payload, *passed)
        raise ValueError(kind)

    def _enter_worker(self, passed):
        signal.pthread_sigmask(signal.SIG_SETMASK, self._worker_mask)
        runner.enter(passed, self._workspace)

    def _make_with_score(self, work):
        """The same, first in line for the out-of-memory killer. The new process could not set that itself: it hides."""
        self._set_score(COMPUTE_OOM_SCORE)
        try:
            return self._make(work)
        finally:
            self._set_score(self._own_score)

    def _set_score(self, score):
        try:
            if self._scores is not None:
                os.pwrite(self._scores, b"%d" % score, 0)
        except OSError:
            self._scores = None

    def _make(self, work):
        """The pid of a new process, a child of the guardian, that does the work; 0 if there is none."""
        if self._clone is None:
            return self._fork_twice(work)
        gc.disable()  # it may need a lock that is held until the process is made
        _python.PyOS_BeforeFork()
        pid = self._clone()
        if pid == 0:
            _python.PyOS_AfterFork_Child()
            self._run(work)
        _python.PyOS_AfterFork_Parent()
        gc.enable()
        return max(pid, 0)

    def _fork_twice(self, work):
        """The same where the system call cannot be used as it is: the process between the two ends at once."""
        reads, writes = os.pipe()
        try:
            between = os.fork()
        except OSError:
            between = -1
        if between == 0:
            try:
                child = os.fork()
                if child == 0:
                    self._run(work)
                os.write(writes, wire.PID.pack(child))
            finally:
                os._exit(0)
        os.close(writes)
        answer = os.read(reads, wire.PID.size)
        os.close(reads)
        if between > 0:
            os.waitpid(between, 0)
        return wire.PID.unpack(answer)[0] if len(answer) == wire.PID.size else 0

    def _run(self, work):
        """Do the work in the new process, which ends with it. Does not return."""
        gc.enable()
        try:
            process.set_name(self._usual_name)
            work()
        finally:
            os._exit(1)


def _compute(payload, descriptor):
    bound, frame = compute.decode_request(payload)
    values, timeout_ms, memory_bytes = dict(frame["values"]), int(frame["timeout_ms"]), int(frame["memory_bytes"])
    expression = str(frame["expression"])
    chars = bound["chars"]
    compute.child(
        descriptor, timeout_ms, memory_bytes, lambda: compute.encoded(compute.evaluate(expression, values), chars)
    )


def _list_names(payload, descriptor):
    bound, frame = compute.decode_request(payload)
    code = str(frame["code"])
    timeout_ms, memory_bytes, most = bound["timeout_ms"], bound["memory_bytes"], bound["most"]
    compute.child(descriptor, timeout_ms, memory_bytes, lambda: wire.encode_json(names.assigned(code, most)))


def main(workspace):
    process.mark(process.MAIN_LINE)
    # Workers unblock it when they can handle it; before that, it would end them.
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    zygote = Zygote(workspace, {*usual, signal.SIGINT})
    process.set_dumpable(False)  # after the file of the score was opened, which is hidden, too
    gc.collect()
    gc.freeze()  # so that the collector of runners does not touch the pages that they share with this process
    zygote.serve()
