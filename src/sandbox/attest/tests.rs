//! Facts of a sandbox without any difference from its spec, from which tests of backends begin.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{leads_to, same_by_table, same_mounts};
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

/// The folder was swapped for another one while it was mounted, and swapped back.
#[test]
fn a_folder_that_was_in_the_place_of_the_checked_one_for_a_moment_is_another_one() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT RUN: only root can mount");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for name in ["checked", "other", "target"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let identity_of = |name: &str| {
        let found = std::fs::metadata(at(name)).unwrap();
        (found.dev(), found.ino())
    };
    let (checked, other) = (identity_of("checked"), identity_of("other"));
    let swap = || {
        for (from, to) in [("checked", "aside"), ("other", "checked"), ("aside", "other")] {
            std::fs::rename(at(from), at(to)).unwrap();
        }
    };
    swap();
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && echo mounted && exec sleep 60"]);
    command.args([at("checked"), at("target")]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    swap();
    let (pid, target) = (i32::try_from(child.id()).unwrap(), at("target").display().to_string());
    let is_checked = (identity_of("checked") == checked, same_by_table(pid, &target, checked));
    let is_other = same_by_table(pid, &target, other);
    std::fs::remove_dir(at("other")).unwrap();
    let after_removal = same_by_table(pid, &target, other);
    let elsewhere = same_by_table(pid, "/nothing/there", other);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "mounted\n");
    assert_eq!(
        is_checked,
        (true, Some(false)),
        "the path leads to the checked folder, and it is not mounted"
    );
    assert_eq!((is_other, after_removal, elsewhere), (Some(true), Some(false), None));
}

/// What was mounted instead may be where an ordinary user cannot look.
#[test]
fn a_mounted_folder_that_cannot_be_looked_at_is_not_the_checked_one() {
    let home = tempfile::tempdir().unwrap();
    let found = std::fs::metadata(home.path()).unwrap();
    let (checked, unseen) = ((found.dev(), found.ino()), home.path().join("unseen"));
    assert_eq!(leads_to(&[], checked), None);
    assert_eq!(leads_to(std::slice::from_ref(&unseen), checked), Some(false));
    assert_eq!(leads_to(&[unseen, home.path().to_owned()], checked), Some(true));
}
