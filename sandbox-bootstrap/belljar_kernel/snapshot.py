"""Packs the variables of a session in a copy of its process, and sends them to the daemon.

The variables are one pickle, name after name with one memory of what was seen, so that things keep their identity.
What cannot be packed is left out by name, with the reason. First the pickle is held back, or thrown away if it is large:
a name that turns out to be impossible must not be half sent. Processes do it of which one may die of a variable.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import builtins
import platform
import posix  # not `os`, whose functions user code may replace
import sys
import types

from . import (
    copies,
    process,
    snapshot_assigned,
    snapshot_classes,
    snapshot_loggers,
    snapshot_make,
    snapshot_reasons,
    snapshot_records,
    snapshot_settings,
    wire,
)
from .late_imports import from_stdlib
from .limits import (
    COMPUTE_OOM_SCORE,
    INLINE_BYTES,
    MISSING_NAME_CHARS,
    MISSING_NAMES,
    MISSING_REASON_CHARS,
    PACK_DEATHS,
    PACK_KILLS,
    PACK_SILENT_S,
    PACK_TRIES,
    PATCHES_LOOKED_AT,
    SPOOL_BYTES,
    cut,
)
from .snapshot_reduce import Reducer, Reference
from .snapshot_watch import Progress, Stuck, Watch, end_of_packer

pickle = from_stdlib("pickle")

FORMAT = 1
PYTHON = platform.python_version()
# Code is packed as this version keeps it, which no other can read.
CODE_OF = sys.implementation.cache_tag
_OWN_NAMES = frozenset(("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__warningregistry__"))
LAST = "the settings of the interpreter"
_IMPORTED_ANEW = (
    "a module of the session's files, imported anew: what was changed in it is gone, but for what cells assigned to it"
)


def pack(frame, namespace, injected, own, known):
    """Serve a `snapshot` frame. Returns when the end was told. `own` are those of `injected` that the kernel makes, and
    `known` are settings that only the runner knows."""
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # no handler of the user sees these children
    from_stdlib("gc").disable()  # no finalizer of the user runs here
    process.set_oom_score(COMPUTE_OOM_SCORE)
    connection = snapshot_records.connect(frame["path"], frame["token"])
    progress = Progress()
    names = [name for name in namespace if _is_packed(name, namespace[name], injected)]
    assigned = snapshot_assigned.found(namespace, known["cells_forgotten"])
    names += [*snapshot_loggers.found(), *assigned.things]
    names.sort(key=lambda name: _when(name, namespace, assigned.things))
    deleted = [name for name in injected if name not in namespace]
    known = {**known, "deleted": deleted, **snapshot_settings.changed_by_packing()}
    left_out, kills = {}, 0
    for _ in range(PACK_DEATHS + 1):
        progress.begin()
        packer = _child(lambda: _Attempts(frame, namespace, own, known, assigned, names, left_out, connection, progress).run())
        status, was_stuck = end_of_packer(packer, progress)
        if status == 0:
            return
        place = progress.packed
        if progress.is_sending or not 0 <= place < len(names):
            break
        if was_stuck:
            left_out[names[place]] = f"packing it makes no progress for {PACK_SILENT_S:.0f} s, and does not heed signals"
            continue
        left_out[names[place]] = f"the process ended while it was packed ({death(status)})"
        kills += status == -_signal.SIGKILL
        if kills > PACK_KILLS:
            break
    if not progress.is_sending:
        reason = f"the processes that pack the variables end again and again, the last one with {death(status)}"
        snapshot_records.Writer(connection, 0).give_up("not_packed", reason)


def death(status):
    if status == -_signal.SIGKILL:
        return "signal 9, which is sent by code, or where memory is short"
    return f"signal {-status}" if status < 0 else f"exit code {status}"


def _child(work):
    """The process that does the work."""
    random_state = copies.random_state()
    child = copies.silently(posix.fork)
    if child == 0:
        code = 1
        try:
            copies.restore_random(random_state)
            work()
            code = 0
        finally:
            posix._exit(code)
    return child


def _in_child(work, meanwhile=None):
    """How the process ended that has done the work: as in `subprocess`."""
    child = _child(work)
    if meanwhile is not None:
        meanwhile()
    return posix.waitstatus_to_exitcode(posix.waitpid(child, 0)[1])


def _is_packed(name, value, injected):
    if not isinstance(name, str) or name in _OWN_NAMES:
        return False
    return name not in injected or injected[name] is not value


def _when(name, namespace, of_modules):
    """The place of a name among the others: code that the load calls may need modules with their attributes, functions and
    classes."""
    if name in of_modules:
        _, *values = of_modules[name]
        return 1 if snapshot_assigned.are_plain(values) else 4
    if name not in namespace:
        return 4
    kind = type(namespace[name])  # an instance may give another class as its own
    if issubclass(kind, types.ModuleType):
        return 0
    return 2 if issubclass(kind, (type, types.FunctionType)) else 3


class _Attempts:
    """Tries until all names that are left can be packed, then sends."""

    def __init__(self, frame, namespace, injected, known, assigned, names, left_out, connection, progress):
        self._namespace, self._injected, self._known, self._names = namespace, injected, known, names
        self._assigned = assigned
        self._left_out, self._progress = left_out, progress
        self._most = frame["bytes"]
        self._writer = snapshot_records.Writer(connection, self._most)
        self.open_files = {}

    def run(self):
        _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
        from_stdlib("warnings").simplefilter("ignore")
        try:
            self._try()
        except snapshot_records.TooLarge:
            self._writer.give_up("too_large", f"the variables take more than {self._most} bytes")
        except OSError:
            raise
        except BaseException as error:
            self._writer.give_up("not_packed", _told(error))

    def _try(self):
        is_first = True
        for _ in range(PACK_TRIES):
            spool = snapshot_records.Spool(SPOOL_BYTES, self._most)
            packing = self._packing_into(spool)
            failed = packing.names(self._names, self._left_out, goes_on=True)
            self._left_out.update(failed)
            if failed:
                continue
            if self._cannot_be_loaded(spool, packing, is_first):
                is_first = False
                continue
            self._progress.packed, self._progress.is_sending = -1, True
            if spool.pieces is None:
                packing = self._packing_into(self._writer)
                failed = packing.names(self._names, self._left_out, goes_on=False)
                if failed:
                    name, reason = next(iter(failed.items()))
                    self._writer.give_up("not_packed", cut(f"{name}: {reason}", MISSING_REASON_CHARS))
                    return
            else:
                for piece in spool.pieces:
                    self._writer.write(piece)
            self._send_rest(packing)
            return
        self._writer.give_up("not_packed", "variables fail to be packed again and again")

    def _packing_into(self, sink, beat=None):
        beat = beat or self._progress.packer_beat
        known, assigned = self._known, self._assigned
        return Packing(self._namespace, self._injected, known, assigned, sink, self.open_files, self._mark, beat)

    def _mark(self, place):
        self._progress.packed = place

    def _cannot_be_loaded(self, spool, packing, is_first):
        """Leave out the names that fail when what was packed is loaded; whether there are any."""
        from . import snapshot_trial  # it needs this module

        trial = snapshot_trial.Trial(
            self._namespace, self._injected, self._names, self._packing_into, self._progress, _in_child
        )
        failed, status = trial.together(spool, packing, self._left_out)
        if status and not failed and not snapshot_trial.is_for_want_of_memory(status):
            failed = {LAST: f"loading them again ended the process ({death(status)})"}
        if LAST in failed:
            raise pickle.PicklingError(f"{LAST}: {failed[LAST]}")
        self._left_out.update(failed)
        if failed and not is_first:
            self._left_out.update(trial.one_by_one(self._left_out))
        return bool(failed)

    def _send_rest(self, packing):
        writer = self._writer
        writer.write(snapshot_records.footer([each.nbytes for each in packing.buffers]))
        writer.end_section()
        for buffer in packing.buffers:
            writer.write(buffer)
            writer.end_section()
        missing = [(name, reason) for name, reason in self._left_out.items()]
        missing += packing.notes.items()
        patches = snapshot_classes.patches(self._namespace, PATCHES_LOOKED_AT)
        anew = [name for name, module in list(sys.modules.items()) if snapshot_classes.is_of_session(module)]
        missing += [(name, _IMPORTED_ANEW) for name in anew]
        missing += {**self._assigned.missing, **dict.fromkeys(patches, snapshot_assigned.REPLACED)}.items()
        writer.end(
            {
                "format": FORMAT,
                "python": PYTHON,
                "variables": len(set(self._names).intersection(self._namespace).difference(self._left_out)),
                "missing": missing_list(missing),
                "files": files_list(packing.files),
                "sections": 1 + len(packing.buffers),
                "bytes": writer.sent,
                "modules": len(packing.modules),
            }
        )


def missing_list(missing):
    if len(missing) > MISSING_NAMES:
        listed = missing[: MISSING_NAMES - 1]
        missing = [*listed, (f"{len(missing) - len(listed)} more names", "only so many are listed")]
    return [
        {"name": cut(name, MISSING_NAME_CHARS), "reason": cut(reason, MISSING_REASON_CHARS)} for name, reason in missing
    ]


def files_list(files):
    return [{"name": cut(name, MISSING_NAME_CHARS), "path": path} for name, path in list(dict.fromkeys(files))[:MISSING_NAMES]]


class Packing:
    """One pickle of the names, and what belongs to it."""

    def __init__(self, namespace, injected, known, assigned, sink, open_files, mark, beat):
        self.namespace, self.injected, self.open_files = namespace, injected, open_files
        self._known = known  # what only the runner knows of the session's settings
        self._sink, self._mark = sink, mark
        self._watch = Watch(lambda: (sink, self._steps), beat)
        self._name = LAST
        self.modules, self.files, self.notes, self.buffers = set(), [], {}, []
        self.hashes_by_code = False
        self.copied_at_most = 0  # bytes of buffers that the load may copy, which are not of arrays
        self._steps = 0
        self._attributes = assigned.attributes
        self._beside = {**snapshot_loggers.found(), **assigned.things}  # what is no variable
        self._begin()

    def _begin(self):
        """A pickler that has met nothing but what is there in every session."""
        reduce = Reducer(self)

        class Pickler(pickle.Pickler):
            def reducer_override(_self, thing):  # noqa: N805
                self._steps += 1
                return reduce(thing)

        self._pickler = Pickler(self, 5, buffer_callback=self._take_buffer)
        given = self._given()
        references = [Reference(*made) for _, made in given]
        first = {**snapshot_settings.first(), "attributes": self._attributes}
        self._pickler.dump((FORMAT, CODE_OF, references, first))
        # What is met from here on with one of these identities is the thing that the reference makes.
        memo = self._pickler.memo.copy()
        for (thing, _), reference in zip(given, references):  # noqa: B905
            number, _ = memo.pop(id(reference))
            memo[id(thing)] = number, thing
        self._pickler.memo = memo
        self._given_things = given, references

    def write(self, data):
        """What the pickler has made; and that it goes on, of which a variable may have stopped the signal."""
        self._watch.arm()
        self._sink.write(data)

    def _given(self):
        kernel_builtins = sys.modules["belljar_kernel"]._BUILTINS
        return [
            (self.namespace, (snapshot_make.namespace, ())),
            (builtins.__dict__, (snapshot_make.module_globals, ("builtins",))),
            (kernel_builtins, (snapshot_make.module_globals, ("builtins",))),
            (sys.modules, (snapshot_make.attribute, ("sys", "modules"))),
            (sys.path, (snapshot_make.attribute, ("sys", "path"))),
            (sys.argv, (snapshot_make.attribute, ("sys", "argv"))),
        ]

    def _take_buffer(self, buffer):
        """Small ones become part of the pickle, and those whose memory is in pieces."""
        try:
            raw = buffer.raw()
        except BufferError:
            return True
        if raw.nbytes < INLINE_BYTES:
            return True
        self.add_buffer(raw)
        self.copied_at_most += raw.nbytes
        return False

    def add_buffer(self, view):
        self.buffers.append(view)

    def note(self, name, reason):
        self.notes[f"{cut(self._name, MISSING_NAME_CHARS)}.{name}"] = cut(reason, MISSING_REASON_CHARS)

    def note_file(self, path):
        self.files.append((self._name, path))

    def names(self, names, left_out, goes_on):
        """Pack them one after the other; the result says why which of them failed."""
        failed = {}
        with self._watch as watch:
            for place, name in enumerate(names):
                if name in left_out:
                    continue
                self._name = name
                self._mark(place)
                watch.begin()
                try:
                    self._pickler.dump(name)
                    self._pickler.dump(self._beside[name] if name in self._beside else self.namespace[name])
                except snapshot_records.TooLarge:
                    raise
                except OSError as error:
                    if not goes_on:
                        raise
                    failed[name] = _told(error)
                except BaseException as error:
                    failed[name] = _told(error)
                if name in failed:
                    if not goes_on:
                        return failed
                    self._begin()  # what it has met in vain is not in the stream
            self._name = LAST
            self._mark(-1)
            if not failed:
                self._pickler.dump(None)
                order = [name for name in self.namespace if isinstance(name, str)]
                self._pickler.dump({**snapshot_settings.found(), **self._known, "order": order, "hashes_by_code": self.hashes_by_code})
        return failed


def _told(error):
    """Why a variable could not be packed, in words."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    is_plain = isinstance(error, (pickle.PicklingError, Stuck))
    return snapshot_reasons.message(error) if is_plain else snapshot_reasons.told(error)


def report(restored, missing=(), reopened=(), error=None):
    """The answer to a `restore` frame, as its message."""
    words = {
        "restored": restored,
        "missing": missing_list(list(missing)),
        "reopened": files_list(reopened),
        "error": None if error is None else cut(error, MISSING_REASON_CHARS),
    }
    return (b"\0" if error is not None else b"\1") + wire.encode_json({"report": words})
