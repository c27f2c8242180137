//! What every sandbox is made of, and its container as one pure function: every hardening setting is written here and
//! nowhere else, a snapshot test shows each change of it, and `attest` reads it back at run time.

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::profile::seccomp_profile;
use crate::controls;
use crate::protocol::ids::SandboxId;
use crate::protocol::receipt::{Backend, ImageFact};

pub const LABEL_APPLICATION: &str = "belljar";
pub const LABEL_INSTANCE: &str = "belljar.instance";
pub const LABEL_SANDBOX: &str = "belljar.sandbox";

/// Paths inside the sandbox.
pub const WORKSPACE: &str = "/workspace";
pub const BRIDGE_DIR: &str = "/belljar/bridge";
pub const KERNEL_DIR: &str = "/belljar/kernel";
/// Where the kernel's bytecode is made.
pub(super) const COMPILED_DIR: &str = "/belljar/compiled";
pub const BRIDGE_SOCKET: &str = "/belljar/bridge/bridge.sock";
pub const BRIDGE_SOCKET_NAME: &str = "bridge.sock";
pub(super) const HOSTNAME: &str = "belljar";

/// The OOM killer takes a sandbox before the daemon.
pub(super) const OOM_SCORE: i64 = 500;
/// Sandboxes yield to the daemon and to other work of the host when CPUs are short.
pub(super) const CPU_SHARES: i64 = 256;
/// The engine's name for keeping no log.
pub(super) const NO_LOG: &str = "none";
pub(super) const LOCKED_MEMORY_BYTES: i64 = 64 * 1024;

const RUN_OPTIONS: &str = "ro,nosuid,nodev,noexec,size=4096,nr_inodes=1,mode=755";

