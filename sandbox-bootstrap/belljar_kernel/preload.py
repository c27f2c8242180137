"""Modules that are in the namespace from the start, so that cells need not import them."""

import sys
import warnings

from .late_imports import from_stdlib
from .limits import FAMILY_MODULES, cut

# Left out of the families: they print, open windows, or only install and test other modules.
_NOT_FOR_CELLS = frozenset(
    ("antigravity", "this", "test", "idlelib", "turtledemo", "lib2to3", "ensurepip", "pip", "setuptools")
    + ("pkg_resources", "wheel")
)
THIRD_PARTY_FOLDERS = ("/site-packages", "/dist-packages")
# Where installed packages appear, while the sandbox runs.
PACKAGES = "/belljar/packages/site"


def preload(frame, limits):
    """The imported objects by name, the modules of families by name, and the answer for the daemon."""
    bound, failed, skipped = {}, [], []
    for statement in frame["imports"]:
        names = {}
        error = _error_of(lambda: exec(compile(statement, "<preload>", "exec", dont_inherit=True), names))
        names.pop("__builtins__", None)
        if error is None:
            bound.update(names)
        else:
            failed.append({"import": statement, "error": cut(error, limits.exception_chars)})
    families = {}
    for name in _members(frame["families"]):
        error = _error_of(lambda: families.update({name: _module(name)}))
        if error is not None:
            skipped.append({"import": name, "error": cut(error, limits.preview_chars)})
    names = len(bound.keys() | families.keys())
    return bound, families, {"names": names, "failed": failed, "skipped": skipped}


def _error_of(act):
    """The error as text, or None. Nothing that a module raises while it is imported reaches the caller."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            act()
    except BaseException as error:
        try:
            return f"{type(error).__name__}: {error}"
        except BaseException:
            return type(error).__name__
    return None


def _module(name):
    __import__(name)
    return sys.modules[name]


def _members(families):
    """Names of modules, without those that are private."""
    names = set()
    if "stdlib" in families:
        names.update(sys.stdlib_module_names)
    if "third-party" in families:
        folders = [entry for entry in sys.path if entry == PACKAGES or entry.endswith(THIRD_PARTY_FOLDERS)]
        names.update(module.name for module in from_stdlib("pkgutil").iter_modules(folders))
    usable = [name for name in names if name.isidentifier() and not name.startswith("_")]
    return sorted(set(usable) - _NOT_FOR_CELLS)[:FAMILY_MODULES]
