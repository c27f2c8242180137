"""Tools of the host as Python callables.

A plain call blocks until the answer is there, on any thread, also inside a running event loop (which
then waits too). `tools.aio.<name>` is the same tool as a coroutine function, which does not block.
"""

import builtins
import keyword
import threading
from collections import deque

from . import descriptor_io, wire
from .answers import Answers, Waiter
from .late_imports import from_stdlib
from .limits import SAID_BYTES
from .rich import check_json
from .schemas import Parameters

_PYTHONS_OWN = frozenset(dir(builtins))
_GIVES_MARKER = "\n\nGives a string that stands for what the tool said; in the output it is replaced by it."


class ToolError(Exception):
    """A tool failed, or could not be called. `code` is for programs, `message` for people."""

    def __init__(self, code, message):
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.message = message

    def __reduce__(self):
        return type(self), (self.code, self.message)


ToolError.__module__ = "tools"


class _Call:
    """One call: waiting to be sent, in flight, or answered."""

    __slots__ = ("number", "cell", "message", "answer", "_on_answer")

    def __init__(self, number, cell, message, on_answer):
        self.number = number
        self.cell = cell  # the newest when it was made
        self.message = message
        self.answer = None
        self._on_answer = on_answer

    def resolve(self, answer):
        self.answer = answer
        self._on_answer()

    def value(self):
        if self.answer is None:
            raise ToolError("unavailable", "the sandbox has lost its connection to the host")
        if self.answer["type"] == "tool_result":
            return self.answer["value"]
        error = self.answer["error"]
        raise ToolError(error["code"], error["message"])


class ToolBox:
    """The tools of a runner, and the traffic of their calls."""

    def __init__(self, runner, kinds):
        self._runner = runner
        self._kinds = kinds  # what stands for a tool by its name, where that is not `Tool`
        self.injected = {}
        self.local = {}  # functions of the arguments, for tools that need no call
        self._lock = self._speaks_on = self.answers = None

    def attach(self, speaks_on, socket):
        """Send on this descriptor and receive on this socket; in a copy no call of the original is in flight."""
        self._speaks_on = speaks_on
        self.answers = Answers(socket, self._runner.interrupts, self._resolve)
        self._next_number = 0
        self.newest_cell = 0
        self._lock = threading.RLock()
        self._in_flight = {}
        self._waiting = deque()

    def offer(self, specs, seed):
        """Put the tools into the namespace, in place of those offered before."""
        namespace = self._runner.namespace
        for name, thing in self.injected.items():
            if namespace.get(name) is thing:
                del namespace[name]
        box = _Tools()
        box.ToolError = ToolError
        self.injected = {"tools": box, "ToolError": ToolError}
        for spec in specs:
            name = spec["name"]
            if not name.isidentifier() or keyword.iskeyword(name):
                continue
            kind = self._kinds.get(name, Tool)
            tool = kind(self, spec, self.local.get(name) if spec.get("local") else None)
            if name not in ("aio", "ToolError"):
                setattr(box, name, tool)
            setattr(box.aio, name, _as_coroutine(tool))
            # Code that uses `open` means Python's own function.
            if name not in _PYTHONS_OWN:
                self.injected.setdefault(name, tool)
        for name, thing in self.injected.items():
            if name not in seed and (name not in namespace or name in ("tools", "ToolError")):
                namespace[name] = thing

    def start(self, name, arguments, on_answer):
        """Send a call, or let it wait until fewer are in flight."""
        if not self._runner.is_own_process():
            raise ToolError("unavailable", "a child process of a cell cannot call tools")
        if self.answers.are_being_read_here():
            raise ToolError("unavailable", "a signal handler called a tool just while an answer was being read")
        with self._runner.interrupts, self._lock:
            number = self._next_number
            message = self._message(number, name, arguments)
            self._next_number += 1
            call = _Call(number, self.newest_cell, message, on_answer)
            if len(self._in_flight) >= self._runner.limits.tool_calls:
                self._waiting.append(call)
            else:
                self._send(call)
        return call

    def give_up(self, call):
        """The caller does not wait for the call any more. If it is sent already, the host is told to end it."""
        if not self._runner.is_own_process():
            return  # a child of the process that waits for the answer
        with self._runner.interrupts, self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            elif self._in_flight.get(call.number) is call:
                # Its answer, which comes all the same, makes room for another call.
                descriptor_io.send_all(self._speaks_on, wire.pack(wire.TOOL_GIVEN_UP, wire.CALL_NUMBER.pack(call.number)))

    def _message(self, number, name, arguments):
        beside = self._runner.background.here()
        head = wire.CALL.pack(number, 0 if beside is None else beside.number)
        payload = head + wire.encode_json({"name": name, "arguments": arguments})
        if len(payload) > SAID_BYTES:
            raise ValueError(f"the arguments of {name} take {len(payload)} bytes, more than {SAID_BYTES}")
        return wire.pack(wire.TOOL_CALL, payload)

    def _send(self, call):
        self._in_flight[call.number] = call
        descriptor_io.send_all(self._speaks_on, call.message)
        call.message = None

    def _resolve(self, message):
        """Hand an answer to its caller."""
        cell, number = wire.ANSWERED.unpack_from(message[1])
        answer = wire.decode_json(message[1][wire.ANSWERED.size :].decode())
        with self._lock:
            call = self._in_flight.get(number)
            if call is not None and call.cell <= cell:
                del self._in_flight[number]
            else:
                call = None  # user code sent that call itself
            while self._waiting and len(self._in_flight) < self._runner.limits.tool_calls:
                self._send(self._waiting.popleft())
        if call is not None:
            call.resolve(answer)


