"""What the guardian knows about one runner, and the descriptors that it holds for it."""

import fcntl
import os
import signal
import time

from . import process, wire
from .calls import Calls
from .channel import Channel, bytes_waiting
from .limits import OUTPUT_FRAME_BYTES, OUTPUT_GATHER_S, PIPE_BYTES
from .output import STDERR, STDOUT, OutputMeter
from .poller import READ


# The roles of a runner.
WORKER = "worker"  # the main line
CHECKPOINT = "checkpoint"  # waits to become the worker
FORK = "fork"  # one cell, on a copy of the state
VIEW = "view"  # one listing of variables, on a copy of the state
RETIRED = "retired"  # was a worker or checkpoint and is about to end


class RunnerHandle:
    """A runner's channels and output pipes, and the cell it works on.

    The owner has `runner_message(handle, kind, payload)`, `runner_called(handle, kind, payload)`,
    `runner_broken(handle)`, `runner_hung_up(handle)`, `limits`, `bridge` and `call_numbers`.
    """

    def __init__(self, owner, poller, index, role):
        self._owner = owner
        self._poller = poller
        self.index = index
        self.pid = None
        self._pidfd = None
        self.cell = self.newest_cell = 0
        self.begun = False  # the code of the cell runs
        self.names = b""  # names that the cell may assign, as the runner reports
        self.killed = False
        self.out_of_memory = False  # the guardian killed it for its memory, because the system did not
        self.interrupted = False
        self.role = role
        self.has_spoken = False
        self.parent = None  # the runner that was asked for this copy
        self.state_of = 0  # newest cell whose changes it holds
        self.position = 0  # how many cells of the main line led there
        self.redo = []  # of a checkpoint: `(cell, what repeats it)` for the cells after it, as far as they need no copy
        self.given_later = False  # of a checkpoint: seed or tools were given after the cells in `redo`
        self.as_before = None  # the cell that ran when it was copied
        self.promoted = False
        self.back_from = 0  # the last cell after which its first thread said that it is free
        self.last_cell = 0  # the last cell of the main line that it ran
        self.asked_back = 0  # the last cell after which the guardian asked
        self.displays = 0  # number of displays of the present cell
        self._closed = False
        self.variables_request = None
        self.preload_request = None  # until it has imported what it begins with
        self.resets = []  # requests that are answered when a fresh worker has taken its place
        self.control = self.tools = None
        self._pipes = {}  # stream -> read end
        self._reads = False
        self._runner_pipe_ends = []
        try:
            self.control = Channel(poller, self._on_message, self._on_broken, self._on_end)
            self.tools = Channel(poller, self._on_call, self._on_broken, self._on_end)
            self._open_pipes()
        except OSError:
            self.close()
            raise
        self.calls = Calls(self.tools, owner.call_numbers)
        self.meter = self._new_meter()

    def _open_pipes(self):
        for stream in (STDOUT, STDERR):
            self._pipes[stream], write_end = os.pipe()
            self._runner_pipe_ends.append(write_end)
            os.set_blocking(self._pipes[stream], False)
            _grow_pipe(self._pipes[stream])

    def runner_descriptors(self, inbox):
        """The runner's descriptors: for sending on control and tools, stdout, stderr, for receiving on control and
        tools, and the one for sending descriptors to the guardian."""
        channels = self.control.runner_ends(), self.tools.runner_ends()
        speaks, listens = zip(*channels)
        return [*speaks, *self._runner_pipe_ends, *listens, inbox]

    def close_runner_ends(self):
        """Close the guardian's copies of them, after they were handed over."""
        for channel in self._channels():
            channel.close_runner_ends()
        for descriptor in self._runner_pipe_ends:
            os.close(descriptor)
        self._runner_pipe_ends = []

    def set_pid(self, pid, on_exit):
        """False if the process is gone already or its end cannot be watched."""
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        self._poller.watch(self._pidfd, READ, lambda _events: on_exit())
        return True

    def read(self, on):
        """Read what the runner sends, or let it wait."""
        self._reads = on
        self.control.read(on)
        self.tools.read(on)
        for stream, descriptor in self._pipes.items():
            self._poller.cancel(("output", descriptor))
            self._poller.watch(descriptor, READ if on else 0, self._pipe_callback(stream, descriptor))

    def reaches(self):
        """The position of the last state that this checkpoint can restore."""
        return self.position + len(self.redo)

    def repeat(self, redo):
        """Have the runner repeat what cells changed after it was copied."""
        if redo:
            self.control.send(wire.pack(wire.REDO, b"[" + b",".join(each for _, each in redo) + b"]"))

    def begin_cell(self, cell):
        self.finish_output()  # output held back from the time without a cell
        self.cell = self.newest_cell = cell
        self.calls.begin_cell(cell)
        self.displays = 0
        self.begun = self.killed = self.interrupted = self.out_of_memory = False
        self.names = b""

    def lost(self, cell, exit_code, after):
        """The frame that reports that the runner ended during a cell."""
        frame = {"type": "cell_lost", "cell": cell, "exit_code": exit_code, "killed": self.killed, "after": after}
        return {**frame, "out_of_memory": True} if self.out_of_memory else frame

    def end_cell(self):
        self.finish_output()
        self.cell = 0

    def finish_output(self):
        """Forward what is in the pipes now and what the meter held back; the count starts anew.

        The amount is looked up first, so that an endless writer cannot keep the guardian here.
        """
        self.drain()
        gap, tail = self.meter.finish(self.cell)
        if gap is not None:
            self._owner.send(gap)
        for header, data in tail:
            self._owner.bridge.send_output(header, data)
        self.meter = self._new_meter()

    def drain(self):
        for stream, descriptor in self._pipes.items():
            waiting = bytes_waiting(descriptor)
            while waiting > 0:
                taken = self._read_pipe(stream, descriptor, min(waiting, OUTPUT_FRAME_BYTES))
                if not taken:
                    break
                waiting -= taken

    def forward(self, text):
        """Pass on a frame of the daemon."""
        self.control.send(wire.pack(wire.HOST_FRAME, text.encode()))

    def look_no_more(self):
        """Stop watching the pidfd: the runner has ended, and the pidfd would report that for ever."""
        if self._pidfd is not None:
            self._poller.forget(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def is_watched(self):
        """Whether the end of the runner is noticed at once."""
        return self._pidfd is not None

    def signal(self, number):
        # After the runner has been reaped, its pid may belong to another process.
        if self.pid is not None and not self._closed:
            process.send_signal(self.pid, number)

    def kill(self):
        self.signal(signal.SIGKILL)

    def wait_for(self, condition, seconds):
        """Handle messages of the runner until the condition holds. False if the runner ended or time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            # A process that holds the runner's end may send for ever, so that data always comes.
            if not self.control.wait(left) or left <= 0:
                return condition()
        return True

    def is_whole_within(self, seconds):
        """False if the runner has begun to send a message that is not complete after so many seconds."""
        deadline = time.monotonic() + seconds
        return all(channel.is_whole_by(deadline) for channel in self._channels())

    def take_last_words(self):
        """Handle messages that the runner had sent before its end."""
        for channel in (self.tools, self.control):
            channel.handle_read()  # the end may have been noticed while the first of them was handled
            channel.receive_rest()

    def close(self):
        self._closed = True
        for channel in self._channels():
            channel.close()
        self.close_runner_ends()
        for descriptor in self._pipes.values():
            self._poller.cancel(("output", descriptor))
            self._poller.forget(descriptor)
            os.close(descriptor)
        self._pipes = {}
        self.look_no_more()

    def _channels(self):
        return [channel for channel in (self.control, self.tools) if channel is not None]

    def _new_meter(self):
        limits = self._owner.limits
        return OutputMeter(self._owner.bridge.send_output, limits.output_bytes, limits.output_tail_bytes)

    def _on_message(self, kind, payload):
        self._owner.runner_message(self, kind, payload)

    def _on_call(self, kind, payload):
        self._owner.runner_called(self, kind, payload)

    def _on_broken(self):
        self._owner.runner_broken(self)

    def _on_end(self):
        self._owner.runner_hung_up(self)

    def _pipe_callback(self, stream, descriptor):
        def ready(_events):
            taken = self._read_pipe(stream, descriptor, OUTPUT_FRAME_BYTES)
            if not self._reads or (taken is not None and taken >= OUTPUT_FRAME_BYTES):
                return
            self._poller.forget(descriptor)
            if taken is not None:
                # What comes next waits a little for more, so that many short writes are few frames.
                self._poller.after(("output", descriptor), OUTPUT_GATHER_S, watch)

        def watch():
            self._poller.watch(descriptor, READ, ready)

        return ready

    def _read_pipe(self, stream, descriptor, size):
        """Bytes taken; None at the end of the pipe."""
        try:
            data = os.read(descriptor, size)
        except BlockingIOError:
            return 0
        if not data:
            return None
        self.meter.take(stream, self.cell, data)
        return len(data)


def _grow_pipe(descriptor):
    try:
        fcntl.fcntl(descriptor, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_BYTES)
    except OSError:
        pass  # the user's quota for pipes is used up; the default size works, too
