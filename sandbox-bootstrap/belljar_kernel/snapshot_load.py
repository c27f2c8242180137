"""Loads a snapshot into the namespace of a fresh worker: all of it, or nothing."""

import gc
import sys
import types

from . import snapshot_make, snapshot_records, snapshot_settings, snapshot_unfinished
from .late_imports import from_stdlib
from .snapshot import CODE_OF, FORMAT, LAST, LOGGING, report
from .snapshot_classes import HEAP_TYPE

pickle = from_stdlib("pickle")


def load(frame, namespace, injected, commands):
    """Serve a `restore` frame; the result is the message that answers it. `commands` know where cells begin."""
    kept = frozenset(frame["keep"])
    loading = snapshot_make.loading = Loading(namespace, injected, kept)
    before, settings_before = dict(namespace), snapshot_settings.now()
    try:
        connection = snapshot_records.connect(frame["path"], frame["token"])
        with connection:
            names, settings = loading.read(snapshot_records.Reader(connection))
    except BaseException as error:
        _put_back(namespace, before)
        snapshot_settings.put_back(settings_before)
        return report(0, error=_told(error, loading.name))
    finally:
        snapshot_make.loading = None
    missing = {**loading.missing, **(_without_lost(names) if loading.has_lost else {})}
    restored = {name: names[name] for name in settings["order"] if name in names and name not in kept}
    _put_back(namespace, before)  # so that the names come in the order that they had
    for name in set(settings["deleted"]).difference(kept, names):
        namespace.pop(name, None)  # it was deleted, and is among what every session begins with
    namespace.update(restored)
    missing.update(snapshot_settings.apply(settings, commands))
    missing.update(_done(loading))
    return report(len(restored), missing.items(), [each for each in loading.files if each[0] not in missing])


def _done(loading):
    failed = {}
    for path, do in loading.when_done:
        try:
            do()
        except OSError as error:
            failed[path] = f"what was not flushed could not be written to it: {error}"
    return failed


def _put_back(namespace, before):
    namespace.clear()
    namespace.update(before)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == snapshot_make.__name__:
            return getattr(snapshot_make, name)
        found = snapshot_make.module(module)
        if isinstance(found, type):
            return found  # the module is lost
        return snapshot_make.attribute(module, name)


class Loading:
    """What the functions that make things again need of the load that is under way."""

    def __init__(self, namespace, injected, kept=frozenset(), is_trial=False):
        self.namespace, self.injected, self.is_trial = namespace, injected, is_trial
        self._kept = kept
        self.missing = {}  # beside the names that lead to something lost
        self.when_done = []  # for each file what is done when all is loaded
        self.has_lost, self.files, self.name, self.steps = False, [], None, 0
        self._reader = self._sizes = None

    def try_out(self, section, sizes, mark):
        """The names that could not be loaded, and why; only for a process of its own."""
        snapshot_make.loading, self._sizes = self, iter(sizes)
        try:
            names, _ = self._load(section, mark)
        except BaseException as error:
            return {self.name or LAST: f"it cannot be loaded again: {_told(error, None)}"}
        return _without_lost(names) if self.has_lost else {}

    def read(self, reader):
        pieces = reader.section()
        self._reader, self._sizes = reader, iter(snapshot_records.sizes_of(pieces))
        section = snapshot_records.Pieces(pieces)
        del pieces  # each goes as soon as it was read
        found = self._load(section, lambda _name: None)
        reader.end()
        return found

    def _load(self, section, mark):
        """The things by name, and the settings."""
        unpickler = _Unpickler(section, buffers=self._buffers())
        try:
            return self._load_with(unpickler, mark)
        except BaseException:
            snapshot_unfinished.hold(unpickler.memo.copy().values())
            raise

    def _load_with(self, unpickler, mark):
        form, code_of, _, first = unpickler.load()  # and what is there in every session
        if form != FORMAT or code_of != CODE_OF:
            raise snapshot_records.Broken("it was made by another version of Python")
        # The modules of the session are found by its paths, and may look at its environment.
        self.missing.update(snapshot_settings.apply_first(first))
        names = {}
        while True:
            self.name = name = unpickler.load()
            self.steps += 1
            mark(name)
            value = unpickler.load()
            if name is None:
                break
            if name != LOGGING:
                names[name] = value
                if name not in self._kept:
                    self.namespace[name] = value  # code of the session that the load calls may need it
        if next(self._sizes, None) is not None:
            raise snapshot_records.Broken("there are more buffers than are used")
        return names, value

    def _next_size(self):
        size = next(self._sizes, None)
        if size is None:
            raise snapshot_records.Broken("there are fewer buffers than are used")
        return size

    def _buffers(self):
        while True:
            size = self._next_size()
            data = bytearray(size)
            if not self.is_trial:
                self._reader.section_into(memoryview(data))
            yield data

    def section_into(self, view):
        if self._next_size() != view.nbytes:
            raise snapshot_records.Broken("a buffer has another size than its array")
        if not self.is_trial:
            self._reader.section_into(view)

    def reopened(self, path):
        self.files.append((self.name, path))


def _told(error, name):
    try:
        told = f"{type(error).__name__}: {error}"
    except BaseException:
        told = type(error).__name__
    return told if name is None else f"loading {name}: {told}"


def _without_lost(names):
    """Take out the names that lead to something lost; the result says why."""
    reasons = {}
    good = set()  # ids of what leads to nothing lost
    for name, value in list(names.items()):
        found = _lost_in(value, names, good)
        if found is not None:
            reasons[name] = found
            snapshot_unfinished.hold((names.pop(name),))
    return reasons


def _lost_in(value, names, good):
    """Why something that the value leads to is lost, or None."""
    seen, waiting = set(), [value]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or id(thing) in good or isinstance(thing, types.ModuleType):
            continue
        kind = thing if isinstance(thing, type) else type(thing)
        if issubclass(kind, snapshot_make.Lost):
            return kind.reason
        seen.add(id(thing))
        if thing is names or thing is sys.modules:
            continue
        if isinstance(thing, types.FunctionType):
            waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        elif isinstance(thing, type) and not thing.__flags__ & HEAP_TYPE:
            continue
        elif isinstance(thing, dict) and "__builtins__" in thing:
            continue  # globals
        else:
            waiting += gc.get_referents(thing)
            if isinstance(thing, types.BuiltinMethodType) or kind.__module__ == "numpy":
                continue
    good |= seen
    return None
