//! What an earlier daemon had begun with packages.

use super::restored_from;
use crate::protocol::event::EventBody;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::packages::{InstallEnd, PackageSet};
use crate::protocol::receipt::{Backend, HeldBy, ImageFact, LimitFact, ProcessFact, Receipt};

fn installing(end: Option<InstallEnd>) -> EventBody {
    EventBody::PackagesInstalling { status: "bell".into(), end }
}

fn installed(resets: bool) -> EventBody {
    let set = PackageSet {
        key: "a1".into(),
        requirements: Vec::new(),
        packages: Vec::new(),
        bytes: 0,
        sources: false,
    };
    EventBody::PackagesInstalled { set: Box::new(set), cached: false, resets }
}

pub(super) fn ready() -> EventBody {
    let process = ProcessFact {
        pid: 1,
        uid: 1,
        gid: 1,
        groups: None,
        cap_eff: String::new(),
        cap_bnd: String::new(),
        no_new_privs: true,
        seccomp: 2,
        apparmor: None,
    };
    let limits = LimitFact {
        memory_bytes: 1,
        cpus: 1.0,
        pids: 1,
        open_files: 1,
        file_bytes: 1,
        core_bytes: 0,
        cgroup_version: 2,
        held_by: HeldBy::default(),
    };
    let probe = Probe {
        no_network: true,
        no_kernel_crypto: true,
        read_only_root: true,
        no_foreign_prlimit: true,
        no_new_namespaces: true,
        is_init: true,
        not_dumpable: true,
    };
    let receipt = Receipt {
        sandbox: SandboxId::fresh(),
        backend: Backend::Docker,
        container: String::new(),
        runtime: String::new(),
        image: ImageFact::default(),
        python: String::new(),
        process,
        network: String::new(),
        read_only_root: true,
        seccomp_profile: String::new(),
        limits,
        mounts: Vec::new(),
        probe,
        namespaces: Vec::new(),
        chosen: String::new(),
    };
    EventBody::SandboxReady {
        backend: receipt.backend,
        image: receipt.image.clone(),
        python: String::new(),
        isolation: String::new(),
        receipt: Box::new(receipt),
        preloaded: None,
    }
}

#[test]
fn an_installation_without_an_end_and_a_reset_that_was_not_done_are_known() {
    let state = |bodies: &[EventBody]| {
        let restored = restored_from(bodies);
        (restored.installing, restored.reset_due)
    };
    assert_eq!(state(&[]), (false, false));
    assert_eq!(state(&[installing(None), installing(None)]), (true, false));
    for end in [InstallEnd::InImage, InstallEnd::Failed, InstallEnd::Interrupted] {
        assert_eq!(state(&[installing(None), installing(Some(end))]), (false, false));
    }
    assert_eq!(state(&[installing(None), installed(false)]), (false, false));
    assert_eq!(state(&[installing(None), installed(true)]), (false, true));
    assert_eq!(state(&[installed(true), EventBody::Reset]), (false, false));
    let failed = || installing(Some(InstallEnd::Failed));
    assert_eq!(state(&[installed(true), failed()]), (false, false), "the session went on without a reset");
    assert_eq!(state(&[installed(true), failed(), installed(true)]), (false, true));
    for end in [InstallEnd::InImage, InstallEnd::Interrupted] {
        let other = [installed(true), installing(None), installing(Some(end))];
        assert_eq!(state(&other), (false, true), "another installation ends no reset");
    }
    assert_eq!(state(&[installed(true), ready()]), (false, false), "it began with the packages");
    let gone = EventBody::SandboxGone { reason: "a test".into() };
    assert_eq!(state(&[installed(true), gone]), (false, false), "the next sandbox begins with the packages");
}

#[test]
fn a_failure_in_a_journal_of_an_earlier_version_is_an_end() {
    let failed = EventBody::PackagesInstalling { status: "failed: no such package".into(), end: None };
    assert!(!restored_from(&[installing(None), failed]).installing);
}
