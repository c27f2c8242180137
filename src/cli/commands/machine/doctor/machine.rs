//! Judges the host: its kernel, and what Belljar keeps on it.

use super::facts::{Config, Daemon, Facts, Home, OTHERS_WRITE, ProcessesOfOthers, SocketFile};
use super::finding::Finding;
use super::runc::Version;
use crate::cli::client::machine_daemon::ClosedDaemon;
use crate::cli::render::human::size;
use crate::protocol::api::HealthStatus;

/// First kernel that opens paths below a folder without following links out of it (`openat2`).
const KERNEL: (u32, u32) = (5, 6);
/// Controllers without which a limit of the sandbox would not be enforced.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Space for a session with some files and its journal.
const LOW_BYTES: u64 = 1024 * 1024 * 1024;
/// Below this, a journal cannot work.
const FULL_BYTES: u64 = 64 * 1024 * 1024;
const FULL_FILES: u64 = 1000;
/// The mode bit that lets a group write.
const GROUP_WRITES: u32 = 0o020;

pub fn kernel(release: Option<&str>) -> Finding {
    let (major, minor) = KERNEL;
    match release.map(|release| (release, Version::parse(release))) {
        Some((release, Some(version))) if version.is_at_least(major, minor) => Finding::ok(release),
        Some((release, _)) => Finding::failure(
            format!("{release} is too old: Belljar needs Linux {major}.{minor}"),
            "upgrade the system, or use a machine with a newer one",
        ),
        None => Finding::warning("its version is unknown", "mount /proc: `mount -t proc proc /proc`"),
    }
}

pub fn cgroups(facts: &Facts) -> Finding {
    let cgroups = &facts.cgroups;
    let Some(version) = cgroups.version else {
        return Finding::failure("there are none", "mount them: `mount -t cgroup2 none /sys/fs/cgroup`");
    };
    let missing: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|name| !cgroups.controllers.iter().any(|found| found == name))
        .collect();
    if missing.is_empty() && !cgroups.for_jails && facts.engine.is_err() {
        return Finding::warning(
            format!(
                "version {version}, but none that you may use: memory of jails is watched, their CPU time is not held"
            ),
            "loginctl enable-linger $USER and log in anew, or have root run `belljar daemon --system`",
        );
    }
    if missing.is_empty() {
        return Finding::ok(format!("version {version} with {}", CONTROLLERS.join(", ")));
    }
    let missing = missing.join(", ");
    Finding::failure(
        format!("version {version}, but without {missing}: these limits would not hold"),
        "add `cgroup_enable=memory swapaccount=1` to the kernel's command line and reboot",
    )
}

pub fn seccomp(supported: bool) -> Finding {
    if supported {
        return Finding::ok("the kernel can filter system calls");
    }
    Finding::failure(
        "the kernel cannot filter system calls",
        "use a kernel that is built with CONFIG_SECCOMP_FILTER, as every distribution's own is",
    )
}

/// Only bubblewrap needs user namespaces, so the finding is at most a warning.
pub fn user_namespaces(facts: &Facts) -> Finding {
    let found = &facts.namespaces;
    if found.max == Some(0) {
        return Finding::warning(
            "switched off, so bubblewrap cannot work",
            "sysctl -w user.max_user_namespaces=10000",
        );
    }
    if found.clone == Some(0) && !facts.root {
        return Finding::warning(
            "only for root, so bubblewrap cannot work for you",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        );
    }
    match found.max {
        Some(max) => Finding::ok(format!("up to {max}")),
        None => Finding::warning(
            "this kernel has none, so bubblewrap cannot work",
            "use a kernel that is built with CONFIG_USER_NS; Docker works without",
        ),
    }
}

/// A setting of the kernel (sysctl) that can prevent sandboxes from working, or leaves a way open that a guest which got
/// out of its sandbox, or found a fault of the kernel, would use.
pub struct Switch {
    pub name: &'static str,
    is_wrong: fn(u64) -> bool,
    effect: &'static str,
    /// A value that does no harm.
    good: u64,
}

/// A setting that should not be 0.
const fn guard(name: &'static str, good: u64, effect: &'static str) -> Switch {
    Switch { name, is_wrong: |value| value == 0, effect, good }
}

const fn namespaces(name: &'static str) -> Switch {
    Switch { name, is_wrong: |most| most == 0, effect: "no sandbox can be built", good: 10_000 }
}

