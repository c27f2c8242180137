"""Values that cells have assigned to attributes of modules, or have deleted there, as the code of the cells shows.

The code is looked at when a snapshot is taken, so that cells cost nothing more. A value that comes to a module in another
way is not found: by code of a file, under a name that is made when the code runs, or through a parameter.
"""

import ast
import sys
import types

from . import notebook, snapshot_classes, snapshot_reasons, snapshot_settings
from .late_imports import from_stdlib
from .limits import (
    ASSIGNED_ATTRIBUTES,
    ASSIGNED_CELL_CHARS,
    ASSIGNED_EARLY_THINGS,
    ASSIGNED_SOURCE_CHARS,
    CELL_SOURCES_KEPT,
)

# What has a place of its own among the settings, or is made anew for each process.
_ELSEWHERE = frozenset(
    "logging.root os.environ sys.modules sys.path sys.stderr sys.stdin sys.stdout warnings.filters".split()
)
_OF_IMPORT = frozenset(("__builtins__", "__loader__", "__spec__"))
REPLACED = "set in the session; the module's own is back, if it has one"
# The name under which it is told that not all was found.
_NOT_ALL = "attributes of modules"
_TOO_LONG = f"cells of more than {ASSIGNED_CELL_CHARS} characters were not looked at"
_TOO_MANY = "the cells have too much code to look for all that they assign"
# What holds no code of the session, if what is in it does not either.
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_PLAIN_CONTAINERS = frozenset((list, tuple, set, frozenset))


class Assigned:
    """What is packed of modules.

    `things` are by the names under which they stand among the variables: the module and the value, or only the module
    where the attribute was deleted. `attributes` are their attributes, and `missing` says what is not kept, and why.
    """

    def __init__(self):
        self.things, self.attributes, self.missing = {}, {}, {}


def found(namespace, are_forgotten):
    """`are_forgotten` says whether the code of early cells is not remembered any more."""
    result = Assigned()
    try:
        cells = _Cells(namespace)
        cells.read()
    except BaseException:
        return result  # a cell has replaced what this needs
    not_all = []
    for module, attribute, is_deleted in cells.resolved():
        try:
            _add(result, namespace, module, attribute, is_deleted)
        except _Full:
            not_all.append(f"more than {ASSIGNED_ATTRIBUTES} were assigned by cells")
            break
        except BaseException:
            continue  # code of the module has failed, and must not cost the session all of its variables
    not_all += cells.left_out
    if are_forgotten:
        not_all.append(f"only the last {CELL_SOURCES_KEPT} cells were looked at")
    if not_all:
        result.missing[_NOT_ALL] = "; ".join(not_all)
    return result


def _add(result, namespace, module, attribute, is_deleted):
    name = f"{module.__name__}.{attribute}"
    if name in _ELSEWHERE or name in namespace or not _is_kept(module, attribute):
        return
    if len(result.things) == ASSIGNED_ATTRIBUTES:
        raise _Full
    value = _value(module, attribute)
    if value is _ABSENT:
        if is_deleted:
            result.things[name], result.attributes[name] = (module,), attribute
    elif is_deleted:
        return  # it was not, or is there again
    elif snapshot_classes.is_own(value, namespace):
        result.missing[name] = REPLACED
    else:
        # The list itself stands for that of the process which loads it.
        value = list(value) if value is sys.argv else value
        result.things[name], result.attributes[name] = (module, value), attribute


class _Full(Exception):
    """No more attributes are kept."""


def are_plain(values):
    """Whether all that they hold is of classes without code of the session, and is not much."""
    left, waiting = ASSIGNED_EARLY_THINGS, [values]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is dict or kind in _PLAIN_CONTAINERS:
            left -= len(each)
            if left < 0:
                return False
            waiting += each
            waiting += each.values() if kind is dict else ()
        elif kind not in _PLAIN:
            return False
    return True


def set_early(name, thing, attributes):
    """Do it before all is loaded, if the value is plain: code of the session that the load calls may need it. The result is
    what was there, as such a thing; none if nothing was done."""
    module, *values = thing
    if not snapshot_classes.is_module(module) or not are_plain(values):
        return None
    found = _value(module, attributes[name])
    before = (module,) if found is _ABSENT else (module, list(found) if found is sys.argv else found)
    set_again({name: thing}, attributes)
    return before


