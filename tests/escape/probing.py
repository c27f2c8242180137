"""What all probes are made of: how one is registered, what counts as an escape, system calls by number."""

import ctypes
import errno
import json
import os
import platform
import signal

X86 = platform.machine() == "x86_64"
REFUSED = {errno.EPERM, errno.ENOSYS, errno.EACCES}
libc = ctypes.CDLL(None, use_errno=True)
probes = {}


class Escaped(Exception):
    """The sandbox did not hold; the text says what was possible."""


def probe(function):
    probes[function.__name__] = function
    return function


def errno_name(number):
    return errno.errorcode.get(number, str(number))


def syscall(number, *args):
    """Returns (result, errno)."""
    ctypes.set_errno(0)
    words = [arg if isinstance(arg, ctypes.Array) else ctypes.c_long(arg) for arg in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, ctypes.get_errno()


def in_child(function):
    """Runs a function in a fork, so that what it changes, or being killed, stays there. Returns (text, signal)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return text, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def must_be_refused(number, *args, allowed=REFUSED):
    def call():
        result, error = syscall(number, *args)
        return json.dumps([result, error])

    text, killed = in_child(call)
    if killed:
        return f"killed by {signal.Signals(killed).name}"
    result, error = json.loads(text.split("]")[0] + "]")  # a new process that got through writes a second one
    if result >= 0:
        raise Escaped(f"returned {result}")
    if error not in allowed:
        raise Escaped(f"reached the kernel: {errno_name(error)}")
    return errno_name(error)
