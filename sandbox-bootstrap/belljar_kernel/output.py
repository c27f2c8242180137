"""Counts a cell's output and decides what of it is forwarded."""

import struct
from collections import deque

from .limits import OUTPUT_FRAME_BYTES

STDOUT, STDERR = 1, 2
_HEADER = struct.Struct(">BQ")


class OutputMeter:
    """Forwards the first bytes of a cell and holds back the last ones until its end.

    What lies between is dropped and counted. Both streams share the bounds.
    """

    def __init__(self, send, head_bytes, tail_bytes):
        self._send = send  # (header, data)
        self._head_left = head_bytes
        self._tail_bytes = tail_bytes
        self._tail = deque()  # (stream, bytearray), oldest first
        self._tail_held = 0
        self._dropped = {STDOUT: 0, STDERR: 0}

    def take(self, stream, cell, data):
        left = self._head_left
        if left >= len(data):
            self._head_left = left - len(data)
            self._send(_HEADER.pack(stream, cell), data)
            return
        if left:
            self._head_left = 0
            self._send(_HEADER.pack(stream, cell), data[:left])
            data = data[left:]
        self._hold(stream, data)

    def _hold(self, stream, data):
        newest = self._tail[-1] if self._tail else None
        if newest and newest[0] == stream and len(newest[1]) + len(data) <= OUTPUT_FRAME_BYTES:
            newest[1].extend(data)  # so that many short writes are few frames
        else:
            self._tail.append((stream, bytearray(data)))
        self._tail_held += len(data)
        while self._tail_held > self._tail_bytes:
            oldest_stream, oldest = self._tail[0]
            dropped = min(self._tail_held - self._tail_bytes, len(oldest))
            del oldest[:dropped]
            if not oldest:
                self._tail.popleft()
            self._dropped[oldest_stream] += dropped
            self._tail_held -= dropped

    def finish(self, cell):
        """`output_gap` as a dict if something was dropped, and the frames of the tail."""
        gap = None
        if any(self._dropped.values()):
            gap = {
                "type": "output_gap",
                "cell": cell,
                "stdout_bytes": self._dropped[STDOUT],
                "stderr_bytes": self._dropped[STDERR],
            }
        return gap, [(_HEADER.pack(stream, cell), data) for stream, data in self._tail]
