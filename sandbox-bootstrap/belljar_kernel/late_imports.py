"""Modules of the standard library that a runner loads only when a cell needs them."""

import sys

_modules = {}


def from_stdlib(name):
    """The module, never one of the same name in the workspace."""
    module = _modules.get(name)
    if module is None:
        workspace_first = sys.path[:]
        sys.path[:] = [entry for entry in workspace_first if entry]
        try:
            module = __import__(name)
        finally:
            sys.path[:] = workspace_first
        _modules[name] = module
    return module
