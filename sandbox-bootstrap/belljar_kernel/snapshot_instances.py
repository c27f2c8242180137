"""Instances of the session's own classes, taken apart so that nothing of the class has to be called to fill them again.

A class may give its containers and its attributes other meanings: a `__setitem__` that doubles what it is given would
double it once more at each load. So what an instance holds is read and written by the methods of the type in C below
it, unless the class itself says how it is pickled.
"""

import collections
import types

from . import snapshot_hashes, snapshot_make
from .late_imports import from_stdlib

_slot_names = from_stdlib("copyreg")._slotnames

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_VALUES = (int, float, complex, str, bytes, tuple)
# How each container is read: what its `fill` in `snapshot_make.CONTAINERS` is given. The most special come first.
_READS = (
    (collections.OrderedDict, lambda it: (list(collections.OrderedDict.items(it)),)),
    (collections.defaultdict, lambda it: (list(dict.items(it)), collections.defaultdict.default_factory.__get__(it))),
    (dict, lambda it: (list(dict.items(it)),)),
    (list, lambda it: ([*list.__iter__(it)],)),
    (set, lambda it: ([*set.__iter__(it)],)),
    (frozenset, lambda it: ([*frozenset.__iter__(it)],)),
    (collections.deque, lambda it: ([*collections.deque.__iter__(it)], collections.deque.maxlen.__get__(it))),
    (bytearray, lambda it: (bytes(memoryview(it)),)),
)
_BUILTIN_REDUCE = (*(kind for kind, _ in _READS), collections.Counter, object)


def plan(kind):
    """How instances of a class of the session are taken apart; None if `pickle` may do it."""
    if not _is_of_python(_owner(kind, ("__reduce_ex__", "__reduce__"))):
        return None
    for container, read in _READS:
        if issubclass(kind, container):
            return lambda it: _instance(it, container, read)
    if any(base in _VALUES for base in kind.__mro__):
        is_special = _owner(kind, ("__new__",)) not in _VALUES or _answers_anything(kind)
        return _value if _has_plain_arguments(kind) and is_special else None
    is_plain = _owner(kind, ("__setstate__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")) in (None, object)
    if is_plain and snapshot_hashes.are_by_code(kind) and _maker(kind) is object:
        return _hashed
    if _answers_anything(kind):
        return plan_of_answering(kind)
    if _owner(kind, ("__setstate__", "__getstate__")) not in (None, object) or not _slot_names(kind):
        return None
    if _owner(kind, ("__getnewargs__", "__getnewargs_ex__")) is not None or _maker(kind) is not object:
        return None
    return lambda it: _instance(it, None, None)


def plan_of_answering(kind):
    """How instances of a class are taken apart that may have an answer to any name, as to those that `pickle` asks for."""
    if not _answers_anything(kind) or _owner(kind, ("__getnewargs__", "__getnewargs_ex__")) is not None:
        return None
    if _maker(kind) is not object or not _is_of_python(_owner(kind, ("__reduce_ex__", "__reduce__"))):
        return None
    return lambda it: _instance(it, None, None)


def _answers_anything(kind):
    return _owner(kind, ("__getattr__",)) is not None or isinstance(
        _owner(kind, ("__getattribute__",)).__dict__["__getattribute__"], types.FunctionType
    )


def _owner(kind, names):
    """The class that has the first of these methods."""
    return next((each for each in kind.__mro__ if any(name in each.__dict__ for name in names)), None)


def _is_of_python(owner):
    """Whether the way to reduce it is Python's own, and no library's or the session's."""
    return owner in _BUILTIN_REDUCE


def _has_plain_arguments(kind):
    """Whether `__getnewargs__` gives the value itself; that of named tuples does, whatever their `__new__` is given."""
    owner = _owner(kind, ("__getnewargs__", "__getnewargs_ex__"))
    return owner in _VALUES or "_fields" in owner.__dict__


def _maker(kind):
    """The class whose `__new__` is made in C."""
    python = (types.FunctionType, staticmethod)
    news = ((each, each.__dict__["__new__"]) for each in kind.__mro__ if "__new__" in each.__dict__)
    return next(each for each, new in news if not isinstance(new, python))


def _value(thing):
    kind = type(thing)
    base = next(each for each in kind.__mro__ if each in _VALUES)
    made = snapshot_make.bare, (base, kind, *base.__getnewargs__(thing))
    return (*made, (None, (), *_state(thing)), None, None, snapshot_make.fill_instance)


def _instance(thing, container, read):
    kind = type(thing)
    maker, contents = _maker(kind), () if read is None else read(thing)
    given = ()
    if container is frozenset:
        given, contents, container = contents, (), None
    state = None if container is None else container.__name__, contents, *_state(thing)
    return snapshot_make.bare, (maker, kind, *given), state, None, None, snapshot_make.fill_instance


def _hashed(thing):
    """One whose hash may be asked for before it is filled, if it is in a set that it holds: it begins with what it has of
    plain attributes, from which hashes are made."""
    kind = type(thing)
    attributes, slots = attributes_of(thing)
    early = [{name: value for name, value in each.items() if type(value) in _PLAIN} for each in (attributes or {}, slots)]
    return snapshot_make.begun, (kind, *early), (None, (), *_state(thing)), None, None, snapshot_make.fill_instance


def _state(thing):
    """What the instance has beside its contents, and whether its class has said so itself."""
    kind = type(thing)
    of_class = _owner(kind, ("__getstate__",))
    if of_class not in (None, object):
        return of_class.__dict__["__getstate__"].__get__(thing, kind)(), True
    its_dict, slots = attributes_of(thing)
    own = _owner(kind, ("__setstate__",)) is not None
    return ((its_dict or None, slots) if slots else its_dict or None), own


def attributes_of(thing):
    """Its dictionary or None, and what is in its slots."""
    try:
        its_dict = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        its_dict = None
    slots = {}
    for name in _slot_names(type(thing)):
        try:
            slots[name] = object.__getattribute__(thing, name)
        except AttributeError:
            pass  # nothing is in it
    return its_dict, slots
