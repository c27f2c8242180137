"""Tries out what the sandbox really prevents, before any user code runs.

Every finding is true only if the attempt was made and refused.
"""

import errno
import os
import resource
import signal
import socket

from . import process

_CLONE_NEWUSER = 0x10000000
_PROBE_FILE = "/.belljar-probe"


def probe():
    no_foreign_prlimit, no_new_namespaces = _try_on_child()
    return {
        "no_network": _only_loopback(),
        "no_kernel_crypto": _kernel_crypto_refused(),
        "read_only_root": _root_read_only(),
        "no_foreign_prlimit": no_foreign_prlimit,
        "no_new_namespaces": no_new_namespaces,
        "is_init": os.getpid() == 1,
        "not_dumpable": not process.is_dumpable(),
    }


def _only_loopback():
    # Netlink may be refused, and a jail has no `/sys`.
    listings = (
        lambda: [name for _, name in socket.if_nameindex()],
        lambda: os.listdir("/sys/class/net"),
        _interfaces_in_proc,
    )
    for names in listings:
        try:
            return set(names()) <= {"lo"}
        except OSError:
            continue
    return False


def _interfaces_in_proc():
    with open("/proc/self/net/dev", encoding="ascii") as file:
        # Two lines of headings, then `name: counters`.
        return [line.partition(":")[0].strip() for line in file.readlines()[2:]]


def _kernel_crypto_refused():
    try:
        socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0).close()
    except OSError:
        return True
    return False


def _root_read_only():
    try:
        os.close(os.open(_PROBE_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    os.unlink(_PROBE_FILE)
    return False


def _try_on_child():
    """`(prlimit on another process is refused, a new user namespace is refused)`."""
    wait_read, wait_write = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(wait_read)
        os.close(wait_write)
        return False, False
    if child == 0:
        os.close(wait_write)
        os.read(wait_read, 1)
        os._exit(1 if process.unshare(_CLONE_NEWUSER) else 0)
    os.close(wait_read)
    try:
        resource.prlimit(child, resource.RLIMIT_NOFILE)
        prlimit_refused = False
    except OSError as error:
        prlimit_refused = error.errno in (errno.EPERM, errno.ENOSYS)
    os.close(wait_write)
    status = os.waitpid(child, 0)[1]
    # A seccomp filter may also kill the child for the attempt.
    refused = status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS)
    return prlimit_refused, refused
