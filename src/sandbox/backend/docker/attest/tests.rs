//! Each single difference is found, and by its own name.

use bollard::models::{
    ContainerConfig, ContainerInspectResponse, ContainerState, DeviceMapping, DeviceRequest, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, MountPoint,
};

use crate::sandbox::attest::tests as sample;
use crate::sandbox::backend::docker::attest::*;
use crate::sandbox::backend::docker::config::session_container;
use crate::sandbox::etc;
use crate::sandbox::spec::tests::spec;

/// Everything that attestation looks at, without any difference.
#[derive(Clone)]
struct Inspection {
    spec: SandboxSpec,
    inspected: ContainerInspectResponse,
    evidence: Evidence,
    probe: Probe,
}

impl Inspection {
    fn differences(&self) -> Vec<String> {
        differences(&self.spec, &self.inspected, &self.evidence, &self.probe)
    }

    fn host(&mut self) -> &mut HostConfig {
        self.inspected.host_config.as_mut().unwrap()
    }

    fn config(&mut self) -> &mut ContainerConfig {
        self.inspected.config.as_mut().unwrap()
    }

    fn mount(&mut self, target: &str) -> &mut MountPoint {
        let mounts = self.inspected.mounts.as_mut().unwrap();
        mounts.iter_mut().find(|mount| mount.destination.as_deref() == Some(target)).unwrap()
    }
}

fn well() -> Inspection {
    let spec = spec();
    let mount = |target: &str, rw| MountPoint {
        destination: Some(target.into()),
        rw: Some(rw),
        ..MountPoint::default()
    };
    let mut mounts = vec![
        mount(WORKSPACE, true),
        mount(PACKAGES_DIR, false),
        mount(BRIDGE_DIR, false),
        mount(KERNEL_DIR, false),
    ];
    mounts.extend(etc::FILES.map(|name| mount(&etc::target(name), false)));
    mounts.extend([mount("/data/models", true), mount("/ref", false)]);
    let asked = session_container(&spec);
    let inspected = ContainerInspectResponse {
        id: Some("container".into()),
        image: Some(spec.image.id.clone()),
        state: Some(ContainerState { pid: Some(7), running: Some(true), ..ContainerState::default() }),
        // The engine does exactly what it is asked for.
        host_config: Some(HostConfig { runtime: Some("runc".into()), ..asked.host_config.unwrap() }),
        config: Some(ContainerConfig {
            hostname: asked.hostname,
            env: asked.env,
            labels: asked.labels,
            ..ContainerConfig::default()
        }),
        mounts: Some(mounts),
        ..ContainerInspectResponse::default()
    };
    let evidence = Evidence {
        process: sample::process(&spec),
        owner_groups: vec![24, 105],
        limits: sample::limits(&spec),
        ceilings: Ceilings { locked_memory: 65_536, message_queues: 0 },
        workspace_is_ours: Some(true),
        mounts_are_ours: true,
    };
    Inspection { spec, inspected, evidence, probe: sample::probe() }
}

#[test]
fn a_sandbox_as_asked_for_has_no_differences() {
    assert_eq!(well().differences(), Vec::<String>::new());
    // Where the host does not let this user look, the other checks are enough.
    let mut seen = well();
    seen.evidence.workspace_is_ours = None;
    assert_eq!(seen.differences(), Vec::<String>::new());
}

type Change = fn(&mut Inspection);

#[track_caller]
fn each_is_found(cases: &[(&str, Change)]) {
    for (name, change) in cases {
        let mut seen = well();
        change(&mut seen);
        assert_eq!(seen.differences(), [*name]);
    }
}

#[test]
fn the_process_is_compared() {
    each_is_found(&[
        ("the user id of the process", |seen| seen.evidence.process.uid = 1000),
        ("the group id of the process", |seen| seen.evidence.process.gid = 1000),
        ("supplementary groups", |seen| seen.evidence.process.groups = Some(vec![24, 42])),
        ("supplementary groups", |seen| seen.evidence.process.groups = None),
        ("capabilities", |seen| seen.evidence.process.cap_eff = "0000000000000001".into()),
        ("capabilities", |seen| seen.evidence.process.cap_bnd = "00000000a80425fb".into()),
        ("capabilities", |seen| seen.evidence.process.cap_eff = String::new()),
        ("no-new-privileges", |seen| seen.evidence.process.no_new_privs = false),
        ("the seccomp filter", |seen| seen.evidence.process.seccomp = 0),
        ("the seccomp filter", |seen| seen.evidence.process.seccomp = 1),
        ("the folder mounted as the workspace", |seen| seen.evidence.workspace_is_ours = Some(false)),
        ("the folders mounted beside the workspace", |seen| seen.evidence.mounts_are_ours = false),
    ]);
    // Root is refused even if the spec asks for it.
    let mut seen = well();
    (seen.spec.user.host_uid, seen.evidence.process.uid) = (0, 0);
    assert_eq!(seen.differences(), ["the process is root on the host"]);
    let mut seen = well();
    (seen.spec.user.host_gid, seen.evidence.process.gid) = (0, 0);
    assert_eq!(seen.differences(), ["the process is of root's group on the host"]);
}

