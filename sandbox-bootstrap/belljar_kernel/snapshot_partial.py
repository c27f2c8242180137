"""Loads what can be loaded of a snapshot whose load has failed: a thing that fails is lost, and all others go on.

This is the unpickler in Python, which takes several times as long as the one in C, and can go on behind a step that
has failed: what later steps refer to is counted on. Steps that end the process are known by their numbers, which are the
same in each load of one snapshot, and are not taken.
"""

import types

from . import snapshot_make, snapshot_reasons, snapshot_records
from .late_imports import from_stdlib

pickle = from_stdlib("pickle")


class LeftOut(Exception):
    """The step is not taken."""


class Steps:
    """Counts the steps that may run code of the session, and says which of them are not taken.

    `deadly` are reasons by the numbers of steps, `until` is the number from which on no step of a name is taken, for the
    reason `beyond`. Between two steps a long value may be read: `mark_read` is told how much.
    """

    def __init__(self, deadly, until=None, beyond="", mark=lambda _number, _may_import: None, mark_read=lambda _count: None):
        self._deadly, self._until, self._beyond, self._mark, self.mark_read = deadly, until, beyond, mark, mark_read
        self._number = 0

    def begin(self, may_import=False):
        self._number += 1
        self._mark(self._number, may_import)
        reason = self._deadly.get(self._number)
        if reason is None and self._until is not None and self._number > self._until:
            reason = self._beyond if snapshot_make.loading.name is not None else None
        if reason is not None:
            raise LeftOut(reason)


def _is_of_kernel(make):
    return type(make) is types.FunctionType and make.__module__ == snapshot_make.__name__


def _made(make, arguments):
    """What the call makes, or something lost."""
    is_of_kernel = _is_of_kernel(make)
    fills = is_of_kernel and make.__name__.startswith("fill_")
    try:
        snapshot_make.loading.unpickling.begin(may_import=is_of_kernel and not fills)
        return make(*arguments)
    except snapshot_records.Broken:
        raise  # nothing more can be read
    except BaseException as error:
        reason = _reason(error)
        if fills:
            snapshot_make.loading.spoil(arguments[0], reason)
        return snapshot_make.lost(reason)()


def _filling(load, drop):
    """The same step; what could not be filled is lost. `drop` takes from the stack what the step would have taken."""

    def step(unpickler):
        try:
            snapshot_make.loading.unpickling.begin()
        except LeftOut as error:
            drop(unpickler)
            snapshot_make.loading.spoil(unpickler.stack[-1], _reason(error))
            return
        try:
            load(unpickler)
        except snapshot_records.Broken:
            raise
        except BaseException as error:
            snapshot_make.loading.spoil(unpickler.stack[-1], _reason(error))

    return step


def _drop_one(unpickler):
    unpickler.stack.pop()


def _drop_two(unpickler):
    del unpickler.stack[-2:]


def _drop_all(unpickler):
    unpickler.pop_mark()


def _reason(error):
    if isinstance(error, LeftOut):
        return str(error)
    return f"it could not be loaded: {snapshot_reasons.told(error)}"


class Unpickler(pickle._Unpickler):
    def find_class(self, module, name):
        try:
            if module != snapshot_make.__name__:
                snapshot_make.loading.unpickling.begin(may_import=True)
            return snapshot_make.found_class(module, name)
        except snapshot_records.Broken:
            raise
        except BaseException as error:
            return snapshot_make.lost(_reason(error))

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
        pickle.BUILD[0]: _filling(pickle._Unpickler.load_build, _drop_one),
        pickle.SETITEM[0]: _filling(pickle._Unpickler.load_setitem, _drop_two),
        pickle.SETITEMS[0]: _filling(pickle._Unpickler.load_setitems, _drop_all),
        pickle.ADDITEMS[0]: _filling(pickle._Unpickler.load_additems, _drop_all),
        pickle.APPEND[0]: _filling(pickle._Unpickler.load_append, _drop_one),
        pickle.APPENDS[0]: _filling(pickle._Unpickler.load_appends, _drop_all),
    }
