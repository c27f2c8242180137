"""A process that runs cells: set-up after the fork, and the loop over the guardian's messages."""

import os.path
import posix  # not `os`, whose functions user code may replace
import resource
import select
import socket
import sys
import threading
import types
import warnings
from collections import deque

from . import fonts, process, variables, wire
from .cells import CellRunner
from .interrupts import Interrupts
from .limits import CONTROL_READ_BYTES, WORKER_OOM_SCORE, Limits
from .loops import EventLoop
from .rich import Displays
from .streams import Streams
from .tools import ToolBox

# Where the kernel keeps its descriptors in a runner: high up, out of the way of user code.
_FIRST_DESCRIPTOR = 900
_DESCRIPTORS = 4

_getpid = posix.getpid


def enter(descriptors, workspace, index):
    """Turn this fork of the guardian into a fresh worker. Does not return."""
    try:
        place = _take_descriptors(descriptors)
        process.set_dumpable(True)
        process.raise_oom_score(WORKER_OOM_SCORE)
        posix.setsid()
        Runner(place, index, workspace).run()
    except BaseException as error:
        posix.write(place + 3, f"process {_getpid()}: the worker failed: {type(error).__name__}\n".encode())
    finally:
        posix._exit(1)


def _take_descriptors(descriptors):
    """Put the four into place and close all that was the guardian's."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    place = min(_FIRST_DESCRIPTOR, most - 2 * _DESCRIPTORS)
    for offset, descriptor in enumerate(descriptors):
        posix.dup2(descriptor, place + offset, inheritable=False)
    posix.closerange(3, place)
    posix.closerange(place + _DESCRIPTORS, min(most, place + 1024))
    null = posix.open(os.devnull, posix.O_RDONLY)
    posix.dup2(null, 0)
    posix.close(null)
    return place


class Runner:
    def __init__(self, place, index, workspace):
        self._place = place
        self._one_cell_only = False
        self.limits = Limits()
        self._streams = Streams(place + 2, place + 3)
        self._streams.mend()
        self._enter_workspace(workspace)
        self.namespace = _fresh_main_module()
        self.interrupts = Interrupts()
        self.interrupts.install()
        self._loop = EventLoop()
        self._displays = Displays(self)
        self._tools = ToolBox(self)
        self._tools.offer((), ())
        self._cells = CellRunner(self, self._streams, self.interrupts, self._loop, self._displays)
        self._attach(index)
        fonts.install_cache()

    def _attach(self, index):
        """Become the process that speaks on the descriptors in place."""
        self.pid = _getpid()
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._place)
        self._tool_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._place + 1)
        self._send_lock = threading.Lock()
        self._reader = wire.MessageReader()
        self._messages = deque()  # read ahead
        self._received_descriptors = []
        self._tools.attach(self._tool_socket, index)
        self.send(wire.PRESENT)

    def is_own_process(self):
        """False in a child that user code forked."""
        return _getpid() == self.pid

    def send(self, kind, payload=b""):
        if not self.is_own_process():
            raise RuntimeError("a child process of a cell cannot speak for it")
        with self.interrupts, self._send_lock:
            self._control.sendall(wire.pack(kind, payload))

    def current_cell(self):
        return self._cells.current

    def run(self):
        while True:
            kind, payload = self._receive()
            if kind == wire.SPAWN:
                self._spawn(int(payload))
            else:
                self._host_frame(wire.decode_json(payload.decode()))

    def interrupt_waits(self, cell):
        """Whether the guardian has sent an interrupt for this cell that was not acted on."""
        found = False
        while select.select([self._control], (), (), 0)[0]:
            self._receive_some()
        while True:
            message = self._reader.next()
            if message is None:
                return found
            self._messages.append(message)
            if message[0] == wire.HOST_FRAME:
                frame = wire.decode_json(message[1].decode())
                found = found or (frame["type"] == "interrupt" and frame["cell"] == cell)

    def _receive(self):
        while True:
            if self._messages:
                return self._messages.popleft()
            message = self._reader.next()
            if message is not None:
                return message
            self._loop.idle(self._control)
            self._receive_some()

    def _receive_some(self):
        data, ancillary, _, _ = self._control.recvmsg(
            CONTROL_READ_BYTES, socket.CMSG_SPACE(_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            posix._exit(0)  # the guardian let go of this runner
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._received_descriptors += memoryview(value[: len(value) // 4 * 4]).cast("i").tolist()
        self._reader.feed(data)

    def _host_frame(self, frame):
        kind = frame["type"]
        if kind == "cell":
            self._cells.run(frame)
            if self._one_cell_only:
                posix._exit(0)
        elif kind == "variables":
            answer = variables.listing(self.namespace, self._injected(), frame["private"], self.limits)
            answer["request"] = frame["request"]
            self.send(wire.VARIABLES_DONE, wire.encode_json(answer))
        elif kind == "hello":
            self.limits = Limits(frame["limits"])
        elif kind == "configure":
            self._configure(frame)

    def _configure(self, frame):
        self._tools.offer(frame["tools"], frame["seed"])
        self.namespace.update(frame["seed"])

    def _injected(self):
        return {**self._displays.injected, **self._tools.injected}

    def _spawn(self, index):
        """Fork a copy that lives on new descriptors.

        It is forked twice, so that it becomes a child of the guardian and `os.wait()` of user code
        never sees it.
        """
        descriptors, self._received_descriptors = self._received_descriptors, []
        try:
            child = posix.fork()
        except OSError:
            child = None
        if child == 0:
            self._become_copy(descriptors, index)
            return
        for descriptor in descriptors:
            posix.close(descriptor)
        failed = child is None
        if child is not None:
            try:
                failed = posix.waitpid(child, 0)[1] != 0
            except ChildProcessError:
                pass  # user code ignores SIGCHLD, so the kernel has reaped it
        if failed:
            self.send(wire.SPAWN_FAILED, str(index).encode())

    def _become_copy(self, descriptors, index):
        try:
            if posix.fork():
                posix._exit(0)
        except OSError:
            posix._exit(1)
        posix.setsid()
        # In place of the parent's, so that this process cannot speak for it.
        self._control.detach()
        self._tool_socket.detach()
        for offset, descriptor in enumerate(descriptors):
            posix.dup2(descriptor, self._place + offset, inheritable=False)
            posix.close(descriptor)
        self._streams.mend()
        self._loop.forget()
        self._one_cell_only = True
        self._attach(index)

    def _enter_workspace(self, workspace):
        # Modules of the workspace can be imported by cells; those of the kernel need no path.
        kernel_directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        sys.path[:] = ["", *(entry for entry in sys.path if entry != kernel_directory)]
        sys.argv = [""]
        try:
            posix.chdir(workspace)
        except OSError as error:
            print(f"process {_getpid()}: cannot change directory to {workspace}: {error}", file=sys.stderr)


class InputNotAvailable(EOFError, RuntimeError):
    """A cell asked for input; there is nobody to type it."""


InputNotAvailable.__module__ = "builtins"


def _no_input(_prompt="", /):
    """Cells cannot read input."""
    raise InputNotAvailable("cells cannot read input: put the value into the code or seed the session with it")


_no_input.__name__ = _no_input.__qualname__ = "input"


def _fresh_main_module():
    module = types.ModuleType("__main__")
    module.__builtins__ = sys.modules["builtins"]
    module.__builtins__.input = _no_input
    sys.modules["__main__"] = module
    # Nobody can act on it: a fork for a `fork` cell is ours, and threads are the user's.
    warnings.filterwarnings("ignore", r"This process .* is multi-threaded, use of fork", DeprecationWarning)
    return module.__dict__
