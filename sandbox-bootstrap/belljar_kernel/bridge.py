"""The guardian's connection to the daemon: connecting, the websocket upgrade, frames, and reconnecting.

Frames to the daemon are numbered from 1 in the order they were made; hellos are not counted. They
wait in a queue, also while no daemon is there, and once sent they are kept until the daemon says
that it has dealt with them. After a reconnect, frames that it has not dealt with are sent again. So
none is lost and none comes twice. `on_pressure` tells the owner to stop or resume making frames.
"""

import socket
from collections import deque

from . import websocket, wire
from .limits import (
    BRIDGE_QUEUE_HIGH,
    BRIDGE_QUEUE_LOW,
    BRIDGE_READ_BYTES,
    CONNECT_RETRY_FIRST_S,
    CONNECT_RETRY_MAX_S,
    DEFAULTS,
    HANDSHAKE_S,
)
from .poller import READ, WRITE


class Bridge:
    def __init__(self, poller, path, on_frame, on_lost, on_pressure):
        self._poller = poller
        self._path = path
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_pressure = on_pressure
        self._socket = None
        self._reader = None  # after the upgrade
        self._head = bytearray()  # received bytes before the upgrade
        self._open = False  # hellos are exchanged
        self._retry_s = CONNECT_RETRY_FIRST_S
        self._urgent = deque()  # upgrade answer and hello: before all else, never kept
        self._pong = None
        self._queue = deque()  # not sent yet
        self._queued = 0  # bytes of these, and of the one that is partly sent
        self._sent = deque()  # not acknowledged yet
        self._held = 0  # bytes of these
        self._sent_count = 0  # number of the newest frame that was sent whole
        self._sending = None  # the frame that is partly sent, with what is left of it
        self._sending_kept = False
        self.held_most = DEFAULTS["unacknowledged_bytes"]
        self.pressed = False

    def connect(self):
        attempt = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        attempt.setblocking(False)
        try:
            attempt.connect(self._path)
        except OSError:
            # No daemon listens, or its queue is full: connecting a unix socket is never «in progress».
            attempt.close()
            self._poller.after("connect", self._retry_s, self.connect)
            self._retry_s = min(self._retry_s * 2, CONNECT_RETRY_MAX_S)
            return
        self._socket = attempt
        self._reader = None
        self._head.clear()
        self._poller.watch(attempt.fileno(), READ, self._ready)
        self._poller.after("handshake", HANDSHAKE_S, self._lose)

    def acknowledge(self, received):
        """The daemon has dealt with that many frames for good. False if so many were never sent.

        A restarted daemon may know of fewer frames than were once acknowledged: frames without an effect
        leave no trace in its journal.
        """
        if received > self._sent_count:
            return False
        for _ in range(received - self.forgotten()):
            self._held -= len(self._sent.popleft())
        self._relieve()
        return True

    def forgotten(self):
        """How many frames were acknowledged and are never sent again."""
        return self._sent_count - len(self._sent)

    def open(self, hello):
        """Accept the daemon's hello: answer it, then send the frames that it has not dealt with, and the queue."""
        self._poller.cancel("handshake")
        self._queue.extendleft(reversed(self._sent))
        self._sent_count -= len(self._sent)
        self._sent.clear()
        self._queued += self._held
        self._held = 0
        self._retry_s = CONNECT_RETRY_FIRST_S
        self._open = True
        self._urgent.append(websocket.encode(websocket.TEXT, hello))
        self._flush()

    def send(self, payload):
        """Queue a text frame (JSON, as bytes)."""
        self._push(websocket.encode(websocket.TEXT, payload))

    def send_output(self, header, data):
        self._push(websocket.encode(websocket.BINARY, header, data))

    def send_said(self, own, said):
        """Queue a message of a runner behind the guardian's part: two JSON objects, the second is passed on unread."""
        head = wire.encode_json(own)
        self._push(websocket.encode(websocket.BINARY, wire.SAID.pack(wire.SAID_KIND, len(head)) + head, said))

    def close(self, code, reason):
        """Close the connection with a reason, and connect again later."""
        if self._socket is None:
            return
        if self._reader is not None and self._sending is None:
            try:
                self._socket.send(websocket.encode_close(code, reason))
            except OSError:
                pass
        self._lose()

    def finish(self):
        """Send what can be sent without waiting, before the guardian ends."""
        if self._socket is not None:
            self._flush()

    def _push(self, frame):
        if self._open and not self._queue and self._sending is None and not self._urgent:
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._keep(frame)
                self._lose()
                return
            if sent == len(frame):
                self._keep_sent(frame)
                return
            self._queued += len(frame)
            self._sending, self._sending_kept = (frame, sent), True
            self._watch_writes()
        else:
            self._keep(frame)
        self._press()

    def _press(self):
        too_much = self._queued > BRIDGE_QUEUE_HIGH or self._queued + self._held > self.held_most
        if too_much and not self.pressed:
            self.pressed = True
            self._on_pressure(True)

    def _relieve(self):
        if self.pressed and self._queued < BRIDGE_QUEUE_LOW and self._queued + self._held <= self.held_most:
            self.pressed = False
            self._on_pressure(False)

    def _keep_sent(self, frame):
        self._sent.append(frame)
        self._sent_count += 1
        self._held += len(frame)
        if self._held > self.held_most:
            self._press()

    def _keep(self, frame):
        self._queue.append(frame)
        self._queued += len(frame)

    def _watch_writes(self):
        waits = self._sending or self._urgent or self._pong or (self._open and self._queue)
        self._poller.watch(self._socket.fileno(), READ | WRITE if waits else READ, self._ready)

    def _ready(self, events):
        if events & WRITE:
            self._flush()
        if events & ~WRITE and self._socket is not None:
            self._receive()

    def _flush(self):
        try:
            while True:
                if self._sending is None and not self._next_to_send():
                    break
                frame, done = self._sending
                done += self._socket.send(memoryview(frame)[done:])
                if done < len(frame):
                    self._sending = (frame, done)
                    break
                self._sending = None
                if self._sending_kept:
                    self._queued -= len(frame)
                    self._keep_sent(frame)
        except BlockingIOError:
            pass
        except OSError:
            self._lose()
            return
        self._watch_writes()
        self._relieve()

    def _next_to_send(self):
        if self._urgent:
            self._sending, self._sending_kept = (self._urgent.popleft(), 0), False
        elif self._pong is not None:
            self._sending, self._sending_kept = (self._pong, 0), False
            self._pong = None
        elif self._open and self._queue:
            self._sending, self._sending_kept = (self._queue.popleft(), 0), True
        else:
            return False
        return True

    def _receive(self):
        try:
            data = self._socket.recv(BRIDGE_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        connection = self._socket
        try:
            self._take(data, connection)
        except websocket.Violation as violation:
            self.close(violation.code, str(violation))

    def _take(self, data, connection):
        if self._reader is None:
            self._head += data
            upgrade = websocket.answer_upgrade(self._head)
            if upgrade is None:
                return
            answer, used = upgrade
            self._reader = websocket.MessageReader()
            data = bytes(self._head[used:])
            self._urgent.append(answer)
            self._flush()
        self._reader.feed(data)
        # A callback may have closed the connection meanwhile.
        while self._socket is connection:
            message = self._reader.next()
            if message is None:
                return
            opcode, payload = message
            if opcode == websocket.TEXT:
                self._on_frame(payload)
            elif opcode == websocket.PING:
                self._answer_ping(payload)
            elif opcode == websocket.CLOSE:
                self.close(websocket.NORMAL, "")

    def _answer_ping(self, payload):
        # One answer, to the latest ping, is enough; so a flood of pings cannot fill the queue.
        self._pong = websocket.encode(websocket.PONG, payload)
        self._flush()

    def _lose(self):
        """The connection is gone; a frame that was partly sent is sent whole on the next one."""
        if self._socket is None:
            return
        self._poller.forget(self._socket.fileno())
        self._poller.cancel("handshake")
        self._socket.close()
        self._socket = None
        self._open = False
        self._urgent.clear()
        self._pong = None
        if self._sending is not None and self._sending_kept:
            self._queue.appendleft(self._sending[0])
        self._sending = None
        self._on_lost()
        self._poller.after("connect", self._retry_s, self.connect)
        self._retry_s = min(self._retry_s * 2, CONNECT_RETRY_MAX_S)
