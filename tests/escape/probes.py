"""Tries to get out of a sandbox, or to see more than it should, and reports what happened.

Runs inside the sandbox, with nothing but the standard library (Python 3.9 or newer). Prints one JSON object:

    {"probe name": {"contained": true, "detail": "EPERM"}, ...}

No probe does harm if it gets through: files are opened but not written, calls get arguments that have no effect, and
no address but 127.0.0.1 is ever contacted. The first argument, if given, is the name of the host, for `hostname`.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import pty
import resource
import signal
import socket
import stat
import sys
import termios
import time

# What a sandbox may show. Everything else is a finding.
ENVIRONMENT = {
    "HOME", "HOSTNAME", "LANG", "MATPLOTLIBRC", "MKL_NUM_THREADS", "MPLBACKEND", "MPLCONFIGDIR", "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUTF8", "TMPDIR",
}  # fmt: skip
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
MOUNTS = (
    "/proc", "/sys", "/dev", "/tmp", "/run", "/workspace", "/belljar/bridge", "/belljar/kernel", "/belljar/packages",
    "/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/etc/passwd", "/etc/group",
)  # fmt: skip
WRITABLE_MOUNTS = ("/proc", "/dev", "/tmp", "/workspace")
MIB = 1 << 20

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


# --- System calls ------------------------------------------------------------------------------------------------

X86 = platform.machine() == "x86_64"
ROOT = ctypes.create_string_buffer(b"/")
NEW_USER_NAMESPACE = 0x10000000
SIGCHLD = int(signal.SIGCHLD)

# name: (x86_64, aarch64, arguments); None where the architecture has no such call
SYSCALLS = {
    "mount": (165, 40, (0, ROOT, 0, 0, 0)),
    "umount2": (166, 39, (ROOT, 0xFF)),
    "pivot_root": (155, 41, (ROOT, ROOT)),
    "chroot": (161, 51, (ROOT,)),
    "open_tree": (428, 428, (-100, ROOT, 0)),
    "move_mount": (429, 429, (-1, 0, -1, 0, 0)),
    "fsopen": (430, 430, (0, 0)),
    "fsconfig": (431, 431, (-1, 0, 0, 0, 0)),
    "fsmount": (432, 432, (-1, 0, 0)),
    "fspick": (433, 433, (-100, ROOT, 0)),
    "mount_setattr": (442, 442, (-1, 0, 0, 0, 0)),
    "unshare_user": (272, 97, (NEW_USER_NAMESPACE,)),
    "clone_new_user": (56, 220, (NEW_USER_NAMESPACE | SIGCHLD, 0, 0, 0, 0)),
    "setns": (308, 268, (-1, 0)),
    "ptrace": (101, 117, (0, 0, 0, 0)),
    "process_vm_readv": (310, 270, (os.getpid(), 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, 271, (os.getpid(), 0, 0, 0, 0, 0)),
    "kcmp": (312, 272, (os.getpid(), os.getpid(), 1, 0, 0)),
    "pidfd_getfd": (438, 438, (-1, 0, 0)),
    "bpf": (321, 280, (0, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "keyctl": (250, 219, (0, -3, 1)),
    "add_key": (248, 217, (0, 0, 0, 0, -3)),
    "request_key": (249, 218, (0, 0, 0, -3)),
    "io_uring_setup": (425, 425, (1, 0)),
    "io_setup": (206, 0, (0, 0)),
    "userfaultfd": (323, 282, (1,)),  # of the caller's own faults, which needs no right
    "memfd_secret": (447, 447, (0,)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "name_to_handle_at": (303, 264, (-100, 0, 0, 0, 0)),
    "fanotify_init": (300, 262, (0, 0)),
    "vmsplice": (278, 75, (-1, 0, 0, 0)),
    "splice": (275, 76, (-1, 0, -1, 0, 0, 0)),
    "move_pages": (279, 239, (0, 0, 0, 0, 0, 0)),
    "migrate_pages": (256, 238, (0, 0, 0, 0)),
    "process_madvise": (440, 440, (-1, 0, 0, 4, 0)),
    "ioprio_set_of_user": (251, 30, (3, 0, 0)),
    "setpriority_of_user": (141, 140, (2, 0, 19)),
    "setpriority_of_guardian": (141, 140, (0, 1, 19)),
    "sched_setaffinity_of_guardian": (203, 122, (1, 8, ctypes.create_string_buffer(b"\xff" * 8))),
    "sched_setattr_of_guardian": (314, 274, (1, 0, 0)),
    "sched_setparam_of_guardian": (142, 118, (1, ctypes.create_string_buffer(4))),
    "init_module": (175, 105, (0, 0, 0)),
    "finit_module": (313, 273, (-1, 0, 0)),
    "delete_module": (176, 106, (0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0xFFFF)),
    "reboot": (169, 142, (0, 0, 0, 0)),
    "swapon": (167, 224, (0, 0)),
    "acct": (163, 89, (ROOT,)),
    "quotactl": (179, 60, (-1, 0, 0, 0)),
    "syslog": (103, 116, (10, 0, 0)),
    "sethostname": (170, 161, (0, -1)),
    "clock_settime": (227, 112, (0, 0)),
    "adjtimex": (159, 171, (0,)),
    "iopl": (172, None, (0,)),
    "modify_ldt": (154, None, (0, 0, 0)),
    "personality_no_randomisation": (135, 92, (0x0040000,)),
}

for name, (x86_number, arm_number, arguments) in SYSCALLS.items():
    number = x86_number if X86 else arm_number
    if number is not None:
        probes[f"syscall_{name}"] = lambda number=number, arguments=arguments: must_be_refused(number, *arguments)


@probe
def syscall_clone3_is_absent():
    """Not EPERM: libc falls back to clone only if the call does not exist."""
    return must_be_refused(435, 0, 0, allowed={errno.ENOSYS})


@probe
def syscall_prlimit_of_another_process():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        return must_be_refused(302 if X86 else 261, child, resource.RLIMIT_CORE, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@probe
def syscall_mknod_device():
    device = stat.S_IFCHR | 0o600  # 0:0, which needs no capability
    path = ctypes.create_string_buffer(b"/tmp/probe-device")
    try:
        return must_be_refused(259 if X86 else 33, -100, path, device, 0)
    finally:
        if os.path.exists("/tmp/probe-device"):
            os.unlink("/tmp/probe-device")


@probe
def abi_of_32_bit():
    if not X86:
        return "not on this architecture"

    def call():
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)()

    text, killed = in_child(call)
    if not killed and int(text) > 0:
        raise Escaped("int 0x80 works")
    return f"killed by {signal.Signals(killed).name}" if killed else text


@probe
def abi_x32():
    return must_be_refused(0x40000000 | 39) if X86 else "not on this architecture"


def push_into_terminal(request):
    """TIOCSTI types into a terminal; the kernel looks at the low half of the number only."""

    def call():
        parent, child = pty.openpty()
        os.setsid()
        fcntl.ioctl(child, termios.TIOCSCTTY, 0)  # into any other terminal nobody may type
        key = ctypes.create_string_buffer(b"x")
        return json.dumps(syscall(16 if X86 else 29, child, request, key))

    result, error = json.loads(in_child(call)[0])
    if result == 0 or error not in REFUSED:
        raise Escaped(f"returned {result} {errno_name(error)}")
    return errno_name(error)


@probe
def ioctl_tiocsti():
    return push_into_terminal(0x5412)


@probe
def ioctl_tiocsti_with_high_bits():
    return push_into_terminal(0x5412 | 1 << 32)


# --- Network -----------------------------------------------------------------------------------------------------


def no_socket(family, kind, protocol=0):
    number = 41 if X86 else 198
    return must_be_refused(number, family, kind, protocol, allowed=REFUSED | {errno.EAFNOSUPPORT})


for name, arguments in {
    "alg": (38, 5),
    "alg_with_high_bits": (38 | 1 << 32, 5),
    "vsock": (40, 1),
    "packet": (17, 3),
    "netlink": (16, 3),
    "bluetooth": (31, 3),
    "raw_ipv4": (2, 3, 1),
    "raw_ipv4_with_flags": (2, 3 | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 255),
    "raw_ipv6": (10, 3, 58),
    "ping": (2, 2, 1),
    "sctp": (2, 1, 132),
    "mptcp": (2, 1, 262),
}.items():
    probes[f"socket_{name}"] = lambda arguments=arguments: no_socket(*arguments)


@probe
def socket_of_any_other_family():
    families = [family for family in range(64) if family not in (1, 2, 10)]
    for family in families:
        for kind in (1, 2, 3, 5):
            try:
                no_socket(family, kind)
            except Escaped as escaped:
                raise Escaped(f"family {family}, kind {kind}: {escaped}") from None
    return f"{len(families)} families refused"


@probe
def socketpair_only_unix():
    return must_be_refused(53 if X86 else 199, 2, 1, 0, 0)


@probe
def interfaces():
    with open("/proc/net/dev") as file:
        names = [line.split(":")[0].strip() for line in file if ":" in line]
    if names not in ([], ["lo"]):
        raise Escaped(f"interfaces: {names}")
    return "only lo"


@probe
def routes():
    with open("/proc/net/route") as file:
        found = [line.split()[0] for line in file.readlines()[1:]]
    try:
        with open("/proc/net/ipv6_route") as file:
            found += [line.split()[-1] for line in file if line.split()[-1] != "lo"]
    except FileNotFoundError:
        pass
    if found:
        raise Escaped(f"routes by {found}")
    return "none"


@probe
def services_of_the_host():
    for port in (22, 80, 443, 2375, 2376, 5000, 8000, 8080):
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", port)) == 0:
                raise Escaped(f"127.0.0.1:{port} answers")
    return "none answers on 127.0.0.1"


@probe
def abstract_sockets_of_the_host():
    with open("/proc/net/unix") as file:
        names = [line.split()[-1] for line in file if line.split()[-1].startswith("@")]
    if names:
        raise Escaped(", ".join(names))
    return "none"


@probe
def sockets_of_the_engine():
    found = [
        path
        for folder in ("/run", "/var/run", "/tmp", "/workspace", "/belljar")
        for parent, _, files in os.walk(folder)
        for path in (os.path.join(parent, file) for file in files)
        if any(word in path for word in ("docker", "containerd", "podman", "crio"))
    ]
    if found:
        raise Escaped(", ".join(found))
    return "none"


# --- Files -------------------------------------------------------------------------------------------------------


def cannot_open_for_writing(paths):
    missing = 0
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
        except FileNotFoundError:
            missing += 1
        except OSError:
            continue
        else:
            raise Escaped(f"{path} can be written")
    return f"{len(paths) - missing} of {len(paths)} there, none writable"


@probe
def write_to_root():
    for folder in ("/", "/bin", "/etc", "/usr", "/usr/lib", "/var", "/var/tmp", "/home", "/root", "/opt", "/belljar"):
        path = os.path.join(folder, "belljar-probe")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            continue
        os.unlink(path)
        raise Escaped(f"a file could be made in {folder}")
    files = ["/etc/passwd", "/etc/ld.so.cache", "/usr/bin/env", "/etc/hosts", "/etc/resolv.conf"]
    return cannot_open_for_writing(files)


@probe
def write_to_proc():
    kernel = [os.path.join("/proc/sys/kernel", name) for name in os.listdir("/proc/sys/kernel")]
    others = "sysrq-trigger irq/default_smp_affinity sys/vm/drop_caches sys/vm/overcommit_memory sys/net/ipv4/ip_forward"
    return cannot_open_for_writing(kernel + [f"/proc/{name}" for name in others.split()])


@probe
def write_to_sys():
    paths = [os.path.join(parent, file) for parent, _, files in os.walk("/sys/kernel") for file in files][:2000]
    return cannot_open_for_writing(paths + ["/sys/power/state", "/sys/module/apparmor/parameters/enabled"])


@probe
def write_to_cgroup():
    paths = [os.path.join(parent, file) for parent, _, files in os.walk("/sys/fs/cgroup") for file in files][:2000]
    return cannot_open_for_writing(paths)


@probe
def cgroup_path_is_hidden():
    with open("/proc/self/cgroup") as file:
        paths = {line.rstrip("\n").split(":", 2)[2] for line in file}
    if paths - {"/", ""}:
        raise Escaped(f"{sorted(paths)}")
    return "/"


def shows_nothing(path):
    try:
        if os.path.isdir(path):
            entries = os.listdir(path)
            return f"{len(entries)} entries" if entries else None
        with open(path, "rb") as file:
            return "readable" if file.read(64) else None
    except OSError:
        return None


@probe
def masked_files():
    proc = "acpi asound interrupts kallsyms kcore keys latency_stats modules pagetypeinfo sched_debug scsi slabinfo"
    proc += " timer_list timer_stats vmallocinfo"
    sys = "firmware devices/virtual/powercap fs/selinux kernel/debug kernel/tracing"
    paths = [f"/proc/{name}" for name in proc.split()] + [f"/sys/{name}" for name in sys.split()]
    shown = [f"{path}: {what}" for path, what in ((path, shows_nothing(path)) for path in paths) if what]
    if shown:
        raise Escaped(", ".join(shown))
    return f"{len(paths)} empty, unreadable or absent"


@probe
def memory_devices():
    return cannot_open_for_writing([f"/dev/{name}" for name in "mem kmem port kmsg kvm fuse net/tun".split()])


def cannot_read(path):
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            with open(path, "rb") as file:
                file.read(1)
    except OSError as error:
        return errno_name(error.errno)
    raise Escaped(f"{path} can be read")


@probe
def environment_of_pid_1():
    return cannot_read("/proc/1/environ")


@probe
def memory_of_pid_1():
    try:
        os.close(os.open("/proc/1/mem", os.O_RDONLY))
    except OSError as error:
        return errno_name(error.errno)
    raise Escaped("/proc/1/mem can be opened")


@probe
def descriptors_of_pid_1():
    return cannot_read("/proc/1/fd")


@probe
def processes_of_the_host():
    """Kernel threads and daemons are seen in the host's pid namespace only."""
    names = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as file:
                names.append(file.read().strip())
        except OSError:
            continue
    if {"kthreadd", "systemd", "dockerd", "containerd"} & set(names):
        raise Escaped(", ".join(names))
    return f"{len(names)} processes"


