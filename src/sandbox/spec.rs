//! The description of every sandbox, for any backend: its limits, its user, its folders, its environment and the
//! command that starts its kernel. A backend translates it into its own terms (`backend::docker::config`,
//! `backend::jail::arguments`), and `attest` reads it back.

pub mod hardware;
pub mod seccomp;

use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::config::Sandbox as Settings;
use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::quota::Kind;
use crate::protocol::receipt::{Backend, ImageFact};
use crate::quota::Amounts;
use crate::sandbox::images::WantedImage;
use crate::sandbox::kernel::files::{GUARDIAN_FILE, SHIMS_BIN, SHIMS_LIB};
use crate::security_controls;

pub use crate::protocol::result::WORKSPACE;

/// Paths inside the sandbox.
pub const BRIDGE_DIR: &str = "/belljar/bridge";
pub const KERNEL_DIR: &str = "/belljar/kernel";
/// The folder in which the kernel's bytecode is made.
pub(in crate::sandbox) const COMPILED_DIR: &str = "/belljar/compiled";
pub const BRIDGE_SOCKET: &str = "/belljar/bridge/bridge.sock";
pub const BRIDGE_SOCKET_NAME: &str = "bridge.sock";
/// The socket for large data, beside that of the bridge.
pub const DATA_SOCKET_NAME: &str = "data.sock";
/// The folder in which installed packages appear; it is empty when a sandbox starts.
pub const PACKAGES_DIR: &str = "/belljar/packages";
/// The link in that folder that leads to the packages of the session; it is on `sys.path`.
pub const PACKAGES_SITE: &str = "/belljar/packages/site";
/// The folder of the packages that were added to an image when a user built it; Python looks there, too.
pub(in crate::sandbox) const IMAGE_SITE: &str = "/usr/lib/belljar/site";
pub(in crate::sandbox) const HOSTNAME: &str = "belljar";
/// The guest's home, which is writable and in memory.
pub(in crate::sandbox) const HOME: &str = "/tmp";

/// The folder of the bridge in the daemon's folder of a sandbox.
pub(in crate::sandbox) fn bridge_dir(folder: &Path) -> PathBuf {
    folder.join("b")
}

/// The folder of installed packages in the daemon's folder of a sandbox.
pub(in crate::sandbox) fn packages_dir(folder: &Path) -> PathBuf {
    folder.join("p")
}

/// The OOM killer prefers a sandbox to the daemon.
pub(in crate::sandbox) const OOM_SCORE: i64 = 500;
/// Sandboxes yield to the daemon and to other work of the host when CPUs are short.
pub(in crate::sandbox) const CPU_SHARES: i64 = 256;
/// Priority of a sandbox's first process, as far as the daemon may raise it: hundreds of busy processes must not keep
/// the guardian from ending them. The guardian's workers lower theirs.
pub(in crate::sandbox) const GUARDIAN_PRIORITY: i32 = -15;
pub(in crate::sandbox) const LOCKED_MEMORY_BYTES: i64 = 64 * 1024;

/// An explicit list replaces the engine's own, so that an old engine hides these paths, too.
pub(in crate::sandbox) const MASKED_PATHS: [&str; 18] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
];
pub(in crate::sandbox) const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The chosen backend, and why no earlier one in the order was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub backend: Backend,
    pub why: String,
}

/// How a backend maps the user ids of guests to those of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserMapping {
    /// Ids inside are ids of the host.
    Same,
    /// Root inside is the daemon's user; the others are that user's subordinate ids.
    Rootless,
    /// Ids inside are added to these.
    Remapped { uid_base: u32, gid_base: u32 },
}

/// The user of a guest: inside the sandbox, and as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestUser {
    pub uid: u32,
    pub gid: u32,
    pub host_uid: u32,
    pub host_gid: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
    pub open_files: u64,
    pub file_bytes: u64,
    pub tmp_bytes: u64,
    pub tmp_inodes: u64,
    pub shm_bytes: u64,
}

