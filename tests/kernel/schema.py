"""A small JSON Schema validator, enough for the schemas of the bridge's frames."""

import json
import os

_DIRECTORY = os.path.join(os.path.dirname(__file__), "..", "..", "config", "schemas")
_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def load(name):
    """The schema of that file, or None while it has not been generated."""
    try:
        with open(os.path.join(_DIRECTORY, name), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def check(value, schema, root=None, path="$"):
    """Raise AssertionError with the path of the first thing that does not fit."""
    root = schema if root is None else root
    if schema is True:
        return
    if schema is False:
        raise AssertionError(f"{path}: nothing is allowed here")
    if "$ref" in schema:
        check(value, _resolve(schema["$ref"], root), root, path)
    for key in ("oneOf", "anyOf"):
        if key in schema:
            _check_choices(value, schema[key], root, path, exactly_one=key == "oneOf")
    for part in schema.get("allOf", ()):
        check(value, part, root, path)
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_type(value, kind) for kind in kinds):
            raise AssertionError(f"{path}: {value!r:.80} is not of type {kinds}")
    if "enum" in schema and value not in schema["enum"]:
        raise AssertionError(f"{path}: {value!r:.80} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        raise AssertionError(f"{path}: {value!r:.80} is not {schema['const']!r}")
    if "minimum" in schema and _is_type(value, "number") and value < schema["minimum"]:
        raise AssertionError(f"{path}: {value} is below {schema['minimum']}")
    if isinstance(value, dict):
        _check_object(value, schema, root, path)
    if isinstance(value, list) and "items" in schema:
        for at, item in enumerate(value):
            check(item, schema["items"], root, f"{path}[{at}]")


def _check_object(value, schema, root, path):
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise AssertionError(f"{path}: `{name}` is missing")
    for name, item in value.items():
        if name in properties:
            check(item, properties[name], root, f"{path}.{name}")
        elif "additionalProperties" in schema:
            check(item, schema["additionalProperties"], root, f"{path}.{name}")


def _check_choices(value, choices, root, path, exactly_one):
    problems, fits = [], 0
    for choice in choices:
        try:
            check(value, choice, root, path)
            fits += 1
        except AssertionError as problem:
            problems.append(str(problem))
    if fits == 0 or (exactly_one and fits > 1):
        raise AssertionError(f"{path}: {fits} choices fit: {problems}")


def _is_type(value, kind):
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind])


def _resolve(reference, root):
    target = root
    for part in reference.lstrip("#/").split("/"):
        target = target[part]
    return target
