"""Loads what was packed once in another process, before it is sent: a name that cannot be loaded must not be half sent.

Buffers are not filled there, and so take no memory. What would touch anything outside of that process ends it: from there
on, what was packed is taken as it is.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import builtins
import io
import posix  # not `os`, whose functions user code may replace

from . import snapshot_load, snapshot_records, snapshot_untouched, wire
from .limits import (
    ALONE_PROCESSES,
    LEFT_OUT_BYTES,
    MISSING_REASON_CHARS,
    PACK_SILENT_S,
    RECORD_BYTES,
    SPOOL_BYTES,
    TRY_OUT_BYTES,
    cut,
)
from .snapshot_watch import Watch

_ENDED_EARLY = 1
_ENDED = "loading it again ended the process"
_REPLACED = "loading it again runs another program in place of this one"
_STUCK = f"loading it again makes no progress for {PACK_SILENT_S:.0f} s, and does not heed signals"
# How a process ends that has told what it found.
_TOLD = (0, snapshot_untouched.STATUS, snapshot_untouched.REPLACED)
# So many reasons are less than a pipe holds, each with its characters as JSON may write them.
_TOLD_AT_ONCE = LEFT_OUT_BYTES // (6 * MISSING_REASON_CHARS)


class Trial:
    """`pack_into` makes a packing that writes to a sink, and `in_child` does work in a process of its own."""

    def __init__(self, namespace, injected, names, pack_into, progress, in_child):
        self._namespace, self._injected, self._names = namespace, injected, names
        self._pack_into, self._progress, self._in_child = pack_into, progress, in_child
        self._places = {name: place for place, name in enumerate(names)}

    def together(self, spool, packing, left_out):
        """The names that cannot be loaded from what was packed, as far as they show, with their reasons; and whether the
        process ended for a reason that is nobody's fault that is known, as its status.

        What was too large to be kept is packed once more for it, unless it is so large that trying it out would take
        the memory that checkpoints may have.
        """
        if spool.written + packing.copied_at_most > TRY_OUT_BYTES:
            return {}, 0
        hears, feeds = posix.pipe() if spool.pieces is None else (None, None)
        sizes = [each.nbytes for each in packing.buffers]
        fresh = {"__name__": "__main__", "__builtins__": builtins, **self._injected}
        loading = snapshot_load.Loading(fresh, self._injected, is_trial=True)

        def try_out():
            if feeds is None:
                source, section = spool, snapshot_records.Pieces(spool.pieces)
            else:
                posix.close(feeds)
                source = snapshot_records.PipeEnd(hears)
                section = io.BufferedReader(source, RECORD_BYTES)
            # What is packed while this waits for it has a watch of its own, which comes first.
            with Watch(lambda: (source, loading.steps), self._progress.trial_beat, patient=feeds is not None) as watch:

                def mark(name):
                    self._progress.loaded = self._places.get(name, -1)
                    watch.arm()  # a variable may have stopped the signal

                return loading.try_out(section, sizes, mark)

        def feed():
            posix.close(hears)
            sink = snapshot_records.Pipe(feeds)
            try:
                self._pack_into(sink).names(self._names, left_out, goes_on=False)
            except BrokenPipeError:
                pass  # it has found a name that cannot be loaded
            finally:
                posix.close(feeds)

        self._progress.loaded = -1
        meanwhile, needed = (feed, (hears,)) if feeds is not None else (None, ())
        found, status = self._told_by_child(try_out, loading, loading.lost_so_far, meanwhile, needed)
        if status == snapshot_untouched.STATUS:
            return found, 0
        place = self._progress.loaded
        if status and 0 <= place < len(self._names):
            return {**found, self._names[place]: self._why_ended(status)}, 0
        return found, status

    def one_by_one(self, left_out):
        """The names that cannot be loaded each by itself, with their reasons: there may be many, and a load of all names
        ends at the first of them. Where one ends the process, another goes on behind it."""
        failed, first = {}, 0
        for _ in range(ALONE_PROCESSES):
            self._progress.loaded = first
            found, status = self._alone_in_child(first, left_out)
            failed.update(found)
            first = self._progress.loaded + 1
            if status not in (0, snapshot_untouched.STATUS) and 0 < first <= len(self._names):
                failed[self._names[first - 1]] = self._why_ended(status)
            if first >= len(self._names):
                break
        return failed

    def _why_ended(self, status):
        if status == snapshot_untouched.REPLACED:
            return _REPLACED
        return _STUCK if self._progress.trial_was_stuck else _ENDED

    def _alone_in_child(self, first, left_out):
        beside, failed = dict(self._namespace), {}
        loading = snapshot_load.Loading(beside, self._injected, is_trial=True)
        return self._told_by_child(lambda: self._alone(first, left_out, loading, failed), loading, lambda: failed)

    def _alone(self, first, left_out, loading, failed):
        written = 0
        for place in range(first, len(self._names)):
            self._progress.loaded = place
            name = self._names[place]
            if name in left_out:
                continue
            spool = snapshot_records.Spool(SPOOL_BYTES, TRY_OUT_BYTES)
            packing = self._pack_into(spool, self._progress.trial_beat)
            if packing.names((name,), {}, goes_on=True):
                continue  # that shows when all are packed
            written += spool.written + packing.copied_at_most
            if written > TRY_OUT_BYTES or spool.pieces is None:
                break
            loading.begin()
            sizes = [each.nbytes for each in packing.buffers]
            with Watch(lambda: (spool, loading.steps), self._progress.trial_beat):  # noqa: B023
                found = loading.try_out(snapshot_records.Pieces(spool.pieces), sizes, lambda _name: None)
            failed.update((each, reason) for each, reason in found.items() if each == name)
            if len(failed) == _TOLD_AT_ONCE:
                return failed
        self._progress.loaded = len(self._names)
        return failed

    def _told_by_child(self, work, loading, so_far, meanwhile=None, needed=()):
        """The failures that the work in another process has found, as far as they fit into a pipe; and how that ended.

        Where it ends because it would touch something, they are those that `so_far` finds.
        """
        reads, writes = posix.pipe()

        self._progress.trial_was_stuck = False

        def tell():
            self._progress.trial = posix.getpid()
            posix.close(reads)
            snapshot_untouched.keep(loading, lambda: posix.write(writes, self._encoded(so_far())), {writes, *needed})
            posix.write(writes, self._encoded(work()))

        status = self._in_child(tell, meanwhile)
        self._progress.trial_beats = 0  # it may have been killed
        posix.close(writes)
        found = _held_by(reads)
        if status == 0 and not found:
            status = _ENDED_EARLY  # code of a variable has ended it as if all were done
        told = wire.decode_json(found.decode()) if found and status in _TOLD else []
        return {self._names[place] if place >= 0 else snapshot_load.LAST: reason for place, reason in told}, status

    def _encoded(self, failed):
        told = [[self._places.get(name, -1), cut(reason, MISSING_REASON_CHARS)] for name, reason in failed.items()]
        return wire.encode_json(told[:_TOLD_AT_ONCE])


def _held_by(reads):
    """What is in the pipe, which is closed: its other end may be open still, in a process that a variable has started."""
    posix.set_blocking(reads, False)
    try:
        return posix.read(reads, LEFT_OUT_BYTES)
    except BlockingIOError:
        return b""
    finally:
        posix.close(reads)


def is_for_want_of_memory(status):
    """Whether a trial has ended in a way that says nothing of the variables."""
    return status == -_signal.SIGKILL
