"""Files, devices and mounts: what can be written, and what can be read that should not."""

import os
import stat

from probing import Escaped, errno_name, probe

# What a sandbox may show. Everything else is a finding.
DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
MOUNTS = (
    "/proc", "/sys", "/dev", "/tmp", "/run", "/workspace", "/belljar/bridge", "/belljar/kernel", "/belljar/packages",
    "/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/etc/passwd", "/etc/group",
)  # fmt: skip
WRITABLE_MOUNTS = ("/proc", "/dev", "/tmp", "/workspace")


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
