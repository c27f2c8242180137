//! Facts of a sandbox without any difference from its spec, from which tests of backends begin.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::same_mounts;
use crate::protocol::frames::Probe;
use crate::protocol::receipt::{HeldBy, LimitFact, ProcessFact};
use crate::sandbox::spec::{SandboxSpec, SpecMount};

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

/// No process has this pid, so nothing can be read of its mounts.
#[test]
fn mounts_that_cannot_be_looked_at_are_not_the_checked_ones() {
    let nobody = i32::MAX;
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let identity_of = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.dev(), found.ino())
    };
    let mount = |identity| SpecMount {
        source: folder.path().to_owned(),
        target: "/data".into(),
        writable: false,
        identity,
    };
    assert!(same_mounts(nobody, &[]));
    // Root would know. Another user sees at least what the path leads to by now.
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(same_mounts(nobody, &[mount(identity_of(folder.path()))]), !is_root);
    assert!(!same_mounts(nobody, &[mount(identity_of(other.path()))]));
}
