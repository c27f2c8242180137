//! Facts of a sandbox without any difference from its spec, from which tests of backends begin.

use crate::protocol::frames::Probe;
use crate::protocol::receipt::{HeldBy, LimitFact, ProcessFact};
use crate::sandbox::spec::SandboxSpec;

pub fn process(spec: &SandboxSpec) -> ProcessFact {
    ProcessFact {
        pid: 7,
        uid: spec.user.host_uid,
        gid: spec.user.host_gid,
        groups: Some(Vec::new()),
        cap_eff: "0000000000000000".into(),
        cap_bnd: "0000000000000000".into(),
        no_new_privs: true,
        seccomp: 2,
        apparmor: None,
    }
}

pub fn limits(spec: &SandboxSpec) -> LimitFact {
    LimitFact {
        memory_bytes: spec.limits.memory_bytes,
        cpus: spec.limits.cpus,
        pids: spec.limits.pids,
        open_files: spec.limits.open_files,
        file_bytes: spec.limits.file_bytes,
        core_bytes: 0,
        cgroup_version: 2,
        held_by: HeldBy::default(),
    }
}

pub fn probe() -> Probe {
    Probe {
        no_network: true,
        no_kernel_crypto: true,
        read_only_root: true,
        no_foreign_prlimit: true,
        no_new_namespaces: true,
        is_init: true,
        not_dumpable: true,
    }
}
