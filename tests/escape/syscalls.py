"""System calls that lead out of a sandbox, older ABIs that go round a filter, and typing into terminals."""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import pty
import resource
import signal
import stat
import termios
import time

from probing import REFUSED, X86, Escaped, errno_name, in_child, must_be_refused, probe, probes, syscall

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
