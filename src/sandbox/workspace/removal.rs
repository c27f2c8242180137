//! Removes trees that a guest made. A guest can nest folders deeper than a stack or the limit on descriptors allows, so
//! folders that lie too deep are moved up to the top first. A guest can also take away its own user's rights, so they
//! are given back where they are missing.

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::sandbox::workspace::files::beneath;
use crate::sandbox::workspace::walk::names;

/// Maximum number of nested folders that are open at once.
const DEPTH: usize = 32;
/// Names that are read before the first of them is removed: file systems differ in what they list while a folder
/// changes.
const NAMES_AT_ONCE: usize = 10_000;
/// Names that are removed at most while a guest may make new ones in their place: ten times the number that a workspace
/// may hold.
const NAMES_OF_THE_LIVING: u64 = 2_000_000;

/// Removes everything in a folder whose guest is gone.
pub fn empty_tree(root: &OwnedFd) -> rustix::io::Result<()> {
    Removal { root, moved: 0, left: None }.empty(root, 0)
}

/// Removes everything in a folder that a guest may be writing to: `NOTEMPTY` if the guest is faster.
pub fn empty_folder(folder: &OwnedFd) -> rustix::io::Result<()> {
    Removal { root: folder, moved: 0, left: Some(NAMES_OF_THE_LIVING) }.empty(folder, 0)
}

struct Removal<'a> {
    root: &'a OwnedFd,
    /// The number of folders that were moved up.
    moved: u64,
    /// The number of names that may still be removed, where a guest may add others.
    left: Option<u64>,
}

impl Removal<'_> {
    fn empty(&mut self, folder: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
        let found = rustix::fs::fstat(folder)?;
        if found.st_mode & 0o700 != 0o700 {
            rustix::fs::fchmod(folder, Mode::from_raw_mode(0o700))?;
        }
        loop {
            let some: Vec<CString> = names(folder.as_fd())?.take(NAMES_AT_ONCE).collect::<Result<_, _>>()?;
            if some.is_empty() {
                return Ok(());
            }
            for name in some {
                if let Some(left) = &mut self.left {
                    *left = left.checked_sub(1).ok_or(Errno::NOTEMPTY)?;
                }
                match self.remove(folder, &name, depth) {
                    // The entry is gone already, was replaced, or has new content; the next round deals with it.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(Errno::NOTEMPTY) if self.left.is_some_and(|left| left > 0) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    fn remove(&mut self, folder: &OwnedFd, name: &CStr, depth: usize) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            other => return other,
        }
        let inner = open_unlocked(folder, name)?;
        if depth < DEPTH {
            self.empty(&inner, depth + 1)?;
            return rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
        }
        self.moved += 1;
        let new_name = format!(".belljar-{}-{}", uuid::Uuid::new_v4().simple(), self.moved);
        rustix::fs::renameat(folder, name, self.root, new_name)
    }
}

/// Opens a folder, and gives its owner's rights back if they are missing.
fn open_unlocked(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY;
    match beneath(parent.as_fd(), name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        opened => return opened,
    }
    // Opening for reading needs the missing right; opening a path handle does not.
    let handle = beneath(parent.as_fd(), name, OFlags::DIRECTORY | OFlags::PATH, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::from_raw_mode(0o700))?;
    beneath(parent.as_fd(), name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs::{File, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    /// Regression test: a folder with more names than are read at once could not be removed.
    #[test]
    fn a_folder_is_emptied_whatever_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..NAMES_AT_ONCE + 100 {
            File::create(folder.path().join(number.to_string())).unwrap();
        }
        let odd = folder.path().join(OsStr::from_bytes(b"\xff"));
        std::fs::create_dir_all(odd.join("closed")).unwrap();
        File::create(odd.join("closed/file")).unwrap();
        std::fs::set_permissions(odd.join("closed"), Permissions::from_mode(0o000)).unwrap();
        empty_folder(&OwnedFd::from(File::open(folder.path()).unwrap())).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn whoever_is_faster_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..10 {
            File::create(folder.path().join(number.to_string())).unwrap();
        }
        let root = OwnedFd::from(File::open(folder.path()).unwrap());
        let stopped = Removal { root: &root, moved: 0, left: Some(5) }.empty(&root, 0);
        assert_eq!(stopped, Err(Errno::NOTEMPTY));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
    }
}
