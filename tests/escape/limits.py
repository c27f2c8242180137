"""Rights of the process, its environment, and what bounds the space, files and processes that it takes."""

import errno
import os
import resource
import signal
import socket
import sys
import time

from probing import Escaped, errno_name, in_child, libc, probe

# What a sandbox may show. Everything else is a finding.
ENVIRONMENT = {
    "HOME", "HOSTNAME", "LANG", "MATPLOTLIBRC", "MKL_NUM_THREADS", "MPLBACKEND", "MPLCONFIGDIR", "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUTF8",
    "TMPDIR",
}  # fmt: skip
MIB = 1 << 20


def cannot_execute_in(folder):
    path = os.path.join(folder, "probe-script")
    with open(path, "w") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(path, 0o755)
    try:
        pid = os.posix_spawn(path, [path], {})
        os.waitpid(pid, 0)
    except PermissionError:
        return "EACCES"
    finally:
        os.unlink(path)
    raise Escaped(f"a file in {folder} can be executed")


@probe
def no_execution_in_tmp():
    return cannot_execute_in("/tmp")


@probe
def no_execution_in_shared_memory():
    return cannot_execute_in("/dev/shm")


def is_bounded(folder, most):
    path, written = os.path.join(folder, "probe-fill"), 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < most:
                written += file.write(bytes(MIB))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        return f"{errno_name(error.errno)} after {written // MIB} MiB"
    finally:
        if os.path.exists(path):
            os.unlink(path)
    raise Escaped(f"{folder} took {written // MIB} MiB")


@probe
def size_of_tmp_is_bounded():
    return is_bounded("/tmp", 256 * MIB)


@probe
def size_of_run_is_bounded():
    return is_bounded("/run", 128 * MIB)


@probe
def size_of_shared_memory_is_bounded():
    return is_bounded("/dev/shm", 32 * MIB)


@probe
def inodes_of_tmp_are_bounded():
    folder, made, most = "/tmp/probe-inodes", 0, 40_000
    os.mkdir(folder)
    try:
        while made < most:
            os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY, 0o600))
            made += 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return f"ENOSPC after {made} files"
    finally:
        for index in range(made):
            os.unlink(f"{folder}/{index}")
        os.rmdir(folder)
    raise Escaped(f"{made} files could be made")


def own_status():
    with open("/proc/self/status") as file:
        return {key: value.strip() for key, value in (line.split(":", 1) for line in file)}


@probe
def capabilities():
    held = {key: value for key, value in own_status().items() if key.startswith("Cap") and int(value, 16)}
    if held:
        raise Escaped(str(held))
    return "none in any set"


@probe
def no_new_privileges():
    value = own_status()["NoNewPrivs"]
    if value != "1":
        raise Escaped(value)
    return value


@probe
def seccomp_filter_is_on():
    value = own_status()["Seccomp"]
    if value != "2":
        raise Escaped(value)
    return value


@probe
def not_root():
    ids = set(os.getresuid() + os.getresgid()) | set(os.getgroups())
    if 0 in ids:
        raise Escaped(f"ids {sorted(ids)}")
    return f"ids {sorted(ids)}"


@probe
def setuid_is_refused():
    text, _ = in_child(lambda: libc.setuid(0))
    if text == "0":
        raise Escaped("became root")
    return "refused"


@probe
def hostname():
    name, host = socket.gethostname(), sys.argv[1] if len(sys.argv) > 1 else None
    if name == host:
        raise Escaped(f"{name} is the host's")
    return name


@probe
def no_core_dumps():
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    if limits != (0, 0):
        raise Escaped(str(limits))
    return str(limits)


@probe
def open_files_are_bounded():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > 65536:
        raise Escaped(str(hard))
    return str(hard)


@probe
def processes_are_bounded():
    children, most = [], 1000
    try:
        while len(children) < most:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    except OSError as error:
        return f"{errno_name(error.errno)} after {len(children)} processes"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    raise Escaped(f"{len(children)} processes")


@probe
def environment():
    unexpected = sorted(set(os.environ) - ENVIRONMENT)
    if unexpected:
        raise Escaped(", ".join(unexpected))
    return ", ".join(sorted(os.environ))
