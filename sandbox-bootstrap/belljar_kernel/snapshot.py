"""Packs the variables of a session in a copy of its process, and sends them to the daemon.

The variables are one pickle, name after name with one memory of what was seen, so that things keep their identity.
What cannot be packed is left out by name, with the reason. First the pickle is held back, or thrown away if it is large:
a name that turns out to be impossible must not be half sent. Processes do it of which one may die of a variable.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import builtins
import io
import mmap
import platform
import posix  # not `os`, whose functions user code may replace
import struct
import sys
import types

from . import copies, process, snapshot_classes, snapshot_make, snapshot_records, snapshot_settings, wire
from .late_imports import from_stdlib
from .limits import (
    COMPUTE_OOM_SCORE,
    INLINE_BYTES,
    LEFT_OUT_BYTES,
    MISSING_NAME_CHARS,
    MISSING_NAMES,
    MISSING_REASON_CHARS,
    PACK_DEATHS,
    PACK_RECURSION,
    PACK_STUCK_LOOKS,
    PACK_TRIES,
    PATCHES_LOOKED_AT,
    RECORD_BYTES,
    SPOOL_BYTES,
    TRY_OUT_BYTES,
    cut,
)
from .snapshot_reduce import Reducer, Reference

pickle = from_stdlib("pickle")

FORMAT = 1
PYTHON = platform.python_version()
# Code is packed as this version keeps it, which no other can read.
CODE_OF = sys.implementation.cache_tag
_OWN_NAMES = frozenset(("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__warningregistry__"))
# Whether it is sending, the place of the name that it packs, and the place of the name that is tried out.
_PLACE = struct.Struct("<qqq")
LAST = "the settings of the interpreter"
# Stands among the names for the root of all loggers, which has no name of the session.
LOGGING = "logging.root"


def pack(frame, namespace, injected, own, folder):
    """Serve a `snapshot` frame. Returns when the end was told. `own` are those of `injected` that the kernel makes, and
    `folder` is where cells begin."""
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # no handler of the user sees these children
    process.set_oom_score(COMPUTE_OOM_SCORE)
    connection = snapshot_records.connect(frame["path"], frame["token"])
    progress = mmap.mmap(-1, _PLACE.size)
    names = [name for name in namespace if _is_packed(name, namespace[name], injected)]
    names.sort(key=lambda name: _when(namespace[name]))
    if _logs():
        names.append(LOGGING)
    left_out = {}
    for _ in range(PACK_DEATHS + 1):
        progress[:] = _PLACE.pack(0, -1, -1)
        status = _in_child(lambda: _Attempts(frame, namespace, own, folder, names, left_out, connection, progress).run())
        if status == 0:
            return
        is_sending, place, _ = _PLACE.unpack(progress[:])
        if is_sending or not 0 <= place < len(names):
            break
        left_out[names[place]] = f"packing it ended the process ({_death(status)})"
    else:
        snapshot_records.Writer(connection, 0).give_up("not_packed", "too many variables end the process that packs them")
        return
    if not is_sending:
        snapshot_records.Writer(connection, 0).give_up("not_packed", "the process that packed the variables ended")


def _death(status):
    return f"signal {-status}" if status < 0 else f"exit code {status}"


def _in_child(work, meanwhile=None):
    """How the process ended that has done the work: as in `subprocess`."""
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
    if meanwhile is not None:
        meanwhile()
    return posix.waitstatus_to_exitcode(posix.waitpid(child, 0)[1])


def _is_packed(name, value, injected):
    if not isinstance(name, str) or name in _OWN_NAMES:
        return False
    return name not in injected or injected[name] is not value


def _when(thing):
    """The place of a name among the others: code that the load calls may need modules, functions and classes."""
    kind = type(thing)  # an instance may give another class as its own
    if issubclass(kind, types.ModuleType):
        return 0
    return 1 if issubclass(kind, (type, types.FunctionType)) else 2


def _logs():
    logging = sys.modules.get("logging")
    return logging is not None and (logging.root.handlers or logging.root.level != logging.WARNING)


class Stuck(Exception):
    """A variable makes no progress."""


class _Attempts:
    """Tries until all names that are left can be packed, then sends."""

    def __init__(self, frame, namespace, injected, folder, names, left_out, connection, progress):
        self._namespace, self._injected, self._folder, self._names = namespace, injected, folder, names
        self._left_out, self._progress = left_out, progress
        self._most = frame["bytes"]
        self._writer = snapshot_records.Writer(connection, self._most)
        self.open_files = {}

    def run(self):
        _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
        sys.setrecursionlimit(PACK_RECURSION)
        from_stdlib("gc").disable()
        from_stdlib("warnings").simplefilter("ignore")
        try:
            self._try()
        except snapshot_records.TooLarge:
            self._writer.give_up("too_large", f"the variables take more than {self._most} bytes")
        except OSError:
            raise
        except BaseException as error:
            self._writer.give_up("not_packed", cut(_told(error), MISSING_REASON_CHARS))

    def _try(self):
        for _ in range(PACK_TRIES):
            spool = snapshot_records.Spool(SPOOL_BYTES, self._most)
            packing = self._packing_into(spool)
            failed = packing.names(self._names, self._left_out, goes_on=True)
            self._left_out.update(failed)
            if failed:
                continue
            if not self._can_be_loaded(spool, packing):
                continue
            self._mark(-1, is_sending=True)
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

    def _packing_into(self, sink):
        return Packing(self._namespace, self._injected, self._folder, sink, self.open_files, self._mark)

    def _can_be_loaded(self, spool, packing):
        """Whether what was packed can be loaded, tried out in another process; else the name that cannot is left out.

        Buffers are not filled there, and so take no memory. What was too large to be kept is packed once more for it,
        unless it is so large that trying it out would take the memory that checkpoints may have.
        """
        from . import snapshot_load

        if spool.pieces is None and spool.written > TRY_OUT_BYTES:
            return True
        reads, writes = posix.pipe()
        hears, feeds = posix.pipe() if spool.pieces is None else (None, None)
        sizes = [each.nbytes for each in packing.buffers]

        def try_out():
            posix.close(reads)
            if feeds is None:
                source, section = spool, snapshot_records.Pieces(spool.pieces)
            else:
                posix.close(feeds)
                source = snapshot_records.PipeEnd(hears)
                section = io.BufferedReader(source, RECORD_BYTES)
            # What is packed while this waits for it has a watch of its own, which comes first.
            with _Watch(lambda: (source, loading.steps), patient=feeds is not None):
                found = loading.try_out(section, sizes, lambda name: self._mark_loaded(places.get(name, -1)))
            posix.write(writes, wire.encode_json(missing_list(list(found.items())))[:LEFT_OUT_BYTES])

        def feed():
            posix.close(hears)
            sink = snapshot_records.Pipe(feeds)
            try:
                self._packing_into(sink).names(self._names, self._left_out, goes_on=False)
            except BrokenPipeError:
                pass  # it has found a name that cannot be loaded
            finally:
                posix.close(feeds)

        like_fresh = {"__name__": "__main__", "__builtins__": builtins, **self._injected}
        loading = snapshot_load.Loading(like_fresh, self._injected, is_trial=True)
        places = {name: place for place, name in enumerate(self._names)}
        self._mark_loaded(-1)
        status = _in_child(try_out, feed if feeds is not None else None)
        posix.close(writes)
        with open(reads, "rb") as said:
            found = said.read()
        if status == 0:
            failed = {each["name"]: each["reason"] for each in wire.decode_json(found.decode())}
        else:
            place = _PLACE.unpack(self._progress[:])[2]
            if 0 <= place < len(self._names):
                failed = {self._names[place]: "loading it again ended the process"}
            elif status == -_signal.SIGKILL:
                return True  # for want of memory, which says nothing of the variables
            else:
                failed = {LAST: f"loading them again ended the process ({_death(status)})"}
        for name, reason in failed.items():
            if name not in places:
                raise pickle.PicklingError(f"{name}: {reason}")
        self._left_out.update(failed)
        return not failed

    def _mark(self, place, is_sending=None):
        was_sending, _, loaded = _PLACE.unpack(self._progress[:])
        self._progress[:] = _PLACE.pack(was_sending if is_sending is None else is_sending, place, loaded)

    def _mark_loaded(self, place):
        is_sending, packed, _ = _PLACE.unpack(self._progress[:])
        self._progress[:] = _PLACE.pack(is_sending, packed, place)

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
        missing += [(name, "a module of the session's files, imported anew: what was changed in it is gone") for name in anew]
        missing += [(name, "replaced in the session; the module's own is back") for name in patches]
        writer.end(
            {
                "format": FORMAT,
                "python": PYTHON,
                "variables": len(set(self._names).difference(self._left_out, (LOGGING,))),
                "missing": missing_list(missing),
                "files": files_list(packing.files),
                "sections": 1 + len(packing.buffers),
                "bytes": writer.sent,
                "modules": len(packing.modules),
            }
        )


def missing_list(missing):
    return [
        {"name": cut(name, MISSING_NAME_CHARS), "reason": cut(reason, MISSING_REASON_CHARS)}
        for name, reason in missing[:MISSING_NAMES]
    ]


def files_list(files):
    return [{"name": cut(name, MISSING_NAME_CHARS), "path": path} for name, path in list(dict.fromkeys(files))[:MISSING_NAMES]]


class Packing:
    """One pickle of the names, and what belongs to it."""

    def __init__(self, namespace, injected, folder, sink, open_files, mark):
        self.namespace, self.injected, self.open_files = namespace, injected, open_files
        self._folder = folder
        self._sink, self._mark = sink, mark
        self._name = LAST
        self.modules, self.files, self.notes, self.buffers = set(), [], {}, []
        self._steps = 0
        self._begin()

    def _begin(self):
        """A pickler that has met nothing but what is there in every session."""
        reduce = Reducer(self)

        class Pickler(pickle.Pickler):
            def reducer_override(_self, thing):  # noqa: N805
                self._steps += 1
                return reduce(thing)

        self._pickler = Pickler(self._sink, 5, buffer_callback=self._take_buffer)
        given = self._given()
        references = [Reference(*made) for _, made in given]
        self._pickler.dump((FORMAT, CODE_OF, references, snapshot_settings.first()))
        # What is met from here on with one of these identities is the thing that the reference makes.
        memo = self._pickler.memo.copy()
        for (thing, _), reference in zip(given, references):  # noqa: B905
            number, _ = memo.pop(id(reference))
            memo[id(thing)] = number, thing
        self._pickler.memo = memo
        self._given_things = given, references

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
        return False

    def add_buffer(self, view):
        self.buffers.append(view)

    def note(self, name, reason):
        self.notes[f"{self._name}.{name}"] = reason

    def note_file(self, path):
        self.files.append((self._name, path))

    def names(self, names, left_out, goes_on):
        """Pack them one after the other; the result says why which of them failed."""
        failed = {}
        with _Watch(lambda: (self._sink, self._steps)) as watch:
            for place, name in enumerate(names):
                if name in left_out:
                    continue
                self._name = name
                self._mark(place)
                watch.begin()
                try:
                    self._pickler.dump(name)
                    self._pickler.dump(sys.modules["logging"].root if name == LOGGING else self.namespace[name])
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
                self._pickler.dump({**snapshot_settings.found(), "cells_begin_in": self._folder, "order": order})
        return failed


class _Watch:
    """Raises in what makes no progress; a process that is stopped is not looked at."""

    def __init__(self, progress, patient=False):
        self._progress, self._looks_at_most = progress, PACK_STUCK_LOOKS * (2 if patient else 1)
        self._last, self._looks = None, 0

    def begin(self):
        self._looks = 0

    def __enter__(self):
        _signal.signal(_signal.SIGALRM, self._look)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGALRM,))
        _signal.setitimer(_signal.ITIMER_REAL, 1, 1)
        return self

    def __exit__(self, *_error):
        _signal.setitimer(_signal.ITIMER_REAL, 0)

    def _look(self, _number, _frame):
        sink, steps = self._progress()
        now = getattr(sink, "written", None) or getattr(sink, "sent", 0), steps
        self._looks = self._looks + 1 if now == self._last else 0
        self._last = now
        if self._looks >= self._looks_at_most:
            raise Stuck(f"packing it makes no progress for {self._looks_at_most} s")


def _told(error):
    """Why a variable could not be packed, in words."""
    if isinstance(error, (pickle.PicklingError, Stuck)):
        text = str(error)
    elif isinstance(error, RecursionError):
        return "it is nested too deeply"
    else:
        try:
            text = f"{type(error).__name__}: {error}"
        except BaseException:
            text = type(error).__name__
    return text or type(error).__name__


def report(restored, missing=(), reopened=(), error=None):
    """The answer to a `restore` frame, as its message."""
    words = {
        "restored": restored,
        "missing": missing_list(list(missing)),
        "reopened": files_list(reopened),
        "error": None if error is None else cut(error, MISSING_REASON_CHARS),
    }
    return (b"\0" if error is not None else b"\1") + wire.encode_json({"report": words})
