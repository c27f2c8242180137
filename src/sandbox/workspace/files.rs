//! Access to files of a workspace that never follows a link that the guest made.
//!
//! Every name is resolved by the kernel beneath the open workspace (`openat2` with `RESOLVE_BENEATH` and
//! `RESOLVE_NO_SYMLINKS`), opened without blocking and checked to be a regular file or a folder. So a link, a pipe or a
//! device in the way is an error, never a way out; the same goes for a file system that is mounted below the workspace,
//! which is not even asked for its attributes. All of it is done with the rights of the folder's owner
//! ([`crate::sandbox::workspace::owner`]): code that holds a [`Root`] has them.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::path::Arg;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use crate::protocol::api::{FileEntry, FileKind};
use crate::protocol::limits::{FILE_BYTES, FOLDER_ENTRIES};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;
use crate::sandbox::workspace::archive;
use crate::sandbox::workspace::attributes::Attributes;
use crate::sandbox::workspace::removal;
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::upload_room::{BLOCK, UploadRoom};
use crate::sandbox::workspace::usage;
use crate::sandbox::workspace::walk::{Walk, WalkItem, names};
use crate::security_controls;

/// What a path leads to.
#[derive(Debug)]
pub enum Opened {
    File { file: File, bytes: u64 },
    Folder,
}

/// Cleans a path that a client sent: makes it relative and free of `..`.
pub fn clean(path: &str) -> Result<String, Problem> {
    if path.contains('\0') {
        return Err(Problem::new(Code::BadRequest, "a path holds a zero byte").hint(BELOW));
    }
    clean_path(Path::new(path)).map(|path| path.to_string_lossy().into_owned())
}

const BELOW: &str = "use a path below the folder, without `..`";

fn clean_path(path: &Path) -> Result<PathBuf, Problem> {
    let mut parts = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Problem::new(
                    Code::BadRequest,
                    format!("`{}` leaves the folder", printable(path)),
                )
                .hint(BELOW));
            }
        }
    }
    // Code in a cell sees the workspace as `/workspace`, so such paths are accepted.
    match parts.strip_prefix("workspace") {
        Ok(inside) if path.is_absolute() => Ok(inside.to_owned()),
        _ => Ok(parts),
    }
}

pub(super) fn beneath(
    root: BorrowedFd<'_>,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let resolve = security_controls::setting("paths_stay_beneath", resolve).unwrap_or(ResolveFlags::empty());
    let path = path.as_cow_c_str()?;
    let path = if path.is_empty() { c"." } else { &*path };
    // Opening a path handle never blocks, and the kernel refuses `NONBLOCK` for one.
    let at_once = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let no_link =
        security_controls::setting("paths_stay_beneath", OFlags::NOFOLLOW).unwrap_or(OFlags::empty());
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC | no_link | at_once, mode, resolve)
}

/// Opens a regular file or a folder for reading.
pub fn open(root: &Root<'_>, path: impl AsRef<Path>) -> Result<Opened, Problem> {
    let path = path.as_ref();
    let fd =
        beneath(root.folder(), path, OFlags::RDONLY, Mode::empty()).map_err(|error| explain(path, error))?;
    let found = rustix::fs::fstat(&fd).map_err(|error| explain(path, error))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile if size(&found) > FILE_BYTES => Err(Problem::new(
            Code::TooLarge,
            format!("`{}` has {} bytes, more than {FILE_BYTES}", printable(path), size(&found)),
        )
        .hint("split the file, or use a workspace of your own (`--workspace DIR`)")),
        FileType::RegularFile => Ok(Opened::File { bytes: size(&found), file: File::from(fd) }),
        FileType::Directory => Ok(Opened::Folder),
        _ => Err(not_a_file(path)),
    }
}

/// Lists a folder by name; true if the list was cut.
pub fn list(root: &Root<'_>, path: &Path) -> Result<(Vec<FileEntry>, bool), Problem> {
    let folder = open_folder(root, path)?;
    let mut entries = Vec::new();
    let mut cut = false;
    for name in names(folder.as_fd()).map_err(|error| explain(path, error))? {
        let name = name.map_err(|error| explain(path, error))?;
        if entries.len() == FOLDER_ENTRIES {
            cut = true;
            break;
        }
        let (kind, bytes) = match stat_at(folder.as_fd(), name.as_c_str()) {
            Ok(found) => match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile => (FileKind::File, size(&found)),
                FileType::Directory => (FileKind::Folder, size(&found)),
                _ => (FileKind::Other, size(&found)),
            },
            // Another file system is mounted there.
            Err(rustix::io::Errno::XDEV) => (FileKind::Other, 0),
            Err(_) => continue,
        };
        entries.push(FileEntry { name: name.to_string_lossy().into_owned(), kind, bytes });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((entries, cut))
}

