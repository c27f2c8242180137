"""The guardian: pid 1 of the sandbox.

It starts runners, forwards their messages to the daemon unread, but with its own statement of what each is about,
carries their output, and reports how they ended. It runs no user code, imports nothing once runners exist, and has
no signal handlers, because a pid namespace protects its init only from signals without one.
"""

import gc
import os
import signal
import sys

from . import process, websocket, wire
from .bridge import Bridge
from .code_checks import CodeChecks
from .limits import FIRST_HELLO_S, PROTOCOL_VERSION, Limits
from .poller import Poller
from .probe import probe
from .runners import Runners


class Guardian:
    def __init__(self, bridge_path, workspace, findings):
        self._findings = findings
        self._poller = Poller()
        self._bridge = Bridge(self._poller, bridge_path, self._host_frame, self._bridge_lost, self._pressure)
        self._code_checks = CodeChecks(self._poller, self._send)
        self._runners = Runners(self._poller, self._bridge, self._code_checks, workspace, self._stop)
        self._line = self._runners.line
        self._greeted = False
        self._running = True
        self._last_cell = 0
        self._handlers = {
            "hello": self._hello,
            "ack": self._ack,
            "configure": self._configure,
            "preload": self._preload,
            "cell": self._cell,
            "interrupt": self._interrupt,
            "kill": self._kill,
            "compute": self._compute,
            "names": self._names,
            "variables": self._variables,
            "reset": self._reset,
            "undo": self._undo,
            "tool_result": self._tool_answer,
            "tool_failed": self._tool_answer,
            "bye": self._bye,
        }

    def run(self):
        self._poller.after("orphan", FIRST_HELLO_S, self._stop)
        self._line.start_worker()
        self._runners.reap_regularly()
        self._bridge.connect()
        while self._running:
            self._poller.step()

    def _send(self, frame):
        self._bridge.send(wire.encode_json(frame))

    # Frames of the daemon.

    def _host_frame(self, text):
        try:
            frame = wire.decode_json(text)
            handler = self._handlers[frame["type"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            self._refuse("malformed", "the frame is no JSON object of a known type")
            return
        if not self._greeted and frame["type"] != "hello":
            self._bridge.close(websocket.PROTOCOL_ERROR, "hello has to come first")
            return
        try:
            handler(frame, text)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse("malformed", f"{frame['type']}: {error!r}", frame)
        except OSError as error:
            self._refuse("no_process", f"{frame['type']}: {error.strerror}", frame)

    def _hello(self, frame, text):
        if self._greeted:
            self._bridge.close(websocket.PROTOCOL_ERROR, "one hello is enough")
            return
        if PROTOCOL_VERSION not in frame["versions"]:
            self._bridge.close(websocket.PROTOCOL_ERROR, "no common version")
            return
        limits, received = Limits(frame["limits"]), int(frame["received"])
        if not self._bridge.acknowledge(received):
            self._bridge.close(websocket.PROTOCOL_ERROR, "so many frames were never sent")
            return
        self._runners.limits = limits
        self._bridge.held_most = limits.unacknowledged_bytes
        first = self._line.greet(text)
        self._poller.cancel("orphan")
        self._greeted = True
        hello = {
            "type": "hello",
            "version": PROTOCOL_VERSION,
            "python": "{}.{}.{}".format(*sys.version_info),
            "probe": self._findings,
            "running": self._runners.running_cells(),
            "state_of": self._line.state_of(),
            "last_cell": self._last_cell,
            "resumes_after": self._bridge.forgotten(),
        }
        self._bridge.open(wire.encode_json(hello))
        if first:
            _announce()

    def _ack(self, frame, _text):
        if not self._bridge.acknowledge(int(frame["received"])):
            self._bridge.close(websocket.PROTOCOL_ERROR, "so many frames were never sent")

    def _configure(self, _frame, text):
        self._line.set_up(text)

    def _preload(self, frame, text):
        request = int(frame["request"])
        if self._can_serve(frame):
            self._line.preload(request, text, frame["bind"])

    def _cell(self, frame, text):
        cell, mode = int(frame["cell"]), frame["mode"]
        if mode not in ("main", "fork"):
            raise ValueError(mode)
        self._last_cell = max(self._last_cell, cell)
        if not self._can_serve(frame, from_checkpoint=mode == "fork"):
            return
        if mode == "main":
            self._line.start_cell(cell, text, frame["code"])
        elif not self._line.copy_for_cell(cell, text):
            self._refuse("no_process", "the sandbox cannot start another process", frame)
        self._runners.reap_soon()

    def _can_serve(self, frame, from_checkpoint=False):
        """Whether the main line is idle, or the state before its cell can be copied. If not, refuse."""
        self._runners.strays.wait_for_room()  # what is asked for may need a process
        if self._line.worker is None:
            self._refuse("no_worker", "a fresh worker is being started", frame)
        elif self._line.is_idle() or (from_checkpoint and self._line.has_source()):
            return True
        else:
            why = ", and there is no checkpoint" if from_checkpoint else ""
            self._refuse("busy", "the main line runs a cell" + why, frame)
        return False

    def _interrupt(self, frame, text):
        handle = self._runners.of_cell(frame["cell"])
        if handle is not None:
            # The frame tells a runner that has not begun which cell the signal was for.
            handle.forward(text)
            handle.interrupted = True
            handle.signal(signal.SIGINT)

    def _kill(self, frame, _text):
        handle = self._runners.of_cell(frame["cell"])
        if handle is None:
            return
        grace_s = int(frame["grace_ms"]) / 1000
        handle.killed = True
        if process.is_crowded():
            # The other processes would take the CPU time in which the runner could clean up, and the guardian's, too.
            self._runners.end_late(handle)
            return
        handle.signal(signal.SIGTERM)
        self._poller.after(("kill", handle.index), grace_s, lambda: self._runners.end_late(handle))

    def _compute(self, frame, _text):
        self._runners.strays.kill_condemned()
        if not self._code_checks.start(frame, self._runners.limits):
            self._refuse("busy", "too many expressions are being evaluated", frame)

    def _names(self, frame, _text):
        known = self._line.names_of_lost(frame["code"])
        if known is not None:
            self._send({"type": "names", "request": int(frame["request"]), "names": known})
        self._runners.strays.kill_condemned()  # the daemon has all that it needs to report the end of the cell
        if known is None and not self._code_checks.start_names(frame, self._runners.limits):
            self._refuse("busy", "too many expressions are being evaluated", frame)

    def _variables(self, frame, text):
        request = int(frame["request"])
        if not self._can_serve(frame, from_checkpoint=True):
            return
        # Always in a copy: the `__repr__` of a variable may loop, die or change things.
        if not self._line.copy_for_view(request, text):
            self._refuse("no_process", "the sandbox cannot start another process", frame)

    def _reset(self, frame, _text):
        self._line.reset(int(frame["request"]))

    def _undo(self, frame, _text):
        request, cells = int(frame["request"]), int(frame["cells"])
        if cells < 1:
            raise ValueError(cells)
        if not self._can_serve(frame):
            return
        if self._line.undo(cells):
            self._send({"type": "undone", "request": request, "state_of": self._line.state_of()})
            self._line.settle_after_undo()
        else:
            self._refuse("out_of_reach", self._reach(), frame)

    def _reach(self):
        reach = [cells for cells in self._line.reach() if cells]
        if not reach:
            return "there is nothing to undo"
        if reach == list(range(1, len(reach) + 1)):
            return f"undo reaches {len(reach)} {'cell' if len(reach) == 1 else 'cells'} back"
        return f"undo reaches {reach[-1]} cells back, and of those only: {', '.join(map(str, reach))}"

    def _tool_answer(self, frame, text):
        self._runners.tool_answered(int(frame["call"]), text)

    def _bye(self, _frame, _text):
        self._stop()

    # The bridge.

    def _bridge_lost(self):
        if self._greeted:
            self._greeted = False
            self._poller.after("orphan", self._runners.limits.orphan_s, self._stop)

    def _pressure(self, high):
        for handle in self._runners.all():
            handle.read(not high)

    def _stop(self):
        self._running = False
        self._bridge.finish()
        for handle in self._runners.all():
            handle.kill()
        self._code_checks.stop()
        process.kill_all()

    def _refuse(self, code, message, frame=None):
        self._runners.refuse(code, message, frame if isinstance(frame, dict) else {})


def _announce():
    try:
        os.write(1, b"INITIALIZED SERVER\n")
    except OSError:
        pass  # the reader of stdout may be gone


def main(arguments):
    options = {"--workspace": "/workspace"}
    # By hand, because argparse takes as long to load as all the rest.
    if len(arguments) % 2 or not set(arguments[::2]) <= {"--bridge", "--workspace"}:
        arguments = []
    options.update(zip(arguments[::2], arguments[1::2]))
    if "--bridge" not in options:
        print("usage: kernel --bridge SOCKET [--workspace DIRECTORY]", file=sys.stderr)
        return 64
    process.close_inherited()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    process.set_dumpable(False)
    process.adopt_orphans()
    findings = probe()
    gc.collect()
    gc.freeze()  # so that the collector of runners does not touch the pages that they share with the guardian
    Guardian(options["--bridge"], options["--workspace"], findings).run()
    return 0
