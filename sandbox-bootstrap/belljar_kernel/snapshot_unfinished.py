"""Keeps alive what a load has made in vain, where its end would run code.

An object whose load has failed half-way, or that holds something lost, is not what its `__del__` expects. Such code may
delete the files of another object, for want of the attribute that names its own.
"""

import gc
import sys
import types

_held = []  # as long as the process lives, which ends without the end of its objects
_NOT_ENTERED = (types.ModuleType, types.FunctionType, type)


def hold(things):
    """Keep all that these things lead to and that has a `__del__`."""
    seen, waiting = set(), list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or issubclass(type(thing), _NOT_ENTERED) or thing is sys.modules or _is_globals(thing):
            continue
        seen.add(id(thing))
        if any("__del__" in each.__dict__ for each in type(thing).__mro__):
            _held.append(thing)  # and with it what it holds
        else:
            waiting += gc.get_referents(thing)


def _is_globals(thing):
    return type(thing) is dict and "__builtins__" in thing
