"""Starts a real kernel and speaks with it as the daemon would."""

import functools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import schema
from websocket_client import BINARY, CLOSE, PONG, TEXT, Closed, Connection

KERNEL = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "sandbox-bootstrap"))
# Frames of a kernel that is ahead of the schemas cannot be checked against them.
SKIP_SCHEMAS = os.environ.get("BELLJAR_SKIP_SCHEMAS") == "1"
HOST_SCHEMA = None if SKIP_SCHEMAS else schema.load("host-frame.json")
KERNEL_SCHEMA = None if SKIP_SCHEMAS else schema.load("kernel-frame.json")
TIMEOUT_S = 15

LIMITS = {
    "output_bytes": 4 * 1024 * 1024,
    "output_tail_bytes": 4096,
    "repr_chars": 20_000,
    "preview_chars": 200,
    "variables": 500,
    "exception_chars": 10_000,
    "traceback_chars": 40_000,
    "displays": 32,
    "display_bytes": 8 * 1024 * 1024,
    "displays_bytes": 16 * 1024 * 1024,
    "tool_calls": 64,
    "names": 200,
    "checkpoints": 8,
    "checkpoints_at_rest": False,
    "checkpoint_bytes": 2**30,
    "memory_bytes": 2**32,
    "unacknowledged_bytes": 4 * 1024 * 1024,
    "orphan_s": 30,
    "keep_cwd": False,
}
ACK_EVERY_BYTES = 64 * 1024
ACK_EVERY_FRAMES = 32


@functools.cache
def guardian(kernel):
    """The guardian's program, compiled as the daemon's build does. `BELLJAR_GUARDIAN` names another one."""
    if "BELLJAR_GUARDIAN" in os.environ:
        return os.environ["BELLJAR_GUARDIAN"]
    top = os.path.join(os.path.dirname(__file__), "..", "..")
    folder = os.path.abspath(os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(top, "target")), "guardian"))
    said = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, check=True, text=True).stdout
    target = next(line.split()[1] for line in said.splitlines() if line.startswith("host:"))
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--target", target, "--target-dir", folder]
    subprocess.run(
        [*command, "--manifest-path", os.path.join(kernel, "guardian", "Cargo.toml")],
        env={**os.environ, "RUSTFLAGS": "-C target-feature=+crt-static"},
        check=True,
    )
    return os.path.join(folder, target, "release", "belljar-guardian")


def said(payload):
    """What a runner said, below what the guardian says of it. As the daemon does, text that is no object is let be."""
    length = struct.unpack_from(">BI", payload)[1]
    own = json.loads(payload[5 : 5 + length])
    try:
        words = json.loads(payload[5 + length :])
    except (ValueError, RecursionError):
        words = None
    return {**(words if isinstance(words, dict) else {"unread": True}), **own}


class Run:
    """All that came for one cell."""

    def __init__(self, cell):
        self.cell = cell
        self.output = []  # (stream, bytes)
        self.frames = []
        self.end = None  # cell_done, cell_lost or refused

    def stream(self, number):
        return b"".join(data for stream, data in self.output if stream == number).decode("utf-8", "replace")

    @property
    def stdout(self):
        return self.stream(1)

    @property
    def stderr(self):
        return self.stream(2)

    @property
    def both(self):
        return b"".join(data for _, data in self.output).decode("utf-8", "replace")

    @property
    def value(self):
        return self.end["result"] and self.end["result"]["repr"]

    @property
    def displays(self):
        return [frame["mime"] for frame in self.frames if frame["type"] == "display"]


