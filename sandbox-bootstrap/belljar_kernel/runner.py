"""A process that runs cells: set-up after the fork, and the loop over the guardian's messages."""

import _thread
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

from . import background, copies, descriptor_io, descriptors, fonts, harmless, notebook, preload, process, variables, wire
from .asking import ASK_TOOL, Ask
from .cells import CellRunner
from .clones import Clones
from .interrupts import Interrupts
from .limits import CHECKPOINT_OOM_MARGIN, CONTROL_READ_BYTES, PACK_RECURSION, WORKER_OOM_SCORE, Limits
from .loops import EventLoop
from .nested import NestedTools
from .notebook_commands import INSTALL_TOOL, NotebookCommands
from .preload import PACKAGES, THIRD_PARTY_FOLDERS
from .rich import Displays
from .streams import Streams
from .tools import ToolBox, ToolError

# Where the kernel keeps its descriptors in a runner: high up, out of the way of user code. See `runner_descriptors`.
_FIRST_DESCRIPTOR = 900
_CONTROL, _TOOLS, _STDOUT, _STDERR, _CONTROL_LISTENS, _TOOLS_LISTENS, _INBOX = range(7)
_DESCRIPTORS = 7

_CUT = int(socket.MSG_CTRUNC)  # `enum` stands on built-in functions that user code may replace

_getpid = posix.getpid
_threads = threading._active  # changed in place only
_count_threads = _thread._count  # also those that `threading` does not know


def enter(passed, workspace):
    """Turn this fork of the zygote into a fresh worker. Does not return."""
    try:
        first_descriptor = _take_descriptors(passed)
        process.set_dumpable(True)
        process.give_way()
        posix.setsid()
        Runner(first_descriptor, workspace).run()
    except BaseException as error:
        text = f"process {_getpid()}: the worker failed: {type(error).__name__}\n"
        posix.write(first_descriptor + _STDERR, text.encode())
    finally:
        posix._exit(1)


