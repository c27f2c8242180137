//! Attestation: the properties of every sandbox that are read back before code runs in it. Each backend adds its own.

pub mod cgroup;
pub(in crate::sandbox) mod checks;
pub mod counters;
pub mod facts;

use sha2::{Digest, Sha256};

use crate::protocol::receipt::{Isolation, Receipt};
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
/// the engine's mount.
pub(in crate::sandbox) fn same_folder(pid: i32, target: &str, checked: (u64, u64)) -> Option<bool> {
    use std::os::unix::fs::MetadataExt;
    let mounted = std::fs::metadata(format!("/proc/{pid}/root{target}")).ok()?;
    Some((mounted.dev(), mounted.ino()) == checked)
}

/// The same for all folders beside the workspace: false if one is another folder, `None` if one cannot be looked at.
pub(in crate::sandbox) fn same_mounts(pid: i32, mounts: &[SpecMount]) -> Option<bool> {
    let same: Vec<_> = mounts.iter().map(|mount| same_folder(pid, &mount.target, mount.identity)).collect();
    if same.contains(&Some(false)) && security_controls::holds("mounts_are_the_checked_folders") {
        return Some(false);
    }
    same.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
}

/// The hash by which a receipt names a seccomp profile.
pub(in crate::sandbox) fn fingerprint(profile: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(profile.as_bytes())))
}
