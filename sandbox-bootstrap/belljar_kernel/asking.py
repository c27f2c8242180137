"""`ask` in a cell: a nested agent, which may be lent functions of the cell.

The host answers a call of `ask` that lends functions either with the answer of the nested agent or with a call of one
of the functions. That function then runs here, in the thread that waits in `ask`, and the next call of `ask` says what
it returned. So a replay of the cell has the same calls in the same order, and no ask has two calls at once.
"""

import os

from . import wire
from .function_schemas import described
from .late_imports import from_stdlib
from .limits import FUNCTION_BYTES, FUNCTION_S
from .report import message_with_frames
from .rich import check_json
from .tools import Tool, ToolError

ASK_TOOL = "ask"
_LENT, _GOES_ON, _TEMPLATE = "functions", "go_on", "template"
_TEMPLATE_SCHEMA = {
    "type": "string",
    "description": "The name of a template of the configuration, in place of a prompt.",
    "default": None,
}


class Ask(Tool):
    def __init__(self, box, spec, runner):
        super().__init__(box, _for_people(spec))
        self._runner = runner

    def __call__(self, *positional, **named):
        arguments, functions = self._parts(positional, named)
        answer = self._call(arguments)
        while functions and answer.get("call") is not None:
            call = answer["call"]
            try:
                returned = self._returned(functions, call)
            except BaseException:
                self._end(call)
                raise
            answer = self._call(_going_on(call, returned))
        return answer["answer"] if functions else answer

    async def call_async(self, *positional, **named):
        arguments, functions = self._parts(positional, named, may_wait=True)
        answer = await self._call_async(arguments)
        while functions and answer.get("call") is not None:
            call = answer["call"]
            try:
                returned = await self._returned_async(functions, call)
            except BaseException:
                self._end(call)
                raise
            answer = await self._call_async(_going_on(call, returned))
        return answer["answer"] if functions else answer

    def _parts(self, positional, named, may_wait=False):
        """The arguments as the host gets them, and the functions that are lent, by name."""
        arguments = self._parameters.bind(self.__name__, positional, _with_prompt(named))
        if isinstance(arguments.get("files"), (list, tuple)):
            paths = arguments["files"]
            arguments["files"] = [os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths]
        functions = arguments.pop(_LENT, None) or []
        if not isinstance(functions, (list, tuple)):
            raise TypeError(f"`functions` takes a list of functions, not a value of type {type(functions).__name__}")
        tools = [described(function) for function in functions]
        by_name = {tool["name"]: function for tool, function in zip(tools, functions)}
        if len(by_name) < len(tools):
            raise ValueError("two of the functions have one name, and calls find their function by it")
        if not may_wait and any(map(from_stdlib("inspect").iscoroutinefunction, functions)):
            raise TypeError("coroutine functions can be lent with `await tools.aio.ask(…)` only")
        if tools:
            arguments[_LENT] = tools
        return self._checked(arguments), by_name

    def _returned(self, functions, call):
        value, failure = self._run(functions, call)
        return failure or _told(call, value)

    async def _returned_async(self, functions, call):
        value, failure = self._run(functions, call)
        if failure is None and from_stdlib("inspect").isawaitable(value):
            asyncio = from_stdlib("asyncio")
            try:
                value, failure = await asyncio.wait_for(self._awaited(value), FUNCTION_S)
            except asyncio.TimeoutError:
                failure = _too_late(call)
        return failure or _told(call, value)

    async def _awaited(self, value):
        """What the function returned in the end, or its failure. A TimeoutError of its own is a failure like any other."""
        try:
            return await value, None
        except Exception as error:
            return None, self._raised(error)

    def _run(self, functions, call):
        """What the function returned, or its failure. What ends the cell ends the function and the ask, too."""
        interrupts = self._runner.interrupts
        alarm = interrupts.alarm(FUNCTION_S)
        try:
            try:
                alarm.start()
                return functions[call["name"]](**call["arguments"]), None
            finally:
                with interrupts:
                    alarm.stop()
        except alarm.Expired:
            with interrupts:
                alarm.stop()  # the alarm may have gone off before the first call
            return None, _too_late(call)
        except Exception as error:
            return None, self._raised(error)

    def _raised(self, error):
        return _failure("failed", message_with_frames(error, self._runner.limits.exception_chars))

    def _end(self, call):
        """Tell the host that the cell does not go on with the ask, so that the ask ends. The answer is not waited for."""
        try:
            self._box.start(self.__name__, _going_on(call, None), lambda: None)
        except ToolError:
            pass  # the ask then ends with its cell


def _with_prompt(named):
    """The arguments as the host knows them, to which a template is a prompt that begins with `@`."""
    template = named.pop(_TEMPLATE, None)
    if template is None:
        return named
    if "prompt" in named:
        raise TypeError(f"{ASK_TOOL}() takes a prompt or a template, not both")
    return {**named, "prompt": f"@{template}"}


def _going_on(call, returned):
    answer = {} if returned is None else {"answer": returned}
    # The host wants a prompt in every call, and reads none in this one.
    return {"prompt": "goes on", _GOES_ON: {"ask": call["ask"], **answer}}


def _told(call, value):
    """The value as an answer to the call, or why it cannot be one."""
    try:
        check_json(value)
    except (TypeError, ValueError) as problem:
        return _failure("failed", f"{call['name']} returned what cannot be told: {problem}")
    size = len(wire.encode_json(value))
    if size > FUNCTION_BYTES:
        return _failure("too_large", f"{call['name']} returned {size} bytes, more than {FUNCTION_BYTES}")
    return {"value": value}


def _too_late(call):
    return _failure("timed_out", f"{call['name']} was ended after {FUNCTION_S:g} seconds")


def _failure(code, message):
    return {"failure": {"code": code, "message": message}}


def _for_people(spec):
    """The tool without what only this file sends, with functions where the host gets descriptions of them, and with the
    template, which the host gets in the prompt."""
    properties = {**spec["parameters"].get("properties", {}), _TEMPLATE: _TEMPLATE_SCHEMA}
    properties.pop(_GOES_ON, None)
    if _LENT in properties:
        about = properties[_LENT].get("description", "")
        properties[_LENT] = {"type": "array", "description": about, "default": None}
    return {**spec, "parameters": {**spec["parameters"], "properties": properties}}
