"""SIGINT in a runner: KeyboardInterrupt while a cell runs, nothing while none does.

A message to the guardian must not be torn by it, so an interrupt that comes while one is being sent
is raised right after.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import threading

_get_ident = threading.get_ident


class Interrupts:
    def __init__(self):
        self.active = False
        self.early = False  # one came while no cell ran: perhaps for one that is on its way
        self._held = 0
        self._pending = False
        self._main_thread = None

    def install(self):
        """Also after user code has put a handler of its own."""
        self._main_thread = _get_ident()
        if _signal.getsignal(_signal.SIGINT) != self._on_signal:
            _signal.signal(_signal.SIGINT, self._on_signal)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))

    def _on_signal(self, _number, _frame):
        if not self.active:
            self.early = True
            return
        if self._held:
            self._pending = True
            return
        raise KeyboardInterrupt

    def __enter__(self):
        # Python runs handlers on the main thread only; others cannot be interrupted.
        if _get_ident() == self._main_thread:
            self._held += 1

    def __exit__(self, *_exception):
        if _get_ident() != self._main_thread:
            return
        self._held -= 1
        if self._pending and not self._held:
            self._pending = False
            if self.active:
                raise KeyboardInterrupt
