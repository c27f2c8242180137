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


def reduce(logger, logging):
    state = {name: logger.__dict__[name] for name in ("level", "propagate", "handlers", "disabled", "filters")}
    name = None if logger is logging.root else logger.name
    return snapshot_make.logger, (name,), state, None, None, snapshot_make.fill_logger