fn open_folder(root: &Root<'_>, path: &Path) -> Result<OwnedFd, Problem> {
    beneath(root.folder(), path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| explain(path, error))
}

/// Whether the workspace has an entry of that name.
pub fn is_there(root: &Root<'_>, name: &str) -> bool {
    stat_at(root.folder(), name).is_ok()
}

/// A file being written: it appears under its name only when it is whole.
pub struct Upload<'a> {
    folder: OwnedFd,
    temporary: String,
    name: OsString,
    /// The path as the client sent it.
    path: PathBuf,
    file: Option<File>,
    bytes_written: u64,
    workspace_room: &'a UploadRoom,
    /// The bytes that are charged to the room, in whole blocks.
    charged: u64,
}

impl<'a> Upload<'a> {
    /// Makes the parents and a temporary file beside the target.
    pub fn begin(
        root: &Root<'_>,
        path: impl AsRef<Path>,
        upload_room: &'a UploadRoom,
    ) -> Result<Self, Problem> {
        let path = path.as_ref();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Problem::new(Code::BadRequest, "a file needs a name")
                .hint("put the file's name after the folder"));
        };
        let folder = make_folders(root, parent, upload_room)?;
        // Without this check, a folder in the way would be noticed only when the upload is over.
        if stat_at(folder.as_fd(), name)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
        {
            return Err(Problem::new(Code::BadRequest, format!("`{}` is a folder", printable(path)))
                .hint("name the file that is to be written in it"));
        }
        let temporary = format!(".belljar-{}", uuid::Uuid::new_v4().simple());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        upload_room.charge(0, 1)?;
        let made = beneath(folder.as_fd(), temporary.as_str(), flags, Mode::from_raw_mode(0o644));
        let fd = made.map_err(|error| {
            upload_room.give_back(0, 1);
            explain(path, error)
        })?;
        Ok(Self {
            folder,
            temporary,
            name: name.to_owned(),
            path: path.to_owned(),
            file: Some(File::from(fd)),
            bytes_written: 0,
            workspace_room: upload_room,
            charged: 0,
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.bytes_written += bytes.len() as u64;
        if self.bytes_written > FILE_BYTES {
            return Err(Problem::new(Code::TooLarge, format!("a file may have {FILE_BYTES} bytes at most"))
                .hint("split the file"));
        }
        let blocks = self.bytes_written.next_multiple_of(BLOCK);
        self.workspace_room.charge(blocks - self.charged, 0)?;
        self.charged = blocks;
        match &mut self.file {
            Some(file) => file.write_all(bytes).map_err(|error| {
                Problem::new(Code::Storage, format!("`{}` cannot be written: {error}", printable(&self.path)))
            }),
            None => Ok(()),
        }
    }

    /// After all is written, because each write changes the time.
    fn give(&self, attributes: &Attributes) -> Result<(), Problem> {
        let given = self.file.as_ref().map_or(Ok(()), |file| attributes.give_to(file));
        given.map_err(|error| explain(&self.path, error))
    }

    /// Moves the file to its place; a link of that name is replaced, not followed.
    pub fn finish(mut self) -> Result<u64, Problem> {
        self.file = None;
        rustix::fs::renameat(&self.folder, &self.temporary, &self.folder, &self.name)
            .map_err(|error| explain(&self.path, error))?;
        self.temporary.clear();
        Ok(self.bytes_written)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            let _ = rustix::fs::unlinkat(&self.folder, &self.temporary, AtFlags::empty());
            self.workspace_room.give_back(self.charged, 1);
        }
    }
}

/// Makes a folder and its parents, one name after the other. Each is charged before it is made, because one path may
/// have thousands of parents.
fn make_folders(root: &Root<'_>, path: &Path, upload_room: &UploadRoom) -> Result<OwnedFd, Problem> {
    use rustix::io::Errno;
    let mut folder = open_folder(root, Path::new("")).map_err(|_| explain(path, Errno::ACCESS))?;
    let enter = |folder: &OwnedFd, part: &OsStr| {
        beneath(folder.as_fd(), part, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    };
    for part in path {
        folder = match enter(&folder, part) {
            Err(Errno::NOENT) => {
                if security_controls::holds("folders_cost_room") {
                    upload_room.charge(BLOCK, 1)?;
                }
                match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => enter(&folder, part),
                    Err(error) => Err(error),
                }
            }
            entered => entered,
        }
        .map_err(|error| explain(path, error))?;
    }
    Ok(folder)
}

