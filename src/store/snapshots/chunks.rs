//! The files of chunks: a byte that says how the content is stored, and the content. Each is named by the hash of its
//! content, is written once and is never changed.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::chunker::LONGEST;
use super::error::SnapshotError;
use super::lz4::{Compressor, decompress};
use crate::security_controls;

/// How the content of a chunk is stored: as it is, or as a block of LZ4.
const PLAIN: u8 = 0;
const COMPRESSED: u8 = 1;
/// Files that are not complete are named so, and nothing reads them.
pub(super) const DRAFT: &str = ".draft";
/// The folder of the chunks in that of a session.
const FOLDER: &str = "chunks";

/// The BLAKE3 hash of a content, which is its name. All bytes of a snapshot are hashed when it is taken and when it is loaded,
/// and where the processor does not help with SHA-256, that would take longer than all else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ContentDigest([u8; 32]);

impl ContentDigest {
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }

    /// The hash of a content that is the wanted one. Daemons that wrote the first format took SHA-256, and a session that fell
    /// asleep under one of them wakes under this one.
    pub fn matching(content: &[u8], is_wanted: impl Fn(Self) -> bool) -> Option<Self> {
        let of_first_format = || Self(Sha256::digest(content).into());
        let now = Some(Self::of(content)).filter(|digest| is_wanted(*digest));
        now.or_else(|| Some(of_first_format()).filter(|digest| is_wanted(*digest)))
    }

    /// Reads lower-case hex digits, the only way in which one is written.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes)).filter(|digest| digest.to_string() == text)
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ContentDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("no hash in hex digits"))
    }
}

/// A chunk, as a snapshot refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChunkRef {
    #[serde(rename = "blake3", alias = "sha256")]
    pub digest: ContentDigest,
    /// Length of the content.
    pub bytes: u32,
    /// Length of the file.
    pub stored: u32,
}

impl ChunkRef {
    /// Whether there can be such a chunk.
    pub fn is_possible(&self) -> bool {
        let bytes = self.bytes as usize;
        (1..=LONGEST).contains(&bytes) && (2..=bytes + 1).contains(&(self.stored as usize))
    }
}

/// Why a chunk could not be read. Only what is damaged stays so; anything else may be over soon.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("a chunk is not what was written")]
    Differs,
    #[error("a chunk is not there")]
    Missing,
    /// A folder, a link, a pipe or the like has the name of the file. Nothing of it is followed or read.
    #[error("something that is no file is in the place of a chunk")]
    NoFile,
    /// The file is there, as far as is known: the disk fails, or the daemon may not read it at the moment.
    #[error("a chunk cannot be read: {0}")]
    Unread(std::io::Error),
}

impl From<std::io::Error> for ChunkError {
    /// What opening the file has failed with.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::Missing,
            _ if is_no_file(&error) => Self::NoFile,
            _ => Self::Unread(error),
        }
    }
}

impl ChunkError {
    /// The same of the snapshot that needs the chunk.
    pub fn of_snapshot(self, id: &str) -> SnapshotError {
        match self {
            Self::Differs | Self::Missing | Self::NoFile => SnapshotError::damaged(id, self.to_string()),
            Self::Unread(error) => SnapshotError::Unread { id: id.to_owned(), error },
        }
    }
}

/// The chunks of a session.
#[derive(Clone, Debug)]
pub(super) struct ChunkFiles {
    folder: PathBuf,
}

impl ChunkFiles {
    /// Those of the session with this folder.
    pub fn of(session_folder: &Path) -> Self {
        Self { folder: session_folder.join(FOLDER) }
    }

    pub fn make_folder(&self) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    pub fn path(&self, digest: ContentDigest) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// The length of the file of a chunk with so many bytes, if there is one.
    pub fn stored(&self, digest: ContentDigest, bytes: u32) -> Option<u32> {
        let found = std::fs::symlink_metadata(self.path(digest)).ok().filter(std::fs::Metadata::is_file)?;
        let stored = u32::try_from(found.len()).ok()?;
        ChunkRef { digest, bytes, stored }.is_possible().then_some(stored)
    }

    /// Writes a chunk under its name, completely or not at all. What had its name was no such chunk, and is removed.
    pub fn write(&self, digest: ContentDigest, stored: &[u8]) -> std::io::Result<()> {
        let path = self.path(digest);
        remove_file(&path)?;
        write_file(&path, stored, |_| Ok(()))
    }

