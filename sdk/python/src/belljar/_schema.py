"""JSON Schemas of Python functions and types."""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import json
import keyword
import types
import typing
from typing import Any, Callable, Literal, Mapping, Union, get_args, get_origin

from ._api import wrong

_PLAIN: dict[object, dict[str, Any]] = {
    Any: {},
    object: {},
    inspect.Parameter.empty: {},
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array"},
    dict: {"type": "object"},
}
_ARRAYS = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_OBJECTS = (dict, collections.abc.Mapping)


def is_model(kind: object) -> bool:
    """Whether it is a pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def is_typed_dict(kind: object) -> bool:
    """Whether it is a `TypedDict`, of `typing` or of `typing_extensions`, which pydantic wants before Python 3.12."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def has_model(kind: Any) -> bool:
    """Whether it is a pydantic model, or has one somewhere in it."""
    if is_model(kind):
        return True
    if is_typed_dict(kind):
        return any(has_model(part) for part in typing.get_type_hints(kind).values())
    return get_origin(kind) is not Literal and any(has_model(part) for part in get_args(kind))


class Values:
    """The values of a type, from JSON and to JSON. Those of pydantic's models, also within lists, unions and the like, are
    made and taken apart by pydantic, with the names of fields that the schema has."""

    def __init__(self, kind: Any) -> None:
        self._adapter: Any = None
        if has_model(kind):
            from pydantic import PydanticUserError, TypeAdapter

            try:
                self._adapter = TypeAdapter(kind)
            except PydanticUserError as error:
                raise wrong(f"pydantic makes no values of {kind!r}: {error.message}") from error

    def of_json(self, value: Any) -> Any:
        # From text, as models that are strict take a list for a tuple, or text for a date, only in JSON.
        return value if self._adapter is None else self._adapter.validate_json(json.dumps(value))

    def to_json(self, value: Any) -> Any:
        if self._adapter is None:
            return json_of(value)
        try:
            value = self._adapter.validate_python(value)
        except ValueError:
            # The daemon says what is wrong with it.
            pass
        return self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False)


class Schemas:
    """Schemas that become parts of one, with the definitions that they share. Of models, those of what is taken, or of what
    is given: they may have other names for the same field."""

    def __init__(self, mode: Literal["validation", "serialization"] = "validation") -> None:
        self._mode = mode
        self.definitions: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        try:
            if kind in _PLAIN:
                return dict(_PLAIN[kind])
        except TypeError:
            pass
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            return self.of(arguments[0])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return {"type": "array", "items": self.of(arguments[0])}
            return {"type": "array", "prefixItems": [self.of(one) for one in arguments], "minItems": len(arguments)}
        if origin in _ARRAYS:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in _OBJECTS:
            if arguments[0] is not str:
                raise wrong(f"the keys of {kind!r} have to be text")
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if is_model(kind):
            return self._take_definitions(kind.model_json_schema(mode=self._mode))
        if is_typed_dict(kind):
            properties = {name: self.of(part) for name, part in typing.get_type_hints(kind).items()}
            return {"type": "object", "properties": properties, "required": sorted(kind.__required_keys__)}
        raise wrong(
            f"there is no JSON Schema for {kind!r}",
            "use text, numbers, lists, dictionaries, `Literal`, `TypedDict`, or a pydantic model",
        )

    def _take_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        # A reference counts from the root of the whole schema.
        self.definitions.update(schema.pop("$defs", {}))
        return schema

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {**schema, "$defs": self.definitions} if self.definitions else schema


def schema_of(kind: Any, mode: Literal["validation", "serialization"] = "validation") -> dict[str, Any]:
    """The schema of a type, or the schema that is given itself."""
    if isinstance(kind, Mapping):
        return dict(kind)
    schemas = Schemas(mode)
    return schemas.whole(schemas.of(kind))


def value_of(kind: Any, value: Any) -> Any:
    """A JSON value as the type wants it."""
    return Values(kind).of_json(value)


def json_of(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True) if is_model(type(value)) else value


#: Names that code in the sandbox has already, and which mean the same there as without tools.
_TAKEN = frozenset([*dir(builtins), "tools", "aio", "ToolError", "display"])


def check_name(name: str) -> None:
    """Refuses what code could not call by this name."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise wrong(f"`{name}` is no name for a tool", "give another with `tool(name=…)`")
    if name in _TAKEN:
        hint = "give another with `tool(name=…)`"
        raise wrong(f"`{name}` is no name for a tool: it means something else in the sandbox already", hint)


class FunctionTool:
    """A function as a tool: its definition for the daemon, and a call with JSON values."""

    def __init__(
        self, function: Callable[..., Any], name: str | None, description: str | None, read_only: bool = False
    ) -> None:
        self.function = function
        self.name: str = name if name is not None else str(getattr(function, "__name__", ""))
        check_name(self.name)
        try:
            hints = typing.get_type_hints(function)
            signature = inspect.signature(function)
        except (TypeError, ValueError, NameError) as error:
            raise wrong(f"the parameters of the tool `{self.name}` cannot be found out: {error}") from error
        schemas, properties, required = Schemas(), {}, []
        self._values: dict[str, Values] = {}
        self._result = Values(hints.get("return", Any))
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise wrong(f"the tool `{self.name}` needs parameters with names, and `{parameter}` has none")
            kind = hints.get(parameter.name, Any)
            properties[parameter.name] = schemas.of(kind)
            self._values[parameter.name] = Values(kind)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        parameters = schemas.whole({"type": "object", "properties": properties, "required": required})
        said = description or inspect.getdoc(function) or self.name
        self.definition: dict[str, Any] = {"name": self.name, "description": said, "parameters": parameters}
        if "return" in hints:
            self.definition["output"] = schema_of(hints["return"], "serialization")
        if read_only:
            self.definition["read_only"] = True

    @classmethod
    def defined(cls, definition: dict[str, Any], function: Callable[..., Any]) -> FunctionTool:
        """A tool whose definition is given, and whose function takes what that says."""
        check_name(definition["name"])
        tool = cls.__new__(cls)
        tool.function, tool.name, tool.definition = function, definition["name"], definition
        tool._values, tool._result = {}, Values(Any)
        return tool

    def bound(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """A call that is ready to be made. Arguments were checked by the daemon; models check more."""
        values = {
            name: self._values[name].of_json(value) if name in self._values else value for name, value in arguments.items()
        }
        return lambda: self.function(**values)

    def json_of_result(self, value: Any) -> Any:
        """What the function has returned, as JSON has it."""
        return self._result.to_json(value)