/// Removes a file, a link itself, or a folder with its content.
pub fn remove(root: &Root<'_>, path: impl AsRef<Path>) -> Result<(), Problem> {
    let path = path.as_ref();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Problem::new(Code::BadRequest, "the folder itself cannot be removed")
            .hint("`belljar rm` removes a session, and `belljar volume rm` a volume"));
    };
    let folder = beneath(root.folder(), parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .map_err(|error| explain(path, error))?;
    let found = stat_at(folder.as_fd(), name).map_err(|error| explain(path, error))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        let inner = beneath(folder.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|error| explain(path, error))?;
        removal::empty_folder(&inner).map_err(|error| explain(path, error))?;
        rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR).map_err(|error| explain(path, error))
    } else {
        rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(|error| explain(path, error))
    }
}

/// Writes a folder as a tar stream: regular files and folders that the folder's owner may read. Returns how many other
/// entries were left out. After an error the stream has no end mark.
pub fn write_tar(root: &Root<'_>, path: &Path, out: impl Write) -> std::io::Result<usize> {
    let folder = open_folder(root, path).map_err(|problem| std::io::Error::other(problem.message))?;
    let mut builder = tar::Builder::new(CuttableWriter { out: Some(out) });
    let outcome = append_folders(&folder, Path::new(""), &mut builder);
    if outcome.is_err() {
        // The builder would write the end mark when it is dropped.
        builder.get_mut().out = None;
        return outcome;
    }
    builder.finish()?;
    outcome
}

/// A stream that can be cut off at its current position.
struct CuttableWriter<W> {
    out: Option<W>,
}

impl<W: Write> Write for CuttableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?.flush()
    }
}

/// Appends what is in the workspace to an archive, below a folder of it. Returns how many entries were left out.
pub(super) fn append_tree<W: Write>(
    root: &Root<'_>,
    below: &Path,
    builder: &mut tar::Builder<W>,
) -> std::io::Result<usize> {
    append_folders(&root.folder(), below, builder)
}

fn append_folders<W: Write>(
    folder: &impl AsFd,
    below: &Path,
    builder: &mut tar::Builder<W>,
) -> std::io::Result<usize> {
    let mut left_out = 0;
    let walk = Walk { entries: usize::MAX, sorted: false };
    walk.run(folder.as_fd(), |met| {
        let entry = match met {
            WalkItem::Entry(entry) => entry,
            WalkItem::Unread { folder, error } => {
                left_out += left_out_by(error).ok_or_else(|| unsent(folder, error))?;
                return Ok(false);
            }
            WalkItem::TooMany => return Err(std::io::Error::other("there are too many folders")),
        };
        match entry.kind() {
            FileType::Directory => {
                let path = below.join(entry.path());
                append(builder, &path, tar::EntryType::Directory, &entry.stat, 0, std::io::empty())?;
            }
            FileType::RegularFile => match beneath(entry.folder, entry.name, OFlags::RDONLY, Mode::empty()) {
                Ok(fd) => left_out += append_file(builder, &below.join(entry.path()), fd)?,
                Err(error) => left_out += left_out_by(error).ok_or_else(|| unsent(&entry.path(), error))?,
            },
            _ => left_out += 1,
        }
        Ok(true)
    })?;
    Ok(left_out)
}

/// How many entries of an archive are missing because of an error: none if the entry is gone meanwhile, or something of
/// another kind took its place; one if it belongs to another user, is closed to its owner, or is on another file
/// system. `None` for an error of this machine.
fn left_out_by(error: rustix::io::Errno) -> Option<usize> {
    use rustix::io::Errno;
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO => Some(0),
        Errno::ACCESS | Errno::PERM | Errno::XDEV => Some(1),
        _ => None,
    }
}

/// Appends an open file; the number of entries that are missing because it is no regular file any more.
fn append_file<W: Write>(builder: &mut tar::Builder<W>, path: &Path, fd: OwnedFd) -> std::io::Result<usize> {
    let opened = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
        return Ok(1);
    }
    // The guest may shorten or lengthen the file meanwhile: exactly the announced number of bytes has to follow the
    // header.
    let bytes = size(&opened);
    let data = File::from(fd).chain(std::io::repeat(0)).take(bytes);
    append(builder, path, tar::EntryType::Regular, &opened, bytes, data)?;
    Ok(0)
}

