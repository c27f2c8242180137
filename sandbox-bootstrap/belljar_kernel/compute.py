"""Restricted expressions: checked against an allow-list, evaluated with bounds on time and memory.

The check keeps honest expressions honest; what holds against hostile ones is that they run in a
process of their own, inside the sandbox, without descriptors and without the session's memory.
"""

import ast
import os
import resource
import signal
import socket
import sys
import types

from . import process, wire
from .limits import COMPUTE_CHARS, CONTROL_READ_BYTES, EVALUATOR_GROWTH_BYTES, cut

VALUE, ERROR = b"V", b"E"
# What the process that evaluates one expression after the other answers.
_OUTCOME, _NOT_TAKEN = ord("A"), ord("N")

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

# What these do with plain values leaves no trace in the process; functions of others, such as those of `decimal`, may.
_TRACELESS_NODES = (
    ast.Expression, ast.Constant, ast.Load, ast.Store, ast.Call, ast.keyword, ast.Starred, ast.Subscript, ast.Slice,
    ast.List, ast.Tuple, ast.Set, ast.Dict, ast.IfExp, ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp,
    ast.unaryop, ast.Compare, ast.cmpop, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension,
    ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip
_TRACELESS_MODULE = "math"
# Methods of plain values; those that look for a codec may import it.
_TRACELESS_METHODS = {
    name
    for kind in (str, bytes, int, float, complex, list, tuple, dict, set, frozenset)
    for name in dir(kind)
    if not name.startswith("_")
} - {"encode", "decode"}

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


def leaves_no_trace(tree, values):
    """Whether evaluating the expression, if it is allowed at all, changes nothing that another one could see.

    Everything it reaches is a value from JSON, made for it alone, or one of Python's own functions without a state.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == _TRACELESS_MODULE and node.value.id not in values:
                continue  # such as `math.sqrt`
            is_traceless = node.attr in _TRACELESS_METHODS
        elif isinstance(node, ast.Name):
            is_traceless = node.id not in _namespaces or node.id in values
        else:
            is_traceless = isinstance(node, _TRACELESS_NODES)
        if not is_traceless:
            return False
        waiting += ast.iter_child_nodes(node)
    return True


def evaluate(expression, values, only_without_trace=False):
    """`(VALUE, str)` or `(ERROR, str)`; with `only_without_trace` None, and nothing was evaluated, for another one."""
    try:
        if len(expression) > COMPUTE_CHARS:
            raise Forbidden("ValueError", f"the expression is longer than {COMPUTE_CHARS} characters")
        tree = ast.parse(expression.strip(), _FILE_NAME, "eval")
        if only_without_trace and not leaves_no_trace(tree, values):
            return None
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


def encoded(outcome, chars):
    kind, text = outcome
    return kind + cut(text, chars).encode("utf-8", "replace")


def child(descriptor, timeout_ms, memory_bytes, work):
    """Do the work in a fork of the zygote, write the bytes that it returns, and end. Does not return."""
    try:
        memory = _enter(descriptor)
        seconds = timeout_ms // 1000 + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGXCPU,))
        memory.bound(memory_bytes)
        data = work()
        memory.unbound()
        _write(3, data)
    finally:
        os._exit(0)


def serve(speaks_on, listens_on):
    """Evaluate, in a fork of the zygote, expressions that leave no trace, until the guardian is gone. Does not return.

    The guardian bounds the time of each expression.
    """
    try:
        memory = _enter(speaks_on, listens_on)
        at_start = memory.in_use()
        requests, reader = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, 4), wire.MessageReader()
        while memory.in_use() < at_start + EVALUATOR_GROWTH_BYTES:
            message = reader.next()
            if message is None:
                data = requests.recv(CONTROL_READ_BYTES)
                if not data:
                    break
                reader.feed(data)
                continue
            bound, frame = decode_request(message[1])
            memory.bound(int(frame["memory_bytes"]))
            outcome = evaluate(str(frame["expression"]), dict(frame["values"]), only_without_trace=True)
            memory.unbound()
            if outcome is None:
                _write(3, wire.pack(_NOT_TAKEN))
            else:
                _write(3, wire.pack(_OUTCOME, encoded(outcome, bound["chars"])))
    finally:
        os._exit(0)


def decode_request(payload):
    """The guardian's own bounds, in one line, and the daemon's frame."""
    bound, _, frame = payload.partition(b"\n")
    return wire.decode_json(bound.decode()), wire.decode_json(frame.decode())


def _write(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]


def _enter(*descriptors):
    """Keep nothing but these descriptors, as 3 and on, and give up what an expression needs not."""
    memory = _Memory()
    kept = (*descriptors, memory.descriptor)
    for place, descriptor in enumerate([os.dup(each) for each in kept], 3):
        os.dup2(descriptor, place)
    memory.descriptor = 2 + len(kept)
    os.closerange(3 + len(kept), 4096)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.setsid()
    process.give_way()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # the bounds on time and memory are enough
    return memory


class _Memory:
    """The memory of this process, and the bound on it."""

    def __init__(self):
        self.descriptor = os.open("/proc/self/statm", os.O_RDONLY)
        self._hard = resource.getrlimit(resource.RLIMIT_AS)[1]

    def in_use(self):
        return int(os.pread(self.descriptor, 256, 0).split()[0]) * resource.getpagesize()

    def bound(self, more):
        """Allow so many bytes more than are in use."""
        bound = self.in_use() + more
        bound = bound if self._hard == resource.RLIM_INFINITY else min(bound, self._hard)
        resource.setrlimit(resource.RLIMIT_AS, (bound, self._hard))

    def unbound(self):
        resource.setrlimit(resource.RLIMIT_AS, (self._hard, self._hard))
