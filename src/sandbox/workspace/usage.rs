//! Measures how much of the disk a workspace takes. It has a walk of its own, because a guest must not be able to hide
//! files from it by depth or number, as it can from the bounded scan for artifacts. A folder that it cannot see into
//! counts as too much.
//!
//! This is only a watch: a guest can exceed the limit by what it writes between two measurements. Where the file system
//! supports it, the kernel enforces the limit as well ([`crate::sandbox::workspace::project`]).

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::protocol::limits::DISK_TOLERANCE;
use crate::sandbox::workspace::files::beneath;
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::walk::{Walk, WalkItem};
use crate::security_controls;

/// Maximum number of files and folders in a workspace.
pub const ENTRIES: usize = 200_000;
/// Maximum number of files and folders that are looked at. It is well above the limit, so that a guest which is above
/// the limit can be seen to delete files.
pub(super) const ENTRIES_LOOKED_AT: usize = 2 * ENTRIES;

/// The pause between two measurements, as a multiple of the time that the last one took, so that a watch takes about a
/// twentieth of a processor as long as `LONGEST_PAUSE` does not cut the pause.
const PAUSE: u32 = 20;
/// The longest pause between two measurements.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The pause before the next measurement, after one that took `took`.
pub fn pause_after(took: Duration) -> Duration {
    if security_controls::holds("usage_watch_pauses") {
        took.saturating_mul(PAUSE).min(LONGEST_PAUSE)
    } else {
        Duration::ZERO
    }
}

/// The reasons why a workspace may hold more than was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmeasuredReason {
    TooMany,
    /// Folders are nested deeper than a path can reach.
    TooDeep,
    /// The guest closes folders: to its own user, or as fast as the daemon opens them again.
    Closed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub bytes: u64,
    pub entries: usize,
    pub hidden: Option<UnmeasuredReason>,
    /// Bytes that the sandbox's processes have written to disks, whether the files still exist or not.
    pub bytes_written: u64,
    /// Whether the disk has less left than its reserve.
    pub is_disk_short: bool,
}

impl DiskUsage {
    /// A sentence about what exceeds the limits of a folder, if anything does.
    pub fn beyond(&self, folder: &str, bytes: u64) -> Option<String> {
        if self.bytes > bytes {
            return Some(format!(
                "The {folder} held {} bytes, more than the {bytes} that it may hold.",
                self.bytes
            ));
        }
        let what = match self.hidden {
            None if self.entries > ENTRIES => {
                return Some(format!("The {folder} held more than {ENTRIES} files and folders."));
            }
            None => return None,
            Some(UnmeasuredReason::TooMany) => {
                "so many files and folders, or open ones, that they cannot be counted"
            }
            Some(UnmeasuredReason::TooDeep) => "folders that are nested too deep to be measured",
            Some(UnmeasuredReason::Closed) => {
                "folders that are closed to their own user and cannot be measured"
            }
        };
        Some(format!("The {folder} held {what}."))
    }

    /// The bytes that count if a workspace may hold `most`. If something is hidden, that is more than is tolerated.
    pub fn counted(&self, most: u64) -> u64 {
        match self.hidden {
            Some(_) => self.bytes.max(most.saturating_mul(DISK_TOLERANCE).saturating_add(1)),
            None => self.bytes,
        }
    }
}

/// Walks without following links and stops when there are too many entries. Files that are deleted but still open are
/// not seen. An error is always a fault of this machine, never caused by a guest.
pub fn measure(root: &Root<'_>) -> rustix::io::Result<DiskUsage> {
    let mut usage = DiskUsage::default();
    let mut linked = HashSet::new();
    let walk = Walk { entries: ENTRIES_LOOKED_AT, sorted: false };
    walk.run_with(
        |path| open(root, path),
        |met| {
            match met {
                WalkItem::Entry(entry) => {
                    usage.entries += 1;
                    // A file with several hard links takes its space once.
                    let once = entry.stat.st_nlink < 2 || entry.kind() == FileType::Directory;
                    if once || linked.insert(entry.stat.st_ino) {
                        usage.bytes += u64::try_from(entry.stat.st_blocks).unwrap_or(0) * 512;
                    }
                }
                WalkItem::Unread { folder, error } => usage.note(error, || is_guests(root, folder))?,
                WalkItem::TooMany => usage.hidden = Some(UnmeasuredReason::TooMany),
            }
            Ok(true)
        },
    )?;
    Ok(usage)
}

