//! Files of a workspace, without ever following a link that the guest wrote.
//!
//! Every name is resolved by the kernel beneath the open workspace (`openat2` with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`), opened without blocking and checked to be a regular
//! file or a folder. So a link, a pipe or a device in the way is an error, never a door.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use super::workspace::{Service, Workspace};
use crate::protocol::api::{FileEntry, FileKind};
use crate::protocol::limits::{ARTIFACT_SCAN_DEPTH, FILE_BYTES, FOLDER_ENTRIES};
use crate::protocol::problem::{Code, Problem};

/// What a path names.
#[derive(Debug)]
pub enum Opened {
    File { file: File, bytes: u64 },
    Folder(OwnedFd),
}

/// A path as a client wrote it, made relative and free of `..`.
pub fn clean(path: &str) -> Result<String, Problem> {
    let mut parts = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str().unwrap_or_default()),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Problem::new(
                    Code::BadRequest,
                    format!("`{}` leaves the workspace", path.escape_default()),
                )
                .hint("use a path below the workspace, without `..`"));
            }
        }
    }
    // `/workspace/x` is how the code in a cell calls it.
    if path.starts_with('/') && parts.first() == Some(&"workspace") {
        parts.remove(0);
    }
    if path.contains('\0') {
        return Err(Problem::new(Code::BadRequest, "a path holds a zero byte")
            .hint("use a path below the workspace, without `..`"));
    }
    Ok(parts.join("/"))
}

pub(super) fn beneath(
    root: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let path = if path.is_empty() { "." } else { path };
    rustix::fs::openat2(
        root,
        path,
        flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        mode,
        resolve,
    )
}

/// Opens a regular file or a folder for reading.
pub fn open(workspace: &Workspace, path: &str) -> Result<Opened, Problem> {
    let fd = beneath(workspace.root.as_fd(), path, OFlags::RDONLY, Mode::empty())
        .map_err(|error| explain(path, error))?;
    let found = rustix::fs::fstat(&fd).map_err(|error| explain(path, error))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile if size(&found) > FILE_BYTES => Err(Problem::new(
            Code::TooLarge,
            format!("`{}` has {} bytes, more than {FILE_BYTES}", path.escape_default(), size(&found)),
        )
        .hint("split the file, or use a workspace of your own (`--workspace DIR`)")),
        FileType::RegularFile => Ok(Opened::File { bytes: size(&found), file: File::from(fd) }),
        FileType::Directory => Ok(Opened::Folder(fd)),
        _ => Err(not_a_file(path)),
    }
}

/// Lists a folder by name; says when it was cut.
pub fn list(folder: &OwnedFd, path: &str) -> Result<(Vec<FileEntry>, bool), Problem> {
    let mut entries = Vec::new();
    let mut cut = false;
    for name in names(folder.as_fd()).map_err(|error| explain(path, error))? {
        if entries.len() == FOLDER_ENTRIES {
            cut = true;
            break;
        }
        let Ok(found) = stat_at(folder.as_fd(), &name) else { continue };
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Folder,
            _ => FileKind::Other,
        };
        entries.push(FileEntry { name: name.to_string_lossy().into_owned(), kind, bytes: size(&found) });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((entries, cut))
}

/// A file being written: it appears under its name only when it is whole.
pub struct Upload {
    folder: OwnedFd,
    temporary: String,
    name: String,
    shown: String,
    file: Option<File>,
    written: u64,
    /// Bytes that the workspace still has room for.
    room: u64,
}

impl Upload {
    /// Makes the parents and a temporary file beside the target.
    pub fn begin(workspace: &Workspace, service: Service, path: &str, room: u64) -> Result<Self, Problem> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() {
            return Err(Problem::new(Code::BadRequest, "a file needs a name")
                .hint("put the file's name after the folder"));
        }
        let folder = make_folders(workspace, service, parent)?;
        // A folder in the way would only show when the upload is over.
        if stat_name(folder.as_fd(), name)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
        {
            return Err(Problem::new(Code::BadRequest, format!("`{}` is a folder", path.escape_default()))
                .hint("name the file that is to be written in it"));
        }
        let temporary = format!(".belljar-{}", uuid::Uuid::new_v4().simple());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = beneath(folder.as_fd(), &temporary, flags, Mode::from_raw_mode(0o644))
            .map_err(|error| explain(path, error))?;
        let upload = Self {
            folder,
            temporary,
            name: name.to_owned(),
            shown: path.to_owned(),
            file: Some(File::from(fd)),
            written: 0,
            room,
        };
        if let Some(file) = &upload.file {
            workspace.give_to_guest(file, service).map_err(|error| explain(path, error))?;
        }
        Ok(upload)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.written += bytes.len() as u64;
        let most = self.room.min(FILE_BYTES);
        if self.written > most {
            return Err(Problem::new(Code::TooLarge, format!("there is room for {most} bytes only"))
                .hint("remove some files of the workspace first, or raise `sandbox.workspace`"));
        }
        match &mut self.file {
            Some(file) => file.write_all(bytes).map_err(|error| {
                Problem::new(
                    Code::Storage,
                    format!("`{}` cannot be written: {error}", self.shown.escape_default()),
                )
            }),
            None => Ok(()),
        }
    }

    /// Puts the file in its place; a link of that name is replaced, not followed.
    pub fn finish(mut self) -> Result<u64, Problem> {
        self.file = None;
        rustix::fs::renameat(&self.folder, &self.temporary, &self.folder, &self.name)
            .map_err(|error| explain(&self.shown, error))?;
        self.temporary.clear();
        Ok(self.written)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            let _ = rustix::fs::unlinkat(&self.folder, &self.temporary, AtFlags::empty());
        }
    }
}

