//! Copies of workspaces: the files that a branch begins with.
//!
//! What lies in the source is the work of a guest, so it is looked at with the rights of the source's owner and made with
//! those of the copy's owner, and never with the daemon's own. A thread has the rights of one user at a time, so files are
//! opened a few at a time, and copied through the open descriptors. Where the file system can, a copy shares the blocks
//! of its original (`FICLONE`) until one of them is written to.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::files::{beneath, size, stat_at};
use crate::sandbox::workspace::owner::{self, Ids, WorkKind, acting_as};
use crate::sandbox::workspace::upload_room::{BLOCK, UploadRoom};
use crate::sandbox::workspace::walk::{Folders, names};
use crate::sandbox::workspace::{Root, Workspace, usage};

/// Entries that are looked at before the rights change, and the most files that are open for it.
const AT_ONCE: usize = 64;
/// Bytes that are copied, and charged, at once.
const CHUNK: usize = 256 * 1024;

/// What a copy has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: usize,
    /// Pipes, sockets, devices, and what the owner of the source may not read.
    pub left_out: usize,
}

/// An entry of the source, opened with the rights of its owner.
enum Found {
    Folder(Stat),
    File(Stat, OwnedFd),
    Link(CString),
    /// Something that is not copied.
    Other,
}

impl Workspace {
    /// Fills this folder, which is new and empty, with what lies in `source`. `open_room` says how much may be put here, and is
    /// called with the rights of this folder's owner. Links are copied as they are; nothing follows them.
    pub async fn copy_from(
        &self,
        source: &Self,
        open_room: impl FnOnce(&Root<'_>) -> Result<UploadRoom, Problem> + Send + 'static,
    ) -> Result<Copied, Problem> {
        source.check_account().await?;
        self.check_account().await?;
        let (from, to) = (Arc::clone(&source.root), Arc::clone(&self.root));
        let (source_ids, own_ids) = (source.ids.clone(), self.ids.clone());
        let (managed, uid) = (self.managed, self.user.host_uid);
        let copy = move || {
            let (source_ids, own_ids) = (source_ids.map(|ids| ids.now()), own_ids.map(|ids| ids.now()));
            let root = Root { folder: to.as_fd(), managed, uid };
            let room =
                acting_as(own_ids.as_deref(), || open_room(&root)).map_err(|error| failed(&error))??;
            Copying {
                from: &from,
                to: &to,
                source_ids: source_ids.as_deref(),
                own_ids: own_ids.as_deref(),
                room: &room,
            }
            .run()
        };
        owner::run(self.pays, WorkKind::Transfer, None, copy).await?
    }
}

struct Copying<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    source_ids: Option<&'a Ids>,
    own_ids: Option<&'a Ids>,
    room: &'a UploadRoom,
}

impl Copying<'_> {
    fn run(&self) -> Result<Copied, Problem> {
        let (mut folders, mut copied, mut entries) = (Folders::from_root(), Copied::default(), 0_usize);
        while folders.advance() {
            let path = folders.path().to_owned();
            let opened = self.as_source(|| {
                let folder = open_folder(self.from, &path)?;
                Ok::<_, Errno>((names(folder.as_fd())?, folder))
            })?;
            let (mut listed, folder) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    copied.left_out += passed_over(error)?;
                    continue;
                }
            };
            loop {
                let Batch { entries: batch, broken_off } =
                    self.as_source(|| Batch::of(listed.by_ref().take(AT_ONCE), &folder))?;
                // What follows an error is not listed.
                if let Some(error) = broken_off {
                    copied.left_out += passed_over(error)?;
                }
                if batch.is_empty() {
                    break;
                }
                entries += batch.len();
                if entries > usage::ENTRIES {
                    let message = format!("the workspace has more than {} files and folders", usage::ENTRIES);
                    return Err(Problem::new(Code::TooLarge, message).hint("remove some of them first"));
                }
                let target =
                    self.as_owner(|| open_folder(self.to, &path))?.map_err(|error| failed(&error.into()))?;
                for (name, found) in batch {
                    match found {
                        Ok(Found::Other) => copied.left_out += 1,
                        Ok(found) => {
                            let is_folder = matches!(found, Found::Folder(_));
                            copied.files += usize::from(matches!(found, Found::File(..)));
                            self.as_owner(|| make(&target, &name, found, self.room))??;
                            if is_folder && folders.later(name).is_err() {
                                return Err(Problem::new(
                                    Code::TooLarge,
                                    "the workspace has too many folders",
                                )
                                .hint("remove some of them first"));
                            }
                        }
                        Err(error) => copied.left_out += passed_over(error)?,
                    }
                }
            }
        }
        Ok(copied)
    }

    fn as_source<T>(&self, work: impl FnOnce() -> T) -> Result<T, Problem> {
        acting_as(self.source_ids, work).map_err(|error| failed(&error))
    }

    fn as_owner<T>(&self, work: impl FnOnce() -> T) -> Result<T, Problem> {
        acting_as(self.own_ids, work).map_err(|error| failed(&error))
    }
}

