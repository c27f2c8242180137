"""Finds what leads to something that could not be made again, and takes it out by name."""

import gc
import sys
import types

from . import snapshot_make, snapshot_unfinished
from .snapshot_classes import HEAP_TYPE, is_module

# Since this version, asking for annotations may run code.
_ANNOTATIONS_ARE_CODE = sys.version_info >= (3, 14)


def take_out(names, loading):
    """Take these names out, and handlers and filters from loggers; the result says why."""
    reasons = {}
    search = _Search(names, loading)
    for name, value in list(names.items()):
        found = search.lost_in(value)
        if found is not None:
            reasons[name] = found
            snapshot_unfinished.hold((names.pop(name),))
    for name, logger in loading.loggers.items():
        found = search.lost_in(logger)
        if found is not None:
            reasons[name] = found
            for parts in (logger.handlers, logger.filters):
                parts[:] = [each for each in parts if search.lost_in(each) is None]
    snapshot_unfinished.hold(thing for thing, _ in loading.spoilt.values())
    return reasons


class _Search:
    def __init__(self, names, loading):
        self._spoilt = loading.spoilt
        self._made_modules = {id(each) for each in loading.made_modules}
        self._of_all = {id(names), id(loading.namespace), id(sys.modules)}
        for each in list(sys.modules.values()):
            if is_module(each) and id(each) not in self._made_modules:
                self._of_all.add(id(each.__dict__))
        self._good = set()  # ids of what leads to nothing lost

    def lost_in(self, value):
        """Why something that the value leads to is lost, or None."""
        seen, waiting = set(), [value]
        while waiting:
            thing = waiting.pop()
            if id(thing) in seen or id(thing) in self._good or self._is_of_all(thing):
                continue
            kind = thing if issubclass(type(thing), type) else type(thing)  # it may give another class as its own
            if issubclass(kind, snapshot_make.Lost):
                return kind.reason
            if id(thing) in self._spoilt:
                return self._spoilt[id(thing)][1]
            seen.add(id(thing))
            waiting += self._parts(thing)
        self._good |= seen
        return None

    def _is_of_all(self, thing):
        """Whether the thing belongs to no value."""
        if is_module(thing):
            return id(thing) not in self._made_modules
        if issubclass(type(thing), type):
            return not thing.__flags__ & HEAP_TYPE
        return id(thing) in self._of_all

    def _parts(self, thing):
        if is_module(thing):
            return list(thing.__dict__.values())
        if type(thing) is types.FunctionType:  # which no class can be below
            annotations = None if _ANNOTATIONS_ARE_CODE else thing.__annotations__
            return [thing.__globals__, thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__, annotations]
        parts = gc.get_referents(thing)
        numpy = sys.modules.get("numpy")
        if numpy is not None and issubclass(type(thing), numpy.ndarray) and thing.dtype.hasobject:
            parts.append(thing.view(numpy.ndarray).tolist())  # the collector does not look into it
        return parts
