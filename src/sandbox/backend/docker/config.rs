//! Sets the memory, CPU and process limits of a container, and every hardening setting, here and nowhere else. All of it is
//! pure: a snapshot test shows each change, and `attest` reads the settings back from the container that runs.

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use std::collections::HashMap;
use std::path::Path;

use crate::protocol::ids::SandboxId;
use crate::sandbox::etc;
use crate::sandbox::spec::seccomp::seccomp_profile;
use crate::sandbox::spec::{
    BRIDGE_DIR, BRIDGE_SOCKET, CPU_SHARES, Errand, HOSTNAME, KERNEL_DIR, LOCKED_MEMORY_BYTES, Limits,
    MASKED_PATHS, OOM_SCORE, PACKAGES_DIR, READONLY_PATHS, SandboxSpec, WORKSPACE, environment,
    kernel_command, strings,
};
use crate::security_controls;

pub const LABEL_APPLICATION: &str = "belljar";
pub const LABEL_INSTANCE: &str = "belljar.instance";
pub const LABEL_SANDBOX: &str = "belljar.sandbox";
/// The engine's name for the log driver that keeps no log.
pub(in crate::sandbox) const NO_LOG: &str = "none";
const RUN_OPTIONS: &str = "ro,nosuid,nodev,noexec,size=4096,nr_inodes=1,mode=755";

#[must_use]
pub fn container_name(sandbox: &SandboxId) -> String {
    format!("belljar-{sandbox}")
}

/// The container that serves one session.
#[must_use]
pub fn session_container(spec: &SandboxSpec) -> ContainerCreateBody {
    let command = kernel_command(KERNEL_DIR, BRIDGE_SOCKET, WORKSPACE);
    let mut mounts = vec![
        bind(&spec.workspace, WORKSPACE, Access::Write),
        bind(&spec.bridge_dir, BRIDGE_DIR, Access::read_if(security_controls::holds("bridge_is_read_only"))),
        bind(&spec.kernel_dir, KERNEL_DIR, Access::read_if(security_controls::holds("kernel_is_read_only"))),
        bind(
            &spec.packages_dir,
            PACKAGES_DIR,
            Access::read_if(security_controls::holds("packages_are_read_only")),
        ),
    ];
    let of_etc = Access::read_if(security_controls::holds("etc_is_read_only"));
    mounts.extend(etc::FILES.map(|name| bind(&spec.etc_dir.join(name), &etc::target(name), of_etc)));
    mounts.extend(spec.mounts.iter().map(|mount| {
        let read_only = !mount.writable && security_controls::holds("mounts_are_read_only");
        bind(&mount.source, &mount.target, Access::read_if(read_only))
    }));
    hardened(spec, &command, mounts, WORKSPACE)
}