/// Naming the list replaces the engine's own, so an old engine gets the newest one too.
pub(super) const MASKED_PATHS: [&str; 18] = [
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
pub(super) const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Who a guest is: inside the container, and as the host sees it.
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

#[derive(Clone, Debug)]
pub struct SandboxSpec {
    pub sandbox: SandboxId,
    pub backend: Backend,
    /// The daemon's home, as an id: daemons do not reap each other's sandboxes.
    pub instance: String,
    pub image: ImageFact,
    pub runtime: Option<String>,
    pub user: GuestUser,
    pub limits: Limits,
    /// Host paths.
    pub workspace: PathBuf,
    /// Device and inode of the workspace that was checked, which has to be the one that is mounted.
    pub workspace_identity: (u64, u64),
    pub bridge_dir: PathBuf,
    pub kernel_dir: PathBuf,
    /// Paths of this host that are hidden beside [`MASKED_PATHS`].
    pub hidden: Vec<String>,
}

#[must_use]
pub fn container_name(sandbox: &SandboxId) -> String {
    format!("belljar-{sandbox}")
}

/// The container that serves one session.
#[must_use]
pub fn session_container(spec: &SandboxSpec) -> ContainerCreateBody {
    let command = kernel_command(KERNEL_DIR, BRIDGE_SOCKET, WORKSPACE);
    let mounts = vec![
        bind(&spec.workspace, WORKSPACE, Access::Write),
        bind(&spec.bridge_dir, BRIDGE_DIR, Access::read_if(controls::holds("bridge_is_read_only"))),
        bind(&spec.kernel_dir, KERNEL_DIR, Access::read_if(controls::holds("kernel_is_read_only"))),
    ];
    hardened(spec, &command, mounts, WORKSPACE)
}

/// A short-lived container that compiles the kernel's bytecode with the image's own Python, and lists
/// the packages of the image. It is as confined as a session; only the folder for what it makes is writable in it.
#[must_use]
pub fn compile_container(spec: &SandboxSpec, output: &Path) -> ContainerCreateBody {
    let mounts =
        vec![bind(&spec.kernel_dir, KERNEL_DIR, Access::Read), bind(output, COMPILED_DIR, Access::Write)];
    hardened(spec, &compile_command(KERNEL_DIR, COMPILED_DIR), mounts, "/")
}

/// Starts the kernel, in every backend.
pub(super) fn kernel_command(kernel_dir: &str, socket: &str, workspace: &str) -> Vec<String> {
    let options = ["python3", "-I", "-B", "-X", "utf8", kernel_dir, "--bridge", socket];
    strings(&[&options[..], &["--workspace", workspace]].concat())
}

/// Compiles the kernel and lists the packages, in every backend.
pub(super) fn compile_command(kernel_dir: &str, output: &str) -> Vec<String> {
    strings(&["python3", "-I", "-B", &format!("{kernel_dir}/prepare.py"), output])
}

fn hardened(
    spec: &SandboxSpec,
    command: &[String],
    mounts: Vec<Mount>,
    working_dir: &str,
) -> ContainerCreateBody {
    let limits = &spec.limits;
    let (entrypoint, arguments) = command.split_at(1.min(command.len()));
    let host_config = HostConfig {
        network_mode: controls::setting("no_network", "none".into()),
        cap_drop: controls::setting("no_capabilities", vec!["ALL".into()]),
        privileged: Some(false),
        security_opt: Some(security_options()),
        readonly_rootfs: controls::setting("read_only_root", true),
        masked_paths: Some(masked_paths(spec)),
        readonly_paths: Some(
            controls::setting("readonly_paths", strings(&READONLY_PATHS)).unwrap_or_default(),
        ),
        cgroupns_mode: controls::setting("own_cgroup_namespace", HostConfigCgroupnsModeEnum::PRIVATE),
        ipc_mode: Some("private".into()),
        runtime: spec.runtime.clone(),
        memory: controls::setting("memory_limit", signed(limits.memory_bytes)),
        // The same as memory: no swap.
        memory_swap: controls::setting("no_swap", signed(limits.memory_bytes)),
        nano_cpus: controls::setting("cpu_limit", nano_cpus(limits.cpus)),
        cpu_shares: controls::setting("cpu_shares", CPU_SHARES),
        pids_limit: controls::setting("process_limit", signed(limits.pids)),
        oom_score_adj: controls::setting("dies_before_the_daemon", OOM_SCORE),
        shm_size: controls::setting("shared_memory_limit", signed(limits.shm_bytes)),
        ulimits: Some(ulimits(limits)),
        tmpfs: Some(HashMap::from([
            ("/tmp".into(), tmp_options(limits)),
            // Nothing that an image keeps there is shown, and a guest cannot write there.
            ("/run".into(), RUN_OPTIONS.into()),
        ])),
        // Output goes over the bridge; the engine's own log would fill the host's disk.
        log_config: controls::setting(
            "no_engine_log",
            HostConfigLogConfig { typ: Some(NO_LOG.into()), config: None },
        ),
        // The exit code and the OOM flag are read first; the daemon removes it itself.
        auto_remove: Some(false),
        // The guardian is pid 1 and reaps.
        init: Some(false),
        mounts: Some(mounts),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(spec.image.id.clone()),
        user: controls::setting("guest_is_a_user", format!("{}:{}", spec.user.uid, spec.user.gid)),
        hostname: Some(HOSTNAME.into()),
        env: Some(environment(limits.cpus, KERNEL_DIR)),
        working_dir: Some(working_dir.into()),
        entrypoint: Some(entrypoint.to_vec()),
        cmd: Some(arguments.to_vec()),
        network_disabled: controls::setting("no_network", true),
        tty: Some(false),
        open_stdin: Some(false),
        labels: Some(HashMap::from([
            (LABEL_APPLICATION.into(), String::new()),
            (LABEL_INSTANCE.into(), spec.instance.clone()),
            (LABEL_SANDBOX.into(), spec.sandbox.0.clone()),
        ])),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    }
}

fn security_options() -> Vec<String> {
    let privileges = controls::setting("no_new_privileges", "no-new-privileges".into());
    let filter = controls::setting("seccomp", format!("seccomp={}", seccomp_profile()));
    privileges.into_iter().chain(filter).collect()
}

fn ulimits(limits: &Limits) -> Vec<ResourcesUlimits> {
    let held = [
        controls::setting("open_files_limit", ulimit("nofile", signed(limits.open_files))),
        controls::setting("file_size_limit", ulimit("fsize", signed(limits.file_bytes))),
        Some(ulimit("core", i64::from(!controls::holds("no_core_dumps")))),
        controls::setting("locked_memory_limit", ulimit("memlock", LOCKED_MEMORY_BYTES)),
        controls::setting("no_message_queues", ulimit("msgqueue", 0)),
    ];
    held.into_iter().flatten().collect()
}

fn tmp_options(limits: &Limits) -> String {
    let execution = if controls::holds("tmp_without_execution") { "noexec" } else { "exec" };
    let size = controls::setting("tmp_size_limit", format!(",size={}", limits.tmp_bytes));
    let inodes = controls::setting("tmp_inode_limit", format!(",nr_inodes={}", limits.tmp_inodes));
    let (size, inodes) = (size.unwrap_or_default(), inodes.unwrap_or_default());
    format!("rw,nosuid,nodev,{execution}{size}{inodes},mode=1777")
}

fn masked_paths(spec: &SandboxSpec) -> Vec<String> {
    let mut paths = controls::setting("masked_paths", strings(&MASKED_PATHS)).unwrap_or_default();
    paths.extend(spec.hidden.iter().cloned());
    paths
}

/// All that a guest sees of an environment: an allow-list, nothing of the daemon's own.
pub(super) fn environment(cpus: f64, kernel_dir: &str) -> Vec<String> {
    let threads = threads(cpus);
    let mut list = vec![
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
        "LANG=C.UTF-8".into(),
        "PYTHONUTF8=1".into(),
        "PYTHONDONTWRITEBYTECODE=1".into(),
        "HOME=/tmp".into(),
        "TMPDIR=/tmp".into(),
        "MPLBACKEND=Agg".into(),
        "MPLCONFIGDIR=/tmp/.matplotlib".into(),
        format!("MATPLOTLIBRC={kernel_dir}/matplotlibrc"),
        format!("OMP_NUM_THREADS={threads}"),
        format!("OPENBLAS_NUM_THREADS={threads}"),
        format!("MKL_NUM_THREADS={threads}"),
    ];
    if !controls::holds("environment_is_a_list") {
        list.extend(std::env::vars().map(|(name, value)| format!("{name}={value}")));
    }
    list
}

/// As many threads as CPUs: more would only be throttled.
fn threads(cpus: f64) -> u32 {
    (1..=1024).find(|n| f64::from(*n) >= cpus).unwrap_or(1024)
}

#[must_use]
pub fn nano_cpus(cpus: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "settings bound it to a few hundred CPUs")]
    let nano = (cpus * 1e9).round() as i64;
    nano
}