/// The settings of user namespaces have checks of their own.
pub const SWITCHES: [Switch; 12] = [
    namespaces("user.max_pid_namespaces"),
    namespaces("user.max_net_namespaces"),
    namespaces("user.max_mnt_namespaces"),
    namespaces("user.max_ipc_namespaces"),
    namespaces("user.max_uts_namespaces"),
    namespaces("user.max_cgroup_namespaces"),
    Switch {
        name: "vm.overcommit_memory",
        is_wrong: |mode| mode == 2,
        effect: "checkpoints of large sessions cannot be kept, since each counts as a whole copy",
        good: 0,
    },
    guard("kernel.kptr_restrict", 2, "addresses of the kernel can be read, which faults of it need"),
    guard("kernel.dmesg_restrict", 1, "every user reads the kernel's log, with its addresses"),
    guard("kernel.unprivileged_bpf_disabled", 1, "every user may load programs into the kernel"),
    guard(
        "kernel.io_uring_disabled",
        2,
        "every user may use `io_uring`, where many faults of the kernel were",
    ),
    guard("kernel.yama.ptrace_scope", 1, "a user's programs may read and change each other's memory"),
];

/// One finding for each setting with a wrong value.
pub fn sysctls(found: &[(&'static str, u64)]) -> Vec<Finding> {
    let wrong: Vec<Finding> = SWITCHES
        .iter()
        .filter_map(|switch| {
            let (_, value) = found.iter().find(|(name, _)| *name == switch.name)?;
            let Switch { name, effect, good, .. } = switch;
            let fix = format!(
                "sudo sysctl -w {name}={good}, and put `{name} = {good}` into /etc/sysctl.d/belljar.conf"
            );
            (switch.is_wrong)(*value).then(|| Finding::warning(format!("`{name}` is {value}: {effect}"), fix))
        })
        .collect();
    if wrong.is_empty() {
        vec![Finding::ok("none is in the way, and none leaves a known way open")]
    } else {
        wrong
    }
}

/// A guest cannot open a socket of the family that the module serves, but other containers and users can.
pub fn crypto_sockets(can_be_used: bool) -> Option<Finding> {
    can_be_used.then(|| {
        Finding::warning(
            "`algif_aead` can be used: unless the kernel is patched, users and containers that are not Belljar's, of \
             an engine before 29.4.3, can change files through it that they may only read (CVE-2026-31431)",
            "echo 'install algif_aead /bin/false' | sudo tee /etc/modprobe.d/belljar.conf, or upgrade the kernel",
        )
    })
}

/// A daemon of root serves users who may be strangers to each other. One of an ordinary user has no others.
pub fn processes_of_others(facts: &Facts) -> Option<Finding> {
    facts.root.then(|| match facts.processes {
        ProcessesOfOthers::Hidden => Finding::ok("those of others are hidden from users"),
        ProcessesOfOthers::Shown => Finding::warning(
            "every user reads below `/proc` where sandboxes of others lie and their ids (`mountinfo`, `cgroup`)",
            "sudo mount -o remount,hidepid=2 /proc, and put `hidepid=2` among the options of `/proc` in /etc/fstab",
        ),
    })
}

pub fn apparmor(facts: &Facts) -> Finding {
    match facts.namespaces.apparmor_restricts {
        Some(1..) if !facts.root => Finding::warning(
            "it keeps user namespaces from programs without a profile, so bubblewrap may not work for you",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give `bwrap` a profile with `userns,`",
        ),
        Some(1..) => Finding::ok("restricts user namespaces, though not those of root"),
        Some(0) | None => Finding::ok("does not restrict user namespaces"),
    }
}

pub fn bubblewrap(facts: &Facts) -> Finding {
    if let Some(trouble) = &facts.jail_trouble {
        let message = format!("it cannot build a jail here: {}", trouble.trim());
        let fix = "see the checks above; `bwrap --ro-bind / / --unshare-all true` has to work for you";
        return Finding::warning(message, fix);
    }
    match (&facts.bubblewrap, &facts.engine) {
        (Some(version), _) => Finding::ok(version.trim_start_matches("bubblewrap ")),
        (None, Ok(_)) => Finding::ok("not there, and not needed while an engine answers"),
        (None, Err(_)) => Finding::warning(
            "not there; it is what can hold sandboxes where no engine answers",
            "apt-get install bubblewrap, or dnf install bubblewrap",
        ),
    }
}

pub fn config(config: &Config) -> Finding {
    let file = config.file.display();
    match &config.settings {
        Ok(_) if config.there => Finding::ok(file.to_string()),
        Ok(_) => Finding::ok(format!("the defaults; `{file}` is not there")),
        Err(error) => {
            Finding::failure(error.to_string(), format!("edit `{file}`, then `belljar config show`"))
        }
    }
}

pub fn disk(home: &Home) -> Finding {
    let path = home.path.display();
    let Some(free_space) = home.free_space else {
        let fix = format!("ls -ld {path}, and set `BELLJAR_HOME` to a folder of yours");
        return Finding::failure(format!("nobody knows how much is free at `{path}`"), fix);
    };
    let fix =
        || format!("df -h {path}; remove old sessions with `belljar rm`, or set `BELLJAR_HOME` elsewhere");
    if free_space.files.is_some_and(|files| files < FULL_FILES) {
        let files = free_space.files.unwrap_or_default();
        return Finding::failure(format!("only {files} more files fit at `{path}`"), fix());
    }
    let left = format!("{} free at `{path}`", size(free_space.bytes));
    match free_space.bytes {
        ..FULL_BYTES => Finding::failure(format!("full: {left}"), fix()),
        FULL_BYTES..LOW_BYTES => Finding::warning(format!("nearly full: {left}"), fix()),
        LOW_BYTES.. if home.project_quotas => {
            Finding::ok(format!("{left}, with project quotas: the kernel bounds workspaces"))
        }
        LOW_BYTES.. => Finding::ok(left),
    }
}

pub fn home(home: &Home) -> Finding {
    let path = home.path.display();
    match home.mode {
        _ if !home.writable => Finding::failure(
            format!("you may not write to `{path}`"),
            format!("sudo chown $USER {path}, or set `BELLJAR_HOME` to a folder of yours"),
        ),
        Some(mode) if mode & OTHERS_WRITE != 0 => Finding::failure(
            format!("everybody may write to `{path}` (mode {mode:o})"),
            format!("chmod 700 {path}"),
        ),
        Some(_) => Finding::ok(path.to_string()),
        None => Finding::ok(format!("`{path}` is made by the first daemon")),
    }
}

pub fn closed_daemon(closed: &ClosedDaemon) -> Finding {
    Finding::warning(
        format!(
            "a daemon serves this machine, but only members of the group `{}`, so commands start one of your own",
            closed.group
        ),
        closed.remedy(),
    )
}

pub fn socket(socket: &SocketFile) -> Finding {
    let path = socket.path.display();
    if socket.open_folder {
        let folder = socket.path.parent().unwrap_or(&socket.path).display();
        return Finding::failure(
            format!("everybody may put another socket into `{folder}`"),
            format!("chmod o-w {folder}"),
        );
    }
    match &socket.found {
        None => Finding::ok(format!("`{path}` is made by the daemon")),
        Some(found) if !found.is_socket => {
            Finding::failure(format!("`{path}` is in the way and is no socket"), format!("rm {path}"))
        }
        Some(found) if !found.ours => Finding::failure(
            format!("`{path}` belongs to user {}, neither to you nor to root", found.owner),
            "set `BELLJAR_SOCKET` to a path of yours",
        ),
        Some(found) if found.mode & OTHERS_WRITE != 0 => Finding::failure(
            format!("everybody may use `{path}` (mode {:o})", found.mode),
            format!("chmod o-rwx {path}"),
        ),
        // The group of root's socket is meant to use it.
        Some(found) if found.mode & GROUP_WRITES != 0 && found.owner != 0 => Finding::warning(
            format!("your group may use `{path}` (mode {:o})", found.mode),
            format!("chmod g-rwx {path}"),
        ),
        Some(found) => Finding::ok(format!("{path} (mode {:o})", found.mode)),
    }
}

pub fn daemon(daemon: Option<&Daemon>) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let Some(Daemon { version, health }) = daemon else {
        return Finding::ok("not running; commands start it");
    };
    if version.version != own {
        return Finding::warning(
            format!("it is version {}, and this is {own}", version.version),
            "belljar daemon stop; sessions live on, and the next command starts the new one",
        );
    }
    match health.status {
        HealthStatus::Ok => Finding::ok(format!("runs (pid {})", version.pid)),
        HealthStatus::Degraded => Finding::warning(
            format!("runs, but cannot make new sandboxes: {}", health.problems.join("; ")),
            "belljar daemon stop; the next command starts it with the environment of your shell",
        ),
    }
}
