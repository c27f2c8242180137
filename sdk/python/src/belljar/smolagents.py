"""An executor for agents of smolagents, whose code then runs in a sandbox.

    from smolagents import CodeAgent
    from belljar.smolagents import BelljarExecutor

    with BelljarExecutor() as executor:
        CodeAgent(tools=[…], model=…, executor=executor).run("…")

Tools and managed agents stay in this process, and are called from the sandbox. So those work that cannot be sent
elsewhere as source code: tools of MCP servers, with open connections, with secrets.
"""

from __future__ import annotations

import ast
import json
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Mapping

from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor

from ._api import SandboxOptions, wrong
from ._calls import encoded_json
from .errors import BelljarError, ToolError
from .results import Execution
from .sandbox import Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Types of smolagents that JSON Schema has under the same name. All others are left to the tool.
_TYPES = {"string", "boolean", "integer", "number", "array", "object", "null"}
#: Words of JSON Schema for one of several.
_ALTERNATIVES = {"anyOf", "oneOf", "allOf", "$ref"}
_FINAL = "final_answer"
#: The name under which the sandbox tells the final answer.
_TELL = "belljar_final_answer"
# A class of its own, beneath `BaseException`, so that an `except Exception` of the code does not hold up the end.
_SET_UP = f"""
class FinalAnswerException(BaseException):
    pass

def {_FINAL}(*args, **kwargs):
    import json
    def plain(value):
        for convert in ("item", "tolist", "to_dict"):
            if hasattr(value, convert):
                return getattr(value, convert)()
        return list(value) if isinstance(value, (set, frozenset)) else str(value)
    args, kwargs = json.loads(json.dumps([args, kwargs], default=plain))
    {_TELL}(*args, **kwargs)
    raise FinalAnswerException("the final answer was given")
"""


class BelljarExecutor(PythonExecutor):  # type: ignore[misc]
    """Runs the code of an agent in a sandbox of its own, or in one that is given and then stays."""

    def __init__(
        self, box: Sandbox | None = None, *, timeout: float | None = None, **options: Unpack[SandboxOptions]
    ) -> None:
        if box is not None and options:
            raise wrong("options are for a new sandbox, and one is given")
        self._is_owned = box is None
        self.box = Sandbox.create(**options) if box is None else box
        self._timeout = timeout
        #: What was printed last; agents look here when code has failed.
        self.state: dict[str, Any] = {}
        self._tools: dict[str, Callable[..., Any]] = {}
        self._schemas: dict[str, dict[str, Any]] = {}
        self._final: list[Any] = []

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Lends tools and managed agents to the sandbox. Those that it has are replaced."""
        for name, tool in tools.items():
            is_new, schema = name not in self._tools, _parameters(tool)
            if not is_new and self._schemas[name] != schema:
                raise wrong(f"the tool `{name}` has other inputs now", "use another executor")
            self._tools[name], self._schemas[name] = tool, schema
            if is_new:
                self.box._toolbox.add_defined(
                    {
                        "name": _TELL if name == _FINAL else name,
                        "description": str(tool.description),
                        "parameters": schema,
                        "output": {},
                    },
                    self._caller(name),
                )
        if _FINAL in tools:
            self._checked(self.box.run_code(_SET_UP))

    def _caller(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            value = self._tools[name](**arguments)
            if name == _FINAL:
                # The value itself stays here, so it need not be one of JSON.
                self._final.append(value)
                return None
            try:
                encoded_json(value)
            except BelljarError as error:
                raise ToolError(f"what `{name}` gives cannot be sent to the sandbox: {error.message}") from error
            return value

        return call

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Sets variables in the sandbox, to values that JSON has."""
        if not variables:
            return
        for name, value in variables.items():
            try:
                encoded_json(value)
            except BelljarError as error:
                raise wrong(f"the variable `{name}` cannot be sent to the sandbox: {error.message}") from error
        text = json.dumps(dict(variables))
        self._checked(self.box.run_code(f"import json as _json\nglobals().update(_json.loads({text!r}))\ndel _json"))

    def __call__(self, code_action: str) -> CodeOutput:
        self._final.clear()
        run = self.box.run_code(code_action, timeout=self._timeout)
        logs = run.stdout + run.stderr
        self.state["_print_outputs"] = logs
        if self._final:
            return CodeOutput(output=self._final[-1], logs=logs, is_final_answer=True)
        self._checked(run)
        return CodeOutput(output=_value_of(run), logs=logs, is_final_answer=False)

    def _checked(self, run: Execution) -> None:
        if run.error is not None:
            raise InterpreterError(f"Code execution failed: {run.error}")

    def cleanup(self) -> None:
        """Removes the sandbox, unless it was given."""
        if self._is_owned:
            self.box.kill()

    def __enter__(self) -> BelljarExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()


def _parameters(tool: Any) -> dict[str, Any]:
    """The inputs of a tool as a JSON Schema."""
    # Which inputs a tool of an MCP server needs is known to the server only, which checks them itself.
    is_checked_there = bool(getattr(tool, "skip_forward_signature_validation", False))
    properties, required = {}, []
    for name, told in tool.inputs.items():
        kinds = told.get("type", "any")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        schema: dict[str, Any] = {"description": str(told.get("description", ""))}
        if told.get("nullable"):
            kinds.append("null")
        elif not is_checked_there and "default" not in told:
            required.append(name)
        # Beside alternatives, the type was made up where there is none.
        if all(kind in _TYPES for kind in kinds) and not _ALTERNATIVES & told.keys():
            schema["type"] = kinds
        properties[name] = schema
    return {"type": "object", "properties": properties, "required": required}


def _value_of(run: Execution) -> Any:
    """The last value, if its text is that of a literal; otherwise its text."""
    if run.text is None:
        return None
    try:
        return ast.literal_eval(run.text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return run.text
