"""The states of a session that no name leads to: folders, the environment, randomness, settings of libraries."""

import posix  # not `os`, whose functions user code may replace
import posixpath
import sys
import time

from . import copies, snapshot_classes
from .late_imports import from_stdlib


def first():
    """Those that have to be there before anything is imported."""
    environment = from_stdlib("os").environ
    began = dict(each.partition(b"=")[::2] for each in _read("/proc/self/environ").split(b"\0") if each)
    changed = {key: value for key, value in environment._data.items() if began.get(key) != value}
    removed = [key for key in began if key not in environment._data]
    where = {"path": list(sys.path), "folder": _folder(), "homes": _homes()}
    return {**where, "environment": changed, "removed": removed}


def _homes():
    """The folders of the session's modules that no path leads to now, by the names of the modules: a cell may have imported
    them from a folder that it has left since."""
    paths = {each or _folder() for each in sys.path if type(each) is str}
    found = {}
    for name, module in list(sys.modules.items()):
        if type(name) is str and "." not in name and snapshot_classes.is_of_session(module):
            folder, file = posixpath.split(module.__spec__.origin)
            folder = posixpath.dirname(folder) if file == "__init__.py" else folder
            if folder not in paths:
                found[name] = folder
    return found


def changed_by_packing():
    """Settings that are looked at before variables are packed, which needs others."""
    filters = getattr(sys.modules.get("warnings"), "filters", None)
    if not isinstance(filters, list):
        return {"warnings": None, "warnings_left_out": 0}
    kept = [each for each in list(filters) if _is_filter(each)]
    return {"warnings": kept, "warnings_left_out": len(filters) - len(kept)}


def _is_filter(entry):
    """Whether it can be set again."""
    if type(entry) is not tuple or len(entry) != 5:
        return False
    action, message, category, module, line = entry
    patterns = (type(each) in (type(None), str, from_stdlib("re").Pattern) for each in (message, module))
    return type(action) is str and type(line) is int and all(patterns) and snapshot_classes.is_importable(category)


def _folder():
    try:
        return posix.getcwd()
    except OSError:
        return None


def found():
    """The others."""
    cache = from_stdlib("linecache").cache
    sources = {name: entry for name, entry in list(cache.items()) if is_source(name, entry)}
    kept = {"sources": sources, "random": copies.random_state(), "libraries": {}}
    for name, (look, _) in _LIBRARIES.items():
        if name in sys.modules:
            try:
                kept["libraries"][name] = {key: value for key, value in look(sys.modules[name]).items() if _is_plain(value)}
            except Exception:
                pass  # another version of the library, or user code has replaced what is looked at
    numpy = sys.modules.get("numpy")
    try:
        kept["numpy_random"] = numpy.random.get_state() if numpy is not None and "numpy.random" in sys.modules else None
    except Exception:
        kept["numpy_random"] = None
    return kept


def is_source(name, entry):
    """Whether it is an entry of code that is in no file; a cell may have put anything there."""
    return type(name) is str and type(entry) is tuple and len(entry) == 4 and entry[1] is None and _is_plain(entry)


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def apply_first(settings):
    """Set what `first` has found; the result says what could not be set, and why."""
    sys.path[:] = settings["path"]
    environment = from_stdlib("os").environ
    for key, value in settings["environment"].items():
        environment[environment.decodekey(key)] = environment.decodevalue(value)
    for key in settings["removed"]:
        environment.pop(environment.decodekey(key), None)
    time.tzset()  # the zone may be among the variables
    if settings["folder"] is not None:
        try:
            posix.chdir(settings["folder"])
        except OSError as error:
            return {"the working folder": f"{settings['folder']} is not there any more ({error.strerror})"}
    return {}


def now():
    """What `apply_first` may change, for `put_back`."""
    return list(sys.path), dict(from_stdlib("os").environ), _folder()


def put_back(before):
    path, variables, folder = before
    sys.path[:] = path
    environment = from_stdlib("os").environ
    for key in set(environment).difference(variables):
        del environment[key]
    environment.update(variables)
    time.tzset()
    if folder is not None:
        posix.chdir(folder)


def apply(settings, commands):
    """Set the rest of what no name leads to, as far as it can be."""
    missing = {}
    from_stdlib("linecache").cache.update(settings["sources"])
    if settings["warnings"] is not None:
        warnings = from_stdlib("warnings")
        # A category may be lost.
        warnings.filters[:] = [each for each in settings["warnings"] if issubclass(each[2], Warning)]
        with warnings.catch_warnings():
            pass  # makes known that they have changed
    if settings["warnings_left_out"]:
        missing["warnings.filters"] = "those for warnings of the session's own classes are gone"
    try:
        sys.setrecursionlimit(settings["recursion"])
    except RecursionError as error:
        missing["sys.setrecursionlimit"] = str(error)
    begins = settings["cells_begin_in"]
    if isinstance(begins, str) and begins != commands.folder:
        try:
            posix.listdir(begins)
            commands.folder = begins
        except OSError as error:
            missing["%cd"] = f"{begins} cannot be entered any more ({error.strerror})"
    if settings["random"] is not None:
        from_stdlib("random")
        copies.restore_random(settings["random"])
    for name, changed in settings["libraries"].items():
        try:
            if changed:
                __import__(name)
                _LIBRARIES[name][1](sys.modules[name], changed)
        except Exception as error:
            missing[name] = f"its settings could not be set again: {type(error).__name__}"
    if settings["numpy_random"] is not None:
        try:
            __import__("numpy.random")
            sys.modules["numpy"].random.set_state(settings["numpy_random"])
        except Exception as error:
            missing["numpy.random"] = f"its state could not be set: {type(error).__name__}"
    return missing


# Settings of libraries, as plain values: each library with what reads them and what sets them again.


def _is_plain(value):
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _of_decimal(decimal):
    context = decimal.getcontext()
    kept = {name: getattr(context, name) for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")}
    return {**kept, "traps": [signal.__name__ for signal, is_set in context.traps.items() if is_set]}


def _set_decimal(decimal, kept):
    context, traps = decimal.getcontext(), kept.pop("traps")  # this one may have a name of the session
    for name, value in kept.items():
        setattr(context, name, value)
    for signal in context.traps:
        context.traps[signal] = signal.__name__ in traps


def _of_numpy(numpy):
    return {**numpy.geterr(), **{f"print {name}": value for name, value in numpy.get_printoptions().items()}}


def _set_numpy(numpy, kept):
    printing = {name[len("print ") :]: kept.pop(name) for name in list(kept) if name.startswith("print ")}
    numpy.seterr(**kept)
    known = numpy.get_printoptions()
    numpy.set_printoptions(**{name: value for name, value in printing.items() if name in known and known[name] != value})


def _of_pandas(pandas):
    known = sys.modules["pandas._config.config"]._registered_options
    kept = {name: pandas.get_option(name) for name in known}
    return {name: value for name, value in kept.items() if value != known[name].defval}


def _set_pandas(pandas, kept):
    for name, value in kept.items():
        pandas.set_option(name, value)


def _of_matplotlib(matplotlib):
    before = matplotlib.rcParamsOrig
    kept = dict.items(matplotlib.rcParams)  # its own method may choose a backend
    return {name: value for name, value in kept if "backend" not in name and value != dict.get(before, name)}


def _set_matplotlib(matplotlib, kept):
    matplotlib.rcParams.update(kept)


_LIBRARIES = {
    "decimal": (_of_decimal, _set_decimal),
    "numpy": (_of_numpy, _set_numpy),
    "pandas": (_of_pandas, _set_pandas),
    "matplotlib": (_of_matplotlib, _set_matplotlib),
}