def set_again(things, attributes):
    """Do to the modules what the cells did; the result says what could not be done, and why."""
    failed = {}
    for name, (module, *values) in things.items():
        try:
            if name == "sys.argv" and values:
                sys.argv[:] = values[0]
            elif values:
                setattr(module, attributes[name], values[0])
            elif attributes[name] in module.__dict__:
                delattr(module, attributes[name])
        except BaseException as error:
            failed[name] = f"it could not be set again: {snapshot_reasons.told(error)}"
    return failed


_ABSENT = object()


def _value(module, attribute):
    value = _dict_of(module).get(attribute, _ABSENT)
    if value is _ABSENT and type(module) is not types.ModuleType:
        try:
            return getattr(module, attribute)
        except BaseException:
            return _ABSENT
    return value


def _dict_of(module):
    """Without code of its class."""
    return _MODULE_DICT.__get__(module)


_MODULE_DICT = types.ModuleType.__dict__["__dict__"]


def _is_kept(module, attribute):
    name = module.__name__
    if type(name) is not str or name == "__main__" or name.partition(".")[0] == "belljar_kernel" or sys.modules.get(name) is not module:
        return False
    return attribute not in _OF_IMPORT and snapshot_classes.comes_from_disk(module)


class _Cells:
    """The code of the cells that is remembered for tracebacks."""

    def __init__(self, namespace):
        self._namespace = namespace
        self._imported = {}  # names of modules by the names that stand for them
        self._assigned = {}  # the way to a module, an attribute, and whether it is deleted: each once
        self._attribute = from_stdlib("re").compile(r"\.[\s\\]*[^\W\d]")
        self.left_out = {}  # why not all code was looked at, as keys

    def read(self):
        """Look at the newest first, because there may be more than is looked at."""
        left = ASSIGNED_SOURCE_CHARS
        for name, entry in reversed(list(from_stdlib("linecache").cache.items())):
            if not snapshot_settings.is_source(name, entry) or not name.startswith("<cell "):
                continue
            text = "".join(entry[2])
            if not self._may_assign(text):
                continue
            if len(text) > min(left, ASSIGNED_CELL_CHARS):
                self.left_out[_TOO_LONG if len(text) > ASSIGNED_CELL_CHARS else _TOO_MANY] = True
                continue
            left -= len(text)
            try:
                self._read(notebook.parse(text, name, "exec"))
            except (SyntaxError, ValueError, MemoryError, RecursionError):
                pass  # it has not run either

    def _may_assign(self, text):
        """Whether the code may assign an attribute or import something; a list of numbers, which may be long, does not."""
        return "attr" in text or "import" in text or self._attribute.search(text) is not None

    def _read(self, tree):
        for node in ast.walk(tree):
            kind = type(node)
            if kind is ast.Attribute:
                if type(node.ctx) is not ast.Load:
                    self._note(node.value, node.attr, type(node.ctx) is ast.Del)
            elif kind is ast.Call:
                self._note_call(node)
            elif kind is ast.Import:
                for each in node.names:
                    name = each.name if each.asname else each.name.partition(".")[0]
                    self._imported.setdefault(each.asname or name, {})[name] = True
            elif kind is ast.ImportFrom and node.module and not node.level:
                for each in node.names:
                    self._imported.setdefault(each.asname or each.name, {})[f"{node.module}.{each.name}"] = True

    def _note_call(self, node):
        """`setattr` and `delattr` with the name of an attribute."""
        if type(node.func) is ast.Name and node.func.id in ("setattr", "delattr") and len(node.args) >= 2:
            attribute = node.args[1]
            if type(attribute) is ast.Constant and type(attribute.value) is str:
                self._note(node.args[0], attribute.value, node.func.id == "delattr")

    def _note(self, node, attribute, is_deleted):
        way = []
        while type(node) is ast.Attribute:
            way.append(node.attr)
            node = node.value
        if type(node) is ast.Name:
            way.append(node.id)
            self._assigned[tuple(reversed(way)), attribute, is_deleted] = True

    def resolved(self):
        """Each module with the attribute, and whether it was deleted."""
        seen = set()
        for (root, *way), attribute, is_deleted in self._assigned:
            imported = [sys.modules.get(name) for name in self._imported.get(root, ())]
            for module in (self._namespace.get(root), *imported):
                for part in way:
                    module = _dict_of(module).get(part) if snapshot_classes.is_module(module) else None
                key = id(module), attribute, is_deleted
                if snapshot_classes.is_module(module) and key not in seen:
                    seen.add(key)
                    yield module, attribute, is_deleted
