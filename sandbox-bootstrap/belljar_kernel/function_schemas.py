"""A Python function as a tool: its name, what it is for, and a JSON Schema made from its type hints.

The host holds the arguments of a call against that schema, so a hint that has no form in JSON is an error when the
function is lent, not when it is called.
"""

from .late_imports import from_stdlib
from .limits import FUNCTION_DESCRIPTION_CHARS, FUNCTION_HINT_DEPTH
from .rich import check_json

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_KNOWN = "str, int, float, bool, None, list, tuple, dict with str as keys, Literal, Optional, Union and Any"


def described(function):
    """The function as the host wants to know of it; TypeError if a model cannot call it."""
    if not callable(function):
        raise TypeError(f"`functions` takes functions, not a value of type {type(function).__name__}")
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"a model cannot call {function!r:.100} by name: define it with `def`")
    inspect = from_stdlib("inspect")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise TypeError(f"Python cannot tell the arguments of {name}: wrap it in a function with type hints") from None
    hints, properties, required = _hints(function, name), {}, []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name} takes `{parameter.name}` by position only, and a model gives arguments by name")
        try:
            schema = _schema(hints.get(parameter.name, parameter.empty), parameter.empty)
        except TypeError as problem:
            raise TypeError(f"argument `{parameter.name}` of {name}: {problem}") from None
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    # Not `inspect.getdoc`: a class or a partial object would tell of itself.
    text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    return {
        "name": name,
        "description": text[:FUNCTION_DESCRIPTION_CHARS],
        "parameters": {"type": "object", "properties": properties, "required": required},
    }


def _hints(function, name):
    try:
        return from_stdlib("typing").get_type_hints(function, include_extras=True)
    except Exception as problem:
        # A hint in quotes may name what is not there.
        raise TypeError(f"the type hints of {name} cannot be read: {problem}") from None


def _is_json(value):
    try:
        check_json(value)
    except (TypeError, ValueError):
        return False
    return True


def _schema(hint, empty, depth=FUNCTION_HINT_DEPTH):
    typing = from_stdlib("typing")
    if depth == 0:
        raise TypeError("its type hint is nested too deeply")
    if any(hint is anything for anything in (empty, typing.Any, object)):
        return {}
    if hint is None:
        return {"type": "null"}
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(hint, "__metadata__"):
        schema = _schema(parts[0], empty, depth - 1)
        texts = [text for text in hint.__metadata__ if isinstance(text, str)]
        return {**schema, "description": texts[0]} if texts else schema
    if origin is typing.Literal:
        if not all(isinstance(value, (str, int, type(None))) for value in parts):
            raise TypeError(f"a Literal of {hint!r:.100} has values that are no JSON")
        return {"enum": list(parts)}
    # `int | None` has a type of its own, which Python has had only since 3.10.
    if origin is typing.Union or type(hint).__name__ == "UnionType":
        return {"anyOf": [_schema(part, empty, depth - 1) for part in parts]}
    container = origin or hint
    if container in (list, tuple) or _is_abstract(container, ("Sequence", "Iterable", "Collection")):
        # The elements of `tuple[str, int]` have no common type.
        parts = [part for part in parts if part is not Ellipsis]
        return {"type": "array", **({"items": _schema(parts[0], empty, depth - 1)} if len(parts) == 1 else {})}
    if container is dict or _is_abstract(container, ("Mapping", "MutableMapping")):
        if parts and parts[0] is not str:
            raise TypeError("the keys of a dict have to be of type str")
        values = _schema(parts[1], empty, depth - 1) if len(parts) > 1 else {}
        return {"type": "object", "additionalProperties": values or True}
    raise TypeError(f"a model cannot give a value of {hint!r:.100}; it can give {_KNOWN}")


def _is_abstract(container, names):
    collections = from_stdlib("collections.abc")
    return any(container is getattr(collections.abc, name) for name in names)

