"""Restricted expressions: checked against an allow-list, evaluated with bounds on time and memory.

The check keeps honest expressions honest; what holds against hostile ones is that they run in a
process of their own, inside the sandbox, without descriptors and without the session's memory.
"""

import ast
import os
import resource
import signal
import sys
import types

from . import process
from .limits import COMPUTE_CHARS, cut

VALUE, ERROR = b"V", b"E"

_FILE_NAME = "<agent_code>"

_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Store, ast.Attribute, ast.Call, ast.keyword,
    ast.Starred, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.IfExp, ast.BoolOp,
    ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop, ast.Lambda,
    ast.arguments, ast.arg, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension,
    ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip

# `format` reads attributes by name from a string, where the check below cannot see them.
_ATTRIBUTES = frozenset(("format", "format_map", "mro"))
_ATTRIBUTE_PREFIXES = ("_", "gi_", "cr_", "ag_", "tb_", "f_", "co_", "func_")

_BUILTINS = (
    "len str int float list dict tuple set reversed sorted enumerate sum max min abs round range zip map filter "
    "ord chr any all bool repr divmod pow isinstance iter next bytes complex frozenset bin hex oct "
    "ArithmeticError Exception KeyError IndexError TypeError ValueError ZeroDivisionError"
).split()

_MODULES = {
    "re": "compile search match fullmatch split findall finditer sub subn escape "
    "IGNORECASE MULTILINE DOTALL VERBOSE ASCII UNICODE I M S X A U",
    "math": None,
    "statistics": "mean fmean geometric_mean harmonic_mean median median_low median_high median_grouped mode "
    "multimode pstdev pvariance stdev variance quantiles covariance correlation linear_regression",
    "decimal": "Decimal getcontext localcontext Context ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN "
    "ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP ROUND_05UP",
    "fractions": "Fraction",
    "json": "dumps loads",
    "datetime": "date time datetime timedelta timezone",
    "itertools": None,
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation printable "
    "whitespace capwords",
    "textwrap": "wrap fill dedent indent shorten",
}

_namespaces = {}


def preload():
    """Load the modules once, in the zygote, so that no evaluation has to."""
    if _namespaces:
        return
    try:
        __import__("_pylong")  # since Python 3.12
    except ImportError:
        pass
    for name, members in _MODULES.items():
        module = __import__(name)
        names = members.split() if members else [each for each in dir(module) if not each.startswith("_")]
        _namespaces[name] = types.SimpleNamespace(
            **{each: getattr(module, each) for each in names if hasattr(module, each)}
        )


def _import_for_big_integers(name, *_arguments):
    """The `__import__` of expressions, for one module only: Python itself imports it to print big integers."""
    if name != "_pylong":
        raise ImportError("there is no import in an expression")
    return sys.modules[name]


def error_text(kind, message):
    return f"PythonError: {kind}: {message}" if message else f"PythonError: {kind}"


class Forbidden(Exception):
    """The expression contains something that is not allowed; the first argument is the name of the error to show."""


def check(tree, names):
    """Raise `Forbidden` unless every part of the expression is on the list."""
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise Forbidden("SyntaxError", f"{type(node).__name__} is not allowed in an expression")
        if isinstance(node, ast.Name):
            _check_name(node.id, names)
        elif isinstance(node, ast.arg):
            _check_name(node.arg, (node.arg,))
        elif isinstance(node, ast.Attribute):
            if node.attr in _ATTRIBUTES or node.attr.startswith(_ATTRIBUTE_PREFIXES):
                raise Forbidden("AttributeError", f"the attribute `{node.attr}` is not available in an expression")


def _check_name(name, names):
    if name.startswith("__") or name not in names:
        hint = ": there is no import in an expression" if name == "__import__" else ""
        raise Forbidden("NameError", f"`{name}` is not available in an expression{hint}")


def evaluate(expression, values):
    """`(VALUE, str)` or `(ERROR, str)`."""
    try:
        if len(expression) > COMPUTE_CHARS:
            raise Forbidden("ValueError", f"the expression is longer than {COMPUTE_CHARS} characters")
        tree = ast.parse(expression.strip(), _FILE_NAME, "eval")
        builtins = {name: __builtins__[name] for name in _BUILTINS}
        scope = {**_namespaces, **{name: value for name, value in values.items() if not name.startswith("__")}}
        bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
        check(tree, bound.union(builtins, scope))
        scope["__builtins__"] = {**builtins, "__import__": _import_for_big_integers}
        return VALUE, str(eval(compile(tree, _FILE_NAME, "eval", dont_inherit=True), scope))
    except Forbidden as error:
        return ERROR, error_text(*error.args)
    except MemoryError:
        return ERROR, error_text("MemoryError", "the expression needs too much memory")
    except BaseException as error:
        return ERROR, error_text(type(error).__name__, _message(error))


def _message(error):
    try:
        return str(error)
    except BaseException:
        return "<no text>"


def answer(expression, values, chars):
    kind, text = evaluate(expression, values)
    return kind + cut(text, chars).encode("utf-8", "replace")


def child(descriptor, timeout_ms, memory_bytes, work):
    """In a fork of the zygote: do the work, write the bytes that it returns, end. Does not return."""
    try:
        os.dup2(descriptor, 3)
        os.closerange(4, 4096)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.setsid()
        process.give_way()
        memory_hard = _bound_process(timeout_ms, memory_bytes)
        data = work()
        resource.setrlimit(resource.RLIMIT_AS, (memory_hard, memory_hard))
        while data:
            data = data[os.write(3, data) :]
    finally:
        os._exit(0)


def _bound_process(timeout_ms, memory_bytes):
    """Returns the hard limit on memory, to which the soft one is set back for the answer."""
    seconds = timeout_ms // 1000 + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGXCPU,))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", "rb") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    bound = in_use + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # the bounds on time and memory are enough
    return hard