class Kernel:
    def __init__(self, limits=None, arguments=(), prefix=(), inherits=()):
        self.directory = tempfile.mkdtemp(prefix="belljar-test-")
        self.workspace = os.path.join(self.directory, "workspace")
        os.mkdir(self.workspace)
        self.bridge_path = os.path.join(self.directory, "bridge.sock")
        self.limits = {**LIMITS, **(limits or {})}
        self._listener = None
        self.connection = None
        self.next_cell = 0
        self.idle_output = []
        self.received = 0  # frames of the kernel, hellos aside
        self.acknowledges = True
        self._unacknowledged = [0, 0]  # frames, bytes
        self.tools = {}  # name -> function of the arguments; may raise ToolProblem
        self.seen_calls = []
        self.given_up = []  # numbers of calls that nobody waits for any more
        self.listen()
        environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONUTF8": "1", "LANG": "C.UTF-8"}
        command = [guardian(KERNEL), "--kernel", KERNEL, "--python", sys.executable]
        self.process = subprocess.Popen(
            [*prefix, *command, "--bridge", self.bridge_path, "--workspace", self.workspace, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=inherits,
        )

    def listen(self):
        if os.path.exists(self.bridge_path):
            os.unlink(self.bridge_path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.bridge_path)
        self._listener.listen(4)

    def accept(self):
        if self.connection is not None:
            self.connection.close()
        self._listener.settimeout(TIMEOUT_S)
        accepted, _ = self._listener.accept()
        self.connection = Connection(accepted)
        return self.connection

    def start(self):
        """Accept, upgrade, exchange hellos; returns the kernel's."""
        self.accept().upgrade()
        return self.hello()

    def hello(self, versions=(1,)):
        self.send(type="hello", versions=list(versions), sandbox="test", limits=self.limits, received=self.received)
        return self.expect("hello")

    def hang_up(self):
        self.connection.close()
        self._listener.close()

    def close(self):
        if self.process.poll() is None:
            try:
                self.send(type="bye")
                self.process.wait(5)
            except (OSError, subprocess.TimeoutExpired, AttributeError):
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        if self.connection is not None:
            self.connection.close()
        self._listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def send(self, **frame):
        if HOST_SCHEMA is not None:
            schema.check(frame, HOST_SCHEMA)
        self.connection.send_text(json.dumps(frame))

    def receive(self, timeout=TIMEOUT_S):
        """A frame as a dict; binary ones have the type `output`."""
        deadline = time.monotonic() + timeout
        while True:
            opcode, payload = self.connection.receive(deadline)
            if opcode == TEXT:
                frame = json.loads(payload)
                if KERNEL_SCHEMA is not None:
                    schema.check(frame, KERNEL_SCHEMA)
                if frame["type"] != "hello":
                    self._count(payload)
                return frame
            if opcode == BINARY and payload[:1] == b"\x03":
                frame = said(payload)
                if KERNEL_SCHEMA is not None and "unread" not in frame:
                    schema.check(frame, KERNEL_SCHEMA)
                self._count(payload)
                return frame
            if opcode == BINARY:
                stream, cell = struct.unpack_from(">BQ", payload)
                if stream not in (1, 2) or len(payload) > 9 + 65536:
                    raise AssertionError("a malformed output frame")
                self._count(payload)
                return {"type": "output", "stream": stream, "cell": cell, "data": payload[9:]}
            if opcode == PONG:
                return {"type": "pong", "data": payload}
            if opcode == CLOSE:
                raise Closed(payload)

    def _count(self, payload):
        self.received += 1
        self._unacknowledged[0] += 1
        self._unacknowledged[1] += len(payload)
        frames, size = self._unacknowledged
        if self.acknowledges and (frames >= ACK_EVERY_FRAMES or size >= ACK_EVERY_BYTES):
            self._unacknowledged = [0, 0]
            self.send(type="ack", received=self.received)

    def expect(self, kind, timeout=TIMEOUT_S, **fields):
        """The next frame that is no output of the time between cells."""
        frame = self.next_frame(timeout)
        if frame["type"] != kind or any(frame.get(name) != value for name, value in fields.items()):
            raise AssertionError(f"expected {kind} {fields}, got {str(frame)[:500]}")
        return frame

    def next_frame(self, timeout=TIMEOUT_S):
        deadline = time.monotonic() + timeout
        while True:
            frame = self.receive(deadline - time.monotonic())
            if frame["type"] == "output" and frame["cell"] == 0:
                self.idle_output.append((frame["stream"], frame["data"]))
            elif frame["type"] == "tool_call":
                self._answer_tool(frame)
            elif frame["type"] == "tool_abandoned":
                self.given_up.append(frame["call"])
            else:
                return frame

    def submit(self, code, mode="main", expression=False, cell=None, restricted=False, **more):
        self.next_cell = cell or self.next_cell + 1
        frame = {"cell": self.next_cell, "code": code, "mode": mode, "expression": expression}
        self.send(type="cell", restricted=restricted, **frame, **more)
        return Run(self.next_cell)

    def finish(self, run, timeout=TIMEOUT_S):
        """Collect frames of a cell until it ends."""
        while self.step(run, timeout):
            pass
        return run

    def step(self, run, timeout=TIMEOUT_S):
        """Take in one frame; False if it ended the cell."""
        frame = self.next_frame(timeout)
        if frame.get("cell") != run.cell:
            raise AssertionError(f"a frame of something else: {str(frame)[:500]}")
        if frame["type"] == "output":
            run.output.append((frame["stream"], frame["data"]))
            return True
        run.frames.append(frame)
        if frame["type"] in ("cell_done", "cell_lost", "refused"):
            run.end = frame
            return False
        return True

    def wait_for_output(self, run, text):
        while text not in run.both:
            if not self.step(run):
                raise AssertionError(f"the cell ended: {run.end}")

    def run(self, code, **options):
        return self.finish(self.submit(code, **options))

    def configure(self, seed=None, tools=(), given=()):
        self.send(type="configure", seed=seed or {}, tools=list(tools), given=list(given))

    def compute(self, expression, timeout_ms=2000, memory_bytes=64 * 1024 * 1024, **values):
        self.send(
            type="compute",
            request=7,
            expression=expression,
            values=values,
            timeout_ms=timeout_ms,
            memory_bytes=memory_bytes,
        )
        return self.expect("computed", request=7)["outcome"]

    def variables(self, private=False, **which):
        self.send(type="variables", request=5, private=private, **which)
        return self.expect("variables", request=5)

    def _answer_tool(self, frame):
        self.seen_calls.append(frame)
        function = self.tools.get(frame["name"])
        if function is None:
            return
        try:
            value = function(**frame["arguments"])
        except ToolProblem as problem:
            error = {"code": problem.code, "message": problem.message}
            self.send(type="tool_failed", call=frame["call"], error=error)
        else:
            self.send(type="tool_result", call=frame["call"], value=value)


class ToolProblem(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
        self.message = message


class KernelTest(unittest.TestCase):
    """A fresh kernel for each test."""

    limits = None

    def setUp(self):
        self.kernel = Kernel(self.limits)
        self.addCleanup(self.kernel.close)
        self.kernel.start()

    def run_ok(self, code, **options):
        run = self.kernel.run(code, **options)
        self.assertEqual(run.end.get("status"), "success", run.end)
        return run

    def value(self, code):
        return self.run_ok(code).value

    def wait_until(self, condition, what, seconds=10):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"not in time: {what}")
            time.sleep(0.01)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