impl Limits {
    /// The limits that follow from the settings and the session's request.
    pub fn new(settings: &Settings, wanted: &SandboxRequest) -> Self {
        Self {
            memory_bytes: wanted.memory_in_all(settings),
            cpus: wanted.cpus,
            pids: wanted.pids,
            open_files: settings.open_files,
            file_bytes: settings.workspace_bytes,
            tmp_bytes: settings.tmp_bytes,
            tmp_inodes: settings.tmp_inodes,
            shm_bytes: settings.shm_bytes,
        }
    }
}

/// What a session requests for its sandboxes.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRequest {
    pub image: WantedImage,
    /// The image of the session's first sandbox, which the later ones use, too.
    pub first_image: Option<ImageFact>,
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
    /// The number of checkpoints of the session's state; 0 for none.
    pub checkpoints: u64,
    /// Checkpoints are made when the session rests only.
    pub checkpoints_at_rest: bool,
    /// A cell begins in the folder that the cell before it left, and not in the workspace.
    pub keep_cwd: bool,
    /// Variables that the session sets in the environment of all its processes.
    pub env: Environment,
}

impl SandboxRequest {
    /// What a sandbox gets that works for the daemon itself, such as an installer, and not for one session.
    pub fn of_errand(settings: &Settings) -> Self {
        Self {
            image: WantedImage::Any,
            first_image: None,
            memory_bytes: settings.memory_bytes,
            cpus: settings.cpus,
            pids: settings.pids,
            checkpoints: 0,
            checkpoints_at_rest: false,
            keep_cwd: false,
            env: Environment::new(),
        }
    }

    /// The image that a later sandbox of the session has to have, whatever its name stands for by now.
    pub fn pinned_image(&self) -> Option<&ImageFact> {
        self.first_image.as_ref().filter(|_| security_controls::holds("image_is_pinned"))
    }

    /// The most resources that the sandbox can use.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
    pub fn amounts(&self, settings: &Settings) -> Amounts {
        let charged = |holds: bool, amount: u64| if holds { amount } else { 0 };
        Amounts::of([
            (Kind::Memory, charged(security_controls::holds("memory_quota"), self.memory_in_all(settings))),
            (Kind::Cpus, charged(security_controls::holds("cpu_quota"), (self.cpus * 1000.0).ceil() as u64)),
            // The host has only `kernel.pid_max` process ids, and without a free one no user can log in.
            (Kind::Processes, charged(security_controls::holds("process_quota"), self.pids)),
        ])
    }

    /// The memory with the part for checkpoints, which share pages with the worker until one of them writes. This
    /// amount is both charged to the owner and set as the sandbox's limit.
    pub fn memory_in_all(&self, settings: &Settings) -> u64 {
        let checkpoints = if self.checkpoints == 0 { 0 } else { settings.checkpoint_bytes };
        self.memory_bytes.saturating_add(checkpoints)
    }
}

#[derive(Clone, Debug)]
pub struct SandboxSpec {
    pub sandbox: SandboxId,
    pub backend: Backend,
    /// The id of the daemon's home, so that daemons do not reap each other's sandboxes.
    pub instance: String,
    pub image: ImageFact,
    pub runtime: Option<String>,
    pub user: GuestUser,
    pub limits: Limits,
    /// The paths of folders here are paths of the host.
    pub workspace: PathBuf,
    /// Device and inode of the workspace that was checked; the mounted workspace must have the same.
    pub workspace_identity: (u64, u64),
    pub bridge_dir: PathBuf,
    pub kernel_dir: PathBuf,
    pub packages_dir: PathBuf,
    /// The folder of the files that appear in `/etc`.
    pub etc_dir: PathBuf,
    /// Paths that are hidden on this host in addition to [`MASKED_PATHS`].
    pub hidden: Vec<String>,
    /// The variables of the session.
    pub env: Environment,
    /// Folders beside the workspace.
    pub mounts: Vec<SpecMount>,
}

/// A folder of the host that a sandbox has beside its workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecMount {
    pub source: PathBuf,
    /// Absolute path in the sandbox.
    pub target: String,
    pub writable: bool,
    /// Device and inode of the folder that was checked; the mounted one must have the same.
    pub identity: (u64, u64),
}

