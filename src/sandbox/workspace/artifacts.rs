//! The files of a workspace that a cell made, changed or removed: found by a bounded scan before and after, from the
//! host's side, so that it also works for a cell that died.

use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

use crate::protocol::limits::{ARTIFACT_SCAN_DEPTH, ARTIFACT_SCAN_ENTRIES, ARTIFACTS};
use crate::protocol::result::{Artifact, Change};
use crate::sandbox::workspace::files::{beneath, size, stat_at};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::walk::{Folders, names};

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
    #[must_use]
    pub fn unseen() -> Self {
        Self { cut: true, ..Self::default() }
    }
}

/// Scans a tree without following links. Entries that cannot be read are left out.
#[must_use]
pub fn scan(root: &Root<'_>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut looked_at = 0_usize;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut folders = Folders::from_root();
    while folders.advance() {
        let Ok(folder) = beneath(root.folder(), folders.path(), flags, Mode::empty()) else { continue };
        let Ok(names) = names(folder.as_fd()) else { continue };
        for name in names.flatten() {
            looked_at += 1;
            if looked_at > ARTIFACT_SCAN_ENTRIES {
                snapshot.cut = true;
                return snapshot;
            }
            let Ok(found) = stat_at(folder.as_fd(), &name) else { continue };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory if folders.depth() + 1 >= ARTIFACT_SCAN_DEPTH => snapshot.cut = true,
                FileType::Directory => snapshot.cut |= folders.later(name).is_err(),
                FileType::RegularFile => {
                    let version = Version {
                        bytes: size(&found),
                        inode: found.st_ino,
                        modified: (found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or(0)),
                    };
                    // Bytes that are not UTF-8 become U+FFFD, as in the list of a folder.
                    snapshot.files.insert(folders.join(&name).to_string_lossy().into_owned(), version);
                }
                _ => {}
            }
        }
    }
    snapshot
}

/// The differences between two snapshots; true if the list or one of the scans was cut.
#[must_use]
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

    fn look(folder: &std::path::Path) -> Snapshot {
        scan(&Root::of_daemon(std::fs::File::open(folder).unwrap().as_fd()))
    }

    #[test]
    fn new_changed_and_removed_files_are_told_apart_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("old"), "1").unwrap();
        std::fs::write(at("gone"), "1").unwrap();
        let before = look(folder.path());
        std::fs::write(at("old"), "22").unwrap();
        std::fs::remove_file(at("gone")).unwrap();
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("sub/new"), "333").unwrap();
        std::os::unix::fs::symlink("/etc", at("link")).unwrap();
        let (artifacts, cut) = compare(&before, &look(folder.path()));
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
        let (artifacts, cut) = compare(&Snapshot::default(), &look(folder.path()));
        assert_eq!((artifacts.len(), cut), (ARTIFACTS, true));
    }
}
