//! Walks a tree that a guest made. Names are bytes, because a name need not be UTF-8. Pending folders are kept by name
//! and not open, because a guest can make more folders than the daemon may have descriptors.

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::sandbox::workspace::files::{beneath, stat_at};

/// Maximum memory for the names of pending folders. It is enough for more folders than a workspace may hold, unless
/// their names are long on purpose.
const PENDING_BYTES: usize = 32 * 1024 * 1024;
/// The bytes that a name takes besides its own.
const PENDING_OVERHEAD: usize = 64;

/// A folder that still has to be walked.
#[derive(Debug)]
struct Pending {
    name: CString,
    /// The length of the part of the current path that leads to the parent.
    parent: usize,
    depth: usize,
}

/// The error that there are more folders than can be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The folders of a tree, starting with its root. Only names are kept, never whole paths: one long path with many
/// folders at its end could take any amount of memory.
#[derive(Debug)]
pub(super) struct Folders {
    pending: Vec<Pending>,
    pending_bytes: usize,
    path: Vec<u8>,
    depth: usize,
}

impl Folders {
    pub fn from_root() -> Self {
        let root = Pending { name: CString::default(), parent: 0, depth: 0 };
        Self { pending: vec![root], pending_bytes: 0, path: Vec::new(), depth: 0 }
    }

    /// Goes to the next folder. Folders that are passed to `later` from then on lie in it.
    pub fn advance(&mut self) -> bool {
        let Some(next) = self.pending.pop() else { return false };
        self.pending_bytes = self.pending_bytes.saturating_sub(cost(&next.name));
        self.path.truncate(next.parent);
        push(&mut self.path, &next.name);
        self.depth = next.depth;
        true
    }

    /// The path of the current folder, relative to the root.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// The number of folders above the current one.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The path of an entry of the current folder.
    pub fn join(&self, name: &CStr) -> PathBuf {
        self.path().join(OsStr::from_bytes(name.to_bytes()))
    }

    /// Remembers a folder in the current one, to be walked later.
    pub fn later(&mut self, name: CString) -> Result<(), TooMany> {
        let bytes = self.pending_bytes + cost(&name);
        if bytes > PENDING_BYTES {
            return Err(TooMany);
        }
        self.pending_bytes = bytes;
        self.pending.push(Pending { name, parent: self.path.len(), depth: self.depth + 1 });
        Ok(())
    }
}

fn cost(name: &CStr) -> usize {
    if name.is_empty() { 0 } else { name.count_bytes() + PENDING_OVERHEAD }
}

fn push(path: &mut Vec<u8>, name: &CStr) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
}

/// An entry of a tree.
pub(super) struct Entry<'a> {
    /// The folder that the entry is in.
    pub folder: BorrowedFd<'a>,
    pub name: &'a CStr,
    pub stat: Stat,
    folders: &'a Folders,
}

impl Entry<'_> {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// The entry's path, relative to the root.
    pub fn path(&self) -> PathBuf {
        self.folders.join(self.name)
    }

    /// The number of folders above the entry's folder.
    pub fn depth(&self) -> usize {
        self.folders.depth()
    }
}

/// One item that a walk finds: an entry, or the reason why some entries are passed over.
pub(super) enum WalkItem<'a> {
    Entry(Entry<'a>),
    /// A folder that cannot be read, or an entry in it; it is passed over.
    Unread {
        folder: &'a Path,
        error: Errno,
    },
    /// The tree has more entries than the walk may visit, which ends it, or more folders than it can remember, some of
    /// which are passed over.
    TooMany,
}

/// The bounds and the manner of a walk.
pub(super) struct Walk {
    /// The most entries that are visited.
    pub entries: usize,
    /// Whether the names of each folder come in order. They are then all in memory at once.
    pub sorted: bool,
}

