//! The limit that Linux itself keeps for a managed workspace, where the file system has project quotas (ext4 and xfs
//! that are mounted with `prjquota`) and the daemon runs as root.
//!
//! The watch of [`crate::sandbox::workspace::usage`] stays in any case: only it knows the sum of a user's workspaces. A
//! guest can exceed its limit by what it writes between two measurements, but not this one: a write beyond the limit
//! fails with `EDQUOT` (`ENOSPC` on xfs), and files that are deleted but still open count, too. A guest cannot move its
//! files into another project, because the system-call filter's list of `ioctl`s lacks the one for that.

use sha2::{Digest, Sha256};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use crate::project_quotas::{self, FolderAttributes, Quota, are_enforced};

/// The daemon's projects have numbers from here on, far from those that administrators choose.
const FIRST: u32 = 0x4000_0000;
const COUNT: u32 = 0x3fff_ffff;
/// Numbers that are tried for a folder; two folders rarely start with the same one.
const TRIES: u32 = 8;
/// The unit of the kernel's limits.
const BLOCK: u64 = 1024;

/// Puts a folder into a project of its own with these limits. Returns whether the kernel enforces them. A folder that
/// has content and is not in such a project is left alone: its files could not be moved into the project any more, and
/// would not count.
pub fn hold(folder: BorrowedFd<'_>, path: &Path, bytes: u64, entries: u64) -> rustix::io::Result<bool> {
    if !are_enforced(folder) {
        return Ok(false);
    }
    let mut attributes = project_quotas::attributes(folder)?;
    let project = match own(&attributes) {
        Some(project) => project,
        None if !is_empty(folder)? => return Ok(false),
        None => match free_project_id(folder, path)? {
            Some(project) => project,
            None => return Ok(false),
        },
    };
    // The limit is set before the folder joins the project, so that no file is ever without a limit.
    project_quotas::limit(
        folder,
        project,
        Quota { blocks: bytes.div_ceil(BLOCK), entries, ..Quota::default() },
    )?;
    if own(&attributes).is_none() {
        attributes.join(project);
        project_quotas::set_attributes(folder, &attributes)?;
    }
    Ok(true)
}

/// Renames a folder that may be in a project of its own. An administrator may have put the folders above into a project
/// that all below them inherit, as the limit of the whole daemon: then the kernel refuses to rename what is in another one
/// (`EXDEV`), even within one folder. So for the moment the folder joins the project of its new parent. Nothing can write
/// to it meanwhile.
pub fn rename(folder: BorrowedFd<'_>, from: &Path, to: &Path) -> std::io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {}
        outcome => return outcome,
    }
    let own = project_quotas::attributes(folder)?;
    let parent = std::fs::File::open(to.parent().unwrap_or(Path::new("/")))?;
    let of_parent = project_quotas::attributes(parent.as_fd())?.inherited_project();
    // Without such a parent it is another file system.
    let project = of_parent.ok_or(std::io::ErrorKind::CrossesDevices)?;
    let mut joined = own;
    joined.join(project);
    project_quotas::set_attributes(folder, &joined)?;
    let renamed = std::fs::rename(from, to);
    project_quotas::set_attributes(folder, &own)?;
    renamed
}

/// Removes the limits of a folder that is deleted and only still open.
pub fn release(folder: BorrowedFd<'_>) {
    let project = project_quotas::attributes(folder).ok().as_ref().and_then(own);
    if let Some(project) = project
        && let Err(error) = project_quotas::limit(folder, project, Quota::default())
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

/// The number of a project that has no files and no limits.
fn free_project_id(folder: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Option<u32>> {
    let first = first_number(path);
    for nth in 0..TRIES {
        let project = FIRST + (first + nth) % COUNT;
        if project_quotas::quota(folder, project)? == Quota::default() {
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

    /// `tests/vm` covers file systems with project quotas.
    #[test]
    fn without_project_quotas_a_folder_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let opened = std::fs::File::open(folder.path()).unwrap();
        if !are_enforced(opened.as_fd()) {
            assert_eq!(hold(opened.as_fd(), folder.path(), 1 << 20, 10), Ok(false));
            std::fs::write(folder.path().join("x"), vec![0; 2 << 20]).unwrap();
        }
    }
}
