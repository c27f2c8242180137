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


class Parameters:
    """The arguments of a tool: required ones first, each in the order of the schema."""

    def __init__(self, schema):
        schema = schema if isinstance(schema, dict) else {}
        properties = schema.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        self._required = [name for name in self._properties if name in required]
        self._names = self._required + [name for name in self._properties if name not in required]
        self._others_allowed = schema.get("additionalProperties", not self._properties) is not False

    def bind(self, tool, positional, named):
        """Arguments by name; what is wrong about them is said as Python would."""
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
        found = {}
        for name in self._names:
            kind = self._kind(name)
            if kind is not None:
                found[name] = kind
        return found

    def documentation(self):
        """A line for each argument."""
        lines = []
        for name in self._names:
            described = self._property(name).get("description")
            kind = self._kind(name)
            shown = f" ({kind.__name__})" if kind is not None else ""
            optional = "" if name in self._required else ", optional"
            lines.append(f"\n  {name}{shown}{optional}" + (f": {described}" if described else ""))
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
        return inspect.Signature(parameters)

    def _property(self, name):
        described = self._properties[name]
        return described if isinstance(described, dict) else {}

    def _kind(self, name):
        kind = self._property(name).get("type")
        return _PYTHON_TYPES.get(kind) if isinstance(kind, str) else None