@probe
def device_nodes():
    found = []
    for parent, _, files in os.walk("/dev"):
        if parent.startswith(("/dev/pts", "/dev/shm", "/dev/mqueue")):
            continue
        for file in files:
            mode = os.lstat(os.path.join(parent, file)).st_mode
            if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and file not in DEVICES:
                found.append(os.path.join(parent, file))
    if found:
        raise Escaped(", ".join(found))
    return "only the standard ones"


def mount_table():
    """(mount point, options) of each mount."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            yield fields[4].replace("\\040", " "), fields[5].split(",")


def is_below(path, folders):
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


@probe
def mounts():
    unexpected = [path for path, _ in mount_table() if path != "/" and not is_below(path, MOUNTS)]
    if unexpected:
        raise Escaped(", ".join(unexpected))
    return "only the expected ones"


@probe
def writable_mounts():
    # Docker mounts a few files and folders that only root could write.
    found = [
        path
        for path, options in mount_table()
        if "rw" in options and not is_below(path, WRITABLE_MOUNTS) and os.access(path, os.W_OK)
    ]
    if found:
        raise Escaped(", ".join(found))
    return "only the expected ones"


@probe
def setuid_files():
    device, count = os.stat("/").st_dev, 0
    for parent, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.lstat(os.path.join(parent, name)).st_dev == device]
        for file in files:
            count += 1
            mode = os.lstat(os.path.join(parent, file)).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                raise Escaped(os.path.join(parent, file))
    return f"none among {count} files"


# --- Temporary space ---------------------------------------------------------------------------------------------


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


# --- Who we are, and limits --------------------------------------------------------------------------------------


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


def run(function):
    try:
        return {"contained": True, "detail": function()}
    except Escaped as escaped:
        return {"contained": False, "detail": str(escaped)}
    except Exception as error:  # a probe that cannot tell has not shown that anything is contained
        return {"contained": False, "detail": f"the probe failed: {type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps({name: run(function) for name, function in probes.items()}, indent=1))