fn unsent(path: &Path, error: rustix::io::Errno) -> std::io::Error {
    let error = std::io::Error::from(error);
    std::io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

fn append<W: Write>(
    builder: &mut tar::Builder<W>,
    path: &Path,
    kind: tar::EntryType,
    found: &Stat,
    bytes: u64,
    data: impl Read,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(bytes);
    // Set-id bits are left out, so that the unpacked file does not run with the rights of its owner.
    let rights = if security_controls::holds("no_set_id_leaves") { 0o777 } else { 0o7777 };
    header.set_mode(found.st_mode & rights);
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
    builder.append_data(&mut header, path, data)
}

/// Unpacks a tar stream into a folder. An entry that is neither a regular file nor a folder ends the unpacking with an
/// error; the files before it stay.
pub fn read_tar(
    root: &Root<'_>,
    path: impl AsRef<Path>,
    input: impl Read,
    upload_room: &UploadRoom,
) -> Result<u64, Problem> {
    let path = path.as_ref();
    make_folders(root, path, upload_room)?;
    let mut files = 0;
    archive::each_member(input, usage::ENTRIES, |name, facts, data| {
        // Files that are copied in get the rights and the time of new ones.
        let facts = archive::Facts { attributes: Attributes::default(), ..facts };
        unpack(root, path, (&name, facts), data, upload_room)?;
        files += u64::from(facts.kind == archive::Kind::File);
        Ok(())
    })?;
    Ok(files)
}

/// Makes one member of a tar stream, in the folder `below`. A folder gets its attributes only by [`give_attributes`], because
/// what lies in it is made later.
pub(super) fn unpack(
    root: &Root<'_>,
    below: &Path,
    (name, facts): (&Path, archive::Facts),
    data: &mut dyn Read,
    upload_room: &UploadRoom,
) -> Result<(), Problem> {
    let target = below.join(clean_path(name)?);
    if facts.kind == archive::Kind::Folder {
        return make_folders(root, &target, upload_room).map(drop);
    }
    let mut upload = Upload::begin(root, &target, upload_room)?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = data.read(&mut buffer).map_err(archive::broken)?;
        match buffer.get(..count) {
            Some(chunk) if !chunk.is_empty() => upload.write(chunk)?,
            _ => {
                upload.give(&facts.attributes)?;
                return upload.finish().map(drop);
            }
        }
    }
}

/// Gives a folder that is there its attributes. One that lies in a folder which its owner may not enter keeps those that it has.
pub(super) fn give_attributes(root: &Root<'_>, name: &Path, attributes: &Attributes) -> Result<(), Problem> {
    let name = clean_path(name)?;
    let folder = beneath(root.folder(), name.as_path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    match folder.and_then(|folder| attributes.give_to(folder)) {
        Ok(()) | Err(rustix::io::Errno::ACCESS) => Ok(()),
        Err(error) => Err(explain(&name, error)),
    }
}

/// The attributes of an entry of a folder; a link is not followed. A file system that is mounted there is not asked,
/// because it may never answer; the error is `XDEV`.
pub(super) fn stat_at(folder: BorrowedFd<'_>, name: impl Arg) -> rustix::io::Result<Stat> {
    rustix::fs::fstat(beneath(folder, name, OFlags::PATH, Mode::empty())?)
}

pub(super) fn size(found: &Stat) -> u64 {
    u64::try_from(found.st_size).unwrap_or(0)
}

/// The path as messages show it, with U+FFFD for bytes that are not UTF-8.
fn printable(path: &Path) -> String {
    quotable(&path.to_string_lossy())
}

fn not_a_file(path: &Path) -> Problem {
    Problem::new(Code::BadRequest, format!("`{}` is neither a regular file nor a folder", printable(path)))
        .hint("links, pipes, sockets and devices are never opened")
}

fn explain(path: &Path, error: rustix::io::Errno) -> Problem {
    use rustix::io::Errno;
    let is_root = path.as_os_str().is_empty();
    // The folder is a workspace or a volume.
    let subject = if is_root { "the folder".to_owned() } else { format!("`{}`", printable(path)) };
    match error {
        Errno::NOENT => Problem::new(Code::NoSuchFile, format!("{subject} is not there"))
            .hint("`belljar ls` lists the files of a workspace; those of a volume all come with `belljar cp volume/NAME: DIR`"),
        Errno::LOOP | Errno::XDEV | Errno::NXIO => not_a_file(path),
        Errno::NOTEMPTY => Problem::new(Code::BadRequest, format!("{subject} fills while it is emptied"))
            .hint("end the cell that writes to it first"),
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS => {
            Problem::new(Code::Storage, format!("{subject}: {error}"))
        }
        other => Problem::new(Code::BadRequest, format!("{subject}: {other}")),
    }
}
