"""One epoll set with a callback per descriptor, and timers."""

import select
import time

from .limits import TURN_S

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Poller:
    def __init__(self):
        self._epoll = select.epoll()
        self._watched = {}  # descriptor -> (events, callback)
        self._timers = {}  # key -> (deadline, callback)
        self._turn_began = time.monotonic()

    def watch(self, descriptor, events, callback):
        """Call back with the events that came. No events: stop watching, hang-ups included."""
        known = self._watched.get(descriptor)
        if not events:
            self.forget(descriptor)
            return
        if known is None:
            self._epoll.register(descriptor, events)
        elif known[0] != events:
            self._epoll.modify(descriptor, events)
        self._watched[descriptor] = (events, callback)

    def forget(self, descriptor):
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def after(self, key, seconds, callback):
        """Call back once; a timer with the same key is replaced."""
        self._timers[key] = (time.monotonic() + seconds, callback)

    def within(self, key, seconds, callback):
        """Like `after`, but a timer with the same key that is due earlier stays."""
        known = self._timers.get(key)
        if known is None or known[0] > time.monotonic() + seconds:
            self.after(key, seconds, callback)

    def cancel(self, key):
        self._timers.pop(key, None)

    def patience(self, seconds):
        """How long a callback may wait for a runner, which may be hostile: all waits of one turn have one budget.

        What came in meanwhile, the end of a cell for example, is handled only after the turn.
        """
        return max(min(seconds, self._turn_began + TURN_S - time.monotonic()), 0)

    def step(self):
        """Wait for the next event or timer and handle what is due."""
        timeout = None
        if self._timers:
            timeout = max(min(timer[0] for timer in self._timers.values()) - time.monotonic(), 0)
        ready = self._epoll.poll(timeout)
        self._turn_began = time.monotonic()
        for descriptor, events in ready:
            watched = self._watched.get(descriptor)
            # An earlier callback of this round may have stopped watching it.
            if watched is not None:
                watched[1](events)
        now = time.monotonic()
        for key, (deadline, callback) in list(self._timers.items()):
            if deadline <= now and self._timers.get(key, (None,))[0] == deadline:
                del self._timers[key]
                callback()