/// Measures a folder that the daemon made for a guest with this user id of the host, with the daemon's own rights.
pub fn measure_of_guest(folder: &Path, uid: u32) -> std::io::Result<DiskUsage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    Ok(measure(&Root { folder: folder.as_fd(), managed: true, uid })?)
}

impl DiskUsage {
    /// `is_guests`: whether the folder that could not be looked into is the guest's own.
    fn note(&mut self, error: Errno, is_guests: impl FnOnce() -> bool) -> rustix::io::Result<()> {
        match error {
            Errno::NAMETOOLONG => {
                self.hidden = Some(UnmeasuredReason::TooDeep);
                Ok(())
            }
            Errno::ACCESS | Errno::PERM => {
                if is_guests() {
                    self.hidden = Some(UnmeasuredReason::Closed);
                }
                Ok(())
            }
            // The entry is gone meanwhile, was replaced, or is on another file system.
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Ok(()),
            other => Err(other),
        }
    }
}

/// Whether the guest could have closed the folder and could write there. In a workspace that the daemon made, that is
/// every folder; in a caller's folder, only the guest's own, because other users may have folders there, too.
pub(super) fn is_guests(root: &Root<'_>, path: &Path) -> bool {
    if root.managed {
        return true;
    }
    let handle = beneath(root.folder(), path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
    let owner = handle.and_then(|handle| Ok(rustix::fs::fstat(&handle)?.st_uid));
    // The walk could enter the parent a moment ago, so on `ACCESS` the guest has closed it since.
    let own = owner.map_or_else(|error| error == Errno::ACCESS, |uid| uid == root.uid);
    own && security_controls::holds("closed_folders_count")
}

/// Opens a folder for reading. A guest can close folders to its own user, so in a workspace that the daemon made the
/// rights are given back.
fn open(root: &Root<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let (top, look_into) = (root.folder(), Mode::RUSR | Mode::XUSR);
    if !root.managed {
        return beneath(top, path, flags, Mode::empty());
    }
    match beneath(top, path, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Opening for reading needs the missing right; opening a path handle does not.
            let handle = beneath(top, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) | look_into;
            rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), mode)?;
            beneath(handle.as_fd(), "", flags, Mode::empty())
        }
        opened => {
            let folder = opened?;
            let found = rustix::fs::fstat(&folder)?;
            let mode = Mode::from_raw_mode(found.st_mode);
            if !mode.contains(look_into) && found.st_uid == root.uid {
                rustix::fs::fchmod(&folder, mode | look_into)?;
            }
            Ok(folder)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    use crate::protocol::receipt::Backend;
    use crate::sandbox::spec::Choice;
    use crate::sandbox::spec::UserMapping;
    use crate::sandbox::workspace::{Service, Workspace};

    /// A managed workspace for the user who runs the tests.
    fn workspace(folder: &tempfile::TempDir) -> Workspace {
        let service = Service { system: false, ..Service::of_this_process() };
        let (path, choice) =
            (folder.path().join("w"), Choice { backend: Backend::Process, why: String::new() });
        Workspace::managed(path, service, UserMapping::Same, choice, 0, u64::MAX).unwrap()
    }

    fn measured(workspace: &Workspace) -> DiskUsage {
        workspace.access_here(measure).unwrap()
    }

    #[test]
    fn a_look_that_takes_long_is_followed_by_a_long_pause() {
        assert_eq!(pause_after(Duration::from_millis(1)), Duration::from_millis(20));
        assert_eq!(pause_after(Duration::from_secs(1)), Duration::from_secs(20));
        assert_eq!(pause_after(Duration::from_secs(1000)), LONGEST_PAUSE);
    }

    #[test]
    fn depth_does_not_hide_and_links_count_once() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = workspace(&folder);
        let deep = (0..60).fold(workspace.path.clone(), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("file"), vec![1; 1 << 20]).unwrap();
        let once = measured(&workspace);
        assert!(once.bytes >= 1 << 20, "{once:?}");
        std::fs::hard_link(deep.join("file"), workspace.path.join("again")).unwrap();
        assert!(measured(&workspace).bytes < once.bytes + (1 << 19));
        assert_eq!(once.beyond("workspace", 1 << 30), None);
        assert!(once.beyond("workspace", 1 << 19).unwrap().contains("more than"));
    }

    #[test]
    fn links_of_a_guest_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        for path in [&own, &other] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), vec![1; 1 << 20]).unwrap();
        }
        let uid = rustix::process::geteuid().as_raw();
        let before = measure_of_guest(&own, uid).unwrap();
        std::os::unix::fs::symlink(&other, own.join("link")).unwrap();
        std::fs::hard_link(own.join("file"), own.join("again")).unwrap();
        let after = measure_of_guest(&own, uid).unwrap();
        assert_eq!((before.entries, after.entries), (1, 3));
        assert!(before.bytes >= 1 << 20 && after.bytes < before.bytes + (1 << 19), "{before:?} {after:?}");
        measure_of_guest(&own.join("link"), uid).unwrap_err();
    }

    #[test]
    fn no_name_hides() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = workspace(&folder);
        let hidden = workspace.path.join(OsStr::from_bytes(b"\xff\xfe"));
        std::fs::create_dir(&hidden).unwrap();
        std::fs::write(hidden.join(OsStr::from_bytes(b"big\xff")), vec![1; 1 << 20]).unwrap();
        let usage = measured(&workspace);
        assert!(usage.bytes >= 1 << 20, "{usage:?}");
    }

    /// Regression test: names after the first 40,000 of a folder were not seen.
    #[test]
    fn numbers_do_not_hide() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = workspace(&folder);
        for number in 0..45_000 {
            std::fs::write(workspace.path.join(number.to_string()), "").unwrap();
        }
        let usage = measured(&workspace);
        assert_eq!((usage.entries, usage.beyond("workspace", 1 << 30)), (45_000, None));
    }

    #[test]
    fn what_lies_deeper_than_a_path_reaches_counts_as_too_much() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = workspace(&folder);
        let name = "d".repeat(250);
        let mut here = OwnedFd::from(std::fs::File::open(&workspace.path).unwrap());
        for _ in 0..20 {
            rustix::fs::mkdirat(&here, &name, Mode::from_raw_mode(0o700)).unwrap();
            here =
                rustix::fs::openat(&here, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let usage = measured(&workspace);
        assert_eq!(usage.hidden, Some(UnmeasuredReason::TooDeep));
        assert!(usage.beyond("workspace", 1 << 30).unwrap().contains("too deep"));
        assert!(usage.counted(1 << 30) > DISK_TOLERANCE << 30);
    }

    /// No folder is closed to root, so this test proves something for other users only.
    #[test]
    fn a_folder_that_is_closed_to_its_owner_does_not_hide() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = workspace(&folder);
        let close = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (name, mode) in [("closed", 0o000), ("listed", 0o600), ("entered", 0o300)] {
            let inner = workspace.path.join(name);
            std::fs::create_dir(&inner).unwrap();
            std::fs::write(inner.join("big"), vec![1; 1 << 20]).unwrap();
            close(&inner, mode);
        }
        let usage = measured(&workspace);
        assert!(usage.bytes >= 3 << 20 && usage.hidden.is_none(), "{usage:?}");
    }
}
