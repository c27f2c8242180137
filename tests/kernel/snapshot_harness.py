"""The base of tests of snapshots: takes the daemon's place at the data socket."""

import contextlib
import json
import os
import socket
import struct
import threading

from checkpoint_harness import CheckpointTest
from harness import Kernel

TOKEN = "0123456789abcdef" * 2
HEADER = struct.Struct(">BI")
RECORD_BYTES = 1024 * 1024


class Snapshot:
    """All that came over the data socket."""

    def __init__(self):
        self.records = []  # (kind, payload)
        self.token = None

    @property
    def last(self):
        return self.records[-1] if self.records else (b"", b"")

    @property
    def manifest(self):
        kind, payload = self.last
        if kind != b"E":
            raise AssertionError(f"it ended with {kind} {payload[:500]}")
        return json.loads(payload)

    @property
    def missing(self):
        return {each["name"]: each["reason"] for each in self.manifest["missing"]}

    @property
    def sections(self):
        sections, pieces = [], []
        for kind, payload in self.records[:-1]:
            if kind == b"P":
                pieces.append(payload)
            else:
                sections.append(b"".join(pieces))
                pieces = []
        return sections


class DataSocket:
    """`data.sock`: receives one snapshot, or sends one."""

    def __init__(self, kernel):
        self.path = os.path.join(kernel.directory, "data.sock")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(1)
        self._thread = None

    def receive(self):
        snapshot = Snapshot()
        self._begin(self._receive, snapshot)
        return snapshot

    def send(self, data):
        self._begin(self._send, data)

    def _begin(self, function, argument):
        self._thread = threading.Thread(target=self._serve, args=(function, argument), daemon=True)
        self._thread.start()

    def _serve(self, function, argument):
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # no process has connected
        function(connection, argument)

    def _receive(self, connection, snapshot):
        with connection, connection.makefile("rb", RECORD_BYTES) as stream:
            snapshot.token = stream.readline()
            while True:
                header = stream.read(HEADER.size)
                if len(header) < HEADER.size:
                    return
                kind, length = HEADER.unpack(header)
                if length > RECORD_BYTES:
                    raise AssertionError(f"a record of {length} bytes")
                snapshot.records.append((bytes((kind,)), stream.read(length)))

    def _send(self, connection, data):
        with connection, contextlib.suppress(OSError):
            connection.recv(33, socket.MSG_WAITALL)
            for piece in data:
                connection.sendall(piece)

    def close(self, timeout=60):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends an accept
        self._listener.close()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise AssertionError("the data socket is still in use")


def stream_of(snapshot):
    """What the daemon sends of a snapshot."""
    for kind, payload in snapshot.records:
        yield HEADER.pack(kind[0], len(payload)) + payload


class SnapshotTest(CheckpointTest):
    def begin_snapshot(self, kernel=None, **options):
        """The socket, and what comes there; the frame was sent."""
        kernel = kernel or self.kernel
        data = DataSocket(kernel)
        snapshot = data.receive()
        frame = {"request": 50, "token": TOKEN, "path": data.path, "urgent": False, "takes_turns": False, "bytes": 2**31}
        kernel.send(type="snapshot", **{**frame, **options})
        return data, snapshot

    def take(self, kernel=None, timeout=60, **options):
        kernel = kernel or self.kernel
        data, snapshot = self.begin_snapshot(kernel, **options)
        begun = kernel.expect("snapshotting", request=50, timeout=timeout)
        ended = kernel.expect("snapshot_ended", request=50, timeout=timeout)
        data.close()
        self.assertEqual(snapshot.token, TOKEN.encode() + b"\n")
        self.assertIsNone(ended["reason"], (ended, snapshot.last))
        snapshot.state_of = begun["state_of"]
        return snapshot

    def load(self, kernel, stream, state_of=1, keep=(), timeout=60, **options):
        data = DataSocket(kernel)
        data.send(stream)
        kernel.send(type="restore", request=51, token=TOKEN, path=data.path, state_of=state_of, keep=list(keep), **options)
        answer = kernel.next_frame(timeout)
        data.close()
        return answer

    def fresh(self, **options):
        """Another sandbox with the same workspace."""
        kernel = Kernel(self.limits, **options)
        os.rmdir(kernel.workspace)
        os.symlink(self.kernel.workspace, kernel.workspace)
        self.addCleanup(kernel.close)
        kernel.start()
        return kernel

    def same(self, code, asked, missing=()):
        """After the sleep the same is answered."""
        self.run_ok(code)
        before = self.value(asked)
        snapshot = self.take()
        self.assertEqual(set(snapshot.missing), set(missing), snapshot.missing)
        kernel, report = self.wake(snapshot)
        self.assertEqual(report["missing"], [])
        self.assertEqual(kernel.run(asked, cell=9).value, before)
        return before

    def wake(self, snapshot, **options):
        """A fresh kernel that has loaded it, and its report."""
        kernel = self.fresh()
        answer = self.load(kernel, stream_of(snapshot), **options)
        self.assertEqual(answer["type"], "restored", answer)
        self.assertIsNone(answer["report"]["error"], answer)
        return kernel, answer["report"]