/// Some entries of a folder.
struct Batch {
    entries: Vec<(CString, Result<Found, Errno>)>,
    /// Why there are not more of them, if that is not known to be the end.
    broken_off: Option<Errno>,
}

impl Batch {
    fn of(names: impl Iterator<Item = rustix::io::Result<CString>>, folder: &OwnedFd) -> Self {
        let mut batch = Self { entries: Vec::new(), broken_off: None };
        for name in names {
            match name {
                Ok(name) => {
                    let found = inspect_entry(folder, &name);
                    batch.entries.push((name, found));
                }
                Err(error) => {
                    batch.broken_off = Some(error);
                    break;
                }
            }
        }
        batch
    }
}

fn open_folder(top: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    beneath(top.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

fn inspect_entry(folder: &OwnedFd, name: &CStr) -> rustix::io::Result<Found> {
    let stat = stat_at(folder.as_fd(), name)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Found::Folder(stat)),
        FileType::Symlink => Ok(Found::Link(rustix::fs::readlinkat(folder, name, Vec::new())?)),
        FileType::RegularFile => {
            let file = beneath(folder.as_fd(), name, OFlags::RDONLY, Mode::empty())?;
            // Another entry may have taken its name meanwhile.
            let stat = rustix::fs::fstat(&file)?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            Ok(if is_file { Found::File(stat, file) } else { Found::Other })
        }
        _ => Ok(Found::Other),
    }
}

/// How many entries are missing because of an error; an error of this machine ends the copy.
fn passed_over(error: Errno) -> Result<usize, Problem> {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO => Ok(0),
        Errno::ACCESS | Errno::PERM | Errno::XDEV => Ok(1),
        other => Err(failed(&other.into())),
    }
}

fn failed(error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("the workspace cannot be copied: {error}"))
}

/// Makes one entry of the copy. Each is charged before it is made.
fn make(target: &OwnedFd, name: &CStr, found: Found, room: &UploadRoom) -> Result<(), Problem> {
    let io = |error: Errno| failed(&error.into());
    match found {
        Found::Folder(stat) => {
            room.charge(BLOCK, 1)?;
            // A folder that is closed to its owner could not be filled.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700);
            match rustix::fs::mkdirat(target, name, mode) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(io(error)),
            }
        }
        Found::Link(to) => {
            room.charge(BLOCK, 1)?;
            rustix::fs::symlinkat(&to, target, name).map_err(io)
        }
        Found::File(stat, source) => {
            room.charge(0, 1)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
            let file = beneath(target.as_fd(), name, flags, mode).map_err(io)?;
            // The daemon's own mask does not count.
            let filled = rustix::fs::fchmod(&file, mode)
                .map_err(io)
                .and_then(|()| fill(File::from(source), &stat, File::from(file), room));
            if filled.is_err() {
                let _ = rustix::fs::unlinkat(target, name, AtFlags::empty());
            }
            filled
        }
        Found::Other => Ok(()),
    }
}