/// The command that starts the kernel, in every backend.
pub(in crate::sandbox) fn kernel_command(kernel_dir: &str, socket: &str, workspace: &str) -> Vec<String> {
    let guardian = format!("{kernel_dir}/{GUARDIAN_FILE}");
    strings(&[&guardian, "--kernel", kernel_dir, "--bridge", socket, "--workspace", workspace])
}

/// A program that runs to its end in a short-lived sandbox, as confined as a session, without workspace and bridge.
pub struct Errand {
    pub command: Vec<String>,
    pub mounts: Vec<ErrandMount>,
    /// The longest time that it may take.
    pub limit: Duration,
    /// Ends it before that.
    pub stop: CancellationToken,
    /// Takes secrets that it was told out of what it says, before any of that is quoted.
    pub hide: Hide,
}

/// Takes secrets out of a text, of which it may be given the beginning only: then the end may be half of a secret.
pub type Hide = Box<dyn Fn(&str, bool) -> String + Send + Sync>;

/// A folder of the host that an errand sees.
pub struct ErrandMount {
    pub source: PathBuf,
    pub target: &'static str,
    pub writable: bool,
}

impl Errand {
    /// Compiles the kernel in `kernel_dir` with the image's own Python, and lists the packages of the image.
    pub(in crate::sandbox) fn compile(kernel_dir: &Path, output: &Path) -> Self {
        let script = format!("{KERNEL_DIR}/prepare.py");
        Self {
            command: strings(&["python3", "-I", "-B", &script, COMPILED_DIR]),
            mounts: vec![
                ErrandMount { source: kernel_dir.to_owned(), target: KERNEL_DIR, writable: false },
                ErrandMount { source: output.to_owned(), target: COMPILED_DIR, writable: true },
            ],
            limit: COMPILE,
            stop: CancellationToken::new(),
            hide: Box::new(|said, _| said.to_owned()),
        }
    }

    /// The command with the paths of the host, for a process that has no mounts of its own.
    pub(in crate::sandbox) fn command_on_host(&self) -> Vec<String> {
        let on_host = |word: &String| {
            let inside = self.mounts.iter().find_map(|mount| {
                let rest = Path::new(word).strip_prefix(mount.target).ok()?;
                let path = if rest == Path::new("") { mount.source.clone() } else { mount.source.join(rest) };
                Some(path.to_string_lossy().into_owned())
            });
            inside.unwrap_or_else(|| word.clone())
        };
        self.command.iter().map(on_host).collect()
    }
}

/// Time to compile the kernel's bytecode for a new image.
const COMPILE: Duration = Duration::from_secs(60);

/// The whole environment of a guest: that of every sandbox, and the variables of the session, which come first where
/// both have a name.
pub(in crate::sandbox) fn environment(spec: &SandboxSpec, kernel_dir: &str) -> Vec<String> {
    let is_own =
        |variable: &String| variable.split_once('=').is_some_and(|(name, _)| spec.env.contains_key(name));
    let mut list = fixed_environment(spec.limits.cpus, kernel_dir);
    list.retain(|variable| !is_own(variable));
    list.extend(spec.env.iter().map(|(name, value)| format!("{name}={value}")));
    list
}

