"""Loads a snapshot into the namespace of a fresh worker: all of it, or nothing."""

import sys

from . import (
    snapshot_assigned,
    snapshot_contents,
    snapshot_hashes,
    snapshot_loggers,
    snapshot_lost,
    snapshot_make,
    snapshot_reasons,
    snapshot_records,
    snapshot_settings,
    snapshot_unfinished,
    snapshot_unflushed,
)
from .late_imports import from_stdlib
from .limits import MISSING_NAME_CHARS, cut
from .snapshot import CODE_OF, FORMAT, LAST, report

pickle = from_stdlib("pickle")


def load(frame, namespace, injected, commands):
    """Serve a `restore` frame; the result is the message that answers it. `commands` know where cells begin."""
    kept = frozenset(frame["keep"])
    loading = snapshot_make.loading = Loading(namespace, injected, kept, is_partial=frame.get("partial", False))
    before, settings_before = dict(namespace), snapshot_settings.now()
    # A folder whose files were looked for a moment ago may have those of the session since.
    from_stdlib("importlib").invalidate_caches()
    try:
        connection = snapshot_records.connect(frame["path"], frame["token"])
        with connection:
            names, settings = loading.read(snapshot_records.Reader(connection))
    except BaseException as error:
        _put_back(namespace, before)
        snapshot_assigned.set_again(loading.attributes_before, loading.attributes)
        snapshot_settings.put_back(settings_before)
        return report(0, error=_told(error, loading.name))
    finally:
        snapshot_make.loading = None
    missing = {**loading.contents.put_back(), **loading.missing, **loading.without_lost(names)}
    lost = {name: found for name, found in loading.attributes_before.items() if name not in names}
    snapshot_assigned.set_again(lost, loading.attributes)
    of_modules = {name: names.pop(name) for name in loading.attributes if name in names}
    restored = {name: names[name] for name in settings["order"] if name in names and name not in kept}
    _put_back(namespace, before)  # so that the names come in the order that they had
    for name in set(settings["deleted"]).difference(kept, names):
        namespace.pop(name, None)  # it was deleted, and is among what every session begins with
    namespace.update(restored)
    missing.update(snapshot_settings.apply(settings, commands))
    missing.update(snapshot_assigned.set_again(of_modules, loading.attributes))
    missing.update(_put_back_unflushed(loading, kept.union(missing)))
    if settings["hashes_by_code"]:
        missing.update(snapshot_hashes.mend())
    return report(len(restored), missing.items(), [each for each in loading.files if each[0] not in missing])


def _put_back_unflushed(loading, dropped):
    """Put what was not flushed back into the buffers of its files; the result says of which files that failed."""
    failed = {}

    def fail(path, pending, why):
        told = f"{len(pending)} bytes that were not flushed were not written to it, write them again: {why}"
        failed[path] = f"{failed[path]}; {told}" if path in failed else told

    for _, path, file, position, pending, before in loading.unflushed:
        try:
            if not snapshot_unflushed.put_back(file, position, pending, before):
                fail(path, pending, "the file was changed since, and goes on at its end")
        except (OSError, ValueError) as error:
            fail(path, pending, error)
    for name, path, file, _, pending, _ in loading.unflushed:
        if name in dropped and not file.closed:  # no code of the session has it, to flush it
            try:
                file.flush()
            except OSError as error:
                fail(path, pending, error)
    return failed


def _put_back(namespace, before):
    namespace.clear()
    namespace.update(before)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        return snapshot_make.found_class(module, name)


