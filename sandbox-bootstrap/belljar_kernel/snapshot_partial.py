"""Loads what can be loaded of a snapshot whose load has failed: a thing that fails is lost, and all others go on.

This is the unpickler in Python, which takes several times as long as the one in C, and can go on behind a step that
has failed: what later steps refer to is counted on.
"""

from . import snapshot_make, snapshot_reasons, snapshot_records
from .late_imports import from_stdlib

pickle = from_stdlib("pickle")


def _made(make, arguments):
    """What the call makes, or something lost."""
    try:
        return make(*arguments)
    except snapshot_records.Broken:
        raise  # nothing more can be read
    except BaseException as error:
        reason = _reason(error)
        if getattr(make, "__module__", None) == snapshot_make.__name__ and make.__name__.startswith("fill_"):
            snapshot_make.loading.spoil(arguments[0], reason)
        return snapshot_make.lost(reason)()


def _filling(load):
    """The same step; what could not be filled is lost."""

    def step(unpickler):
        try:
            load(unpickler)
        except snapshot_records.Broken:
            raise
        except BaseException as error:
            snapshot_make.loading.spoil(unpickler.stack[-1], _reason(error))

    return step


def _reason(error):
    return f"it could not be loaded: {snapshot_reasons.told(error)}"


class Unpickler(pickle._Unpickler):
    def find_class(self, module, name):
        return snapshot_make.found_class(module, name)

    def load_reduce(self):
        arguments = self.stack.pop()
        self.stack[-1] = _made(self.stack[-1], arguments)

    def load_newobj(self):
        arguments = self.stack.pop()
        kind = self.stack[-1]
        self.stack[-1] = _made(lambda: kind.__new__(kind, *arguments), ())

    def load_newobj_ex(self):
        named, arguments = self.stack.pop(), self.stack.pop()
        kind = self.stack[-1]
        self.stack[-1] = _made(lambda: kind.__new__(kind, *arguments, **named), ())

    def load_frozenset(self):
        items = self.pop_mark()
        self.append(_made(frozenset, (items,)))

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.FROZENSET[0]: load_frozenset,
        pickle.BUILD[0]: _filling(pickle._Unpickler.load_build),
        pickle.SETITEM[0]: _filling(pickle._Unpickler.load_setitem),
        pickle.SETITEMS[0]: _filling(pickle._Unpickler.load_setitems),
        pickle.ADDITEMS[0]: _filling(pickle._Unpickler.load_additems),
        pickle.APPEND[0]: _filling(pickle._Unpickler.load_append),
        pickle.APPENDS[0]: _filling(pickle._Unpickler.load_appends),
    }
