//! The files of a workspace that a cell made, changed or removed: found by a bounded scan before and after, from the
//! host's side, so that it also works for a cell that died.

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::protocol::limits::{ARTIFACT_SCAN_DEPTH, ARTIFACT_SCAN_ENTRIES, ARTIFACTS};
use crate::protocol::result::{Artifact, Change};
use crate::sandbox::workspace::files::size;
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::walk::{Walk, WalkItem};

/// The properties that distinguish one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Version {
    bytes: u64,
    inode: u64,
    modified: (i64, i64),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    files: BTreeMap<String, Version>,
    /// The scan stopped at its limit, so a missing file may still exist.
    pub cut: bool,
}

impl Snapshot {
    /// The snapshot of a tree that could not be scanned.
    pub fn unseen() -> Self {
        Self { cut: true, ..Self::default() }
    }
}

/// Scans a tree without following links. Entries that cannot be read are left out.
pub fn scan(root: &Root<'_>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let walk = Walk { entries: ARTIFACT_SCAN_ENTRIES, sorted: false };
    let walked = walk.run(root.folder(), |met| {
        match met {
            WalkItem::Entry(entry) if entry.kind() == FileType::Directory => {
                let enters = entry.depth() + 1 < ARTIFACT_SCAN_DEPTH;
                snapshot.cut |= !enters;
                return Ok::<_, Infallible>(enters);
            }
            WalkItem::Entry(entry) if entry.kind() == FileType::RegularFile => {
                let stat = &entry.stat;
                let version = Version {
                    bytes: size(stat),
                    inode: stat.st_ino,
                    modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
                };
                // Bytes that are not UTF-8 become U+FFFD, as in the list of a folder.
                snapshot.files.insert(entry.path().to_string_lossy().into_owned(), version);
            }
            WalkItem::TooMany => snapshot.cut = true,
            WalkItem::Entry(_) | WalkItem::Unread { .. } => {}
        }
        Ok(false)
    });
    match walked {
        Ok(()) => snapshot,
    }
}

/// The differences between two snapshots; true if the list or one of the scans was cut.
pub fn compare(before: &Snapshot, after: &Snapshot) -> (Vec<Artifact>, bool) {
    let artifact = |path: &String, bytes, change| Artifact { path: path.clone(), bytes, change };
    let mut artifacts: Vec<Artifact> = after
        .files
        .iter()
        .filter_map(|(path, version)| match before.files.get(path) {
            None if !before.cut => Some(artifact(path, version.bytes, Change::New)),
            Some(old) if old != version => Some(artifact(path, version.bytes, Change::Modified)),
            _ => None,
        })
        .collect();
    if !after.cut {
        let gone = before.files.keys().filter(|path| !after.files.contains_key(*path));
        artifacts.extend(gone.map(|path| artifact(path, 0, Change::Removed)));
    }
    let cut = artifacts.len() > ARTIFACTS || before.cut || after.cut;
    artifacts.truncate(ARTIFACTS);
    (artifacts, cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn snapshot_of(folder: &std::path::Path) -> Snapshot {
        scan(&Root::of_daemon(std::fs::File::open(folder).unwrap().as_fd()))
    }

    #[test]
    fn new_changed_and_removed_files_are_told_apart_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("old"), "1").unwrap();
        std::fs::write(at("gone"), "1").unwrap();
        let before = snapshot_of(folder.path());
        std::fs::write(at("old"), "22").unwrap();
        std::fs::remove_file(at("gone")).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("sub/new"), "333").unwrap();
        std::os::unix::fs::symlink("/etc", at("link")).unwrap();
        let (artifacts, cut) = compare(&before, &snapshot_of(folder.path()));
        let found: Vec<_> = artifacts.iter().map(|a| (a.path.as_str(), a.bytes, a.change)).collect();
        assert_eq!(
            found,
            [("old", 2, Change::Modified), ("sub/new", 3, Change::New), ("gone", 0, Change::Removed)]
        );
        assert!(!cut);
    }

    #[test]
    fn a_scan_of_too_many_files_says_so() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=ARTIFACTS {
            std::fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        let (artifacts, cut) = compare(&Snapshot::default(), &snapshot_of(folder.path()));
        assert_eq!((artifacts.len(), cut), (ARTIFACTS, true));
    }
}