class Loading:
    """What the functions that make things again need of the load that is under way."""

    def __init__(self, namespace, injected, kept=frozenset(), is_trial=False, is_partial=False):
        # `is_trial` is a load of what is being packed. Neither that nor a rehearsal touches files or fills buffers.
        self.namespace, self.injected, self.is_trial, self.leaves_files = namespace, injected, is_trial, is_trial
        self._is_partial = is_partial  # what fails is lost, and the load goes on
        self._new_buffer = bytearray
        self.unpickling = None  # the steps of such a load
        self._kept = kept
        self.homes = {}  # folders of modules that no path leads to
        # Of modules, by the names that stand for what they hold; and what was there before, where one is set already.
        self.attributes, self.attributes_before = {}, {}
        self.classes = []  # those of the session that were made since a name was whole
        self.contents = snapshot_contents.Contents(namespace)
        for name in kept.intersection(namespace):
            self.contents.note(name, namespace[name])
        self.opens_nowhere = False  # on trial, a file is being made that is closed again at once
        self.on_failure = lambda _error: None  # it does not come back where the trial itself may be the reason
        self.begin()
        self._reader = self._sizes = None

    def begin(self):
        """Nothing was loaded yet."""
        self._names = {}
        self.missing = {}  # beside the names that lead to something lost
        self.loggers, self.made_modules = {}, []
        self.spoilt = {}  # things that could not be filled and why, by their ids
        self.unflushed = []  # of files, with the names that lead to them: put back when all is loaded
        self.has_lost, self.files, self.name, self.steps = False, [], None, 0

    def try_out(self, section, sizes, mark):
        """The names that could not be loaded, and why; only for a process of its own."""
        snapshot_make.loading, self._sizes = self, iter(sizes)
        try:
            names, _ = self._load(section, mark)
        except BaseException as error:
            self.on_failure(error)
            return {self.name or LAST: f"it cannot be loaded again: {_told(error, None)}"}
        return self.without_lost(names)

    def lost_so_far(self):
        """The names before the one that is being loaded which lead to something lost, and why."""
        return self.without_lost(self._names)

    def without_lost(self, names):
        """Take out what leads to something lost; the result says why."""
        if not self.has_lost:
            return {}
        return snapshot_lost.take_out(names, self)

    def read(self, reader):
        pieces = reader.section()
        sizes = snapshot_records.sizes_of(pieces)
        if self._is_partial:
            from . import snapshot_rehearsal  # hardly ever needed

            self.unpickling = snapshot_rehearsal.steps(lambda steps: self._rehearse(pieces, sizes, steps))
        self._reader, self._sizes = reader, iter(sizes)
        section = snapshot_records.Pieces(pieces)
        del pieces  # each goes as soon as it was read
        found = self._load(section, lambda _name: None)
        reader.end()
        return found

    def _rehearse(self, pieces, sizes, steps):
        """Load all in a process that is there only for that."""
        from . import snapshot_rehearsal

        self.leaves_files, self.unpickling, self._sizes = True, steps, iter(sizes)
        self._new_buffer = snapshot_rehearsal.untouched_memory
        self._load(snapshot_records.Pieces(list(pieces), steps.mark_read), lambda _name: None)

    def _load(self, section, mark):
        """The things by name, and the settings."""
        unpickler = self._unpickler(section)
        try:
            return self._load_with(unpickler, mark)
        except BaseException:
            snapshot_unfinished.hold(unpickler.memo.copy().values())
            raise

    def _unpickler(self, section):
        if self._is_partial:
            from . import snapshot_partial  # hardly ever needed

            return snapshot_partial.Unpickler(section, buffers=self._buffers())
        return _Unpickler(section, buffers=self._buffers())

    def _load_with(self, unpickler, mark):
        form, code_of, _, first = unpickler.load()  # and what is there in every session
        if form != FORMAT or code_of != CODE_OF:
            raise snapshot_records.Broken("it was made by another version of Python")
        # The modules of the session are found by its paths, and may look at its environment.
        self.homes, self.attributes = first.get("homes", {}), first.get("attributes", {})
        self.missing.update(snapshot_settings.apply_first(first))
        names = self._names
        while True:
            self.name = name = unpickler.load()
            self.steps += 1
            mark(name)
            value = unpickler.load()
            if name is None:
                break
            if snapshot_loggers.is_one(name):
                self.loggers[name] = value
                continue
            names[name] = value
            if not self.leaves_files:  # such a process ends before anything is put back
                self.contents.note(name, value, self.classes)
            self.classes.clear()
            # Code of the session that the load calls may need it.
            if name in self.attributes:
                self._set_early(name, value)
            elif name not in self._kept:
                self.namespace[name] = value
        if next(self._sizes, None) is not None:
            raise snapshot_records.Broken("there are more buffers than are used")
        return names, value

    def _set_early(self, name, of_module):
        if not self.is_trial:  # there the modules are those of the session
            before = snapshot_assigned.set_early(name, of_module, self.attributes)
            if before is not None:
                self.attributes_before[name] = before

    def _next_size(self):
        size = next(self._sizes, None)
        if size is None:
            raise snapshot_records.Broken("there are fewer buffers than are used")
        return size

    def _buffers(self):
        while True:
            size = self._next_size()
            data = self._new_buffer(size)
            if not self.leaves_files:
                self._reader.section_into(memoryview(data))
            yield data

    def spoil(self, thing, reason):
        self.has_lost = True
        self.spoilt[id(thing)] = thing, reason

    def pass_section(self):
        """Let go of the next one, whose array cannot be made."""
        size = self._next_size()
        if not self.leaves_files:
            self._reader.pass_section(size)

    def section_into(self, view):
        if self._next_size() != view.nbytes:
            raise snapshot_records.Broken("a buffer has another size than its array")
        if not self.leaves_files:
            self._reader.section_into(view)

    def reopened(self, path):
        self.files.append((self.name, path))


def _told(error, name):
    told = snapshot_reasons.told(error)
    return told if name is None else f"loading {cut(str(name), MISSING_NAME_CHARS)}: {told}"
