"""Loggers that were set up: no name of the session has to lead to them."""

import sys

from . import snapshot_make

# How they stand among the names.
_ROOT, _PREFIX = "logging.root", "logging.getLogger("


def found():
    """By the name in the snapshot, those that are not as they begin."""
    logging = sys.modules.get("logging")
    try:
        loggers = {f"{_PREFIX}{name!r})": each for name, each in logging.root.manager.loggerDict.items()}
        loggers = {name: each for name, each in loggers.items() if isinstance(each, logging.Logger)}
        loggers[_ROOT] = logging.root
        return {name: each for name, each in loggers.items() if _is_set_up(each, logging)}
    except Exception:
        return {}  # it is not loaded, or not what it was


def is_one(name):
    return isinstance(name, str) and (name == _ROOT or name.startswith(_PREFIX))


def _is_set_up(logger, logging):
    level = logging.WARNING if logger is logging.root else logging.NOTSET
    return bool(logger.handlers or logger.filters or logger.level != level or logger.disabled or not logger.propagate)


# What places a logger among the others, or is made anew.
_OF_REGISTRY = frozenset(("name", "parent", "manager", "_cache"))


def reduce(logger, logging):
    """One that the registry has is taken from there, where others find it too."""
    kind, its_dict = type(logger), object.__getattribute__(logger, "__dict__")
    if logger is not logging.root and logging.root.manager.loggerDict.get(its_dict.get("name")) is not logger:
        state = {name: value for name, value in its_dict.items() if name not in ("manager", "_cache")}
        state["_cache"] = {}
        return snapshot_make.bare, (object, kind), state, None, None, snapshot_make.fill_logger
    state = {name: value for name, value in its_dict.items() if name not in _OF_REGISTRY}
    name = None if logger is logging.root else its_dict["name"]
    arguments = (name,) if kind in (logging.Logger, logging.RootLogger) else (name, kind)
    return snapshot_make.logger, arguments, state, None, None, snapshot_make.fill_logger
