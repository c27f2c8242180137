"""Exceptions, taken apart with the exceptions that led to them."""

import types

from . import snapshot_make


_PLACES = types.MemberDescriptorType, types.GetSetDescriptorType


def plan(kind, base, own_reduce, packing):
    """How exceptions of this class are taken apart; `base` is the nearest one that is made in C.

    The ways of the C ones forget `__cause__` and `__context__`; that of a Python class is followed for all else.
    """
    is_own = _is_python(kind, "__reduce_ex__") or _is_python(kind, "__reduce__")

    def reduce(error):
        if error.__traceback__ is not None:
            packing.note("__traceback__", "an exception came back without the traceback of where it was raised")
        links = error.__cause__, error.__context__, error.__suppress_context__
        if not is_own:
            reduced = base.__reduce__(error)
            attributes = dict((*reduced[2:], None)[0] or {})
            # Some are places in the C object, such as the `name` of an `ImportError`.
            members = {name: attributes.pop(name) for name in list(attributes) if hasattr(base, name)}
            members.update(_members(error, kind))
            if isinstance(error, AttributeError) and members.pop("obj", None) is not None:
                packing.note("obj", "an exception came back without the object that had no such attribute")
            state = *links, members, attributes
            return snapshot_make.exception, (base, kind, reduced[1]), state, None, None, snapshot_make.fill_exception
        reduced = own_reduce(error)
        if not any(links):
            return reduced
        if isinstance(reduced, str) or len(reduced) > 3:
            packing.note("__cause__", "an exception came back without the exceptions that led to it")
            return reduced
        state = *links, (*reduced[2:], None)[0]
        return (*reduced[:2], state, None, None, snapshot_make.fill_own_exception)

    return reduce


def _members(error, kind):
    """What it holds in places of its classes: those of C ones, such as the `code` of a `SystemExit`, and slots."""
    found, seen = {}, {*BaseException.__dict__, *object.__dict__, "__weakref__"}
    for each in kind.__mro__:
        for name, place in each.__dict__.items():
            if name not in seen and isinstance(place, _PLACES):
                try:
                    found[name] = place.__get__(error)
                except AttributeError:
                    pass  # nothing is in it
            seen.add(name)
    return found


def _is_python(kind, name):
    found = next(each.__dict__[name] for each in kind.__mro__ if name in each.__dict__)
    return isinstance(found, (types.FunctionType, staticmethod, classmethod))
