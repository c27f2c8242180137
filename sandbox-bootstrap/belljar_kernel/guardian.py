"""The guardian: pid 1 of the sandbox.

It starts runners, passes frames between them and the daemon without reading them, carries their
output, and tells how they ended. It runs no user code, imports nothing once runners exist, and has
no signal handlers, because a pid namespace protects its init only from signals without one.
"""

import gc
import os
import signal
import sys

from . import process, runner, websocket, wire
from .bridge import Bridge
from .computes import Computes
from .handle import RunnerHandle
from .limits import (
    CALLS_PER_RUNNER,
    FIRST_HELLO_S,
    PROTOCOL_VERSION,
    REAP_BUSY_S,
    REAP_IDLE_S,
    REAP_WITHOUT_PIDFD_S,
    REAPED_REMEMBERED,
    RUNNER_INDEXES,
    WORKER_START_RETRY_S,
    WORKER_START_TRIES,
    Limits,
)
from .poller import Poller
from .probe import probe


class Guardian:
    def __init__(self, bridge_path, workspace, findings):
        self._workspace = workspace
        self._findings = findings
        self._poller = Poller()
        self._bridge_path = bridge_path
        self.bridge = Bridge(self._poller, bridge_path, self._host_frame, self._bridge_lost, self._pressure)
        self.limits = Limits()
        self._greeted = False
        self._hello_text = None
        self._configure_text = None
        self._main = None
        self._runners = {}  # index -> handle, the main worker included
        self._by_pid = {}
        self._next_index = 0
        self._reaped = {}  # pid -> status of orphans, in case one turns out to be a runner
        self._computes = Computes(self._poller, self.send)
        self._at_worker_start = []  # frames that tell of it
        self._running = True
        self._handlers = {
            "hello": self._hello,
            "configure": self._configure,
            "cell": self._cell,
            "interrupt": self._interrupt,
            "kill": self._kill,
            "compute": self._compute,
            "variables": self._variables,
            "reset": self._reset,
            "tool_result": self._tool_answer,
            "tool_failed": self._tool_answer,
            "bye": self._bye,
        }

    def run(self):
        self._poller.after("orphan", FIRST_HELLO_S, self._stop)
        self._poller.after("reap", REAP_IDLE_S, self._reap_regularly)
        self._start_worker()
        self.bridge.connect()
        while self._running:
            self._poller.step()

    def send(self, frame):
        self.bridge.send(wire.encode_json(frame))

    # Frames of the daemon.

    def _host_frame(self, text):
        try:
            frame = wire.decode_json(text)
            handler = self._handlers[frame["type"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            self._refuse("malformed", "the frame is no JSON object of a known type")
            return
        if not self._greeted and frame["type"] != "hello":
            self.bridge.close(websocket.PROTOCOL_ERROR, "hello has to come first")
            return
        try:
            handler(frame, text)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse("malformed", f"{frame['type']}: {error!r}", frame)
        except OSError as error:
            self._refuse("no_process", f"{frame['type']}: {error.strerror}", frame)

    def _hello(self, frame, text):
        if PROTOCOL_VERSION not in frame["versions"]:
            self.bridge.close(websocket.PROTOCOL_ERROR, "no common version")
            return
        self.limits = Limits(frame["limits"])
        first = self._hello_text is None
        self._hello_text = text
        for handle in self._runners.values():
            self._forward(handle, text)
        self._poller.cancel("orphan")
        self._greeted = True
        hello = {
            "type": "hello",
            "version": PROTOCOL_VERSION,
            "python": "{}.{}.{}".format(*sys.version_info),
            "probe": self._findings,
            "running": sorted(handle.cell for handle in self._runners.values() if handle.cell),
        }
        self.bridge.open(wire.encode_json(hello))
        if first:
            _announce()

    def _configure(self, _frame, text):
        self._configure_text = text
        if self._main is not None:
            self._forward(self._main, text)

    def _cell(self, frame, text):
        cell, mode = int(frame["cell"]), frame["mode"]
        main = self._main
        if main is None:
            self._refuse("no_process", "there is no worker", frame)
        elif main.cell or main.resets:
            self._refuse("busy", "the main line runs a cell", frame)
        elif mode == "main":
            main.begin_cell(cell)
            self._forward(main, text)
            self._reap_soon()
        elif mode == "fork":
            self._fork_cell(cell, frame, text)
        else:
            raise ValueError(mode)

    def _fork_cell(self, cell, frame, text):
        handle = self._new_handle()
        if handle is None:
            self._refuse("no_process", "too many files are open", frame)
            return
        handle.begin_cell(cell)
        try:
            self._main.control.send(
                wire.pack(wire.SPAWN, wire.encode_json(handle.index)), handle.runner_descriptors()
            )
        except BlockingIOError:
            self._drop(handle)
            self._refuse("no_process", "the worker does not read", frame)
            return
        handle.close_runner_ends()
        self._forward(handle, text)
        handle.read(not self.bridge.pressed)
        self._reap_soon()

    def _interrupt(self, frame, text):
        handle = self._runner_of(frame["cell"])
        if handle is not None:
            # The frame tells a runner that has not begun which cell the signal was for.
            self._forward(handle, text)
            handle.interrupted = True
            handle.signal(signal.SIGINT)

    def _kill(self, frame, _text):
        handle = self._runner_of(frame["cell"])
        if handle is None:
            return
        grace_s = int(frame["grace_ms"]) / 1000
        handle.killed = True
        handle.signal(signal.SIGTERM)
        self._poller.after(("kill", handle.index), grace_s, handle.kill)

    def _compute(self, frame, _text):
        if not self._computes.start(frame, self.limits.repr_chars):
            self._refuse("busy", "too many expressions are being evaluated", frame)

    def _variables(self, frame, text):
        main = self._main
        if main is None:
            self._refuse("no_process", "there is no worker", frame)
        elif main.cell or main.resets:
            self._refuse("busy", "the main line runs a cell", frame)
        else:
            main.variables_request = int(frame["request"])
            self._forward(main, text)

    def _reset(self, frame, _text):
        request = int(frame["request"])
        if self._main is None:
            self._refuse("no_process", "there is no worker", frame)
            return
        self._main.resets.append(request)
        self._main.killed = True
        self._main.kill()

    def _tool_answer(self, frame, text):
        handle = self._runners.get(int(frame["call"]) // CALLS_PER_RUNNER)
        if handle is not None:
            handle.tools.send(wire.pack(wire.HOST_FRAME, text.encode()))

    def _bye(self, _frame, _text):
        self._stop()

    # The bridge.

    def _bridge_lost(self):
        if self._greeted:
            self._greeted = False
            self._poller.after("orphan", self.limits.orphan_s, self._stop)

    def _pressure(self, high):
        for handle in self._runners.values():
            handle.read(not high)

    def _stop(self):
        self._running = False
        self.bridge.finish()
        for handle in list(self._runners.values()):
            handle.kill()
        self._computes.stop()
        process.kill_descendants(frozenset())

    def _refuse(self, code, message, frame=None):
        frame = frame or {}
        refused = {"type": "refused", "code": code, "message": message, "request": None, "cell": None}
        for key in ("request", "cell"):
            if isinstance(frame.get(key), int):
                refused[key] = frame[key]
        self.send(refused)

    # Runners.

    def runner_message(self, handle, kind, payload):
        if kind == wire.CELL_DONE and handle.cell:
            self._poller.cancel(("kill", handle.index))
            handle.end_cell()
            self.bridge.send(payload)
        elif kind == wire.RELAY:
            handle.drain()  # so that what was printed before comes before
            self.bridge.send(payload)
        elif kind == wire.VARIABLES_DONE and handle.variables_request is not None:
            handle.variables_request = None
            self.bridge.send(payload)
        elif kind == wire.PRESENT and handle.pid is None:
            self._runner_present(handle)
        elif kind == wire.SPAWN_FAILED and handle is self._main:
            self._spawn_failed(payload)
        elif kind != wire.PRESENT:
            self.runner_broken(handle)

    def runner_broken(self, handle):
        handle.kill()

    def _runner_present(self, handle):
        pid = handle.control.peer_pid
        self._by_pid[pid] = handle
        alive = handle.set_pid(pid, self._reap)
        # Asked for before the pid was known.
        if handle.killed:
            handle.kill()
        elif handle.interrupted:
            handle.signal(signal.SIGINT)
        if not alive and pid in self._reaped:
            self._runner_ended(handle, self._reaped.pop(pid))

    def _spawn_failed(self, payload):
        try:
            handle = self._runners.get(int(payload))
        except ValueError:
            return
        if handle is not None and handle is not self._main and handle.pid is None:
            cell = handle.cell
            self._drop(handle)
            self._refuse("no_process", "the sandbox cannot start another process", {"cell": cell})

    def _start_worker(self, tries=1):
        """A fresh worker with the seed only. Where processes are short, try again for a while."""
        handle = self._new_handle()
        pid = None
        if handle is not None:
            # Held back until the worker can handle it; it would end it before.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                pid = os.fork()
            except OSError:
                self._drop(handle)
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        if pid is None:
            if tries >= WORKER_START_TRIES:
                self._stop()
                return
            process.kill_descendants(self._living())
            self._reap()
            self._poller.after("worker", WORKER_START_RETRY_S, lambda: self._start_worker(tries + 1))
            return
        if pid == 0:
            runner.enter(handle.runner_descriptors(), self._workspace, handle.index)
        handle.close_runner_ends()
        self._main = handle
        self._by_pid[pid] = handle
        handle.set_pid(pid, self._reap)
        handle.read(not self.bridge.pressed)
        for text in (self._hello_text, self._configure_text):
            if text is not None:
                self._forward(handle, text)
        for frame in self._at_worker_start:
            self.send(frame)
        self._at_worker_start = []

    def _runner_ended(self, handle, exit_code):
        handle.take_last_words()
        if handle is self._main:
            self._end_unborn(exit_code)
            process.kill_descendants(self._living() - {handle.pid})
        else:
            process.kill_session(handle.pid)
        self._runner_lost(handle, exit_code)
        if handle is self._main:
            self._main = None
            if handle.variables_request is not None:
                self._refuse("no_process", "the worker ended", {"request": handle.variables_request})
            if handle.resets:
                frames = [{"type": "reset_done", "request": request} for request in handle.resets]
            else:
                frames = [{"type": "worker_replaced", "exit_code": exit_code}]
            self._at_worker_start = frames
            self._start_worker()

    def _end_unborn(self, exit_code):
        """Copies that the main worker was asked for and that have not shown up when it ended."""
        for handle in list(self._runners.values()):
            if handle.pid is None:
                handle.take_last_words()
            if handle.pid is None:
                self._runner_lost(handle, exit_code)

    def _runner_lost(self, handle, exit_code):
        cell = handle.cell
        handle.end_cell()
        if cell:
            self.send({"type": "cell_lost", "cell": cell, "exit_code": exit_code, "killed": handle.killed})
        self._drop(handle)

    def _new_handle(self):
        index = self._next_index
        while index in self._runners:
            index = (index + 1) % RUNNER_INDEXES
        self._next_index = (index + 1) % RUNNER_INDEXES
        try:
            handle = RunnerHandle(self, self._poller, index)
        except OSError:
            return None
        self._runners[index] = handle
        return handle

    def _drop(self, handle):
        self._poller.cancel(("kill", handle.index))
        self._runners.pop(handle.index, None)
        self._by_pid.pop(handle.pid, None)
        handle.close()

    def _forward(self, handle, text):
        handle.control.send(wire.pack(wire.HOST_FRAME, text.encode()))

    def _runner_of(self, cell):
        for handle in self._runners.values():
            if handle.cell and handle.cell == cell:
                return handle
        return None

    def _living(self):
        return frozenset(self._by_pid) | self._computes.pids()

    # The dead.

    def _reap(self):
        """Collect every child that has ended; orphans become children of the guardian."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            exit_code = process.exit_code(status)
            handle = self._by_pid.get(pid)
            if handle is not None:
                self._runner_ended(handle, exit_code)
            elif not self._computes.ended(pid, exit_code):
                self._reaped.pop(pid, None)
                self._reaped[pid] = exit_code
                if len(self._reaped) > REAPED_REMEMBERED:
                    del self._reaped[next(iter(self._reaped))]

    def _reap_regularly(self):
        self._reap()
        self._reap_soon()

    def _reap_soon(self):
        busy = any(handle.cell for handle in self._runners.values())
        if busy and not hasattr(os, "pidfd_open"):
            pause = REAP_WITHOUT_PIDFD_S
        else:
            pause = REAP_BUSY_S if busy else REAP_IDLE_S
        self._poller.after("reap", pause, self._reap_regularly)


def _announce():
    try:
        os.write(1, b"INITIALIZED SERVER\n")
    except OSError:
        pass  # nobody may be listening


def main(arguments):
    options = {"--workspace": "/workspace"}
    # By hand, because argparse takes as long to load as all the rest.
    if len(arguments) % 2 or not set(arguments[::2]) <= {"--bridge", "--workspace"}:
        arguments = []
    options.update(zip(arguments[::2], arguments[1::2]))
    if "--bridge" not in options:
        print("usage: kernel --bridge SOCKET [--workspace DIRECTORY]", file=sys.stderr)
        return 64
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    process.set_dumpable(False)
    process.adopt_orphans()
    findings = probe()
    gc.collect()
    gc.freeze()  # keeps the pages that runners share with us untouched by their collector
    Guardian(options["--bridge"], options["--workspace"], findings).run()
    return 0
