//! How much of the disk a workspace takes: a walk of its own, because it must not be possible to hide
//! from it in depth or in numbers, as it is from the short list of artifacts.
//!
//! This is a watch: a guest is ahead of it by what it writes between two looks. Where the file system
//! has project quotas (ext4 and xfs, mounted with `prjquota`) the kernel could hold the limit instead: a
//! project for each managed workspace (`FS_IOC_FSSETXATTR` with the inherit flag on the folder while it
//! is empty), its limits by `quotactl_fd`, both as root. It is not built: it takes a kernel with
//! `CONFIG_QFMT_V2` or `CONFIG_XFS_QUOTA` to see it work, and what was not seen to work does not guard.

use rustix::fs::{FileType, Mode, OFlags};
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use super::files::{beneath, join, names, stat_at};

/// Files and folders that a workspace may hold.
pub const ENTRIES: usize = 200_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub entries: usize,
    /// Some of it lies deeper than a path reaches, so it cannot be measured.
    pub too_deep: bool,
}

impl Usage {
    /// What is wrong with it, if it is more than allowed.
    #[must_use]
    pub fn beyond(&self, bytes: u64) -> Option<String> {
        if self.bytes > bytes {
            Some(format!("The workspace held {} bytes, more than the {bytes} that it may hold.", self.bytes))
        } else if self.entries > ENTRIES {
            Some(format!("The workspace held more than {ENTRIES} files and folders."))
        } else if self.too_deep {
            Some("The workspace held folders that are nested too deep to be measured.".into())
        } else {
            None
        }
    }
}

/// Walks without following links and stops when there are too many entries. Files that were deleted
/// and are still held open are not seen.
#[must_use]
pub fn measure(root: &OwnedFd) -> Usage {
    let mut usage = Usage::default();
    let mut linked = HashSet::new();
    let mut pending = vec![String::new()];
    while let Some(prefix) = pending.pop() {
        let folder = match beneath(root.as_fd(), &prefix, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(folder) => folder,
            Err(rustix::io::Errno::NAMETOOLONG) => {
                usage.too_deep = true;
                continue;
            }
            // Gone meanwhile, or closed to this user, whose own disk it then is.
            Err(_) => continue,
        };
        for name in names(folder.as_fd()).unwrap_or_default() {
            usage.entries += 1;
            if usage.entries > ENTRIES {
                return usage;
            }
            let Ok(found) = stat_at(folder.as_fd(), &name) else { continue };
            // A file with several names takes its space once.
            if found.st_nlink < 2 || linked.insert(found.st_ino) || is_folder(found.st_mode) {
                usage.bytes += u64::try_from(found.st_blocks).unwrap_or(0) * 512;
            }
            if is_folder(found.st_mode) {
                pending.push(join(&prefix, &name.to_string_lossy()));
            }
        }
    }
    usage
}

fn is_folder(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(folder: &std::path::Path) -> Usage {
        measure(&OwnedFd::from(std::fs::File::open(folder).unwrap()))
    }

    #[test]
    fn depth_does_not_hide_and_links_count_once() {
        let folder = tempfile::tempdir().unwrap();
        let deep = (0..60).fold(folder.path().to_owned(), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), vec![1; 1 << 20]).unwrap();
        let once = look(folder.path());
        assert!(once.bytes >= 1 << 20, "{once:?}");
        std::fs::hard_link(deep.join("file"), folder.path().join("again")).unwrap();
        assert!(look(folder.path()).bytes < once.bytes + (1 << 19));
        assert_eq!(once.beyond(1 << 30), None);
        assert!(once.beyond(1 << 19).unwrap().contains("more than"));
    }
}
