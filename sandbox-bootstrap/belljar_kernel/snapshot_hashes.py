"""Puts keys where they are found again whose hash comes from code of a class.

Where an object holds a set or dictionary that holds the object, its hash may be asked for before it has its attributes.
"""

import gc
import types
from collections import Counter, defaultdict

_MENDED = (dict, set, Counter, defaultdict)


def are_by_code(kind):
    """Whether the hash of instances of the class comes from code in Python."""
    found = next((each.__dict__["__hash__"] for each in kind.__mro__ if "__hash__" in each.__dict__), None)
    return isinstance(found, types.FunctionType)


def mend():
    """The result says what could not be mended."""
    missing, known = {}, {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in _MENDED and kind is not frozenset:
            continue
        try:
            if _is_wrong(thing, known):
                if kind is frozenset:
                    missing["a frozenset"] = "it holds an object whose hash was not known when it was loaded"
                else:
                    _fill_again(thing)
        except BaseException:
            pass  # what cannot be hashed or compared now could not before the sleep
    return missing


def _is_wrong(thing, known):
    keys = list(thing)
    if not any(_is_by_code(type(key), known) for key in keys):
        return False
    return not all(key in thing for key in keys)


def _is_by_code(kind, known):
    found = known.get(kind)
    if found is None:
        found = known[kind] = are_by_code(kind)
    return found


def _fill_again(thing):
    contents = list(thing) if type(thing) is set else list(thing.items())
    for key in thing:
        hash(key)  # if that is impossible, it stays as it is
    thing.clear()
    if type(thing) is set:
        thing.update(contents)
    else:
        for key, value in contents:
            thing[key] = value
