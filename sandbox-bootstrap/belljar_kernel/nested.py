"""Tools that need the interpreter of the cell that calls them: they run here, in the worker.

Code that runs nested is a snippet of the running cell: it shares its variables and its deadline, and
may be given less time; its effects until then stay. In threads other than the main one, a call that
blocks outside of Python is ended only when it returns. What the code prints through Python is the
answer; what subprocesses and C code write goes to the cell's output.
"""

import io
import sys
import threading

from . import variables
from .interrupts import Expired
from .limits import NESTED_DEPTH, NESTED_OUTPUT_CHARS
from .rich import bounded_repr

_get_ident = threading.get_ident  # an own reference: a cell may replace what the module holds

_CUT_MARK = "\n… the rest of the output is left out …\n"


class NestedTools:
    """The functions of the tools that the daemon marks as `local`, by their names."""

    def __init__(self, runner, cells, injected, error):
        self._runner = runner
        self._cells = cells
        self._injected = injected
        self._error = error  # the type to raise: (code, message)
        self._here = threading.local()
        self.attach()
        self.by_name = {
            "execute_python_code": lambda arguments: self._execute(
                arguments["python_code_snippet"], arguments.get("timeout")
            ),
            "exec_code": lambda arguments: self._execute(arguments["code"], arguments.get("timeout")),
            "read_variable": lambda arguments: self._read(arguments["name"]),
            "list_variables": lambda _arguments: self._list(),
        }

    def attach(self):
        """Begin anew in a copy of the process: nothing of the original runs nested there."""
        self._streams = _Redirection()

    def begin_cell(self):
        """Clean up, which an interrupt may have kept the previous cell from doing."""
        self._runner.interrupts.stop_alarms()
        self._here.depth = 0
        self._streams.forget()

    def _execute(self, source, timeout):
        if not isinstance(source, str):
            raise TypeError(f"the code has to be a str, not {type(source).__name__}")
        if timeout is not None and (type(timeout) not in (int, float) or not timeout > 0):
            raise ValueError(f"the timeout has to be a number of seconds above 0, not {timeout!r}")
        depth = getattr(self._here, "depth", 0)
        if depth >= NESTED_DEPTH:
            raise self._error("failed", f"code runs nested more than {NESTED_DEPTH} deep")
        self._here.depth = depth + 1
        buffer = _Buffer()
        alarm = self._runner.interrupts.alarm(timeout)
        try:
            try:
                self._streams.enter(buffer)
                alarm.start()
                result_text = self._run(source)
            finally:
                self._leave(buffer, depth, alarm)
        except alarm.Expired:
            self._leave(buffer, depth, alarm)  # the alarm may have gone off before the first call
            result_text = f"TimeoutError: the code was ended after {timeout} seconds\n"
        return buffer.text() + result_text

    def _leave(self, buffer, depth, alarm):
        with self._runner.interrupts:
            alarm.stop()
            self._streams.leave(buffer)
            self._here.depth = depth

    def _run(self, source):
        """The value of a last expression or the traceback, as text; what is printed goes elsewhere."""
        name = self._cells.name_snippet()
        limits = self._runner.limits
        try:
            value = self._cells.run_snippet(source, name)
            return "" if value is None else bounded_repr(value, limits.repr_chars) + "\n"
        except (KeyboardInterrupt, Expired):
            raise  # meant for the cell, or for a caller
        except BaseException as error:
            return self._cells.describe_snippet(error, name)["traceback"]

    def _read(self, name):
        if not isinstance(name, str):
            raise TypeError(f"the name has to be a str, not {type(name).__name__}")
        try:
            value = self._runner.namespace[name]
        except KeyError:
            raise self._error("failed", f"NameError: name {name[:200]!r} is not defined") from None
        return bounded_repr(value, self._runner.limits.repr_chars)

    def _list(self):
        listed = variables.listing(self._runner.namespace, self._injected(), {"private": False}, self._runner.limits)
        lines = []
        for each in listed["variables"]:
            shape = " " + each["shape"] if each["shape"] else ""
            lines.append(f"{each['name']}: {each['type']}{shape} = {_visible(each['preview'])}")
        hidden = listed["total"] - len(listed["variables"])
        if hidden:
            lines.append(f"and {hidden} more")
        return "\n".join(lines) or "no variables"


def _visible(text):
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


class _Buffer:
    """Collects printed text, as far as it fits."""

    def __init__(self):
        self._parts = []
        self._left = NESTED_OUTPUT_CHARS
        self._is_cut = False

    def write(self, text):
        if self._left:
            self._parts.append(text[: self._left])
        self._is_cut = self._is_cut or len(text) > self._left
        self._left = max(self._left - len(text), 0)

    def text(self):
        return "".join(self._parts) + (_CUT_MARK if self._is_cut else "")


class _Redirection:
    """Redirects what a thread prints to its own buffer; what other threads print goes where it went before.

    Several threads may run nested code at once, and nested code may run nested code, so `sys.stdout`
    is replaced once, by something that knows all their buffers.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._buffers = {}  # thread -> its buffers, innermost last

    def enter(self, buffer):
        with self._lock:
            self._buffers.setdefault(_get_ident(), []).append(buffer)
            for name in ("stdout", "stderr"):
                below = getattr(sys, name, None)
                if not isinstance(below, _Stream):
                    setattr(sys, name, _Stream(self, below))

    def leave(self, buffer):
        with self._lock:
            stack = self._buffers.get(_get_ident(), [])
            if buffer in stack:
                stack.remove(buffer)
            if not stack:
                self._buffers.pop(_get_ident(), None)
            if self._buffers:
                return
            # A stream that user code has set meanwhile stays.
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name, None)
                if isinstance(stream, _Stream):
                    setattr(sys, name, stream.below)

    def forget(self):
        """Drop the buffers of this thread that were not left."""
        self._buffers.pop(_get_ident(), None)

    def buffer(self):
        stack = self._buffers.get(_get_ident())
        return stack[-1] if stack else None


class _Stream(io.TextIOBase):
    def __init__(self, redirection, below):
        self._redirection = redirection
        self.below = below

    @property
    def encoding(self):
        return "utf-8"

    @property
    def buffer(self):
        return self.below.buffer

    def fileno(self):
        return self.below.fileno()

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        buffer = self._redirection.buffer()
        if buffer is None:
            return self.below.write(text)
        buffer.write(text)
        return len(text)

    def flush(self):
        if self._redirection.buffer() is None:
            self.below.flush()