/// The environment that every guest has: an allow-list, without any variable of the daemon.
pub(in crate::sandbox) fn fixed_environment(cpus: f64, kernel_dir: &str) -> Vec<String> {
    let threads = threads(cpus);
    let mut list = vec![
        // The `pip` and `uv` of the kernel come first: those of an image look for a network. Programs of installed
        // packages come last, so that none of them can stand in for a program of the image. So do those that were added to the image.
        format!(
            "PATH={KERNEL_DIR}/{SHIMS_BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{PACKAGES_SITE}/bin:{IMAGE_SITE}/bin"
        ),
        // For Python programs that code in the sandbox starts; the kernel itself ignores it. What is there puts the installed
        // packages behind the standard library (`sitecustomize.py`), before which they would stand here.
        format!("PYTHONPATH={KERNEL_DIR}/{SHIMS_LIB}"),
        "LANG=C.UTF-8".into(),
        "PYTHONUTF8=1".into(),
        "PYTHONDONTWRITEBYTECODE=1".into(),
        format!("HOME={HOME}"),
        "TMPDIR=/tmp".into(),
        "MPLBACKEND=Agg".into(),
        "MPLCONFIGDIR=/tmp/.matplotlib".into(),
        format!("MATPLOTLIBRC={kernel_dir}/matplotlibrc"),
        format!("OMP_NUM_THREADS={threads}"),
        format!("OPENBLAS_NUM_THREADS={threads}"),
        format!("MKL_NUM_THREADS={threads}"),
    ];
    list.extend(
        security_controls::handed_on().map(|(name, value)| format!("{name}={}", value.to_string_lossy())),
    );
    if !security_controls::holds("environment_is_a_list") {
        list.extend(std::env::vars().map(|(name, value)| format!("{name}={value}")));
    }
    list
}

/// One thread per CPU, rounded up: more threads would only be throttled.
fn threads(cpus: f64) -> u32 {
    (1..=1024).find(|n| f64::from(*n) >= cpus).unwrap_or(1024)
}

pub(in crate::sandbox) fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

#[cfg(test)]
pub(in crate::sandbox) mod tests {
    use super::*;

    /// An ordinary sandbox, for tests.
    pub fn spec() -> SandboxSpec {
        SandboxSpec {
            sandbox: SandboxId("0123456789abcdef".into()),
            backend: Backend::Docker,
            instance: "00000000-0000-4000-8000-000000000000".into(),
            image: ImageFact { reference: "belljar/base".into(), id: "sha256:1234".into() },
            runtime: None,
            user: GuestUser { uid: 200_000, gid: 200_000, host_uid: 200_000, host_gid: 200_000 },
            limits: Limits {
                memory_bytes: 1 << 30,
                cpus: 1.5,
                pids: 256,
                open_files: 1024,
                file_bytes: 1 << 30,
                tmp_bytes: 64 << 20,
                tmp_inodes: 16_384,
                shm_bytes: 16 << 20,
            },
            workspace: "/home/w".into(),
            workspace_identity: (1, 2),
            bridge_dir: "/home/s/0123456789abcdef/b".into(),
            kernel_dir: "/home/kernel/1234".into(),
            packages_dir: "/home/s/0123456789abcdef/p".into(),
            etc_dir: "/home/s/0123456789abcdef/etc".into(),
            hidden: vec!["/sys/class".into(), "/proc/bus".into()],
            env: [("TZ".to_owned(), "Europe/Rome".to_owned())].into(),
            mounts: vec![
                SpecMount {
                    source: "/home/v/1000/models".into(),
                    target: "/data/models".into(),
                    writable: true,
                    identity: (1, 3),
                },
                SpecMount {
                    source: "/home/ann/ref".into(),
                    target: "/ref".into(),
                    writable: false,
                    identity: (1, 4),
                },
            ],
        }
    }

    #[test]
    fn an_errand_without_mounts_has_the_paths_of_the_host() {
        let errand = Errand::compile(Path::new("/home/k"), Path::new("/home/o"));
        assert_eq!(errand.command_on_host(), ["python3", "-I", "-B", "/home/k/prepare.py", "/home/o"]);
    }

    #[test]
    fn the_variables_of_a_session_come_before_those_of_every_sandbox() {
        let mut spec = spec();
        spec.env.insert("LANG".into(), "de_DE.UTF-8".into());
        let list = environment(&spec, "/k");
        let of = |name: &str| list.iter().filter(|variable| variable.starts_with(name)).collect::<Vec<_>>();
        assert_eq!(of("LANG="), ["LANG=de_DE.UTF-8"]);
        assert_eq!((of("TZ=").len(), of("HOME=").len()), (1, 1));
    }

    #[test]
    fn threads_follow_the_cpus() {
        assert_eq!([0.05, 1.0, 1.5, 16.0, 1e9].map(threads), [1, 1, 2, 16, 1024]);
    }
}
