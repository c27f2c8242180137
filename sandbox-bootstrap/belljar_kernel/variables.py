"""The list of a session's variables: cheap to make, no matter what they hold."""

import builtins
import itertools
import _signal  # the C half: the other runs through `enum`, which user code may have broken
import posix  # not `os`, whose functions user code may replace
import select
import sys
import time
import types

from . import copies, descriptor_io, wire
from .late_imports import from_stdlib
from .limits import (
    COMPLETED_KEYS,
    DIGESTS_S,
    SAID_BYTES,
    SHOW_DEATHS,
    SHOW_MARGIN_S,
    SHOW_VALUE_S,
    SHOW_VALUES_S,
    cut,
)
from .report import type_name
from .rich import bounded_repr

# Names that Python or the kernel puts into the namespace.
_OWN_NAMES = frozenset(
    ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__warningregistry__", "_")
)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_PREVIEW_ITEMS = 20
_MOST_BYTES = 2**63  # what objects claim to hold
_PREVIEW_DEPTH = 3
_NOT_SHOWN = "<not shown>"
_DEADLY = "<not shown: it ended the process that was to show it>"
_READ_BYTES = 64 * 1024
_getpid = posix.getpid
_ARRAY_MODULES = ("numpy", "pandas", "polars", "torch", "xarray", "scipy")


def listing(namespace, injected, frame, limits):
    """The answer to a `variables` frame."""
    names = _listed(namespace, injected, frame)
    views = [_variable(name, namespace[name], limits, _guarded) for name in names[: limits.variables]]
    return {"variables": views, "total": len(names)}


def members(namespace, frame, limits):
    """The names that a value has, for completion: its attributes, or its keys. Only in a copy: asking may run its code."""
    begins = frame.get("begins", "")
    try:
        value = _value_at(namespace, frame["of"])
        found = itertools.islice(value.keys(), COMPLETED_KEYS) if frame.get("keys") else dir(value)
        names = [name for name in found if isinstance(name, str) and name.startswith(begins)]
        if not frame["private"]:
            names = [name for name in names if not name.startswith("_")]
    except Exception:
        names = []  # there is no such value, or it has no keys
    nothing = {"type": "", "preview": "", "bytes": None, "shape": None}
    views = [{"name": cut(name, limits.preview_chars), **nothing} for name in names[: limits.variables]]
    return {"of": frame["of"], "variables": views, "total": len(names)}


def _value_at(namespace, path):
    """The value of names with dots between them, as far as it is there already.

    What a property, another descriptor or `__getattr__` would make is none: their code could use a connection or a file
    that the copy shares with the main line.
    """
    first, *rest = path.split(".")
    value = namespace[first] if first in namespace else getattr(builtins, first)
    for name in rest:
        static = from_stdlib("inspect").getattr_static
        found = static(value, name)
        if type(found) is types.MemberDescriptorType:
            found = found.__get__(value)  # a place of `__slots__`
        elif type(found) is not types.FunctionType and static(type(found), "__get__", None) is not None:
            raise AttributeError(name)
        value = found
    return value


def listing_by_children(namespace, injected, frame, limits):
    """The same, only for a copy of the worker: a value that ends the process that shows it costs only itself.

    Children show the values one after the other; where one of them ends early, the next goes on behind that value.
    """
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # no handler of the user sees these children
    names = _listed(namespace, injected, frame)
    shown, views, until = names[: limits.variables], [], time.monotonic() + SHOW_VALUES_S
    for _ in range(SHOW_DEATHS):
        views += _views_of_child(shown[len(views) :], namespace, frame, limits, until)
        if len(views) >= len(shown):
            break
        views.append(_unshown(shown[len(views)], namespace, limits, _DEADLY))
    views += [_unshown(name, namespace, limits, _NOT_SHOWN) for name in shown[len(views) :]]
    return {"variables": views, "total": len(names)}


def _views_of_child(names, namespace, frame, limits, until):
    """The views that a child has made; not of all names if it ended before."""

    def views():
        inspect = _TimedInspector(until)
        digest = _digester(until) if frame.get("digests") else None
        for name in names:
            view = _variable(name, namespace[name], limits, inspect)
            if digest is not None:
                view["digest"] = digest(namespace[name])
            yield view

    try:
        reads, writes = posix.pipe()
        child = copies.silently(posix.fork)
    except OSError:
        return list(views())  # no process or no descriptor is left, so this process shows them itself
    if child == 0:
        own = _getpid()
        try:
            for view in views():
                if _getpid() != own:
                    break  # a variable has forked when it was shown
                descriptor_io.send_all(writes, wire.encode_json(view) + b"\n")
        finally:
            posix._exit(0)
    posix.close(writes)
    written = _read(reads, until + SHOW_MARGIN_S, len(names))
    posix.close(reads)
    posix.kill(child, _signal.SIGKILL)
    posix.waitpid(child, 0)
    return [wire.decode_json(line.decode()) for line in written.split(b"\n")[:-1][: len(names)]]


