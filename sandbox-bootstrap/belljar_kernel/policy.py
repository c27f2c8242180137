"""The restricted policy: what code may not contain, found in its tree before anything of it runs.

This is only a second line of defence. Hostile Python cannot be contained by inspecting it; the sandbox does that.
The policy keeps well-meant code to calculating, and says at once what it may not do.
"""

import ast
import types

from . import notebook

_MODULES = frozenset(
    "abc base64 binascii bisect calendar cmath collections copy csv dataclasses datetime decimal difflib enum "
    "fractions functools hashlib heapq itertools json math numbers operator pprint random re statistics string "
    "textwrap time typing unicodedata uuid zoneinfo".split()
)
# Modules that other modules hold as attributes, with and without an underscore.
_HELD_MODULES = frozenset(
    "os posix sys io builtins codecs importlib subprocess socket shutil pathlib ctypes signal threading inspect "
    "marshal pickle linecache warnings weakref types platform urllib tempfile multiprocessing".split()
)
_NAMES = frozenset(
    "open exec eval compile globals locals vars getattr setattr delattr input breakpoint help memoryview".split()
)
# Attributes that lead from a value to the interpreter, or that read attributes which only a string names.
_ATTRIBUTES = frozenset(
    "mro format_map vformat get_field attrgetter methodcaller get_type_hints ForwardRef get_referents "
    "gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await tb_frame tb_next "
    "f_back f_builtins f_code f_globals f_locals f_trace co_code co_consts func_globals func_code".split()
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class PolicyError(SyntaxError):
    """The restricted policy does not allow this code."""


PolicyError.__module__ = "builtins"


def check(tree, source, name, namespace):
    """Raise `PolicyError` for the first thing in the code that is not allowed."""
    # The first one by line is reported, as with a syntax error.
    violations = [(node, why) for node in ast.walk(tree) for why in _reasons(node, namespace)]
    if not violations:
        return
    node, why = min(violations, key=lambda each: (getattr(each[0], "lineno", 0), getattr(each[0], "col_offset", 0)))
    line = getattr(node, "lineno", 1)
    lines = source.splitlines()
    text = lines[line - 1] if line <= len(lines) else ""
    raise PolicyError(f"the restricted policy does not allow {why}", (name, line, None, text))


def _reasons(node, namespace):
    """The reasons why this node itself is refused."""
    for identifier in _bound_names(node):
        if identifier.startswith("__"):
            yield f"the name `{identifier}`"
    if isinstance(node, ast.Name):
        if node.id == notebook.NAME:
            yield "notebook commands, such as `!ls` and `%pip`"
        elif node.id in _NAMES or (node.id.startswith("__") and node.id != "__name__"):
            yield f"the name `{node.id}`"
        elif not _is_allowed_module(namespace.get(node.id)):
            yield f"the module in `{node.id}`"
    elif isinstance(node, ast.Attribute):
        yield from _attribute_reasons(node.attr)
        if node.attr == "format" and not _is_harmless_text(node.value):
            yield "`format` of anything but plain text in the code itself"
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield from _import_reasons(alias.name)
    elif isinstance(node, ast.ImportFrom):
        yield from _import_reasons(node.module or "" if not node.level else ".")
        for alias in node.names:
            yield from _attribute_reasons(alias.name)
    elif type(node).__name__ == "MatchClass":  # since Python 3.10
        for attribute in node.kwd_attrs:
            yield from _attribute_reasons(attribute)


def _bound_names(node):
    """Names that a node binds, other than through `ast.Name`."""
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.alias):
        return (node.asname,) if node.asname else ()
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    if isinstance(node, _FUNCTIONS):
        # Classes need methods such as `__init__`.
        is_method_name = node.name.endswith("__") and node.name not in ("__import__", "__builtins__")
        return () if is_method_name else (node.name,)
    names = (getattr(node, "rest", None), getattr(node, "name", None))
    return [each for each in names if isinstance(each, str)]


def _attribute_reasons(name):
    if name.startswith("__") or name in _ATTRIBUTES or name.lstrip("_") in _HELD_MODULES:
        yield f"the attribute `{name}`"
    elif name == "*":
        yield "`import *`"


def _import_reasons(module):
    if module.partition(".")[0] not in _MODULES:
        yield f"the import of `{module}`; allowed are: {', '.join(sorted(_MODULES))}"


def _is_allowed_module(value):
    """Whether a name may be used, given what it stands for: an earlier cell may have had no policy."""
    return not isinstance(value, types.ModuleType) or str(getattr(value, "__name__", "")).split(".")[0] in _MODULES


def _is_harmless_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "__" not in node.value