/// Makes a folder and its parents, one name after the other.
pub fn make_folders(workspace: &Workspace, service: Service, path: &str) -> Result<OwnedFd, Problem> {
    let mut folder = beneath(workspace.root.as_fd(), "", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| explain(path, error))?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let made = match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(error) => return Err(explain(path, error)),
        };
        folder = beneath(folder.as_fd(), part, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| explain(path, error))?;
        if made {
            workspace.give_to_guest(&folder, service).map_err(|error| explain(path, error))?;
        }
    }
    Ok(folder)
}

/// Removes a file, a link as such, or a folder with all in it.
pub fn remove(workspace: &Workspace, path: &str) -> Result<(), Problem> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.is_empty() {
        return Err(Problem::new(Code::BadRequest, "the workspace itself cannot be removed")
            .hint("use `belljar rm` for the session"));
    }
    let folder = beneath(workspace.root.as_fd(), parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| explain(path, error))?;
    let found = stat_name(folder.as_fd(), name).map_err(|error| explain(path, error))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        let inner = beneath(folder.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| explain(path, error))?;
        empty_folder(&inner, 0).map_err(|error| explain(path, error))?;
        rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR).map_err(|error| explain(path, error))
    } else {
        rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(|error| explain(path, error))
    }
}

fn empty_folder(folder: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
    if depth > ARTIFACT_SCAN_DEPTH * 8 {
        return Err(rustix::io::Errno::LOOP);
    }
    for name in names(folder.as_fd())? {
        let found = stat_at(folder.as_fd(), &name)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(folder, name.as_c_str(), flags, Mode::empty())?;
            empty_folder(&inner, depth + 1)?;
            rustix::fs::unlinkat(folder, name.as_c_str(), AtFlags::REMOVEDIR)?;
        } else {
            rustix::fs::unlinkat(folder, name.as_c_str(), AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Folders within folders that are held open at once while a tree is removed.
const REMOVAL_DEPTH: usize = 32;

/// Removes all in a folder whose guest is gone. A guest can nest folders deeper than a stack or a
/// limit on descriptors reaches, so what lies too deep is moved up to the top first; and it can take
/// its own user's rights away, so they are given back where they are missing.
pub fn empty_tree(root: &OwnedFd) -> std::io::Result<()> {
    let mut moved = 0;
    empty_below(root, root, 0, &mut moved)?;
    Ok(())
}

fn empty_below(root: &OwnedFd, folder: &OwnedFd, depth: usize, moved: &mut u64) -> rustix::io::Result<()> {
    use rustix::io::Errno;
    let found = rustix::fs::fstat(folder)?;
    if found.st_mode & 0o700 != 0o700 {
        rustix::fs::fchmod(folder, Mode::from_raw_mode(0o700))?;
    }
    loop {
        // Never more than a bounded number at once, so until none is left.
        let names = names(folder.as_fd())?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            match rustix::fs::unlinkat(folder, name.as_c_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
            let inner = open_unlocked(folder, &name)?;
            if depth < REMOVAL_DEPTH {
                empty_below(root, &inner, depth + 1, moved)?;
                rustix::fs::unlinkat(folder, name.as_c_str(), AtFlags::REMOVEDIR)?;
            } else {
                *moved += 1;
                let place = format!(".belljar-{}-{moved}", uuid::Uuid::new_v4().simple());
                rustix::fs::renameat(folder, name.as_c_str(), root, place)?;
            }
        }
    }
}

/// Opens a folder, with its owner's rights given back if they are missing.
fn open_unlocked(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty());
    let Err(rustix::io::Errno::ACCESS) = opened else { return opened };
    // Opening for reading needs the right that is missing; a path handle does not.
    let handle = rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::from_raw_mode(0o700))?;
    rustix::fs::openat(parent, name, flags | OFlags::RDONLY, Mode::empty())
}

/// Writes a folder as a tar stream: regular files and folders; anything else is left out.
pub fn write_tar(root: &OwnedFd, out: impl Write) -> std::io::Result<()> {
    let mut builder = tar::Builder::new(out);
    // By name, not open: a guest can make more folders than the daemon may have descriptors.
    let mut pending = vec![(String::new(), 0_usize)];
    let mut entries = 0_usize;
    while let Some((prefix, depth)) = pending.pop() {
        let folder = beneath(root.as_fd(), &prefix, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        for name in names(folder.as_fd())? {
            entries += 1;
            if entries > FOLDER_ENTRIES || depth > ARTIFACT_SCAN_DEPTH {
                return Err(std::io::Error::other(format!(
                    "more than {FOLDER_ENTRIES} entries, or too deep"
                )));
            }
            let path = join(&prefix, &name.to_string_lossy());
            let found = stat_at(folder.as_fd(), &name)?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    append(&mut builder, &path, tar::EntryType::Directory, &found, 0, std::io::empty())?;
                    pending.push((path, depth + 1));
                }
                FileType::RegularFile => {
                    let fd = rustix::fs::openat(&folder, name.as_c_str(), flags, Mode::empty())?;
                    let opened = rustix::fs::fstat(&fd)?;
                    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
                        continue;
                    }
                    // The guest may shorten or lengthen the file meanwhile: exactly the announced
                    // number of bytes has to follow the header.
                    let bytes = size(&opened);
                    let data = File::from(fd).chain(std::io::repeat(0)).take(bytes);
                    append(&mut builder, &path, tar::EntryType::Regular, &opened, bytes, data)?;
                }
                _ => {}
            }
        }
    }
    builder.finish()
}