class Tool:
    """One tool as a callable. Arguments may be given by position, in the order of its schema."""

    def __init__(self, box, spec, local=None):
        self._box = box
        self._local = local
        self._parameters = Parameters(spec["parameters"], spec.get("output"))
        self.__name__ = self.__qualname__ = spec["name"]
        self.__module__ = "tools"
        gives = "" if local is not None or "output" in spec else _GIVES_MARKER
        self.__doc__ = spec["description"] + self._parameters.documentation() + gives

    @property
    def __annotations__(self):
        return self._parameters.annotations()

    @property
    def __signature__(self):
        return self._parameters.signature()

    def __repr__(self):
        return f"<tool {self.__name__}>"

    def __call__(self, *positional, **named):
        return self._call(self._bind(positional, named))

    async def call_async(self, *positional, **named):
        return await self._call_async(self._bind(positional, named))

    def _call(self, arguments):
        if self._local is not None:
            return self._local(arguments)
        waiter = Waiter()
        call = self._box.start(self.__name__, arguments, waiter.finish)
        try:
            self._box.answers.wait(waiter)
        except BaseException:
            self._box.give_up(call)
            raise
        return call.value()

    async def _call_async(self, arguments):
        if self._local is not None:
            return self._local(arguments)
        loop = from_stdlib("asyncio").get_running_loop()
        answered = loop.create_future()

        def wake():
            if not answered.done():
                answered.set_result(None)

        def on_answer():
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                pass  # the loop was closed, so that no caller waits

        call = self._box.start(self.__name__, arguments, on_answer)
        self._box.answers.start_thread()
        try:
            await answered
        except BaseException:
            self._box.give_up(call)
            raise
        return call.value()

    def _bind(self, positional, named):
        return self._checked(self._parameters.bind(self.__name__, positional, named))

    def _checked(self, arguments):
        for name, value in arguments.items():
            try:
                check_json(value)
            except (TypeError, ValueError) as problem:
                raise TypeError(f"argument `{name}` of {self.__name__}: {problem}") from None
        return arguments


def _as_coroutine(tool):
    async def call(*positional, **named):
        return await tool.call_async(*positional, **named)

    call.__name__ = call.__qualname__ = tool.__name__
    call.__module__ = "tools"
    call.__doc__ = tool.__doc__
    call.__wrapped__ = tool  # for its signature
    return call


class _Tools:
    """The tools of this session by name; `tools.aio` has them as coroutine functions."""

    def __init__(self, nested=False):
        if not nested:
            self.aio = _Tools(nested=True)

    def __repr__(self):
        names = sorted(name for name, thing in vars(self).items() if isinstance(thing, Tool))
        return f"<tools: {', '.join(names)}>"
