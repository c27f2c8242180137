"""Runs the code of a job that `run_job` or `map` sent, and writes down its value. This file goes into the sandbox with the
code, and is the script of the job there."""

from __future__ import annotations

import ast
import json
import sys
import traceback
import types
from typing import Any

RESULT = "_belljar_result.json"
#: Characters of a value's `repr`.
TEXT_CHARS = 20_000
#: Characters of the key that is shown if it makes a value none of JSON.
KEY_CHARS = 200


def _item(kind: str, payload: str) -> Any:
    if kind == "file":
        with open(payload, encoding="utf-8") as file:
            return json.load(file)
    return json.loads(payload)


def _value(path: str, namespace: dict[str, Any]) -> Any:
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    last: ast.Expression | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body[-1].value)
        del tree.body[-1]
    exec(compile(tree, path, "exec", dont_inherit=True), namespace)
    value = None if last is None else eval(compile(last, path, "eval", dont_inherit=True), namespace)
    return namespace.get("result") if value is None else value


def _check_keys(value: Any) -> None:
    """Refuses keys that are no text: `json` would make text of them, so that 1 and "1" were the same."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key in one:
                if not isinstance(key, str):
                    raise TypeError(f"the key {repr(key)[:KEY_CHARS]} is no text")
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)


def _own(error: BaseException, path: str) -> types.TracebackType | None:
    """The traceback from the first line of the code itself on."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename != path:
        found = found.tb_next
    return found


def _write(told: str) -> None:
    with open(RESULT, "w", encoding="utf-8") as file:
        file.write(told)


def main() -> None:
    path, must_be_json, kind, payload, *arguments = sys.argv[1:]
    module = types.ModuleType("__main__")
    module.__file__ = path
    if kind != "none":
        module.__dict__["item"] = _item(kind, payload)
    sys.argv[:] = [path, *arguments]
    sys.modules["__main__"] = module
    try:
        value = _value(path, module.__dict__)
        try:
            # Infinities and NaN are no numbers of JSON.
            told = json.dumps({"value": value}, allow_nan=False)
            _check_keys(value)
        except (TypeError, ValueError, RecursionError) as error:
            if must_be_json == "yes":
                raise TypeError(f"the value of the code, a {type(value).__name__}, is none that JSON has: {error}") from None
            text = repr(value)
            is_cut = len(text) > TEXT_CHARS
            told = json.dumps({"text": text[: TEXT_CHARS - 1] + "…" if is_cut else text, "is_cut": is_cut})
        _write(told)
    except Exception as error:
        raised = type(error)
        text = "".join(traceback.format_exception(raised, error, _own(error, path)))
        home = "" if raised.__module__ == "builtins" else f"{raised.__module__}."
        _write(json.dumps({"error": {"type": home + raised.__qualname__, "value": str(error), "traceback": text}}))
        sys.stderr.write(text)
        sys.exit(1)


main()
