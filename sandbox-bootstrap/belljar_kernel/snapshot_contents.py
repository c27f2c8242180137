"""Undoes what code of the session that a load calls does to what is loaded already.

A constructor that has counted or listed its object before the sleep does so once more when `__reduce__` has it called
again. The load does not know when such code is called, because the unpickler in C calls it. So what each name brings is
copied as soon as it is there, up to a bound that does not grow with the variables: those of a session with millions of
numbers must take neither much longer to load for that, nor much more memory.
"""

import builtins
import sys
from collections import Counter, OrderedDict, defaultdict, deque

from . import snapshot_reasons
from .limits import PUT_BACK_PARTS, PUT_BACK_THINGS

_NOT_COPIED = (
    "it is there, but code of the session that the load called has changed its length; only containers of up to "
    f"{PUT_BACK_PARTS} parts are put right, only {PUT_BACK_THINGS} things in all, and no `OrderedDict` with keys of classes"
)
# How each container is copied, emptied and filled again: by the ids of the classes, because code of the session may answer
# what the hash of a class is.
_CHANGEABLE = {
    id(kind): ways
    for kind, *ways in (
        (list, list, list.clear, list.extend),
        (deque, list, deque.clear, deque.extend),
        (set, set, set.clear, set.update),
        (dict, dict, dict.clear, dict.update),
        (Counter, dict, dict.clear, dict.update),
        (defaultdict, dict, dict.clear, dict.update),
        (OrderedDict, dict, OrderedDict.clear, OrderedDict.update),
    )
}
# Keys whose hashes are no code of the session.
_PLAIN_KEYS = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes)))
_CLASS_DICT = type.__dict__["__dict__"]  # without code of a metaclass


class Contents:
    """Containers with what they held when they had been loaded, and classes of the session with their attributes. Of a
    container that is too large, only its length is kept."""

    def __init__(self, namespace):
        # Loads change these for good reasons, and they may be values of variables.
        kernel_builtins = sys.modules["belljar_kernel"]._BUILTINS
        apart = namespace, sys.modules, sys.path, sys.argv, builtins.__dict__, kernel_builtins
        self._seen = {id(each): each for each in apart}  # held, so that no id becomes that of another one
        self._copies, self._lengths, self._left = [], [], PUT_BACK_THINGS

    def note(self, name, value, classes=()):
        """What the value and these classes hold, before code that is called for other names can change it."""
        waiting = [value]
        for each in classes:
            attributes = dict(_CLASS_DICT.__get__(each))
            if len(attributes) <= self._left:
                self._left -= len(attributes)
                self._copies.append((name, each, attributes))
                waiting += attributes.values()
        while waiting:
            each = waiting.pop()
            ways = _CHANGEABLE.get(id(type(each)))
            if (ways is None and type(each) is not tuple) or id(each) in self._seen:
                continue
            self._seen[id(each)] = each
            size = len(each)
            if size < min(PUT_BACK_PARTS + 1, self._left) and _can_be_read(each):
                self._left -= 1 + size
                if ways is not None:
                    self._copies.append((name, each, ways[0](each)))
                waiting += each.values() if issubclass(type(each), dict) else each
            elif ways is not None:
                self._lengths.append((name, each, size))

    def put_back(self):
        """Each stays the same object, because others may hold it as well. The result says what is not as it was."""
        told = {name: _NOT_COPIED for name, each, size in self._lengths if len(each) != size}
        for name, each, before in self._copies:
            try:
                _put_back(each, before)
            except BaseException as error:  # of code of the session that compares keys
                told[name] = f"what the load changed in it could not be put right: {snapshot_reasons.told(error)}"
        return told


def _can_be_read(container):
    """Whether what it holds can be had without code of the session. Even the keys of an `OrderedDict` are looked up."""
    return type(container) is not OrderedDict or all(id(type(key)) in _PLAIN_KEYS for key in dict.keys(container))


def _put_back(each, before):
    if issubclass(type(each), type):
        now = _CLASS_DICT.__get__(each)
        for name, value in before.items():
            if name not in now or now[name] is not value:
                type.__setattr__(each, name, value)
    elif _ids(each) != _ids(before):
        _, clear, fill = _CHANGEABLE[id(type(each))]
        clear(each)
        fill(each, before)


def _ids(container):
    """What tells whether two of them hold the very same things, without code of the session."""
    kind = type(container)
    if issubclass(kind, dict):
        return [*map(id, container), *map(id, container.values())]
    return (set if kind is set else list)(map(id, container))
