//! Attestation: checks that the running container is as `spec` asked for. Everything is read back from the engine, the
//! host's kernel and the sandbox's own probe; after a single difference no code runs in the container.

use bollard::models::ContainerInspectResponse;
use std::path::Path;

use super::config::{NO_LOG, nano_cpus, session_container};
use crate::protocol::frames::Probe;
use crate::protocol::receipt::{Backend, HeldBy, ImageFact, LimitFact, MountFact, ProcessFact, Receipt};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::checks::Checks;
use crate::sandbox::attest::facts::{self, Ceilings};
use crate::sandbox::attest::{fingerprint, same_folder, same_mounts};
use crate::sandbox::etc;
use crate::sandbox::spec::seccomp::seccomp_profile;
use crate::sandbox::spec::{
    BRIDGE_DIR, CPU_SHARES, KERNEL_DIR, MASKED_PATHS, OOM_SCORE, PACKAGES_DIR, READONLY_PATHS, SandboxSpec,
    WORKSPACE,
};
use crate::sandbox::workspace::groups;

/// Everything that was read back, before it is checked.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub process: ProcessFact,
    /// Groups that a guest may have because its owner, who runs the daemon, has them.
    pub owner_groups: Vec<u32>,
    pub limits: LimitFact,
    pub ceilings: Ceilings,
    /// Whether the folder behind `/workspace` is the one that was opened and checked. `None` where the host does not
    /// let this user look.
    pub workspace_is_ours: Option<bool>,
    /// Whether the folders beside it are, all of them. One that cannot be looked at is not known to be.
    pub mounts_are_ours: bool,
}

/// Reads the facts from the host's kernel.
#[must_use]
pub fn gather(spec: &SandboxSpec, inspected: &ContainerInspectResponse) -> Option<Evidence> {
    let pid = container_pid(inspected)?;
    let process = facts::process(pid)?;
    let limits_text = facts::read_small(Path::new(&format!("/proc/{pid}/limits"))).ok()?;
    let cgroup = Cgroup::of_process(pid)?;
    // The daemon may not be able to read the control files of a rootless engine; then the engine's own answer is used.
    let host = inspected.host_config.as_ref();
    let engine_says = |value: Option<i64>| value.and_then(|number| u64::try_from(number).ok());
    let limits = LimitFact {
        memory_bytes: cgroup.memory_limit().or_else(|| engine_says(host?.memory)).unwrap_or(u64::MAX),
        #[expect(clippy::cast_precision_loss, reason = "a few CPUs in billionths")]
        cpus: cgroup.cpus().or_else(|| Some(host?.nano_cpus? as f64 / 1e9)).unwrap_or(f64::INFINITY),
        pids: cgroup.pids_limit().or_else(|| engine_says(host?.pids_limit)).unwrap_or(u64::MAX),
        open_files: facts::parse_limit(&limits_text, "Max open files")?,
        file_bytes: facts::parse_limit(&limits_text, "Max file size")?,
        core_bytes: facts::parse_limit(&limits_text, "Max core file size")?,
        cgroup_version: cgroup.version(),
        held_by: HeldBy::default(),
    };
    Some(Evidence {
        process,
        owner_groups: groups::of_an_owner(),
        limits,
        ceilings: facts::parse_ceilings(&limits_text)?,
        workspace_is_ours: same_folder(pid, WORKSPACE, spec.workspace_identity),
        mounts_are_ours: same_mounts(pid, &spec.mounts),
    })
}