#[derive(Clone, Copy, PartialEq)]
enum Access {
    Read,
    Write,
}

impl Access {
    fn read_if(only: bool) -> Self {
        if only { Self::Read } else { Self::Write }
    }
}

fn bind(source: &Path, target: &str, access: Access) -> Mount {
    Mount {
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.into()),
        typ: Some(MountType::BIND),
        read_only: Some(access == Access::Read),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

fn ulimit(name: &str, value: i64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.into()), soft: Some(value), hard: Some(value) }
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sandbox like any other.
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
            hidden: vec!["/sys/class".into(), "/proc/bus".into()],
        }
    }

    /// The profile is a file of its own, so only its place is shown.
    fn shown(container: &ContainerCreateBody) -> String {
        let mut value = serde_json::to_value(container).unwrap();
        let options = value["HostConfig"]["SecurityOpt"].as_array_mut().unwrap();
        let profile =
            options.iter_mut().find(|option| option.as_str().unwrap().starts_with("seccomp=")).unwrap();
        assert_eq!(profile.as_str().unwrap(), format!("seccomp={}", seccomp_profile()));
        *profile = "seccomp=<config/seccomp.json>".into();
        serde_json::to_string_pretty(&value).unwrap()
    }

    #[test]
    fn every_setting_of_a_session_is_meant() {
        insta::assert_snapshot!(shown(&session_container(&spec())));
    }

    #[test]
    fn compiling_is_confined_as_a_session_is() {
        insta::assert_snapshot!(shown(&compile_container(&spec(), Path::new("/home/kernel/.draft/output"))));
    }

    #[test]
    fn threads_follow_the_cpus() {
        assert_eq!([0.05, 1.0, 1.5, 16.0, 1e9].map(threads), [1, 1, 2, 16, 1024]);
        assert_eq!(nano_cpus(1.5), 1_500_000_000);
    }
}
