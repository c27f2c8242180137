"""Strays: processes that user code left behind. They are killed, and for a crowd of them its end is waited for."""

import time

from . import process
from .limits import FEW, KILLED_FEW, KILLED_ROOM, KILLED_WAIT_S, RESET_POLL_S, TELL_FIRST_S


class Strays:
    """What is still to be killed, and what may not be gone yet."""

    def __init__(self, poller, reap):
        self._poller = poller
        self._reap = reap
        self._condemned = []  # functions that kill strays, which are stopped until then
        self._killed = []  # pids of strays, which may not be gone yet
        self._killed_most = KILLED_FEW  # so many of them may be left before something else is started

    def kill(self, kill):
        """`kill()` kills strays and returns their pids. For a stopped crowd, that waits until its cell is answered."""
        if not process.is_halted() or not process.is_crowded(FEW):
            self.killed(kill())
            return
        self._condemned.append(kill)
        self._poller.within("strays", TELL_FIRST_S, self.kill_condemned)

    def has_condemned(self):
        return bool(self._condemned)

    def kill_condemned(self):
        """Kill the strays that were put off. Has to come before anything that may start a process."""
        condemned, self._condemned = self._condemned, []
        for kill in condemned:
            self.killed(kill())

    def forget_condemned(self):
        """Kill no more of them: everything is killed."""
        self._condemned.clear()

    def note(self, pids):
        """Remember a few killed pids, which may not be gone yet."""
        self._killed += pids

    def killed(self, pids):
        """Remember killed pids, and how many of them may be left before something else is started."""
        self.note(pids)
        self._killed_most = max(len(self._killed) - KILLED_ROOM, KILLED_FEW)

    def has_room(self):
        """False as long as too few of a killed crowd are gone: no process is available before. A few have to be dead:
        in a full sandbox their memory is needed, and the next worker would be killed in their place."""
        if self._condemned:
            return False
        if len(self._killed) > self._killed_most:
            self._reap()
            self._killed = [pid for pid in self._killed if process.is_there(pid)]
        if len(self._killed) > self._killed_most:
            return False
        if len(self._killed) <= KILLED_FEW and any(map(process.is_alive, self._killed)):
            return False
        self._killed.clear()
        return True

    def wait_for_room(self):
        """Wait until there is room, but not for ever."""
        self.kill_condemned()
        deadline = time.monotonic() + self._poller.patience(KILLED_WAIT_S)
        while not self.has_room():
            if time.monotonic() > deadline:
                self._killed.clear()
                return
            time.sleep(RESET_POLL_S)
