"""SIGINT in a runner: KeyboardInterrupt while a cell runs, nothing while none does.

A message to the guardian must not be torn by it, so an interrupt that comes while one is being sent
is raised right after. The same holds for alarms, which end code that runs nested and takes too long.

Signal handlers run on the main thread. In another thread, the interpreter raises the alarm before the next
instruction: a call that blocks outside of Python is ended when it returns.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import _thread

from .late_imports import from_stdlib

_get_ident = _thread.get_ident
_ALARM = _signal.SIGRTMAX  # one that user code has no use for
_ALARM_AGAIN_S = 1.0  # for code that catches everything
_ALARM_HELD_S = 0.02  # for code that must not be interrupted just now


class Interrupts:
    def __init__(self):
        self.active = False
        self.early = False  # an interrupt came while no cell ran: perhaps for a cell that is on its way
        self.divert = None  # called with what would be raised; True if it was handled in another way
        self._held = 0
        self._pending = False
        self._main_thread = None
        self._armed = []
        self._alarms = []  # alarms that have gone off and were not raised yet
        self._of_threads = {}  # armed alarms of other threads than the main one

    def install(self):
        """Install the handlers, also after user code has installed its own."""
        self._main_thread = _get_ident()
        if _signal.getsignal(_signal.SIGINT) != self._on_signal:
            _signal.signal(_signal.SIGINT, self._on_signal)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))
        if _signal.getsignal(_ALARM) != self._on_alarm:
            _signal.signal(_ALARM, self._on_alarm)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_ALARM,))

    def alarm(self, seconds):
        """An alarm for code that may run that long; None for code without a limit."""
        if seconds is None:
            return _NoAlarm
        if _get_ident() != self._main_thread:
            return _ThreadAlarm(self._of_threads, _get_ident(), seconds)
        return _Alarm(self, self._armed, self._main_thread, seconds)

    def stop_alarms(self):
        """Stop the alarms that an interrupt kept from being stopped."""
        with self:
            for alarm in tuple(self._armed):
                alarm.stop()

    def of_this_thread(self):
        """For a thread that gets no signals: what raises KeyboardInterrupt in it."""
        return ThreadInterrupt(self._of_threads, _get_ident())

    def forget_threads(self):
        """In a copy, which has none of the threads of the original, but may get others of the same number."""
        self._of_threads.clear()

    def gone_off(self, alarm):
        self._alarms.append(alarm)

    def _on_alarm(self, _number, frame):
        if self.active and not self._held:
            self._raise_alarm(frame)

    def _raise_alarm(self, frame=None):
        while self._alarms:
            alarm = self._alarms.pop()
            if not alarm.is_over:
                self._raise(alarm.Expired(), frame)

    def _on_signal(self, _number, frame):
        if not self.active:
            self.early = True
            return
        if self._held:
            self._pending = True
            return
        self._raise(KeyboardInterrupt(), frame)

    def _raise(self, error, frame=None):
        if self.divert is None or not self.divert(error, frame):
            raise error

    def on_main_thread(self):
        return _get_ident() == self._main_thread

    def __enter__(self):
        if _get_ident() == self._main_thread:
            self._held += 1
            return
        for alarm in self._of_threads.get(_get_ident(), ()):
            alarm.hold()

    def __exit__(self, *_exception):
        if _get_ident() != self._main_thread:
            for alarm in self._of_threads.get(_get_ident(), ()):
                alarm.let_go()
            return
        self._held -= 1
        if self._pending and not self._held:
            self._pending = False
            if self.active:
                self._raise(KeyboardInterrupt())
        if self._alarms and not self._held and self.active:
            self._raise_alarm()


class Expired(BaseException):
    """The time of code that runs nested is over; each alarm has a type of its own."""


class _NoAlarm:
    Expired = type("Expired", (Expired,), {})

    @staticmethod
    def start():
        pass

    @staticmethod
    def stop():
        pass


class _Alarm:
    """Raises its own `Expired` on the main thread when the time is over, until it is stopped."""

    def __init__(self, interrupts, armed, thread, seconds):
        self.Expired = type("Expired", (Expired,), {})
        self.is_over = False
        self._interrupts = interrupts
        self._armed = armed
        self._thread = thread
        self._seconds = seconds
        self._stopped = _thread.allocate_lock()
        self._left = _thread.allocate_lock()
        self._begun = _thread.allocate_lock()

    def start(self):
        self._stopped.acquire()
        self._left.acquire()
        self._begun.acquire()
        with self._interrupts:
            _thread.start_new_thread(self._watch, ())
            self._armed.append(self)
            # A thread that still wants the interpreter keeps the main one back on its way into a call that blocks, and a
            # signal that comes just then does not end that call.
            self._begun.acquire()

    def _watch(self):
        self._begun.release()
        seconds = min(self._seconds, _thread.TIMEOUT_MAX)
        while not self._stopped.acquire(timeout=seconds):
            self._interrupts.gone_off(self)
            _signal.pthread_kill(self._thread, _ALARM)
            seconds = _ALARM_AGAIN_S
        self._left.release()

    def stop(self):
        """Call this with interrupts held back. The thread is gone when this returns: a checkpoint may follow."""
        if self not in self._armed:
            return
        self._armed.remove(self)
        self.is_over = True
        self._stopped.release()
        self._left.acquire()


class ThreadInterrupt:
    """Raises KeyboardInterrupt in its thread whenever it is told to. It may interrupt `stop`, which then has to be called
    again."""

    def __init__(self, of_threads, thread):
        from_stdlib("ctypes")  # loaded now, not when time is short
        self._of_threads = of_threads
        self._thread = thread
        self._held = 0
        self._is_wanted = False  # it was not raised yet
        self._is_over = False
        self._turn = _thread.allocate_lock()
        # What is raised in a thread is a type, and is made where it is raised.
        self._raised = type("KeyboardInterrupt", (KeyboardInterrupt,), {"__module__": "builtins", "__init__": self._note})
        of_threads.setdefault(thread, []).append(self)

    def _note(self, *_arguments):
        self._is_wanted = False

    def interrupt(self):
        with self._turn:
            self._is_wanted = not self._is_over
            if self._is_wanted and not self._held:
                _throw(self._thread, self._raised)

    def hold(self):
        with self._turn:
            self._held += 1
            if self._is_wanted:
                _throw(self._thread, None)

    def let_go(self):
        with self._turn:
            self._held -= 1
            if self._is_wanted and not self._held and not self._is_over:
                _throw(self._thread, self._raised)

    def stop(self):
        self._is_over = True
        with self._turn:
            _throw(self._thread, None)
        own = self._of_threads.get(self._thread, [])
        if self in own:
            own.remove(self)
        if not own:
            self._of_threads.pop(self._thread, None)


class _ThreadAlarm:
    """The same for a thread that gets no signals. It may interrupt `stop`, which then has to be called again."""

    def __init__(self, armed, thread, seconds):
        self.Expired = type("Expired", (Expired,), {})
        self._armed = armed  # of all threads
        self._thread = thread
        self._seconds = seconds
        self._held = 0
        self._is_over = False
        self._turn = _thread.allocate_lock()  # held while an exception is thrown or the alarm is held or stopped
        self._stopped = _thread.allocate_lock()

    def start(self):
        from_stdlib("ctypes")  # loaded now, not when time is short
        self._stopped.acquire()
        _thread.start_new_thread(self._watch, ())
        self._armed.setdefault(self._thread, []).append(self)

    def _watch(self):
        seconds = min(self._seconds, _thread.TIMEOUT_MAX)
        while not self._stopped.acquire(timeout=seconds):
            with self._turn:
                if self._is_over:
                    return
                seconds = _ALARM_HELD_S if self._held else _ALARM_AGAIN_S
                if not self._held:
                    self._throw(self.Expired)

    def hold(self):
        with self._turn:
            self._held += 1
            self._throw(None)  # an exception that was not raised yet is thrown again later

    def let_go(self):
        with self._turn:
            self._held -= 1

    def stop(self):
        self._is_over = True
        with self._turn:
            self._throw(None)
        own = self._armed.get(self._thread, [])
        if self in own:
            own.remove(self)
        if not own:
            self._armed.pop(self._thread, None)
        if self._stopped.locked():
            self._stopped.release()

    def _throw(self, exception):
        _throw(self._thread, exception)


def _throw(thread, exception):
    """Have a thread raise this before its next instruction; None takes back what it has not raised yet."""
    ctypes = from_stdlib("ctypes")
    thrown = None if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), thrown)
