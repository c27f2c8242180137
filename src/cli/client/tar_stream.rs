//! Folders as tar, packed and unpacked as a stream. Only regular files and folders are transferred:
//! a link could point anywhere, and devices and pipes have no content to copy.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use bytes::{Buf as _, Bytes};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use rustix::fs::{AtFlags, Mode, OFlags};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::cli::failure::Failure;
use crate::protocol::limits::ARTIFACT_SCAN_DEPTH;

/// The content type of an archive.
pub(in crate::cli) const TAR: &str = "application/x-tar";
/// Chunks that wait between the thread that handles files and the connection.
const CHUNKS_WAITING: usize = 8;
const CHUNK_BYTES: usize = 64 * 1024;
/// Most levels of nested folders that are packed; deeper folders are an error.
const DEPTH: usize = 4 * ARTIFACT_SCAN_DEPTH;

/// Two empty blocks end an archive.
const END_MARK_BYTES: usize = 2 * 512;

/// The entries that were left out, as a count and an example.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct SkippedEntries {
    pub count: usize,
    pub example: PathBuf,
}

impl SkippedEntries {
    fn add(&mut self, path: &Path) {
        if self.count == 0 {
            path.clone_into(&mut self.example);
        }
        self.count += 1;
    }
}

/// Packs a folder or a file on a thread and gives `send` the archive while it is made. Also returns what was left out.
pub(in crate::cli) async fn send_packed<T>(
    source: PathBuf,
    failed: &str,
    send: impl AsyncFnOnce(BoxStream<'static, io::Result<Bytes>>) -> Result<T, Failure>,
) -> Result<(T, SkippedEntries), Failure> {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let packing = tokio::task::spawn_blocking(move || pack(&source, &sender));
    let content = stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
    let sent = send(content.boxed()).await;
    match packing.await {
        Ok(Ok(skipped)) => Ok((sent?, skipped)),
        // If the daemon refused the upload, packing fails with a broken pipe; the daemon's error is reported then.
        Ok(Err(e)) if e.kind() == io::ErrorKind::BrokenPipe && sent.is_err() => {
            sent.map(|sent| (sent, SkippedEntries::default()))
        }
        Ok(Err(e)) => Err(Failure::io(failed, &e)),
        Err(e) => Err(Failure::new(format!("{failed}: {e}"))),
    }
}

/// Unpacks the chunks that `next` gets into `target`, on a thread. If that fails, no more chunks are got.
pub(in crate::cli) async fn receive_unpacked(
    target: PathBuf,
    mut next: impl AsyncFnMut() -> Result<Option<Bytes>, Failure>,
) -> Result<io::Result<SkippedEntries>, Failure> {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let unpacking = tokio::task::spawn_blocking(move || unpack(receiver, &target));
    let whole = async move {
        while let Some(chunk) = next().await? {
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let whole = whole.await;
    let unpacked = unpacking.await.map_err(|e| Failure::new(format!("failed to unpack: {e}")))?;
    whole.map(|()| unpacked)
}

/// Packs the content of a folder, or a single file, whose path may be a link. Blocks. An error is also sent to the
/// receiver, so that part of a folder is never taken for all of it.
fn pack(source: &Path, sender: &Sender<io::Result<Bytes>>) -> io::Result<SkippedEntries> {
    let mut skipped = SkippedEntries::default();
    let mut archive = tar::Builder::new(ChunkWriter { sender: sender.clone(), chunk: Vec::new() });
    let packed = if source.is_dir() {
        archive.follow_symlinks(false);
        pack_folder(&mut archive, source, Path::new(""), DEPTH, &mut skipped)
    } else {
        let name = Path::new(source.file_name().unwrap_or_default());
        archive.append_path_with_name(source, name).map_err(|e| named(source, &e))
    };
    let packed = packed.and_then(|()| archive.into_inner()?.flush());
    if let Err(error) = &packed {
        // Sending fails only if the receiver has given up, and then the receiver has an error of its own.
        let _ = sender.blocking_send(Err(io::Error::new(error.kind(), error.to_string())));
    }
    packed.map(|()| skipped)
}

fn pack_folder(
    archive: &mut tar::Builder<ChunkWriter>,
    folder: &Path,
    name: &Path,
    depth: usize,
    skipped: &mut SkippedEntries,
) -> io::Result<()> {
    let depth = depth.checked_sub(1).ok_or_else(|| named(folder, &io::Error::other("it is too deep")))?;
    let mut entries: Vec<DirEntry> =
        std::fs::read_dir(folder).and_then(Iterator::collect).map_err(|e| named(folder, &e))?;
    entries.sort_by_key(DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        let kind = entry.file_type().map_err(|e| named(&path, &e))?;
        if kind.is_dir() {
            archive.append_dir(&name, &path).map_err(|e| named(&path, &e))?;
            pack_folder(archive, &path, &name, depth, skipped)?;
        } else if kind.is_file() {
            archive.append_path_with_name(&path, &name).map_err(|e| named(&path, &e))?;
        } else {
            skipped.add(&path);
        }
    }
    Ok(())
}

/// Unpacks into `target`, which is created. Blocks. No entry gets outside of it: names are split
/// into parts, and each folder on the way is opened without following links.
fn unpack(receiver: Receiver<Bytes>, target: &Path) -> io::Result<SkippedEntries> {
    std::fs::create_dir_all(target).map_err(|e| named(target, &e))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(target, flags, Mode::empty()).map_err(|e| named(target, &e.into()))?;
    let mut skipped = SkippedEntries::default();
    let mut archive = tar::Archive::new(ChunkReader { receiver, chunk: Bytes::new(), zeros: 0 });
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let Some(parts) = plain_parts(&name) else {
            skipped.add(&name);
            continue;
        };
        match entry.header().entry_type() {
            tar::EntryType::Directory => {
                open_folder(&root, &parts).map_err(|e| named(&name, &e))?;
            }
            tar::EntryType::Regular => {
                let mode = entry.header().mode().unwrap_or(0) & 0o755 | 0o600;
                let mut file = make_file(&root, &parts, mode).map_err(|e| named(&name, &e))?;
                let copied = io::copy(&mut entry, &mut file).map_err(|e| named(&name, &e))?;
                if copied != entry.size() {
                    return Err(named(&name, &io::Error::from(io::ErrorKind::UnexpectedEof)));
                }
            }
            tar::EntryType::XGlobalHeader => {}
            _ => skipped.add(&name),
        }
    }
    // A sender that fails half-way can only stop sending, and `tar` treats that as a normal end.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink())?;
    if rest.zeros < END_MARK_BYTES {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the folder did not arrive whole"));
    }
    Ok(skipped)
}

/// The parts of a path that stays below its root; none for any other path.
fn plain_parts(path: &Path) -> Option<Vec<OsString>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_owned()),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts)
}

