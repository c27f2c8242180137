//! Switches a thread to another user for a while, as far as files are concerned.
//!
//! Only what the kernel checks on files changes, and only for this thread: the file system user and group, the
//! supplementary groups (by the system call, because the C library's function changes all threads), and the effective
//! capabilities, of which none are left. The real user stays root, because a user could send signals to a thread with
//! that user's real id.

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::io::Errno;
use rustix::process::getgroups;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::sandbox::workspace::owner::Ids;
use crate::security_controls;

/// An invalid id: `setfsuid` and `setfsgid` do not accept it, and only return the thread's current id.
const NOBODY: u32 = u32::MAX;

/// Does `work` with the rights of `ids`, or with the daemon's own if `ids` is `None`. The work must not wait for other
/// code of the daemon that opens files.
pub fn acting_as<T>(ids: Option<&Ids>, work: impl FnOnce() -> T) -> std::io::Result<T> {
    let Some(ids) = ids.filter(|_| security_controls::holds("files_as_owner")) else { return Ok(work()) };
    let switched = PreviousCredentials::to(ids)?;
    let outcome = catch_unwind(AssertUnwindSafe(work));
    // The rights are restored before a panic goes on, so that the code that catches it runs with the daemon's own.
    drop(switched);
    match outcome {
        Ok(outcome) => Ok(outcome),
        Err(panic) => resume_unwind(panic),
    }
}

/// The thread's ids and capabilities before the switch.
struct PreviousCredentials {
    groups: Vec<rustix::process::Gid>,
    capabilities: CapabilitySets,
    uid: Uid,
    gid: Gid,
}

impl PreviousCredentials {
    fn to(ids: &Ids) -> rustix::io::Result<Self> {
        let before = Self {
            groups: getgroups()?,
            capabilities: capabilities(None)?,
            uid: setfsuid(Uid::from_raw(NOBODY)),
            gid: setfsgid(Gid::from_raw(NOBODY)),
        };
        let groups: Vec<_> = ids.groups.iter().map(|gid| rustix::process::Gid::from_raw(*gid)).collect();
        // From here on dropping `before` restores the thread, even if the next lines fail.
        set_thread_groups(&groups)?;
        setfsgid(Gid::from_raw(ids.gid));
        setfsuid(Uid::from_raw(ids.uid));
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..before.capabilities })?;
        if is_acting(Uid::from_raw(ids.uid), Gid::from_raw(ids.gid), groups) {
            Ok(before)
        } else {
            Err(Errno::PERM)
        }
    }

    fn restore(&self) -> rustix::io::Result<bool> {
        // The real user is still root, so this needs no capability and gives the capabilities for files back.
        setfsuid(self.uid);
        set_capabilities(None, self.capabilities)?;
        setfsgid(self.gid);
        set_thread_groups(&self.groups)?;
        Ok(is_acting(self.uid, self.gid, self.groups.clone()))
    }
}

impl Drop for PreviousCredentials {
    fn drop(&mut self) {
        // A thread that keeps these ids would do the next user's work with the rights of this one.
        if !matches!(self.restore(), Ok(true)) && security_controls::holds("rights_come_back") {
            eprintln!("belljar: a thread cannot take its own rights back; the daemon ends");
            std::process::abort();
        }
    }
}

/// `setfsuid` and `setfsgid` report no failure, so the ids are read back.
fn is_acting(uid: Uid, gid: Gid, mut groups: Vec<rustix::process::Gid>) -> bool {
    let sorted = |groups: &mut Vec<rustix::process::Gid>| groups.sort_by_key(|gid| gid.as_raw());
    let Ok(mut found) = getgroups() else { return false };
    sorted(&mut found);
    sorted(&mut groups);
    setfsuid(Uid::from_raw(NOBODY)) == uid && setfsgid(Gid::from_raw(NOBODY)) == gid && found == groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::Command;

    const ANN: u32 = 61_101;
    const HER_GROUP: u32 = 61_150;
    const CHILD: &str = "BELLJAR_TEST_RIGHTS_DO_NOT_COME_BACK";

    /// Only root can switch to another user.
    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            eprintln!("NOT RUN: only root can switch to another user");
        }
        is_root
    }

    fn ann() -> Ids {
        Ids { uid: ANN, gid: ANN, groups: vec![HER_GROUP] }
    }

    fn file(path: &Path, uid: u32, gid: u32, mode: u32) {
        std::fs::write(path, "content").unwrap();
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_thread_has_the_rights_of_the_user_and_then_its_own() {
        if !is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
        let at = |name: &str| folder.path().join(name);
        file(&at("of-root"), 0, 0, 0o600);
        file(&at("of-bob"), 61_102, 61_102, 0o600);
        file(&at("of-her-group"), 0, HER_GROUP, 0o640);
        file(&at("hers"), ANN, ANN, 0o600);
        acting_as(Some(&ann()), || {
            assert!(std::fs::read(at("of-root")).is_err() && std::fs::read(at("of-bob")).is_err());
            assert!(std::fs::read(at("of-her-group")).is_ok() && std::fs::read(at("hers")).is_ok());
            assert!(std::os::unix::fs::chown(at("hers"), Some(0), Some(0)).is_err());
            assert!(std::fs::set_permissions(at("of-bob"), PermissionsExt::from_mode(0o666)).is_err());
            std::fs::write(at("made"), "").unwrap();
        })
        .unwrap();
        let made = std::fs::metadata(at("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (ANN, ANN));
        assert!(std::fs::read(at("of-root")).is_ok() && std::fs::read(at("of-bob")).is_ok());
        acting_as(Some(&Ids::alone(ANN, ANN)), || assert!(std::fs::read(at("of-her-group")).is_err()))
            .unwrap();
    }

    #[test]
    fn other_threads_and_signals_see_no_difference() {
        if !is_root() {
            return;
        }
        acting_as(Some(&ann()), || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
            assert_eq!(ids.split_whitespace().collect::<Vec<_>>(), ["0", "0", "0", &ANN.to_string()]);
            let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
            assert_eq!(effective.trim(), "0000000000000000");
            std::thread::scope(|scope| {
                // A new thread inherits the ids of this one; a thread that existed before keeps its own.
                scope.spawn(|| assert_eq!(setfsuid(Uid::from_raw(NOBODY)).as_raw(), ANN));
            });
        })
        .unwrap();
        assert!(setfsuid(Uid::from_raw(NOBODY)).is_root());
        assert_eq!(capabilities(None).unwrap().effective, capabilities(None).unwrap().permitted);
    }

    #[test]
    fn a_panic_ends_it_too() {
        if !is_root() {
            return;
        }
        let groups = getgroups().unwrap();
        let panicked = catch_unwind(|| acting_as(Some(&ann()), || panic!("as somebody else")));
        assert!(panicked.is_err());
        assert!(setfsuid(Uid::from_raw(NOBODY)).is_root());
        assert_eq!(getgroups().unwrap(), groups);
    }

    #[test]
    #[ignore = "the part of the test below that dies"]
    fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
        let nothing = CapabilitySet::empty();
        let none = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
        acting_as(Some(&ann()), || set_capabilities(None, none).unwrap()).unwrap();
        println!("\nit goes on");
    }

    #[test]
    fn the_daemon_ends_if_a_thread_cannot_take_its_own_rights_back() {
        if !is_root() {
            return;
        }
        let (_, this) = concat!(module_path!(), "::child").split_once("::").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", this, "--ignored", "--nocapture"]).env(CHILD, "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(said.contains("a thread cannot take its own rights back; the daemon ends"), "{said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("it goes on"), "{output:?}");
    }
}
