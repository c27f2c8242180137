//! The kernel's own limit for a managed workspace, where the file system has project quotas (ext4 and xfs
//! that are mounted with `prjquota`) and the daemon runs as root.
//!
//! The watch of [`crate::sandbox::workspace::usage`] stays in any case: it is what speaks of a user's sum, and a guest is
//! ahead of it by what it writes between two looks. Here it is not: a write beyond the limit fails with
//! `EDQUOT` (`ENOSPC` on xfs), and what is deleted but still open counts too. That a guest puts its files
//! into another project is refused by the system-call filter, whose list of `ioctl`s lacks the one for it.

mod sys;

use sha2::{Digest, Sha256};
use std::os::fd::BorrowedFd;
use std::path::Path;

use sys::{FolderAttributes, Quota};

/// Projects of ours have numbers from here on, far from what people give by hand.
const FIRST: u32 = 0x4000_0000;
const COUNT: u32 = 0x3fff_ffff;
/// Numbers that are tried for a folder: two folders rarely get the same.
const TRIES: u32 = 8;
/// The unit of the kernel's limits.
const BLOCK: u64 = 1024;

/// Whether the file system holds projects to their limits.
fn is_enforced(folder: BorrowedFd<'_>) -> bool {
    sys::enforces_projects(folder).unwrap_or(false)
}

/// Puts a folder into a project of its own that may hold so much. Says whether the kernel holds it to that.
/// A folder with something in it that is not in such a project is left alone: its files could not be moved
/// any more, and would not count.
pub fn hold(folder: BorrowedFd<'_>, path: &Path, bytes: u64, entries: u64) -> rustix::io::Result<bool> {
    if !is_enforced(folder) {
        return Ok(false);
    }
    let mut attributes = sys::attributes(folder)?;
    let project = match own(&attributes) {
        Some(project) => project,
        None if !is_empty(folder)? => return Ok(false),
        None => match free(folder, path)? {
            Some(project) => project,
            None => return Ok(false),
        },
    };
    // Before anything is in it, so that nothing is ever without a limit.
    sys::limit(folder, project, Quota { blocks: bytes.div_ceil(BLOCK), entries, ..Quota::default() })?;
    if own(&attributes).is_none() {
        attributes.join(project);
        sys::set_attributes(folder, &attributes)?;
    }
    Ok(true)
}

/// Forgets the limits of a folder that was removed; it is only still open.
pub fn release(folder: BorrowedFd<'_>) {
    let project = sys::attributes(folder).ok().as_ref().and_then(own);
    if let Some(project) = project
        && let Err(error) = sys::limit(folder, project, Quota::default())
    {
        tracing::debug!(%error, project, "the limits of a project stay");
    }
}

fn own(attributes: &FolderAttributes) -> Option<u32> {
    attributes.inherited_project().filter(|project| (FIRST..FIRST + COUNT).contains(project))
}

fn is_empty(folder: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(folder)? {
        if ![c".", c".."].contains(&entry?.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A project that holds nothing and is bound to nothing.
fn free(folder: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Option<u32>> {
    let first = first_number(path);
    for nth in 0..TRIES {
        let project = FIRST + (first + nth) % COUNT;
        if sys::quota(folder, project)? == Quota::default() {
            return Ok(Some(project));
        }
    }
    Ok(None)
}

fn first_number(path: &Path) -> u32 {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let [a, b, c, d, ..] = digest.as_slice() else { return 0 };
    u32::from_be_bytes([*a, *b, *c, *d]) % COUNT
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn numbers_stay_within_ours_and_differ_by_path() {
        let numbers = ["/w/a", "/w/b", ""].map(|path| first_number(Path::new(path)));
        assert!(numbers.iter().all(|number| *number < COUNT));
        assert_ne!(numbers[0], numbers[1]);
        assert_eq!(first_number(Path::new("/w/a")), numbers[0]);
    }

    /// `tests/vm` shows it where there are some.
    #[test]
    fn without_project_quotas_a_folder_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let opened = std::fs::File::open(folder.path()).unwrap();
        if !is_enforced(opened.as_fd()) {
            assert_eq!(hold(opened.as_fd(), folder.path(), 1 << 20, 10), Ok(false));
            std::fs::write(folder.path().join("x"), vec![0; 2 << 20]).unwrap();
        }
    }
}