/// The profile names that the engine and the kernel report on a host with `AppArmor`.
#[test]
fn confinement_is_compared_where_the_engine_confines() {
    let with = |asked: &str, has: Option<&str>| {
        let mut seen = well();
        seen.inspected.app_armor_profile = Some(asked.into());
        seen.evidence.process.apparmor = has.map(str::to_owned);
        seen.differences()
    };
    assert_eq!(with("docker-default", Some("docker-default (enforce)")), Vec::<String>::new());
    assert_eq!(with("", Some("unconfined")), Vec::<String>::new());
    for (asked, has) in [
        ("docker-default", Some("unconfined")),
        ("docker-default", None),
        ("docker-default", Some("docker-default-not (enforce)")),
        ("unconfined", Some("unconfined")),
    ] {
        assert_eq!(with(asked, has), ["the AppArmor profile"]);
    }
    assert!(remedy(&with("docker-default", Some("unconfined"))).contains("apt-get install apparmor"));
}

#[test]
fn groups_of_the_owner_are_no_difference() {
    let mut seen = well();
    seen.evidence.process.groups = Some(vec![24, 105, seen.spec.user.host_gid]);
    assert_eq!(seen.differences(), Vec::<String>::new());
}

#[test]
fn variables_and_labels_of_an_image_are_no_difference() {
    let mut seen = well();
    seen.config().env.as_mut().unwrap().push("PYTHON_VERSION=3.12".into());
    seen.config().labels.as_mut().unwrap().insert("maintainer".into(), "somebody".into());
    assert_eq!(seen.differences(), Vec::<String>::new());
}

#[test]
fn limits_are_compared() {
    each_is_found(&[
        ("the memory limit", |seen| seen.evidence.limits.memory_bytes += 1),
        ("the memory limit", |seen| seen.evidence.limits.memory_bytes = u64::MAX),
        ("the CPU limit", |seen| seen.evidence.limits.cpus = 2.0),
        ("the CPU limit", |seen| seen.evidence.limits.cpus = f64::INFINITY),
        ("the limit on processes", |seen| seen.evidence.limits.pids += 1),
        ("the limit on open files", |seen| seen.evidence.limits.open_files += 1),
        ("the limit on file size", |seen| seen.evidence.limits.file_bytes = u64::MAX),
        ("the limit on core files", |seen| seen.evidence.limits.core_bytes = 1),
        ("the limit on locked memory", |seen| seen.evidence.ceilings.locked_memory += 1),
        ("the limit on locked memory", |seen| seen.evidence.ceilings.locked_memory = u64::MAX),
        ("the limit on message queues", |seen| seen.evidence.ceilings.message_queues = 1),
        ("the share of the CPUs", |seen| seen.host().cpu_shares = Some(0)),
        ("the share of the CPUs", |seen| seen.host().cpu_shares = None),
        ("the order of death when memory is short", |seen| seen.host().oom_score_adj = Some(0)),
        ("the order of death when memory is short", |seen| seen.host().oom_score_adj = None),
        ("swap", |seen| seen.host().memory_swap = Some(-1)),
        ("swap", |seen| seen.host().memory_swap = Some(0)),
        ("the engine's CPU limit", |seen| seen.host().nano_cpus = None),
    ]);
}