impl Walk {
    /// Walks a tree without following links. `visit` returns whether to go into the entry, if it is a folder; its error
    /// ends the walk.
    pub fn run<E>(
        &self,
        top: BorrowedFd<'_>,
        visit: impl FnMut(WalkItem<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let open = |path: &Path| beneath(top, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        self.run_with(open, visit)
    }

    /// The same, with a way of its own to open folders.
    pub fn run_with<E>(
        &self,
        open: impl Fn(&Path) -> rustix::io::Result<OwnedFd>,
        mut visit: impl FnMut(WalkItem<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let (mut folders, mut visited) = (Folders::from_root(), 0);
        while folders.advance() {
            let opened = open(folders.path()).and_then(|folder| Ok((self.names(folder.as_fd())?, folder)));
            let (names, folder) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    visit(WalkItem::Unread { folder: folders.path(), error })?;
                    continue;
                }
            };
            for name in names {
                visited += 1;
                if visited > self.entries {
                    visit(WalkItem::TooMany)?;
                    return Ok(());
                }
                let found = name.and_then(|name| Ok((stat_at(folder.as_fd(), &name)?, name)));
                let (stat, name) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        visit(WalkItem::Unread { folder: folders.path(), error })?;
                        continue;
                    }
                };
                let entry = Entry { folder: folder.as_fd(), name: &name, stat, folders: &folders };
                let is_folder = entry.kind() == FileType::Directory;
                if visit(WalkItem::Entry(entry))? && is_folder && folders.later(name).is_err() {
                    visit(WalkItem::TooMany)?;
                }
            }
        }
        Ok(())
    }

    fn names(&self, folder: BorrowedFd<'_>) -> rustix::io::Result<Names> {
        let names = names(folder)?;
        if !self.sorted {
            return Ok(Box::new(names));
        }
        let mut all = names.take(self.entries.saturating_add(1)).collect::<Result<Vec<_>, _>>()?;
        all.sort();
        Ok(Box::new(all.into_iter().map(Ok)))
    }
}

type Names = Box<dyn Iterator<Item = rustix::io::Result<CString>>>;

/// The names in a folder, without `.` and `..`, one by one: a guest can make any number of them, so they are never all
/// in memory. They are read through a separate descriptor, so that the position in the folder is not shared.
pub(super) fn names(
    folder: BorrowedFd<'_>,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<CString>> + use<>> {
    let names = Dir::read_from(folder)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    Ok(names.filter(|name| !matches!(name, Ok(name) if name.as_c_str() == c"." || name.as_c_str() == c"..")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn every_folder_is_walked_once_whatever_bytes_its_name_has() {
        let folder = tempfile::tempdir().unwrap();
        let names_there: [&[u8]; 6] = [b"a", b"a/b", b"a/b/\xff", b"\xfe\xff", b"\xfe\xff/c", b"d"];
        let mut wanted: BTreeSet<&Path> = names_there.map(|name| Path::new(OsStr::from_bytes(name))).into();
        for path in &wanted {
            std::fs::create_dir(folder.path().join(path)).unwrap();
        }
        wanted.insert(Path::new(""));
        let mut seen = BTreeSet::new();
        let mut folders = Folders::from_root();
        while folders.advance() {
            assert_eq!(folders.depth(), folders.path().components().count());
            let here = File::open(folder.path().join(folders.path())).unwrap();
            for name in names(here.as_fd()).unwrap() {
                folders.later(name.unwrap()).unwrap();
            }
            assert!(seen.insert(folders.path().to_owned()));
        }
        assert_eq!(seen.iter().map(std::path::PathBuf::as_path).collect::<BTreeSet<_>>(), wanted);
        assert_eq!(folders.pending_bytes, 0);
    }

    #[test]
    fn what_is_kept_in_mind_is_bounded() {
        let mut folders = Folders::from_root();
        assert!(folders.advance());
        let long = CString::new([b'x'; 255]).unwrap();
        let queued = (0..1_000_000).take_while(|_| folders.later(long.clone()).is_ok()).count();
        assert_eq!(queued, PENDING_BYTES / (255 + PENDING_OVERHEAD));
    }
}
