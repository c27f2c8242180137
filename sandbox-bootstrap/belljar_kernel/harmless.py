"""Cells after which no copy of the process is needed: they provably change nothing but plain values of names.

Such a cell is made of constants, operators, displays and names that hold plain values. It calls nothing and reads no
attribute, so no code of the user runs in it, and what it leaves behind can be written down as a few values. They are
replayed on the last copy should the worker die. Some code of the user can run in such cells all the same, and what it
does then is not kept:

- a hook of `sys.addaudithook`: Python does not tell whether there is one;
- a handler of a signal that was set past Python, by `libc.signal` for example;
- what was put in the place of functions or tables of the kernel, of the standard library or of matplotlib.
"""

import _signal
import ast
import sys
import warnings

from . import wire
from .limits import REDO_BITS, REDO_BYTES, REDO_NODES

# Types are known by their ids: looking up a type of the user would ask the `__hash__` and `__eq__` of its own type.
_PLAIN = frozenset(map(id, (int, float, bool, str, type(None))))
_STR = frozenset((id(str),))
_ABSENT = object()
_OF_KERNEL = (_signal.SIGINT, _signal.SIGRTMAX)
_SIGNALS = tuple(number for number in range(1, _signal.NSIG) if number not in _OF_KERNEL)
_shows_warnings = warnings.showwarning, warnings._showwarnmsg, warnings._showwarnmsg_impl, warnings.formatwarning


def assigned_plainly(tree, namespace):
    """The names that the cell assigns, if it can do nothing else; otherwise None. `_` is not among them."""
    if not has_plain_keys(namespace):
        return None
    statements = tree.body if type(tree) is ast.Module else [tree]
    assigned, remaining = {}, REDO_NODES
    for statement in statements:
        kind, targets = type(statement), ()
        if kind is ast.Assign:
            targets = statement.targets
        elif kind is ast.AugAssign:
            targets = [statement.target]
        elif kind is not ast.Expr and kind is not ast.Expression:
            return None
        value = statement.body if kind is ast.Expression else statement.value
        read = [value, *targets] if kind is ast.AugAssign else [value]
        remaining = _nodes_left(read, namespace, assigned, remaining - len(targets))
        if remaining < 0:
            return None
        for target in targets:
            if type(target) is not ast.Name:
                return None
            name = target.id
            if name not in assigned and not _is_plain(namespace.get(name)):
                return None  # the end of the old value may run code
            assigned[name] = True
    return list(assigned) if _is_plain(namespace.get("_")) else None


def _nodes_left(waiting, namespace, assigned, remaining):
    """How many more nodes may follow these expressions; negative if one of them may do more than make a value."""
    while waiting and remaining >= 0:
        node = waiting.pop()
        kind = type(node)
        remaining -= 1
        if kind is ast.Constant:
            continue
        if kind is ast.Name:
            if node.id not in assigned and not _is_plain(namespace.get(node.id, _ABSENT)):
                return -1
        elif kind is ast.BinOp:
            waiting += (node.left, node.right)
        elif kind is ast.UnaryOp and type(node.op) is not ast.Invert:  # which warns about `bool` and notes that down
            waiting.append(node.operand)
        elif kind is ast.Compare:
            waiting += (node.left, *node.comparators)
        elif kind is ast.BoolOp or kind is ast.JoinedStr:
            waiting += node.values
        elif kind is ast.FormattedValue:
            waiting.append(node.value)
            if node.format_spec is not None:
                waiting.append(node.format_spec)
        elif kind is ast.IfExp:
            waiting += (node.test, node.body, node.orelse)
        elif kind is ast.Tuple or kind is ast.List or kind is ast.Set:
            waiting += node.elts
        elif kind is ast.Dict:
            waiting += node.keys
            waiting += node.values
        else:
            return -1
    return remaining


def _is_plain(value):
    return id(type(value)) in _PLAIN


def has_plain_keys(table):
    """Whether looking something up in it runs no code of the user: other keys may have an `__eq__` of their own."""
    return type(table) is dict and _STR.issuperset(map(id, map(type, table)))


def nobody_listens():
    """Whether no code of the user runs at times of its own, or is called by what every cell does."""
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if handler is not None and type(handler) is not int:
            return False
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        has_tool = any(monitoring.get_tool(tool) is not None for tool in range(6))
        if has_tool or getattr(monitoring, "_all_events", dict)():  # events of a tool that was given up still come
            return False
    shows = warnings.showwarning, warnings._showwarnmsg, warnings._showwarnmsg_impl, warnings.formatwarning
    return shows == _shows_warnings and sys.modules.get("warnings") is warnings


def redo(names, namespace):
    """The present values of the names as bytes for `replay`; empty if they are too large or not exact."""
    values = {name: namespace.get(name) for name in names}
    for value in values.values():
        if not _is_plain(value):
            return b""
        if type(value) is str and len(value) > REDO_BYTES or type(value) is int and value.bit_length() > REDO_BITS:
            return b""
    try:
        encoded = wire.encode_json(values, "strict")
    except ValueError:
        return b""  # not a number, infinite, or no valid text
    return encoded if len(encoded) <= REDO_BYTES else b""


def replay(encoded, namespace):
    """Repeat what such cells did. The guardian has checked each of them."""
    for values in wire.decode_json(encoded.decode()):
        namespace.update(values)
