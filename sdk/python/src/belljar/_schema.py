"""JSON Schemas of Python functions and types."""

from __future__ import annotations

import collections.abc
import inspect
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


class Schemas:
    """Schemas that become parts of one, with the definitions that they share."""

    def __init__(self) -> None:
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
            return self._take_definitions(kind.model_json_schema())
        if typing.is_typeddict(kind):
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


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type, or the schema that is given itself."""
    if isinstance(kind, Mapping):
        return dict(kind)
    schemas = Schemas()
    return schemas.whole(schemas.of(kind))


def value_of(kind: Any, value: Any) -> Any:
    """A JSON value as the type wants it."""
    return kind.model_validate(value) if is_model(kind) else value


def json_of(value: Any) -> Any:
    return value.model_dump(mode="json") if is_model(type(value)) else value


class FunctionTool:
    """A function as a tool: its definition for the daemon, and a call with JSON values."""

    def __init__(
        self, function: Callable[..., Any], name: str | None, description: str | None, read_only: bool = False
    ) -> None:
        self.function = function
        self.name: str = name if name is not None else str(getattr(function, "__name__", ""))
        if not self.name.isidentifier():
            raise wrong(f"`{self.name}` is no name for a tool", "give another with `tool(name=…)`")
        try:
            hints = typing.get_type_hints(function)
            signature = inspect.signature(function)
        except (TypeError, ValueError, NameError) as error:
            raise wrong(f"the parameters of the tool `{self.name}` cannot be found out: {error}") from error
        schemas, properties, required = Schemas(), {}, []
        self._kinds: dict[str, Any] = {}
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise wrong(f"the tool `{self.name}` needs parameters with names, and `{parameter}` has none")
            kind = self._kinds[parameter.name] = hints.get(parameter.name, Any)
            properties[parameter.name] = schemas.of(kind)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        parameters = schemas.whole({"type": "object", "properties": properties, "required": required})
        said = description or inspect.getdoc(function) or self.name
        self.definition: dict[str, Any] = {"name": self.name, "description": said, "parameters": parameters}
        if "return" in hints:
            self.definition["output"] = schema_of(hints["return"])
        if read_only:
            self.definition["read_only"] = True

    @classmethod
    def defined(cls, definition: dict[str, Any], function: Callable[..., Any]) -> FunctionTool:
        """A tool whose definition is given, and whose function takes what that says."""
        tool = cls.__new__(cls)
        tool.function, tool.name, tool.definition, tool._kinds = function, definition["name"], definition, {}
        return tool

    def bound(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """A call that is ready to be made. Arguments were checked by the daemon; models check more."""
        values = {name: value_of(self._kinds.get(name, Any), value) for name, value in arguments.items()}
        return lambda: self.function(**values)
