//! Attestation: the properties of every sandbox that are read back before code runs in it. Each backend adds its own.

pub mod cgroup;
pub(in crate::sandbox) mod checks;
pub mod counters;
pub mod facts;
pub(in crate::sandbox) mod mount_table;

use sha2::{Digest, Sha256};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::protocol::receipt::{Isolation, Receipt};
use crate::sandbox::attest::mount_table::{MountedFolder, mounted_folder};
use crate::sandbox::spec::SpecMount;
use crate::security_controls;

#[cfg(test)]
pub(in crate::sandbox) mod tests;

/// The isolation in one line for people.
pub fn isolation_line(receipt: &Receipt) -> String {
    let kind = match receipt.backend.isolation() {
        Isolation::Container => "container",
        Isolation::Jail => "jail",
        Isolation::None => {
            return format!("no isolation: a process of uid {} like any other", receipt.process.uid);
        }
    };
    let line = format!(
        "{} {kind} ({}), network {}, uid {}, no capabilities, seccomp filter, {} root",
        receipt.backend.name(),
        receipt.runtime,
        receipt.network,
        receipt.process.uid,
        if receipt.read_only_root { "read-only" } else { "writable" },
    );
    if receipt.chosen.is_empty() { line } else { format!("{line}; {}", receipt.chosen) }
}

/// Compares a mounted folder with the checked one: the path may have been replaced by a link between the check and
/// the engine's mount. Root can look into every sandbox. The host does not let another user look into a guardian; then the
/// kernel's table of its mounts says which folder it is. None if that cannot be learnt either.
pub(in crate::sandbox) fn same_folder(pid: i32, target: &str, checked: (u64, u64)) -> Option<bool> {
    is_at(format!("/proc/{pid}/root{target}").as_ref(), checked)
        .or_else(|| same_by_table(pid, target, checked))
}

/// The same by the table of mounts, in which a folder is named by where it is now: one that was only in the checked one's
/// place while it was mounted is told from it. A user who moves folders between the two looks can still deceive this check,
/// but only the user who runs the daemon can move them, and these folders are that user's.
fn same_by_table(pid: i32, target: &str, checked: (u64, u64)) -> Option<bool> {
    let table = |whose: &str| mount_table::read(whose).ok();
    match mounted_folder(&table(&pid.to_string())?, &table("self")?, target.as_ref())? {
        MountedFolder::Removed => Some(false),
        MountedFolder::At(paths) => leads_to(&paths, checked),
    }
}

/// Whether one of the places leads to the checked folder; none if there is no place. The daemon could look at the checked
/// folder, so a place that it may not look at is another folder.
fn leads_to(places: &[PathBuf], checked: (u64, u64)) -> Option<bool> {
    (!places.is_empty()).then(|| places.iter().any(|place| is_at(place, checked) == Some(true)))
}

/// The same for all folders beside the workspace: false if one is another folder, or if that is not known. Where not even
/// the table of mounts tells an ordinary user, what the path leads to after the engine has mounted it has to be the
/// checked folder.
pub(in crate::sandbox) fn same_mounts(pid: i32, mounts: &[SpecMount]) -> bool {
    let looks_from_outside = !rustix::process::geteuid().is_root();
    let is_same = |mount: &SpecMount| {
        let mounted = same_folder(pid, &mount.target, mount.identity);
        let at_source = || looks_from_outside.then(|| is_at(&mount.source, mount.identity)).flatten();
        mounted.or_else(at_source).unwrap_or(false)
    };
    mounts.iter().all(is_same) || !security_controls::holds("mounts_are_the_checked_folders")
}

/// Whether the path leads to the checked folder; none if that cannot be learnt.
fn is_at(path: &Path, checked: (u64, u64)) -> Option<bool> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()) == checked)
}

/// The hash by which a receipt names a seccomp profile.
pub(in crate::sandbox) fn fingerprint(profile: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(profile.as_bytes())))
}