def _read(descriptor, until, lines):
    """So many lines, or what has come at the end or until then: a process of the user may hold the pipe open."""
    waits, data = select.poll(), bytearray()
    waits.register(descriptor, select.POLLIN)
    while data.count(b"\n") < lines and len(data) < SAID_BYTES:
        if not waits.poll(max(until - time.monotonic(), 0) * 1000):
            break
        part = posix.read(descriptor, _READ_BYTES)
        if not part:
            break
        data += part
    return bytes(data)


def _listed(namespace, injected, frame):
    """The names of the variables, in order."""
    if frame.get("imports"):
        injected = {}
    return sorted(name for name, value in list(namespace.items()) if _is_listed(name, value, injected, frame))


def _is_listed(name, value, injected, frame):
    if not isinstance(name, str) or name in _OWN_NAMES:
        return False
    if isinstance(value, types.ModuleType) and not frame.get("imports"):
        return False
    if name.startswith("_") and not frame["private"]:
        return False
    return name not in injected or injected[name] is not value


def _variable(name, value, limits, inspect):
    shape = inspect(_shape, value)
    preview = inspect(lambda it: _preview(it, limits.preview_chars, shape), value) or _NOT_SHOWN
    return {
        "name": cut(name, limits.preview_chars),
        "type": cut(type_name(type(value)), limits.preview_chars),
        "preview": cut(preview, limits.preview_chars),
        "bytes": inspect(_size, value),
        "shape": shape and cut(shape, limits.preview_chars),
    }


def _digester(until):
    """Makes digests of values, or None. They take a part of the time only, so that the values are shown, too."""
    from .digests import Digests  # only a comparison of sessions needs it

    digests, left = Digests(), DIGESTS_S

    def digest(value):
        nonlocal left
        begun = time.monotonic()
        made = _TimedInspector(min(until, begun + left))(digests.of, value)
        left -= time.monotonic() - begun
        return made

    return digest


def _unshown(name, namespace, limits, preview):
    kind = cut(type_name(type(namespace[name])), limits.preview_chars)
    return {"name": cut(name, limits.preview_chars), "type": kind, "preview": preview, "bytes": None, "shape": None}


def _guarded(function, value):
    try:
        return function(value)
    except BaseException:
        return None


class _TimedInspector:
    """Inspects values with time limits, since they may load, compute or wait. Only for a copy, whose timer is free."""

    def __init__(self, until):
        self._until = until
        _signal.signal(_signal.SIGALRM, self._give_up)

    def __call__(self, function, value):
        seconds = min(SHOW_VALUE_S, self._until - time.monotonic())
        if seconds <= 0:
            return None
        try:
            _signal.setitimer(_signal.ITIMER_REAL, seconds)
            try:
                return function(value)
            finally:
                _signal.setitimer(_signal.ITIMER_REAL, 0)
        except BaseException:
            return None

    def _give_up(self, _number, _frame):
        raise TimeoutError


def _preview(value, chars, shape):
    kind = type(value)
    if kind.__module__.partition(".")[0] in _ARRAY_MODULES and shape is not None and shape != "()":
        dtype = getattr(value, "dtype", None)
        return f"{type_name(kind)} {shape}" + (f" {dtype}" if dtype is not None else "")
    return _short_repr(value, chars, _PREVIEW_DEPTH)


def _short_repr(value, chars, depth):
    """Like `repr`, but looks only at the first items of containers, and of theirs."""
    kind = type(value)
    if kind not in _CONTAINERS:
        return bounded_repr(value, chars)
    if not value:
        return repr(value)
    if depth == 0:
        return "…"
    parts = []
    for item in value.items() if kind is dict else value:
        if len(parts) == _PREVIEW_ITEMS:
            parts.append("…")
            break
        if kind is dict:
            parts.append(f"{_short_repr(item[0], chars, depth - 1)}: {_short_repr(item[1], chars, depth - 1)}")
        else:
            parts.append(_short_repr(item, chars, depth - 1))
    inside = ", ".join(parts)
    if kind is list:
        return f"[{inside}]"
    if kind is tuple:
        return f"({inside},)" if len(parts) == 1 else f"({inside})"
    return f"frozenset({{{inside}}})" if kind is frozenset else f"{{{inside}}}"


def _shape(value):
    """`(3, 4)` for arrays and tables, `[7]` for things with a length."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and not isinstance(value, type):
        return "(" + ", ".join(str(int(each)) for each in shape) + ("," if len(shape) == 1 else "") + ")"
    if isinstance(value, type) or not hasattr(type(value), "__len__"):
        return None
    return f"[{len(value)}]"


def _size(value):
    bytes_of_array = getattr(value, "nbytes", None)
    if type(bytes_of_array) is int and bytes_of_array >= 0:
        return min(bytes_of_array, _MOST_BYTES)
    return min(sys.getsizeof(value), _MOST_BYTES)
