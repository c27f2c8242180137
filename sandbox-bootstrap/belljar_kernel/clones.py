"""Checkpoints that run no code until the guardian wants something of them.

One system call makes the copy, as a child of the guardian, and the copy waits at once. So it changes next to none of
the pages that it shares with the original, and what a copy of a process has to do is done only if it is used. That is
possible where the copy holds nothing that has to be replaced before the original goes on, and where all that `fork` of
the C library does beside the system call is known. Elsewhere `copies.py` makes the copy.
"""

import _signal  # the C half: the other runs through `enum`, which user code may have broken
import ctypes
import gc
import posix  # not `os`, whose functions user code may replace
import posixpath
import select
import sys

from . import copies, process
from .limits import SETTLED_MS

_SIGCHLD = 17
_CLONE_PARENT = 0x8000
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000
_FLAGS = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | _SIGCHLD
_PR_GET_TID_ADDRESS = 40
_THREAD_BYTES = 8192  # within so many, the C library's record of a thread holds the number of the thread
# The number of `clone` for each architecture, and which of its arguments is the address of the thread's number.
_CALLS = {"x86_64": (56, 3), "aarch64": (220, 4)}

# Calls through these two hold the interpreter's lock, so that no other thread runs on in between.
_python = ctypes.pythonapi
_libc = ctypes.PyDLL(None)
_KERNEL = posixpath.dirname(__file__) + "/"
_STDLIB = posixpath.dirname(posixpath.__file__) + "/"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_getframe = sys._getframe
_SIGNALS = _signal.valid_signals()
_collects, _stop_collecting, _go_on_collecting = gc.isenabled, gc.disable, gc.enable  # a cell may replace them


class _AtFork:
    """Knows whether code wants to be called at forks that expects to be called at once.

    The standard library does not, and neither do installed libraries that want to be called only in the copy: matplotlib
    empties a cache there. They are called when the copy is used, before anything else runs in it.
    """

    def __init__(self):
        self.is_used = False
        self._register = posix.register_at_fork

    def install(self):
        def register_at_fork(**functions):
            name = _getframe(1).f_code.co_filename
            if any(each in name for each in _INSTALLED):
                can_wait = functions.keys() == {"after_in_child"}
            else:
                can_wait = name.startswith((_KERNEL, _STDLIB, "<frozen "))
            self.is_used = self.is_used or not can_wait
            return self._register(**functions)

        register_at_fork.__doc__ = self._register.__doc__
        posix.register_at_fork = sys.modules["os"].register_at_fork = register_at_fork


class Clones:
    """Makes such checkpoints of this process. `own_descriptors` are the kernel's own descriptors."""

    def __init__(self, own_descriptors):
        self._own_descriptors = {str(descriptor) for descriptor in own_descriptors}
        self._at_fork = _AtFork()
        self._at_fork.install()
        self._clone = find_clone()
        self._blocked = None  # the signals that were blocked before a copy is made
        self._collected = False  # whether the collector was on before
        self._unsettled = None  # reads the end as soon as the newest copy does not need this process any more

    def at_fork_is_used(self):
        """Whether code of the user is called whenever a copy is made."""
        return self._at_fork.is_used

    def can_make(self, passed, allowed):
        """Whether the process has no other thread, and no descriptors but the kernel's, `passed` and `allowed` ones."""
        if self._clone is None or self._at_fork.is_used:
            return False
        if process.count_threads() != 1:
            return False
        known = self._own_descriptors.union(map(str, passed), map(str, allowed))
        others = set(posix.listdir("/proc/self/fd")).difference(known)
        return len(others) == 1  # of the listing itself

    def make(self, control, score, own_score, arrive):
        """The pid of the copy, or None if there is none. In the copy 0, when the guardian has sent something.

        The copy listens on the descriptor `control`, and calls `arrive()`. The scores are for the out-of-memory
        killer. Signals wait, in both processes, until `excite()`: a handler of the user that raises must not make it
        look as if there were no copy.
        """
        self.settle()
        self._calm()
        waits = select.poll()
        waits.register(control, select.POLLIN)
        scores = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY | posix.O_CLOEXEC)
        settled, arrives = posix.pipe()
        pid = -1
        _python.PyOS_BeforeFork()
        try:
            # Inherited: the copy itself could do both only when others have seen it.
            posix.write(scores, score)
            process.set_dumpable(False)  # control: checkpoints_are_not_dumpable
            pid = self._clone()
            if pid == 0:
                _wait(waits, arrives, (scores, settled), arrive)
                return 0
        finally:
            if pid:
                process.set_dumpable(True)
                posix.write(scores, own_score)
                _python.PyOS_AfterFork_Parent()
        for descriptor in (scores, arrives):
            posix.close(descriptor)
        self._unsettled = settled
        if pid < 0:
            self.settle()
            return None
        return pid

    def _calm(self):
        """Let neither a handler of a signal nor a finalizer run in between: the interpreter holds locks, and the copy would
        run it, too."""
        self._collected = _collects()
        self._blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        _stop_collecting()
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _SIGNALS)  # a handler may run now, and raise

    def excite(self):
        """Let handlers and finalizers run again."""
        blocked, self._blocked = self._blocked, None
        if blocked is not None:
            if self._collected:
                _go_on_collecting()
            _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)

    def settle(self):
        """Before code of the session runs: wait until a `killpg` of this process cannot reach the newest copy."""
        settled, self._unsettled = self._unsettled, None
        if settled is not None:
            waits = select.poll()
            waits.register(settled, select.POLLIN)
            waits.poll(SETTLED_MS)
            posix.close(settled)

    def thaw(self):
        """Do in a copy that is used after all what `fork` would have done in it."""
        self._unsettled = None
        state = copies.random_state()
        copies.silently(_python.PyOS_AfterFork_Child)
        copies.restore_random(state)


def _wait(waits, arrives, unwanted, arrive):
    try:
        posix.setsid()
        posix.close(arrives)  # the original need not wait for the rest
        arrive()
        for descriptor in unwanted:
            posix.close(descriptor)
        waits.poll()
    except BaseException:
        posix._exit(1)


def find_clone():
    """The system call as a function, if all that it needs is known here; else None.

    The C library keeps the number of each thread in memory, and the copy's has another one: the host's kernel writes it
    there. It tells where that is.
    """
    call = _CALLS.get(posix.uname().machine)
    if call is None or ctypes.sizeof(ctypes.c_void_p) != 8 or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    thread_id_address = ctypes.c_void_p()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(thread_id_address), 0, 0, 0) or not thread_id_address.value:
        return None
    _libc.pthread_self.restype = ctypes.c_void_p
    thread = _libc.pthread_self()
    if not thread <= thread_id_address.value < thread + _THREAD_BYTES:
        return None  # not as glibc does it
    if ctypes.c_int.from_address(thread_id_address.value).value != posix.getpid():
        return None
    number, at = call
    arguments = [ctypes.c_long(each) for each in (number, _FLAGS, 0, 0, 0, 0)]
    arguments[1 + at] = thread_id_address
    syscall = _libc.syscall
    syscall.restype = ctypes.c_long
    return lambda: syscall(*arguments)