def _take_descriptors(passed):
    """Move the descriptors into place and close all those of the zygote."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    first_descriptor = min(_FIRST_DESCRIPTOR, most - 2 * _DESCRIPTORS)
    for offset, descriptor in enumerate(passed):
        posix.dup2(descriptor, first_descriptor + offset, inheritable=False)
    # Standard output and error of the zygote are replaced first: one of them is where the zygote is answered, and guest
    # code must not be able to open it through this process.
    for standard, offset in ((1, _STDOUT), (2, _STDERR)):
        posix.dup2(first_descriptor + offset, standard)
    posix.closerange(3, first_descriptor)
    posix.closerange(first_descriptor + _DESCRIPTORS, min(most, first_descriptor + 1024))
    null = posix.open(os.devnull, posix.O_RDONLY)
    posix.dup2(null, 0)
    posix.close(null)
    return first_descriptor


class Runner:
    def __init__(self, first_descriptor, workspace):
        self._first_descriptor = first_descriptor
        self.serves_once = False  # a copy for one cell or one listing
        self._waits = False  # a checkpoint
        self._clones = Clones((0, 1, 2, *self.own_descriptors()))
        self._checkpoint_oom_score = min(process.oom_score() + CHECKPOINT_OOM_MARGIN, WORKER_OOM_SCORE)
        process.set_oom_score(WORKER_OOM_SCORE)
        self.limits = Limits()
        self._streams = Streams(first_descriptor + _STDOUT, first_descriptor + _STDERR, self._hurry)
        self._streams.mend()
        self._enter_workspace(workspace)
        self.namespace = _fresh_main_module(self._streams.print())
        self._seed = self._seeded = self._preloaded = {}
        self.interrupts = Interrupts()
        self.interrupts.install()
        self.commands = NotebookCommands(
            self.namespace, self._streams, self.interrupts, workspace, lambda: self._tools.injected.get(INSTALL_TOOL)
        )
        setattr(sys.modules["builtins"], notebook.NAME, self.commands)
        self._loop = EventLoop(self.is_own_process, self.interrupts)
        self._displays = Displays(self)
        self._tools = ToolBox(self, {ASK_TOOL: lambda box, spec, _local: Ask(box, spec, self)})
        self._tools.offer((), ())
        self._cells = CellRunner(self, self._streams, self.interrupts, self._loop, self._displays, self.live, self._is_quiet)
        self.background = background.BackgroundCells(self, self._streams, self.interrupts, self._cells)
        self._nested = NestedTools(self, self._cells, self._injected, ToolError)
        self._tools.local = self._nested.by_name
        self._attach()
        self._say_present()
        fonts.install_cache()

    def _attach(self):
        """Use the descriptors in place as those of this process."""
        self.pid = _getpid()
        self._past_threads = _count_threads()  # of the original: Python goes on counting them
        self._unknown_threads = 0
        first = self._first_descriptor
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, first + _CONTROL_LISTENS)
        self._tool_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, first + _TOOLS_LISTENS)
        self._send_lock = threading.Lock()
        self._reader = wire.MessageReader()
        self._messages = deque()  # read ahead
        self._received_descriptors = deque()  # a list for every message that came with some
        self._tools.attach(self._first_descriptor + _TOOLS, self._tool_socket)
        self._nested.attach()

    def own_descriptors(self):
        return range(self._first_descriptor, self._first_descriptor + _DESCRIPTORS)

    def _say_present(self):
        """Report to the guardian."""
        if self._waits:
            self._show_size()
        self.send(wire.PRESENT, wire.PID.pack(self.pid))

    def _show_size(self):
        """Show the guardian how much memory a checkpoint has, which hides its memory from all others."""
        try:
            self._send_size()
        except OSError:
            pass  # its memory counts in full then

    def _send_size(self):
        size = posix.open("/proc/self/smaps_rollup", posix.O_RDONLY | posix.O_CLOEXEC)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, memoryview(bytearray(4)).cast("i"))
        rights[2][0] = size
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM, 0, self._first_descriptor + _INBOX)
        try:
            inbox.sendmsg([b"r"], [rights], socket.MSG_DONTWAIT)
        finally:
            inbox.detach()
            posix.close(size)

    def is_own_process(self):
        """False in a child that user code forked."""
        return _getpid() == self.pid

    def send(self, kind, payload=b""):
        self._send(kind, payload, posix.write)

    def rehearse_sending(self, kind, payload):
        """Do all that sending takes, except for the write itself."""
        self._send(kind, payload, lambda _descriptor, data: len(data))

    def _send(self, kind, payload, write):
        if not self.is_own_process():
            raise RuntimeError("a child process of a cell cannot speak for it")
        with self.interrupts, self._send_lock:
            descriptor_io.send_all(self._first_descriptor + _CONTROL, wire.pack(kind, payload), write)

    def _hurry(self):
        """Have the guardian read at once what was printed. Where a message is just being sent, it reads soon anyway."""
        with self.interrupts:
            if self.is_own_process() and self._send_lock.acquire(False):
                try:
                    descriptor_io.send_all(self._first_descriptor + _CONTROL, wire.pack(wire.HURRY))
                finally:
                    self._send_lock.release()

    def send_in_order(self, kind, payload):
        """Send a message at its place in the output."""
        control = self._first_descriptor + _CONTROL
        self._streams.in_order(lambda: self.send(kind, payload), lambda: descriptor_io.bytes_waiting(control))

    def current_cell(self):
        return self._cells.current

    def run(self):
        while True:
            kind, payload = self._receive()
            self._clones.settle()
            if kind == wire.SPAWN:
                self._spawn(*wire.decode_json(payload.decode()))
            elif kind == wire.BACKGROUND:
                self.background.begin(wire.decode_json(payload.decode()), self._received_descriptors.popleft())
            elif kind == wire.PROMOTE:
                self._become_worker()
            elif kind == wire.REDO:
                harmless.replay(payload, self.namespace)
            elif kind == wire.ARE_YOU_BACK:
                self.send(wire.BACK, payload)
            else:
                self._host_frame(wire.decode_json(payload.decode()))

    def interrupt_waits(self, cell):
        """Whether the guardian has sent an interrupt for this cell that was not handled yet."""
        is_waiting = False
        while select.select([self._control], (), (), 0)[0]:
            self._receive_some()
        while True:
            message = self._reader.next()
            if message is None:
                return is_waiting
            self._messages.append(message)
            if message[0] == wire.HOST_FRAME:
                frame = wire.decode_json(message[1].decode())
                is_waiting = is_waiting or (frame["type"] == "interrupt" and frame["cell"] == cell)

    def _receive(self):
        while True:
            if self._messages:
                return self._messages.popleft()
            message = self._reader.next()
            if message is not None:
                return message
            if self._loop.descriptors():
                self._clones.settle()
                self._loop.idle(self._control)
            self._receive_some()

    def _receive_some(self):
        ancillary_bytes = socket.CMSG_SPACE(_DESCRIPTORS * 4)
        data, ancillary, flags, _ = descriptor_io.receive(
            self._control, lambda: self._control.recvmsg(CONTROL_READ_BYTES, ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
        )
        if not data:
            posix._exit(0)  # the guardian let go of this runner
        came = []
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came += memoryview(value[: len(value) // 4 * 4]).cast("i").tolist()
        if came or flags & _CUT:  # cut where user code has used up its descriptors
            self._received_descriptors.append(came)
        self._reader.feed(data)

    def _host_frame(self, frame):
        kind = frame["type"]
        if kind == "cell":
            self._nested.begin_cell()
            self._tools.newest_cell = frame["cell"]
            self._cells.run(frame)
            self._end_if_done()
        elif kind == "variables":
            if frame.get("of"):
                answer = variables.members(self.namespace, frame, self.limits)
            else:
                answer = variables.listing_by_children(self.namespace, self._injected(), frame, self.limits)
            self.send(wire.VARIABLES_DONE, wire.encode_json(answer))
            self._end_if_done()
        elif kind == "snapshot":
            self._pack(frame)
        elif kind == "restore":
            self._load(frame)
        elif kind == "hello":
            self.limits = Limits(frame["limits"])
        elif kind == "configure":
            self._configure(frame)
        elif kind == "preload":
            self._preload(frame)

    def _configure(self, frame):
        """Values of the seed that are here already stay as code has left them, unless they are given anew."""
        self._cells.not_quiet()  # the end of a value that is replaced may run code
        self._seed = frame["seed"]
        self._tools.offer(frame["tools"], self._seed)
        replaced, known = frame.get("given", ()), self._seeded
        # The values are kept as text, because code may have changed the values themselves.
        self._seeded = {name: wire.encode_json(value) for name, value in self._seed.items()}
        for name, value in self._seed.items():
            if name in replaced or known.get(name) != self._seeded[name]:
                self.namespace[name] = value

    def _preload(self, frame):
        """Seeded names take precedence over modules, and tools over the modules of families."""
        self._cells.not_quiet()
        named, families, answer = preload.preload(frame, self.limits)
        if not self.is_own_process():
            posix._exit(1)  # a child that a module forked
        if frame["bind"]:
            self._preloaded = {name: thing for name, thing in families.items() if name not in self.namespace}
            self._preloaded.update((name, thing) for name, thing in named.items() if name not in self._seed)
            self.namespace.update(self._preloaded)
        self.send(wire.PRELOADED, wire.encode_json(answer))

    def _pack(self, frame):
        """Only in a copy, which ends with it."""
        code, recursion = 1, sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(PACK_RECURSION)  # that of the session may not do for what follows
            from . import snapshot

            known = {
                "cells_begin_in": self.commands.folder,
                "cells_forgotten": self._cells.has_forgotten,
                "recursion": recursion,
            }
            snapshot.pack(frame, self.namespace, self._injected(), self._own_injected(), known)
            code = 0
        finally:
            posix._exit(code)

    def _load(self, frame):
        from . import snapshot_load  # most sessions load nothing

        self._cells.not_quiet()
        answer = snapshot_load.load(frame, self.namespace, self._own_injected(), self.commands)
        if not self.is_own_process():
            posix._exit(1)  # a child that code of a variable forked
        self.send(wire.RESTORED, answer)

    def live(self):
        """The counts of resources that a checkpoint cannot hold."""
        if self.serves_once:
            return {"threads": 0, "tasks": 0, "children": 0}
        return {
            "threads": max(len(_threads) - 1 - self._tools.answers.has_thread - self.background.count(), 0),
            "tasks": self._loop.pending(),
            "children": process.count_children(),
        }

    def _is_quiet(self):
        """Whether no code of the session can run before the next cell."""
        try:
            is_quiet = self._has_no_threads() and self._loop.is_quiet() and harmless.nobody_listens()
            return is_quiet and not self._clones.at_fork_is_used()
        except BaseException:
            return False  # user code has replaced what is looked at

    def _has_no_threads(self):
        known = _count_threads() - self._past_threads
        # Python does not count threads of libraries, nor a thread of the session that has not begun to run yet.
        unknown = process.count_threads() - 1 - known
        is_new, self._unknown_threads = unknown > self._unknown_threads, unknown
        return known - self._tools.answers.has_thread <= 0 and not is_new

    def _injected(self):
        return {**self._own_injected(), **self._preloaded}

    def _own_injected(self):
        return {**self._displays.injected, **self._tools.injected}

    def _end_if_done(self):
        if self.serves_once:
            posix._exit(0)

    def _spawn(self, index, is_checkpoint, tag):
        """Make a copy of this process that uses the descriptors that came with the message."""
        passed = self._received_descriptors.popleft()
        outcome = copies.NO_DESCRIPTORS
        if len(passed) == _DESCRIPTORS:
            outcome = self._clone(passed) if is_checkpoint else copies.FAILED
            if outcome == copies.FAILED:
                outcome = copies.make(lambda: self._part_from_original(passed, is_checkpoint, tag), self._arrive)
        if outcome == copies.COPY:
            return
        for descriptor in passed:
            posix.close(descriptor)
        if outcome != copies.ORIGINAL:
            self.send(wire.SPAWN_FAILED, wire.encode_json([index, outcome == copies.NO_DESCRIPTORS]))
        elif not self._messages and not select.select([self._control], (), (), 0)[0]:
            try:
                self._cells.rehearse()
            except Exception:
                pass  # user code may have left little stack or memory

    def _clone(self, passed):
        """Make a checkpoint that does not run until the guardian sends it something, if that is possible."""
        pid, outcome = None, copies.FAILED
        try:
            if self._streams.are_whole() and self._clones.can_make(passed, self._loop.descriptors()):
                scores = str(self._checkpoint_oom_score).encode(), str(WORKER_OOM_SCORE).encode()
                pid = self._clones.make(passed[_CONTROL_LISTENS], *scores, self._show_size)
        except OSError:
            pass
        if pid:
            descriptor_io.send_all(passed[_CONTROL], wire.pack(wire.PRESENT, wire.PID.pack(pid)))
            outcome = copies.ORIGINAL
        elif pid == 0:
            self._clones.thaw()
            self._take_over_descriptors(passed)
            self._waits = True
            self._begin()
            outcome = copies.COPY
        self._clones.excite()
        return outcome

    def _part_from_original(self, passed, is_checkpoint, tag):
        """Let go of what belongs to the original, in the first child, before it forks the final copy.

        A checkpoint holds the state that the session goes back to. No other process can open its memory or its
        descriptors until it is promoted, and none could before: this process ends after the fork.
        """
        self._take_over_descriptors(passed)
        process.set_dumpable(True)  # the original may be a checkpoint
        self.serves_once = not is_checkpoint
        # When memory is short, the worker has to go first: with the checkpoint, the saved state would be lost.
        process.set_oom_score(self._checkpoint_oom_score if is_checkpoint else WORKER_OOM_SCORE)
        self._waits = is_checkpoint
        if is_checkpoint:
            process.set_dumpable(False)  # control: checkpoints_are_not_dumpable
        elif tag is not None:
            process.mark(tag)

    def _take_over_descriptors(self, passed):
        """Replace the original's descriptors in a copy, so that the copy cannot send in the original's name."""
        self._control.detach()
        self._tool_socket.detach()
        for offset, descriptor in enumerate(passed):
            posix.dup2(descriptor, self._first_descriptor + offset, inheritable=False)
            posix.close(descriptor)
        self._streams.mend()
        descriptors.part_with_original({0, 1, 2, *self.own_descriptors()})

    def _arrive(self):
        """Let the copy begin to work on its own."""
        if self.serves_once:
            process.adopt_orphans()  # so that its descendants stay below it
        self._begin()
        self._say_present()

    def _begin(self):
        self._loop.forget()
        self._streams.forget_threads()
        self.interrupts.forget_threads()
        self.background.forget()
        self._attach()

    def _become_worker(self):
        """This checkpoint is the main line now."""
        self._waits = False
        process.set_dumpable(True)
        process.set_oom_score(WORKER_OOM_SCORE)
        self._loop.renew()
        self.send(wire.PROMOTED)

    def _enter_workspace(self, workspace):
        # Modules of the workspace can be imported by cells; those of the kernel need no path.
        kernel_directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        entries = [entry for entry in sys.path if entry != kernel_directory]
        # Installed packages come after the standard library, and before what the image has of the same name.
        place = next((at for at, entry in enumerate(entries) if entry.endswith(THIRD_PARTY_FOLDERS)), len(entries))
        sys.path[:] = ["", *entries[:place], PACKAGES, *entries[place:]]
        sys.argv = [""]
        try:
            posix.chdir(workspace)
        except OSError as error:
            print(f"process {_getpid()}: cannot change directory to {workspace}: {error}", file=sys.stderr)


class InputNotAvailable(EOFError, RuntimeError):
    """A cell asked for input, which cells cannot read."""


InputNotAvailable.__module__ = "builtins"


def _no_input(_prompt="", /):
    """Cells cannot read input."""
    raise InputNotAvailable("cells cannot read input: put the value into the code or seed the session with it")


_no_input.__name__ = _no_input.__qualname__ = "input"


def _fresh_main_module(print_function):
    module = types.ModuleType("__main__")
    module.__builtins__ = sys.modules["builtins"]
    module.__builtins__.input = _no_input
    module.__builtins__.print = print_function
    sys.modules["__main__"] = module
    # User code cannot avoid forking while there are threads: most threads belong to libraries.
    warnings.filterwarnings("ignore", r"This process .* is multi-threaded, use of fork", DeprecationWarning)
    return module.__dict__