/// A short-lived container that runs one program. It is as confined as a session, and sees only the errand's folders.
#[must_use]
pub fn errand_container(spec: &SandboxSpec, errand: &Errand) -> ContainerCreateBody {
    let mounts =
        errand.mounts.iter().map(|mount| bind(&mount.source, mount.target, Access::read_if(!mount.writable)));
    hardened(spec, &errand.command, mounts.collect(), "/")
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
        network_mode: security_controls::setting("no_network", "none".into()),
        cap_drop: security_controls::setting("no_capabilities", vec!["ALL".into()]),
        privileged: Some(false),
        security_opt: Some(security_options()),
        readonly_rootfs: security_controls::setting("read_only_root", true),
        masked_paths: Some(masked_paths(spec)),
        readonly_paths: Some(
            security_controls::setting("readonly_paths", strings(&READONLY_PATHS)).unwrap_or_default(),
        ),
        cgroupns_mode: security_controls::setting(
            "own_cgroup_namespace",
            HostConfigCgroupnsModeEnum::PRIVATE,
        ),
        ipc_mode: security_controls::setting("own_ipc_namespace", "private".into()),
        runtime: spec.runtime.clone(),
        memory: security_controls::setting("memory_limit", signed(limits.memory_bytes)),
        // The limit is the same as for memory, so there is no swap.
        memory_swap: security_controls::setting("no_swap", signed(limits.memory_bytes)),
        nano_cpus: security_controls::setting("cpu_limit", nano_cpus(limits.cpus)),
        cpu_shares: security_controls::setting("cpu_shares", CPU_SHARES),
        pids_limit: security_controls::setting("process_limit", signed(limits.pids)),
        oom_score_adj: security_controls::setting("dies_before_the_daemon", OOM_SCORE),
        shm_size: security_controls::setting("shared_memory_limit", signed(limits.shm_bytes)),
        ulimits: Some(ulimits(limits)),
        tmpfs: Some(HashMap::from([
            ("/tmp".into(), tmp_options(limits)),
            // The mount hides what an image keeps there, and a guest cannot write to it.
            ("/run".into(), RUN_OPTIONS.into()),
        ])),
        // Output goes over the bridge; the engine's own log would fill the host's disk.
        log_config: security_controls::setting(
            "no_engine_log",
            HostConfigLogConfig { typ: Some(NO_LOG.into()), config: None },
        ),
        // The daemon reads the exit code and the OOM flag first, and removes the container itself.
        auto_remove: Some(false),
        // The guardian is pid 1 and reaps orphans.
        init: Some(false),
        mounts: Some(mounts),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(spec.image.id.clone()),
        user: security_controls::setting("guest_is_a_user", format!("{}:{}", spec.user.uid, spec.user.gid)),
        hostname: security_controls::setting("own_host_name", HOSTNAME.into()),
        env: Some(environment(spec, KERNEL_DIR)),
        working_dir: Some(working_dir.into()),
        entrypoint: Some(entrypoint.to_vec()),
        cmd: Some(arguments.to_vec()),
        network_disabled: security_controls::setting("no_network", true),
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
    let privileges = security_controls::setting("no_new_privileges", "no-new-privileges".into());
    let filter = security_controls::setting("seccomp", format!("seccomp={}", seccomp_profile()));
    privileges.into_iter().chain(filter).collect()
}

fn ulimits(limits: &Limits) -> Vec<ResourcesUlimits> {
    let options = [
        security_controls::setting("open_files_limit", ulimit("nofile", signed(limits.open_files))),
        security_controls::setting("file_size_limit", ulimit("fsize", signed(limits.file_bytes))),
        Some(ulimit("core", i64::from(!security_controls::holds("no_core_dumps")))),
        security_controls::setting("locked_memory_limit", ulimit("memlock", LOCKED_MEMORY_BYTES)),
        security_controls::setting("no_message_queues", ulimit("msgqueue", 0)),
    ];
    options.into_iter().flatten().collect()
}

fn tmp_options(limits: &Limits) -> String {
    let execution = if security_controls::holds("tmp_without_execution") { "noexec" } else { "exec" };
    let size = security_controls::setting("tmp_size_limit", format!(",size={}", limits.tmp_bytes));
    let inodes = security_controls::setting("tmp_inode_limit", format!(",nr_inodes={}", limits.tmp_inodes));
    let (size, inodes) = (size.unwrap_or_default(), inodes.unwrap_or_default());
    let rights =
        if security_controls::holds("tmp_without_devices_and_set_id") { "nosuid,nodev" } else { "suid,dev" };
    format!("rw,{rights},{execution}{size}{inodes},mode=1777")
}

fn masked_paths(spec: &SandboxSpec) -> Vec<String> {
    let mut paths = security_controls::setting("masked_paths", strings(&MASKED_PATHS)).unwrap_or_default();
    paths.extend(spec.hidden.iter().cloned());
    paths
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

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::spec::tests::spec;

    /// The seccomp profile is a file of its own, so the snapshot shows only its place.
    fn container_json(container: &ContainerCreateBody) -> String {
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
        insta::assert_snapshot!(container_json(&session_container(&spec())));
    }

    #[test]
    fn compiling_is_confined_as_a_session_is() {
        let spec = spec();
        let errand = Errand::compile(&spec.kernel_dir, Path::new("/home/kernel/.draft/output"));
        insta::assert_snapshot!(container_json(&errand_container(&spec, &errand)));
    }

    #[test]
    fn cpus_are_told_in_billionths() {
        assert_eq!(nano_cpus(1.5), 1_500_000_000);
    }
}
