"""Who reads the answers of the host to calls of tools: one of the threads that wait, for all of them.

A lone caller is woken by its answer and by nothing else, and no thread lives that only reads. Coroutines do not
wait on a thread, so their first call starts one that reads from then on.
"""

import _thread
import threading
from select import POLLIN
from select import poll as _poll  # user code may replace the one of the module
from socket import MSG_DONTWAIT

from . import wire
from .limits import CONTROL_READ_BYTES

_get_ident = _thread.get_ident
# A thread that waits looks after this time whether its answer is there. So neither a reader whose bytes another thread
# has taken, nor a thread whose reader was interrupted while it handed its turn on, waits longer than this.
_TURN_S = 1.0


class Waiter:
    """What a thread waits with: for its answer, or for its turn to read.

    A plain lock, which a signal handler can release while its thread waits for it.
    """

    __slots__ = ("is_done", "_turn")

    def __init__(self):
        self.is_done = False
        self._turn = _thread.allocate_lock()
        self._turn.acquire()

    def finish(self):
        self.is_done = True
        self.wake()

    def wake(self):
        try:
            self._turn.release()
        except RuntimeError:
            pass  # it has been woken already

    def sleep(self):
        """Return whether it was woken within the time of a turn."""
        return self._turn.acquire(timeout=_TURN_S)


class Answers:
    def __init__(self, socket, interrupts, on_message):
        self._socket = socket
        self._interrupts = interrupts
        self._on_message = on_message  # called with interrupts held back
        self._messages = wire.MessageReader()
        self._lock = threading.RLock()
        self._reader = None  # the id of the thread that reads
        self._waiting = {}  # by the id of their threads
        self._receiver = None  # the id of the thread that is in `_receive`
        self.has_thread = False
        self.has_ended = False

    def are_being_read_here(self):
        """Whether this is a signal handler that has interrupted its own thread while that takes messages apart."""
        return self._receiver == _get_ident()

    def wait(self, waiter):
        """Return when the waiter is done, or when no answer can come any more."""
        try:
            while not waiter.is_done and not self.has_ended:
                with self._interrupts:
                    is_reader = self._take_turn(waiter)
                if is_reader:
                    self._wait_for_bytes()
                elif waiter.sleep():
                    continue
                with self._interrupts:
                    self._reader = _get_ident()  # two readers do no harm, and the other one may be gone
                    self._receive()
                    if waiter.is_done:
                        self._leave(waiter)
        finally:
            with self._interrupts:
                self._leave(waiter)

    def start_thread(self):
        """Let a thread read for coroutines, which cannot wait here."""
        with self._interrupts, self._lock:
            if not self.has_thread:
                threading.Thread(target=self.wait, args=(Waiter(),), name="belljar-tools", daemon=True).start()
                self.has_thread = True

    def _take_turn(self, waiter):
        with self._lock:
            own = _get_ident()
            if self._reader in (None, own):
                self._reader = own
                self._waiting.pop(own, None)
                return True
            self._waiting[own] = waiter
            return False

    def _leave(self, waiter):
        """Let another waiting thread read, if this thread has the turn or no thread has it."""
        with self._lock:
            own = _get_ident()
            if self._waiting.get(own) is waiter:
                del self._waiting[own]
            if self._reader in (None, own):
                self._reader = None
                for other in self._waiting.values():
                    other.wake()
                    break

    def _wait_for_bytes(self):
        """Nothing is taken from the socket here, so that an interrupt loses nothing."""
        waits = _poll()
        waits.register(self._socket, POLLIN)
        waits.poll(1000 * _TURN_S)

    def _receive(self):
        """Read what there is, which may be nothing: another thread may have read it."""
        with self._lock:
            self._receiver = _get_ident()
            try:
                data = self._socket.recv(CONTROL_READ_BYTES, MSG_DONTWAIT)
                self.has_ended = not data
                self._messages.feed(data)
                while (message := self._messages.next()) is not None:
                    self._on_message(message)
            except BlockingIOError:
                pass
            finally:
                self._receiver = None