fn fill(source: File, stat: &Stat, target: File, room: &UploadRoom) -> Result<(), Problem> {
    let io = |error: std::io::Error| failed(&error);
    let charged = on_disk(stat);
    room.charge(charged, 0)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        // All of the file is in it, also what the guest has written since it was looked at.
        let cloned = rustix::fs::fstat(&target).map_err(|error| io(error.into()))?;
        room.charge(on_disk(&cloned).saturating_sub(charged), 0)?;
    } else {
        copy_data(source, size(stat), &target, charged, room)?;
    }
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.try_into().unwrap_or(0) };
    let times = Timestamps { last_access: modified, last_modification: modified };
    rustix::fs::futimens(&target, &times).map_err(|error| io(error.into()))
}

/// Bytes that a file takes on the disk.
fn on_disk(found: &Stat) -> u64 {
    u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512).next_multiple_of(BLOCK)
}

/// Copies the first `bytes` bytes of a file, and leaves its holes out. The guest may write to the file meanwhile, so what
/// exceeds `charged` is charged as it is found.
fn copy_data(
    mut source: File,
    bytes: u64,
    mut target: &File,
    mut charged: u64,
    room: &UploadRoom,
) -> Result<(), Problem> {
    let io = |error: std::io::Error| failed(&error);
    target.set_len(bytes).map_err(io)?;
    let (mut at, mut written, mut buffer) = (0, 0, vec![0; CHUNK]);
    while at < bytes {
        let begin = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            // There is only a hole left.
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(Errno::INVAL) => at,
            found => found.map_err(|error| io(error.into()))?,
        };
        let end = rustix::fs::seek(&source, SeekFrom::Hole(begin)).unwrap_or(bytes).min(bytes);
        rustix::fs::seek(&source, SeekFrom::Start(begin)).map_err(|error| io(error.into()))?;
        rustix::fs::seek(target, SeekFrom::Start(begin)).map_err(|error| io(error.into()))?;
        at = begin;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let count = buffer.get_mut(..most).map_or(Ok(0), |buffer| source.read(buffer)).map_err(io)?;
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else {
                // The file was shortened.
                return Ok(());
            };
            written += count as u64;
            let blocks = written.next_multiple_of(BLOCK);
            if blocks > charged {
                room.charge(blocks - charged, 0)?;
                charged = blocks;
            }
            target.write_all(chunk).map_err(io)?;
            at += count as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::principal::Principal;
    use crate::protocol::receipt::Backend;
    use crate::sandbox::spec::{Choice, UserMapping};
    use crate::sandbox::workspace::Service;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

    mod reflinks;

    const MOST: u64 = 64 << 20;

    fn workspace(home: &Path, name: &str, slot: u32) -> Workspace {
        let choice = Choice { backend: Backend::Process, why: String::new() };
        let service = Service::of_this_process();
        Workspace::managed(home.join(name), service, UserMapping::Same, choice, slot, MOST)
            .unwrap()
            .paid_by(Principal::new(slot))
    }

    fn two(home: &Path) -> (Workspace, Workspace) {
        // Guests of a daemon of root have user ids of their own.
        std::fs::set_permissions(home, PermissionsExt::from_mode(0o711)).unwrap();
        (workspace(home, "a", 61_201), workspace(home, "b", 61_202))
    }

    fn give_to_owner(workspace: &Workspace, path: &Path) {
        let (uid, gid) = (workspace.user.host_uid, workspace.user.host_gid);
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
    }

    async fn copy(source: &Workspace, target: &Workspace, most: u64) -> Result<Copied, Problem> {
        let fill_level = target.fill_level();
        target.copy_from(source, move |root| UploadRoom::open(root, fill_level, most, 0, None)).await
    }

    #[tokio::test]
    async fn a_copy_has_the_files_links_rights_and_times_of_its_source_and_another_owner() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = two(home.path());
        let at = |name: &str| source.path.join(name);
        std::fs::create_dir_all(at("folder/inner")).unwrap();
        std::fs::write(at("folder/inner/program"), b"#!/bin/sh\n").unwrap();
        std::fs::set_permissions(at("folder/inner/program"), PermissionsExt::from_mode(0o751)).unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        let hole = File::create(at("hole")).unwrap();
        hole.set_len(32 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&hole, b"end", 20 << 20).unwrap();
        for name in ["folder", "folder/inner", "folder/inner/program", "link", "hole"] {
            give_to_owner(&source, &at(name));
        }
        for number in 0..3 * AT_ONCE {
            std::fs::write(at(&format!("n{number}")), number.to_string()).unwrap();
            give_to_owner(&source, &at(&format!("n{number}")));
        }
        let copied = copy(&source, &target, MOST).await.unwrap();
        assert_eq!(copied, Copied { files: 2 + 3 * AT_ONCE, left_out: 0 });
        let copy = |name: &str| target.path.join(name);
        let (before, after) = (
            at("folder/inner/program").metadata().unwrap(),
            copy("folder/inner/program").metadata().unwrap(),
        );
        assert_eq!(after.mode(), before.mode());
        assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
        assert_eq!(after.uid(), target.user.host_uid);
        assert_eq!(std::fs::read_link(copy("link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(std::fs::read_to_string(copy("n191")).unwrap(), "191");
        assert_eq!(std::fs::read(copy("hole")).unwrap(), std::fs::read(at("hole")).unwrap());
        assert!(copy("hole").metadata().unwrap().blocks() * 512 < 8 << 20, "the hole is none any more");
    }

    #[tokio::test]
    async fn what_the_guest_may_not_read_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = two(home.path());
        if !Service::of_this_process().system {
            return;
        }
        let at = |name: &str| source.path.join(name);
        // A file of root that a guest could have linked into its workspace.
        std::fs::write(at("secret"), "root's").unwrap();
        std::fs::set_permissions(at("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(at("own"), "mine").unwrap();
        give_to_owner(&source, &at("own"));
        let copied = copy(&source, &target, MOST).await.unwrap();
        assert_eq!(copied, Copied { files: 1, left_out: 1 });
        assert!(!target.path.join("secret").exists() && target.path.join("own").exists());
    }

    #[tokio::test]
    async fn a_copy_is_charged_before_it_is_made() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = two(home.path());
        let path = source.path.join("large");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        give_to_owner(&source, &path);
        let refused = copy(&source, &target, 512 << 10).await.unwrap_err();
        assert_eq!(refused.code, Code::TooLarge);
        assert!(!target.path.join("large").exists());
    }

    #[test]
    fn what_a_file_has_grown_by_since_it_was_looked_at_is_charged_or_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&from, [1_u8; 100]).unwrap();
        let stat = rustix::fs::stat(&from).unwrap();
        std::fs::write(&from, vec![1; 1 << 20]).unwrap();
        let copies = tempfile::tempdir().unwrap();
        let (top, fill_level) = (File::open(copies.path()).unwrap(), Arc::default());
        let room = UploadRoom::open(&Root::of_daemon(top.as_fd()), fill_level, 64 << 10, 0, None).unwrap();
        let filled = fill(File::open(&from).unwrap(), &stat, File::create(&to).unwrap(), &room);
        // Only a file system that shares blocks copies all of it, and then there is no room.
        match filled {
            Ok(()) => assert_eq!(to.metadata().unwrap().len(), 100),
            Err(problem) => assert_eq!(problem.code, Code::TooLarge),
        }
    }

    #[test]
    fn a_list_of_names_that_breaks_off_is_told_from_one_that_ends() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "").unwrap();
        let open = OwnedFd::from(File::open(folder.path()).unwrap());
        let names = || [Ok(c"a".to_owned()), Err(Errno::ACCESS), Ok(c"b".to_owned())].into_iter();
        let batch = Batch::of(names(), &open);
        assert_eq!((batch.entries.len(), batch.broken_off), (1, Some(Errno::ACCESS)));
        let batch = Batch::of(names().take(1), &open);
        assert_eq!((batch.entries.len(), batch.broken_off), (1, None));
    }
}