fn append<W: Write>(
    builder: &mut tar::Builder<W>,
    path: &str,
    kind: tar::EntryType,
    found: &Stat,
    bytes: u64,
    data: impl Read,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(bytes);
    header.set_mode(found.st_mode & 0o777);
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
    builder.append_data(&mut header, path, data)
}

/// Unpacks a tar stream below a folder. Anything but regular files and folders refuses the whole
/// stream at that point; what came before it stays.
pub fn read_tar(
    workspace: &Workspace,
    service: Service,
    path: &str,
    input: impl Read,
    mut room: u64,
) -> Result<u64, Problem> {
    let bad = |error: std::io::Error| {
        Problem::new(Code::BadRequest, format!("the tar stream cannot be read: {error}"))
    };
    make_folders(workspace, service, path)?;
    let mut archive = tar::Archive::new(input);
    let mut files = 0;
    for (number, entry) in archive.entries().map_err(bad)?.enumerate() {
        if number >= FOLDER_ENTRIES {
            return Err(Problem::new(
                Code::TooLarge,
                format!("a folder may have {FOLDER_ENTRIES} entries at most"),
            ));
        }
        let mut entry = entry.map_err(bad)?;
        let name = entry.path().map_err(bad)?.to_string_lossy().into_owned();
        if Path::new(&name).is_absolute() {
            return Err(Problem::new(
                Code::BadRequest,
                format!("the tar entry `{}` is absolute", name.escape_default()),
            ));
        }
        let target = join(path, &clean(&name)?);
        match entry.header().entry_type() {
            tar::EntryType::Directory => drop(make_folders(workspace, service, &target)?),
            tar::EntryType::Regular => {
                let mut upload = Upload::begin(workspace, service, &target, room)?;
                let mut buffer = vec![0; 64 * 1024];
                loop {
                    let count = entry.read(&mut buffer).map_err(bad)?;
                    match buffer.get(..count) {
                        Some(chunk) if !chunk.is_empty() => upload.write(chunk)?,
                        _ => break,
                    }
                }
                room = room.saturating_sub(upload.finish()?);
                files += 1;
            }
            _ => {
                return Err(Problem::new(
                    Code::BadRequest,
                    format!(
                        "the tar entry `{}` is neither a regular file nor a folder",
                        name.escape_default()
                    ),
                )
                .hint("leave links and special files out"));
            }
        }
    }
    Ok(files)
}

pub(super) fn join(prefix: &str, name: &str) -> String {
    match (prefix.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (false, true) => prefix.to_owned(),
        (false, false) => format!("{prefix}/{name}"),
    }
}

/// Names in a folder, without `.` and `..`; read through a descriptor of its own, so that the
/// position in the folder is not shared.
pub(super) fn names(folder: BorrowedFd<'_>) -> rustix::io::Result<Vec<std::ffi::CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            found.push(name.to_owned());
        }
        if found.len() > FOLDER_ENTRIES * 4 {
            break;
        }
    }
    Ok(found)
}

pub(super) fn stat_at(folder: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Stat> {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn stat_name(folder: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Stat> {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn size(found: &Stat) -> u64 {
    u64::try_from(found.st_size).unwrap_or(0)
}

fn not_a_file(path: &str) -> Problem {
    Problem::new(
        Code::BadRequest,
        format!("`{}` is neither a regular file nor a folder", path.escape_default()),
    )
    .hint("links, pipes, sockets and devices of a workspace are never opened")
}

fn explain(path: &str, error: rustix::io::Errno) -> Problem {
    use rustix::io::Errno;
    let shown =
        if path.is_empty() { "the workspace".to_owned() } else { format!("`{}`", path.escape_default()) };
    match error {
        Errno::NOENT => Problem::new(Code::NoSuchFile, format!("{shown} is not in the workspace"))
            .hint("list the folder with `belljar exec -s NAME 'import os; print(os.listdir())'`"),
        Errno::LOOP | Errno::XDEV | Errno::NXIO => not_a_file(path),
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS => Problem::new(Code::Storage, format!("{shown}: {error}")),
        other => Problem::new(Code::BadRequest, format!("{shown}: {other}")),
    }
}