#[must_use]
pub fn container_pid(inspected: &ContainerInspectResponse) -> Option<i32> {
    let pid = inspected.state.as_ref()?.pid?;
    i32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// The names of all differences; code may run only if there are none.
#[must_use]
pub fn differences(
    spec: &SandboxSpec,
    inspected: &ContainerInspectResponse,
    evidence: &Evidence,
    probe: &Probe,
) -> Vec<String> {
    let mut checks = Checks::default();
    checks.user(spec, &evidence.process, &evidence.owner_groups);
    checks.rights(&evidence.process);
    checks.limits(spec, &evidence.limits);
    checks.ceilings(evidence.ceilings);
    checks.probe(probe);
    let mut check = |holds, what| checks.check(holds, what);
    check(evidence.workspace_is_ours != Some(false), "the folder mounted as the workspace");
    check(evidence.mounts_are_ours, "the folders mounted beside the workspace");

    let host = inspected.host_config.clone().unwrap_or_default();
    check(host.network_mode.as_deref() == Some("none"), "the network mode");
    check(host.privileged == Some(false), "privileged mode");
    check(host.readonly_rootfs == Some(true), "the read-only root");
    check(host.cap_add.unwrap_or_default().is_empty(), "added capabilities");
    check(host.binds.unwrap_or_default().is_empty(), "foreign binds");
    check(host.devices.unwrap_or_default().is_empty(), "devices");
    check(host.device_requests.unwrap_or_default().is_empty(), "requested devices");
    check(host.device_cgroup_rules.unwrap_or_default().is_empty(), "rules for devices");
    check(host.volumes_from.unwrap_or_default().is_empty(), "volumes of others");
    check(host.log_config.and_then(|log| log.typ).as_deref() == Some(NO_LOG), "the engine's log");
    check(host.oom_score_adj == Some(OOM_SCORE), "the order of death when memory is short");
    check(host.cpu_shares == Some(CPU_SHARES), "the share of the CPUs");
    let container = inspected.config.clone().unwrap_or_default();
    let asked = session_container(spec);
    check(container.hostname == asked.hostname, "the host name");
    // An image may add variables and labels of its own.
    let variables = container.env.unwrap_or_default();
    check(asked.env.unwrap_or_default().iter().all(|wanted| variables.contains(wanted)), "the environment");
    let labels = container.labels.unwrap_or_default();
    let has = |(name, value): (&String, &String)| labels.get(name) == Some(value);
    check(asked.labels.unwrap_or_default().iter().all(has), "the labels");
    let asked = asked.host_config.unwrap_or_default();
    check(host.tmpfs == asked.tmpfs, "the temporary folders");
    check(host.shm_size == asked.shm_size, "the shared memory");
    check(host.cgroupns_mode == asked.cgroupns_mode, "the cgroup namespace");
    let hidden: Vec<&str> = MASKED_PATHS.into_iter().chain(spec.hidden.iter().map(String::as_str)).collect();
    check(hides(host.masked_paths.as_deref(), &hidden), "the masked paths");
    check(hides(host.readonly_paths.as_deref(), &READONLY_PATHS), "the read-only paths");
    check(host.pid_mode.unwrap_or_default().is_empty(), "the pid namespace");
    check(host.uts_mode.unwrap_or_default().is_empty(), "the host name's namespace");
    check(host.userns_mode.unwrap_or_default().is_empty(), "the user namespace");
    check(host.ipc_mode.as_deref() == Some("private"), "the IPC namespace");
    check(host.memory_swap == host.memory, "swap");
    check(host.nano_cpus == Some(nano_cpus(spec.limits.cpus)), "the engine's CPU limit");
    check(is_confined(inspected, &evidence.process), APPARMOR);
    check(applied_seccomp(inspected).as_deref() == Some(seccomp_profile()), "the seccomp profile");
    check(inspected.image.as_deref() == Some(spec.image.id.as_str()), "the image");
    let mut expected_mounts =
        [(BRIDGE_DIR, false), (KERNEL_DIR, false), (PACKAGES_DIR, false), (WORKSPACE, true)]
            .map(|(target, writable)| (target.to_owned(), writable))
            .to_vec();
    expected_mounts.extend(etc::FILES.map(|name| (etc::target(name), false)));
    expected_mounts.extend(spec.mounts.iter().map(|mount| (mount.target.clone(), mount.writable)));
    expected_mounts.sort();
    let mut mounts: Vec<(String, bool)> = bind_mounts(inspected).map(|m| (m.target, m.writable)).collect();
    mounts.sort();
    check(mounts == expected_mounts, "the mounts");
    checks.differences()
}

const APPARMOR: &str = "the AppArmor profile";

/// The hint for these differences.
#[must_use]
pub fn remedy(differences: &[String]) -> &'static str {
    if differences.iter().any(|difference| difference == APPARMOR) {
        "no code ran in it; an engine that finds no `apparmor_parser` names a profile that no process has: \
         `apt-get install apparmor` and start the engine anew"
    } else {
        "no code ran in it; look at the engine's version and settings"
    }
}

/// Whether the kernel applies the profile that the engine reports. An engine without `AppArmor` reports none.
fn is_confined(inspected: &ContainerInspectResponse, process: &ProcessFact) -> bool {
    let asked = inspected.app_armor_profile.as_deref().unwrap_or_default();
    let has = process.apparmor.as_deref().unwrap_or_default();
    asked.is_empty() || (asked != "unconfined" && has.split(' ').next() == Some(asked))
}

/// The receipt of a sandbox that passed the checks.
#[must_use]
pub fn receipt(
    spec: &SandboxSpec,
    inspected: &ContainerInspectResponse,
    evidence: Evidence,
    python: String,
    probe: Probe,
) -> Receipt {
    let host = inspected.host_config.clone().unwrap_or_default();
    let tmpfs = host.tmpfs.unwrap_or_default().into_iter().map(|(target, options)| MountFact {
        target,
        kind: "tmpfs".into(),
        writable: options.split(',').all(|option| option != "ro"),
    });
    let mut mounts: Vec<MountFact> = bind_mounts(inspected).chain(tmpfs).collect();
    // The engine lists the mounts in a different order each time.
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    Receipt {
        sandbox: spec.sandbox.clone(),
        backend: Backend::Docker,
        container: inspected.id.clone().unwrap_or_default(),
        runtime: host.runtime.clone().unwrap_or_default(),
        image: ImageFact {
            reference: spec.image.reference.clone(),
            id: inspected.image.clone().unwrap_or_default(),
        },
        python,
        process: evidence.process,
        network: host.network_mode.clone().unwrap_or_default(),
        read_only_root: host.readonly_rootfs.unwrap_or(false),
        seccomp_profile: applied_seccomp(inspected).map_or_else(String::new, |profile| fingerprint(&profile)),
        limits: evidence.limits,
        mounts,
        probe,
        namespaces: Vec::new(),
        chosen: String::new(),
    }
}

fn applied_seccomp(inspected: &ContainerInspectResponse) -> Option<String> {
    let options = inspected.host_config.as_ref()?.security_opt.as_ref()?;
    options.iter().find_map(|option| option.strip_prefix("seccomp=").map(str::to_owned))
}

fn bind_mounts(inspected: &ContainerInspectResponse) -> impl Iterator<Item = MountFact> + '_ {
    inspected.mounts.iter().flatten().map(|mount| MountFact {
        target: mount.destination.clone().unwrap_or_default(),
        kind: "bind".into(),
        writable: mount.rw.unwrap_or(true),
    })
}

fn hides(found: Option<&[String]>, wanted: &[&str]) -> bool {
    found.is_some_and(|found| wanted.iter().all(|path| found.iter().any(|hidden| hidden == path)))
}

#[cfg(test)]
mod tests;
