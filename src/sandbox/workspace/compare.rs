//! What a comparison of two workspaces needs of each: its files with their sizes, and the digests of those that may be
//! equal. Both are bounded, because guests make the files.

use rustix::fs::{FileType, Mode, OFlags};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::files::{beneath, size};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::walk::{Walk, WalkItem};

/// The most files of a workspace that are compared, and the most bytes of their paths.
const COMPARED_FILES: usize = 50_000;
const COMPARED_PATH_BYTES: usize = 8 * 1024 * 1024;
/// Entries of a workspace that are looked at for that.
const COMPARED_ENTRIES: usize = 200_000;
const CHUNK: usize = 256 * 1024;

/// The regular files of a workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileSizes {
    pub files: BTreeMap<PathBuf, u64>,
    /// Whether there are more, or some that cannot be seen.
    pub cut: bool,
}

/// Stands for the content of a file.
pub type ContentDigest = [u8; 32];

/// Lists the regular files of a workspace with their sizes.
pub fn sizes(root: &Root<'_>) -> Result<FileSizes, Problem> {
    let (mut found, mut path_bytes) = (FileSizes::default(), 0_usize);
    let walk = Walk { entries: COMPARED_ENTRIES, sorted: true };
    walk.run(root.folder(), |met| {
        let entry = match met {
            WalkItem::Entry(entry) => entry,
            WalkItem::Unread { .. } | WalkItem::TooMany => {
                found.cut = true;
                return Ok(false);
            }
        };
        if entry.kind() == FileType::RegularFile {
            let path = entry.path();
            path_bytes = path_bytes.saturating_add(path.as_os_str().len());
            if found.files.len() >= COMPARED_FILES || path_bytes > COMPARED_PATH_BYTES {
                found.cut = true;
                return Ok(false);
            }
            found.files.insert(path, size(&entry.stat));
        }
        Ok(true)
    })
    .map(|()| found)
}

/// The digests of files, in the order of `paths`, until `most` bytes are read. None stands for a file that was not read,
/// or not to its end.
pub fn digests(root: &Root<'_>, paths: &[PathBuf], most: u64) -> Result<Vec<Option<ContentDigest>>, Problem> {
    let (mut left, mut buffer) = (most, vec![0; CHUNK]);
    let mut digests = Vec::with_capacity(paths.len());
    for path in paths {
        let Ok(fd) = beneath(root.folder(), path.as_path(), OFlags::RDONLY, Mode::empty()) else {
            digests.push(None);
            continue;
        };
        let is_file = rustix::fs::fstat(&fd)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
        digests.push(if is_file { digest(File::from(fd), &mut left, &mut buffer)? } else { None });
    }
    Ok(digests)
}

fn digest(mut file: File, left: &mut u64, buffer: &mut [u8]) -> Result<Option<ContentDigest>, Problem> {
    let mut hash = Sha256::new();
    loop {
        let count = file.read(buffer).map_err(|error| {
            Problem::new(Code::Storage, format!("a file of the workspace cannot be read: {error}"))
        })?;
        let chunk = buffer.get(..count).unwrap_or_default();
        if chunk.is_empty() {
            return Ok(Some(hash.finalize().into()));
        }
        let Some(rest) = left.checked_sub(count as u64) else { return Ok(None) };
        *left = rest;
        hash.update(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn files_are_listed_with_sizes_and_read_up_to_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        std::fs::write(folder.path().join("d/a"), "same").unwrap();
        std::fs::write(folder.path().join("b"), "same").unwrap();
        std::fs::write(folder.path().join("c"), vec![7; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("b", folder.path().join("link")).unwrap();
        let top = File::open(folder.path()).unwrap();
        let root = Root::of_daemon(top.as_fd());
        let listed = sizes(&root).unwrap();
        let files: Vec<_> =
            listed.files.iter().map(|(path, bytes)| (path.to_str().unwrap(), *bytes)).collect();
        assert_eq!(files, [("b", 4), ("c", 1 << 20), ("d/a", 4)]);
        assert!(!listed.cut);
        let paths: Vec<PathBuf> = ["b", "d/a", "c", "link", "gone"].map(PathBuf::from).into();
        let found = digests(&root, &paths, 1024).unwrap();
        assert!(found[0].is_some() && found[0] == found[1]);
        assert_eq!(found[2..], [None, None, None]);
        assert!(digests(&root, &paths, 2 << 20).unwrap()[2].is_some());
    }
}