    /// Has the disk keep a chunk that was written.
    pub fn sync(&self, digest: ContentDigest) -> std::io::Result<()> {
        open_file(&self.path(digest))?.sync_data()
    }

    pub fn sync_folder(&self) -> std::io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    /// A missing file is no error.
    pub fn remove(&self, digest: ContentDigest) -> std::io::Result<()> {
        remove_file(&self.path(digest))
    }

    /// The content of a chunk, if the file is what was written.
    pub fn read(&self, chunk: &ChunkRef) -> Result<Vec<u8>, ChunkError> {
        let stored = self.read_stored(chunk)?;
        let content = decode(stored, chunk.bytes as usize).ok_or(ChunkError::Differs)?;
        if ContentDigest::matching(&content, |found| found == chunk.digest).is_none()
            && security_controls::holds("snapshot_chunks_are_verified")
        {
            return Err(ChunkError::Differs);
        }
        Ok(content)
    }

    /// The file of a chunk, if it has the length that was written.
    pub fn read_stored(&self, chunk: &ChunkRef) -> Result<Vec<u8>, ChunkError> {
        let file = open_file(&self.path(chunk.digest))?;
        // A file that has grown is not read to its end.
        let mut stored = Vec::with_capacity(chunk.stored as usize + 1);
        file.take(u64::from(chunk.stored) + 1).read_to_end(&mut stored).map_err(ChunkError::Unread)?;
        if stored.len() != chunk.stored as usize {
            return Err(ChunkError::Differs);
        }
        Ok(stored)
    }

    /// The chunks that are there, each with the length of its file, and the paths of drafts.
    #[expect(clippy::type_complexity, reason = "taken apart by its only caller")]
    pub fn list(&self) -> std::io::Result<(Vec<(ContentDigest, u64)>, Vec<PathBuf>)> {
        let (mut chunks, mut others) = (Vec::new(), Vec::new());
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((chunks, others)),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.file_name().to_str().and_then(ContentDigest::parse) {
                Some(digest) => chunks.push((digest, entry.metadata()?.len())),
                None => others.push(entry.path()),
            }
        }
        Ok((chunks, others))
    }
}

/// The file of a chunk with this content: compressed, if that is worth something.
pub(super) fn encode(content: &[u8], compressor: &mut Compressor) -> Vec<u8> {
    let mut stored = Vec::with_capacity(content.len() + content.len() / 64 + 64);
    stored.push(COMPRESSED);
    compressor.compress(content, &mut stored);
    if stored.len() > content.len() {
        stored.clear();
        stored.push(PLAIN);
        stored.extend_from_slice(content);
    }
    stored
}

fn decode(mut stored: Vec<u8>, length: usize) -> Option<Vec<u8>> {
    match *stored.first()? {
        PLAIN => {
            stored.drain(..1);
            (stored.len() == length).then_some(stored)
        }
        COMPRESSED => decompress(&stored[1..], length),
        _ => None,
    }
}

/// Writes a file under another name and gives it its name when it is complete. `settle` does what has to be done before.
pub(super) fn write_file(
    path: &Path,
    content: &[u8],
    settle: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}{DRAFT}"));
    // A draft of a daemon that died may be there.
    remove_file(&draft)?;
    let written =
        File::options().write(true).create_new(true).mode(0o600).open(&draft).and_then(|mut file| {
            file.write_all(content)?;
            settle(&file)
        });
    let outcome = written.and_then(|()| std::fs::rename(&draft, path));
    if outcome.is_err() {
        // A partial file would only fill a full disk further.
        let _ = std::fs::remove_file(&draft);
    }
    outcome
}

/// Whether what could not be opened is something else than a file: a link, a socket, a device, or what `open_file` refuses.
fn is_no_file(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::InvalidInput)
        || matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::ENODEV))
}

/// Opens a file that the daemon wrote; nothing else that has its name.
pub(super) fn open_file(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    }
    Ok(file)
}

/// Removes what has the name of a file, also if it is none; nothing is followed. If there is nothing, that is no error.
pub(super) fn remove_file(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::IsADirectory => std::fs::remove_dir_all(path),
        removed => removed,
    }
}