/// Opens a folder below `root` and creates the folders that are missing.
fn open_folder(root: &OwnedFd, parts: &[OsString]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = root.try_clone()?;
    for part in parts {
        match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        folder = rustix::fs::openat(&folder, part, flags, Mode::empty())?;
    }
    Ok(folder)
}

/// Always creates a new file: an existing one, which may be a link, is replaced and not written to.
fn make_file(root: &OwnedFd, parts: &[OsString], mode: u32) -> io::Result<File> {
    let (name, folders) = parts.split_last().ok_or_else(|| io::Error::other("a file without a name"))?;
    let folder = open_folder(root, folders)?;
    match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder.as_fd(), name, flags, Mode::from_raw_mode(mode))?;
    Ok(File::from(file))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// Sends what is written to a task, in chunks.
struct ChunkWriter {
    sender: Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::from(std::mem::take(&mut self.chunk));
        self.sender.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Reads what a task receives.
struct ChunkReader {
    receiver: Receiver<Bytes>,
    chunk: Bytes,
    /// Number of zero bytes at the end of all that was read so far.
    zeros: usize,
}

impl Read for ChunkReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.receiver.blocking_recv() {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(0),
            }
        }
        let length = self.chunk.len().min(out.len());
        let read = out.get_mut(..length).unwrap_or_default();
        self.chunk.copy_to_slice(read);
        let zeros = read.iter().rev().take_while(|byte| **byte == 0).count();
        self.zeros = if zeros == length { self.zeros.saturating_add(zeros) } else { zeros };
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Copies a folder through `pack` and `unpack`.
    fn copy(from: &Path, to: &Path) -> (SkippedEntries, SkippedEntries) {
        let (sender, mut packed) = mpsc::channel(1_000);
        let left_out = pack(from, &sender).unwrap();
        let (sender, receiver) = mpsc::channel(1_000);
        while let Ok(chunk) = packed.try_recv() {
            sender.try_send(chunk.unwrap()).unwrap();
        }
        drop(sender);
        (left_out, unpack(receiver, to).unwrap())
    }

    fn unpack_bytes(bytes: Vec<u8>, to: &Path) -> io::Result<SkippedEntries> {
        let (sender, receiver) = mpsc::channel(1);
        sender.try_send(Bytes::from(bytes)).unwrap();
        drop(sender);
        unpack(receiver, to)
    }

    #[test]
    fn a_folder_arrives_without_its_links() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir_all(from.join("sub/empty")).unwrap();
        std::fs::write(from.join("sub/a.txt"), "a".repeat(200_000)).unwrap();
        std::fs::write(from.join("b"), "").unwrap();
        symlink("/etc/passwd", from.join("link")).unwrap();
        let (left_out, skipped) = copy(&from, &to);
        assert_eq!(left_out, SkippedEntries { count: 1, example: from.join("link") });
        assert_eq!(skipped, SkippedEntries::default());
        assert_eq!(std::fs::read_to_string(to.join("sub/a.txt")).unwrap().len(), 200_000);
        assert!(to.join("sub/empty").is_dir() && to.join("b").is_file() && !to.join("link").exists());
    }

    #[test]
    fn half_a_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(700);
        header.set_mode(0o644);
        archive.append_data(&mut header, "a", &[b'x'; 700][..]).unwrap();
        let whole = archive.into_inner().unwrap();
        assert!(unpack_bytes(whole.clone(), &dir.path().join("whole")).is_ok());
        for end in [512, 600, 1536, whole.len() - 512] {
            let error = unpack_bytes(whole[..end].to_vec(), &dir.path().join(end.to_string())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end}: {error}");
        }
    }

    #[test]
    fn nothing_is_written_outside_of_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        for name in ["../out", "/abs", "in/../../out2"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o4777);
            header.set_entry_type(tar::EntryType::Regular);
            // `set_path` refuses such names, so they are written as bytes.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, &b"x"[..]).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, "link", "/etc").unwrap();
        let target = dir.path().join("target");
        let skipped = unpack_bytes(archive.into_inner().unwrap(), &target).unwrap();
        assert_eq!(skipped.count, 4);
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_in_the_target_are_replaced_or_refused_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, target) = (dir.path().join("outside"), dir.path().join("target"));
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::create_dir_all(&target).unwrap();
        std::fs::write(outside.join("kept"), "old").unwrap();
        symlink(outside.join("kept"), target.join("file")).unwrap();
        symlink(&outside, target.join("folder")).unwrap();
        let archive_of = |name: &str| {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(3);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, &b"new"[..]).unwrap();
            archive.into_inner().unwrap()
        };
        unpack_bytes(archive_of("file"), &target).unwrap();
        assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "old");
        assert!(!target.join("file").is_symlink());
        assert!(unpack_bytes(archive_of("folder/kept"), &target).is_err());
        assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "old");
    }
}
