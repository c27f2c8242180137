"""A tool's JSON Schema as a Python signature."""

from .late_imports import from_stdlib

_PYTHON_TYPES = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": None,
}


_REFERENCES = 8  # steps through `$ref` from one place
_DEPTH = 4  # of a type that is spelled out
_LISTED = 20  # values of an enumeration in the documentation


class Parameters:
    """The arguments of a tool: first the required ones, in the order of that list, which the order of an object's members
    does not survive on its way here."""

    def __init__(self, schema, output=None):
        schema = schema if isinstance(schema, dict) else {}
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        required = [name for name in required if isinstance(name, str)]
        self._required = [name for name in dict.fromkeys(required) if name in self._properties]
        self._names = self._required + [name for name in self._properties if name not in required]
        self._others_allowed = schema.get("additionalProperties", not self._properties) is not False
        self._root = schema
        # Without an output schema, a tool returns a string.
        self._output = {"type": "string"} if output is None else output

    def bind(self, tool, positional, named):
        """Arguments by name; errors are reported as Python would."""
        if len(positional) > len(self._names):
            raise TypeError(f"{tool}() takes {len(self._names)} positional arguments, {len(positional)} were given")
        arguments = dict(zip(self._names, positional))
        for name, value in named.items():
            if name in arguments:
                raise TypeError(f"{tool}() got multiple values for argument '{name}'")
            if name not in self._properties and not self._others_allowed:
                raise TypeError(f"{tool}() got an unexpected argument '{name}'")
            arguments[name] = value
        missing = [name for name in self._required if name not in arguments]
        if missing:
            raise TypeError(f"{tool}() misses: {', '.join(missing)}")
        return arguments

    def annotations(self):
        hints = {name: _hint(self._property(name), self._root) for name in self._names}
        hints["return"] = _hint(self._output, self._output)
        return {name: hint for name, hint in hints.items() if hint is not _ANYTHING}

    def documentation(self):
        """A line for each argument."""
        lines = []
        for name in self._names:
            schema = self._property(name)
            words = [_type_text(schema, self._root)]
            if name not in self._required:
                default = schema.get("default")
                words.append("optional" if default is None else f"default {default!r:.100}")
            described = schema.get("description")
            details = ", ".join(word for word in words if word)
            lines.append(f"\n  {name}" + (f" ({details})" if details else "") + (f": {described}" if described else ""))
        return "\n\nArguments:" + "".join(lines) if lines else ""

    def signature(self):
        inspect = from_stdlib("inspect")  # slow to load and seldom asked for
        Parameter = inspect.Parameter  # noqa: N806 - a class
        parameters, annotations = [], self.annotations()
        for name in self._names:
            if not name.isidentifier():
                continue
            parameters.append(
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=Parameter.empty if name in self._required else self._property(name).get("default"),
                    annotation=annotations.get(name, Parameter.empty),
                )
            )
        if self._others_allowed:
            parameters.append(Parameter("others", Parameter.VAR_KEYWORD))
        gives = annotations.get("return", inspect.Signature.empty)
        return inspect.Signature(parameters, return_annotation=gives)

    def _property(self, name):
        described = self._properties[name]
        return described if isinstance(described, dict) else {}


_ANYTHING = object()


def _resolved(schema, root):
    for _ in range(_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else {}


def _choices(schema, root):
    """The kinds of value that a schema allows, each as a schema with one `type`; none if it allows any."""
    schema = _resolved(schema, root)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    if isinstance(kinds, str):
        return [schema]
    options = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(options, list):
        return []
    found = []
    for option in options:
        option = _resolved(option, root)
        kind = option.get("type")
        if not isinstance(kind, str) and isinstance(option.get("const"), str):
            kind = "string"
        if not isinstance(kind, str):
            return []
        found.append({**option, "type": kind})
    return found


def _hint(schema, root, depth=_DEPTH):
    """The schema as a Python type, as far as it has one."""
    hints = []
    for choice in _choices(schema, root):
        hint = _PYTHON_TYPES.get(choice["type"], _ANYTHING)
        if hint is list and depth and "items" in choice:
            item = _hint(choice["items"], root, depth - 1)
            hint = list if item is _ANYTHING else list[item]
        if hint is _ANYTHING:
            return _ANYTHING
        if hint not in hints:
            hints.append(hint)
    if not hints:
        return _ANYTHING
    if len(hints) == 1:
        return hints[0]
    return from_stdlib("typing").Union[tuple(hints)]


def _type_text(schema, root, depth=_DEPTH):
    texts = []
    for choice in _choices(schema, root):
        kind = _PYTHON_TYPES.get(choice["type"], _ANYTHING)
        values = choice.get("enum")
        if isinstance(values, list) and values:
            text = "one of " + ", ".join(f"{value!r:.100}" for value in values[:_LISTED])
        elif kind is _ANYTHING:
            return ""
        else:
            text = "None" if kind is None else kind.__name__
            item = _type_text(choice["items"], root, depth - 1) if kind is list and depth and "items" in choice else ""
            text += f"[{item}]" if item else ""
        if text not in texts:
            texts.append(text)
    return " or ".join(texts)