#[test]
fn settings_of_the_engine_are_compared() {
    each_is_found(&[
        ("the network mode", |seen| seen.host().network_mode = Some("bridge".into())),
        ("the network mode", |seen| seen.host().network_mode = None),
        ("privileged mode", |seen| seen.host().privileged = Some(true)),
        ("privileged mode", |seen| seen.host().privileged = None),
        ("the read-only root", |seen| seen.host().readonly_rootfs = Some(false)),
        ("added capabilities", |seen| seen.host().cap_add = Some(vec!["SYS_ADMIN".into()])),
        ("foreign binds", |seen| seen.host().binds = Some(vec!["/:/host".into()])),
        ("devices", |seen| seen.host().devices = Some(vec![DeviceMapping::default()])),
        ("requested devices", |seen| seen.host().device_requests = Some(vec![DeviceRequest::default()])),
        ("rules for devices", |seen| seen.host().device_cgroup_rules = Some(vec!["a *:* rwm".into()])),
        ("volumes of others", |seen| seen.host().volumes_from = Some(vec!["other".into()])),
        ("the masked paths", |seen| seen.host().masked_paths = Some(Vec::new())),
        ("the masked paths", |seen| drop(seen.host().masked_paths.as_mut().unwrap().remove(4))),
        ("the read-only paths", |seen| seen.host().readonly_paths = None),
        ("the temporary folders", |seen| seen.host().tmpfs = None),
        ("the shared memory", |seen| seen.host().shm_size = Some(64 << 20)),
        ("the cgroup namespace", |seen| seen.host().cgroupns_mode = Some(HostConfigCgroupnsModeEnum::HOST)),
        ("the pid namespace", |seen| seen.host().pid_mode = Some("host".into())),
        ("the host name's namespace", |seen| seen.host().uts_mode = Some("host".into())),
        ("the user namespace", |seen| seen.host().userns_mode = Some("host".into())),
        ("the IPC namespace", |seen| seen.host().ipc_mode = Some("host".into())),
        ("the seccomp profile", |seen| seen.host().security_opt = Some(vec!["seccomp=unconfined".into()])),
        ("the seccomp profile", |seen| seen.host().security_opt = Some(vec!["seccomp={}".into()])),
        ("the seccomp profile", |seen| seen.host().security_opt = None),
        ("the engine's log", |seen| seen.host().log_config = None),
        ("the engine's log", |seen| {
            seen.host().log_config =
                Some(HostConfigLogConfig { typ: Some("json-file".into()), config: None });
        }),
        ("the host name", |seen| seen.config().hostname = Some("the-real-one".into())),
        ("the host name", |seen| seen.config().hostname = None),
        ("the environment", |seen| seen.config().env = None),
        ("the environment", |seen| seen.config().env.as_mut().unwrap()[4] = "HOME=/root".into()),
        ("the labels", |seen| seen.config().labels = None),
        ("the labels", |seen| {
            let labels = seen.config().labels.as_mut().unwrap();
            labels.insert("belljar.instance".into(), "another".into());
        }),
        ("the image", |seen| seen.inspected.image = Some("sha256:other".into())),
        ("the image", |seen| seen.inspected.image = None),
    ]);
}

#[test]
fn mounts_are_compared() {
    each_is_found(&[
        ("the mounts", |seen| seen.mount(BRIDGE_DIR).rw = Some(true)),
        ("the mounts", |seen| seen.mount(KERNEL_DIR).rw = Some(true)),
        ("the mounts", |seen| seen.mount(KERNEL_DIR).rw = None),
        ("the mounts", |seen| seen.mount(PACKAGES_DIR).rw = Some(true)),
        ("the mounts", |seen| seen.mount("/etc/passwd").rw = Some(true)),
        ("the mounts", |seen| seen.mount("/ref").rw = Some(true)),
        ("the mounts", |seen| seen.mount(WORKSPACE).rw = Some(false)),
        ("the mounts", |seen| seen.mount(WORKSPACE).destination = Some("/etc".into())),
        ("the mounts", |seen| drop(seen.inspected.mounts.as_mut().unwrap().pop())),
        ("the mounts", |seen| {
            let more =
                MountPoint { destination: Some("/var/run/docker.sock".into()), ..MountPoint::default() };
            seen.inspected.mounts.as_mut().unwrap().push(more);
        }),
        ("the mounts", |seen| seen.inspected.mounts = None),
    ]);
}

#[test]
fn the_probe_is_believed_when_it_says_no() {
    each_is_found(&[
        ("probe: a network interface is there", |seen| seen.probe.no_network = false),
        ("probe: an AF_ALG socket can be opened", |seen| seen.probe.no_kernel_crypto = false),
        ("probe: the root can be written", |seen| seen.probe.read_only_root = false),
        ("probe: prlimit on another process was not refused", |seen| seen.probe.no_foreign_prlimit = false),
        ("probe: a new user namespace was not refused", |seen| seen.probe.no_new_namespaces = false),
        ("probe: the guardian is not pid 1", |seen| seen.probe.is_init = false),
        ("probe: the guardian's memory can be read", |seen| seen.probe.not_dumpable = false),
    ]);
}

#[test]
fn nothing_read_back_is_everything_wrong() {
    let mut seen = well();
    seen.inspected.host_config = None;
    let found = seen.differences();
    for name in ["the network mode", "privileged mode", "the seccomp profile", "the IPC namespace"] {
        assert!(found.iter().any(|difference| difference == name), "{name}: {found:?}");
    }
}

#[test]
fn a_receipt_says_what_was_read_not_what_was_asked_for() {
    let mut seen = well();
    seen.inspected.image = Some("sha256:really".into());
    seen.host().network_mode = Some("really".into());
    seen.host().runtime = Some("runsc".into());
    seen.evidence.limits.memory_bytes = 5;
    seen.evidence.process.uid = 6;
    let receipt = receipt(&seen.spec, &seen.inspected, seen.evidence.clone(), "3.9".into(), seen.probe);
    assert_eq!(receipt.image.id, "sha256:really");
    assert_eq!((receipt.network.as_str(), receipt.runtime.as_str()), ("really", "runsc"));
    assert_eq!((receipt.limits.memory_bytes, receipt.process.uid), (5, 6));
    assert_eq!(receipt.mounts.len(), 11);
    assert!(receipt.seccomp_profile.starts_with("sha256:") && receipt.seccomp_profile.len() == 71);
}
