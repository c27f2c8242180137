"""Classes of the session, taken apart; and what can be imported instead."""

import posixpath
import sys
import types

from . import snapshot_make
from .late_imports import from_stdlib
from .preload import PACKAGES

HEAP_TYPE = 1 << 9  # among the flags of a class: it is not made in C, or as if it were not
# Made by Python for each class, or anew from its attributes.
_MADE = frozenset(("__dict__", "__weakref__", "_abc_impl", "__annotate_func__", "__annotations_cache__"))

_INSTALLED = ("/site-packages/", "/dist-packages/")
_NOT_OF_SESSION = (
    posixpath.dirname(posixpath.__file__) + "/",
    posixpath.dirname(posixpath.dirname(__file__)) + "/",
    PACKAGES + "/",
)


def _of_every_class():
    """Names under which `type` itself answers for a class: what its body has under them is set when it is made, or never."""
    told = {name for name, each in type.__dict__.items() if hasattr(type(each), "__set__")} | {"__class__"}
    return told - _MADE - {"__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__type_params__"}


_OF_EVERY_CLASS = _of_every_class()


def is_module(thing):
    """Whether it is one by its type: what it says of its class may be code of the session, or fail."""
    return issubclass(type(thing), types.ModuleType)


def _spec(module):
    try:
        return getattr(module, "__spec__", None)
    except Exception:
        return None  # the session has put something else among the modules


def comes_from_disk(module):
    """Whether the module can be imported in a fresh process."""
    spec = _spec(module)
    return spec is not None and (spec.origin is not None or spec.submodule_search_locations is not None)


def submodules(module):
    """The names of the modules below a package that were imported and can be imported again."""
    name = module.__name__ + "."
    if not hasattr(module, "__path__"):
        return []
    return [each for each, below in list(sys.modules.items()) if _is_below(each, name) and comes_from_disk(below)]


def _is_below(name, package):
    return isinstance(name, str) and name.startswith(package)


def is_of_session(module):
    """Whether the module is a file that is neither of Python nor of an installed package."""
    name = getattr(_spec(module), "origin", None)
    if not isinstance(name, str) or not name.startswith("/"):
        return False
    return not name.startswith(_NOT_OF_SESSION) and not any(each in name for each in _INSTALLED)


def is_importable(thing):
    """Whether a fresh process has the very thing under its own name."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or not comes_from_disk(module):
        return False
    found = module
    try:
        for part in (getattr(thing, "__qualname__", None) or thing.__name__).split("."):
            found = getattr(found, part)
    except AttributeError:
        return False
    return found is thing


def registrations():
    """The classes of modules that count others as their subclasses, by the ids of those others."""
    get_dump, found, seen, waiting = from_stdlib("_abc")._get_dump, {}, set(), [object]
    meta = from_stdlib("abc").ABCMeta
    while waiting:
        cls = waiting.pop()
        if id(cls) in seen:
            continue
        seen.add(id(cls))
        if isinstance(cls, meta) and is_importable(cls):
            for each in get_dump(cls)[0]:
                found.setdefault(id(each()), []).append(cls)
        waiting += type.__subclasses__(cls)
    return found


def reduce(cls, registered_at):
    """Raises TypeError if the class cannot be made again. `registered_at` are classes of modules that count it as theirs."""
    if not cls.__flags__ & HEAP_TYPE:
        raise TypeError(f"it is or holds the class {cls.__name__}, which is made in C and has no name")
    meta = type(cls)
    maker = next(each for each in meta.__mro__ if "__new__" in each.__dict__ and not _is_python(each.__dict__["__new__"]))
    if maker is not type or meta.__basicsize__ != type.__basicsize__ or meta.__module__ == "_ctypes":
        raise TypeError(f"it is or holds the class {cls.__name__}, whose metaclass {meta.__name__} is made in C")
    own = cls.__dict__
    slots = [name for name, each in own.items() if isinstance(each, types.MemberDescriptorType) and each.__objclass__ is cls]
    early = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if "__slots__" in own:
        early["__slots__"] = tuple(slots + [name for name in ("__dict__", "__weakref__") if name in own])
    early.update((name, own[name]) for name in _OF_EVERY_CLASS.intersection(own).difference(slots, ("__abstractmethods__",)))
    left_out = _MADE.union(slots, early) - {"__slots__"}
    registered = None
    if isinstance(cls, from_stdlib("abc").ABCMeta):
        left_out |= {"__abstractmethods__"}
        registered = [each() for each in from_stdlib("_abc")._get_dump(cls)[0]]
    attributes = {name: value for name, value in own.items() if name not in left_out}
    if own.get("__annotate_func__") is not None:
        attributes["__annotate__"] = own["__annotate_func__"]
    arguments = (meta, cls.__name__, cls.__bases__, early)
    return snapshot_make.class_, arguments, (attributes, registered, registered_at), None, None, snapshot_make.fill_class


def _is_python(new):
    return isinstance(new, (types.FunctionType, staticmethod))


def patches(namespace, most):
    """Names of functions and methods of modules that the session has replaced by its own."""
    left, others = most, _Others()
    for name, module in list(sys.modules.items()):
        if not is_module(module) or not comes_from_disk(module) or name.startswith("belljar_kernel"):
            continue
        for key, value in list(module.__dict__.items()):
            left -= 1
            if others.has(value):
                continue
            if name == "sys" and key.startswith("last_"):
                continue  # the exception of a cell
            if is_own(value, namespace):
                yield f"{name}.{key}"
            elif type(value) is type and value.__module__ == name:
                left -= len(value.__dict__)
                for inner, each in list(value.__dict__.items()):
                    if not others.has(each) and is_own(each, namespace):
                        yield f"{name}.{key}.{inner}"
        if left < 0:
            return


def is_own(value, namespace):
    """Whether the session has made it, as far as can be told: a constant looks like any other."""
    kind = type(value)
    if kind is types.FunctionType:
        return value.__globals__ is namespace
    if issubclass(kind, type):
        return value.__dict__.get("__module__") == "__main__"
    beneath = _BENEATH.get((kind.__module__, kind.__name__))
    if beneath is not None:
        inner = getattr(value, beneath, None)
        return inner is not value and is_own(inner, namespace)
    return kind.__dict__.get("__module__") == "__main__"


class _Others:
    """Things of which their class alone tells that the session has not made them. Most attributes of modules are such."""

    def __init__(self):
        self._kinds = {}  # by their ids, for code of the session may answer what the hash of a class is

    def has(self, value):
        kind = type(value)
        known = self._kinds.get(id(kind))
        if known is None:
            tells = kind is not types.FunctionType and not issubclass(kind, type)
            tells = tells and (kind.__module__, kind.__name__) not in _BENEATH
            known = self._kinds[id(kind)] = kind, tells and kind.__dict__.get("__module__") != "__main__"
        return known[1]


# The attribute of what is put around a function that has the function.
_BENEATH = {
    ("builtins", "staticmethod"): "__func__",
    ("builtins", "classmethod"): "__func__",
    ("builtins", "method"): "__func__",
    ("builtins", "property"): "fget",
    ("functools", "partial"): "func",
    ("functools", "_lru_cache_wrapper"): "__wrapped__",
    ("functools", "cached_property"): "func",
}
