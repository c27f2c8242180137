//! The file that lists what a snapshot is made of. It is written once, and its hash is its name.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::chunks::{ChunkError, ChunkRef, ContentDigest, open_file};
use super::error::SnapshotError;
use super::limits::{MANIFEST_BYTES, SECTIONS, on_disk};
use crate::protocol::ids::CellNumber;
use crate::protocol::packages::PackageSet;
use crate::protocol::snapshot::{SnapshotManifest, SnapshotRecord};
use crate::protocol::text::quotable;
use crate::security_controls;

/// Version of the layout of the file, and of the folder that it lies in. The first one differs in how things are hashed.
const FORMAT: u32 = 2;
const FIRST_FORMAT: u32 = 1;
/// A snapshot is named by so many of the first digits of the hash of its file.
const ID_DIGITS: usize = 16;
const SUFFIX: &str = ".json";

/// What the daemon knows of a snapshot, and what its kernel says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotAbout {
    /// The newest cell whose changes it has.
    pub cell: CellNumber,
    /// Version of Python, as the receipt of the sandbox has it.
    pub python: String,
    /// The id of the image.
    pub image: String,
    pub manifest: SnapshotManifest,
    pub name: Option<String>,
    /// The packages that the session had beside those of its image.
    pub packages: Option<PackageSet>,
    pub at: String,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredManifest {
    pub format: u32,
    pub about: SnapshotAbout,
    /// Bytes of chunks that no other snapshot of the session had when this one was taken.
    pub new_bytes: u64,
    /// The length of each section.
    pub sections: Vec<u64>,
    pub chunks: Vec<ChunkRef>,
}

impl StoredManifest {
    pub fn new(about: SnapshotAbout, new_bytes: u64, sections: Vec<u64>, chunks: Vec<ChunkRef>) -> Self {
        Self { format: FORMAT, about, new_bytes, sections, chunks }
    }

    /// Reads a file whose hash is known: nothing of it is looked at before the hash is found to be right.
    pub fn read(folder: &Path, id: &str, digest: &str) -> Result<(Self, Vec<u8>), SnapshotError> {
        let text = read_text(folder, id)?;
        let is_it = |found: ContentDigest| found.to_string() == digest;
        if ContentDigest::matching(&text, is_it).is_none()
            && security_controls::holds("snapshot_manifest_is_verified")
        {
            return Err(SnapshotError::damaged(id, "the list of its chunks is not what was written"));
        }
        let manifest = Self::parse(&text).map_err(|why| SnapshotError::damaged(id, why))?;
        Ok((manifest, text))
    }

    /// Reads a file of which nothing but the name is known, with its record.
    pub fn read_listed(folder: &Path, id: &str) -> Result<(Self, SnapshotRecord), SnapshotError> {
        let text = read_text(folder, id)?;
        let digest = ContentDigest::matching(&text, |found| id_of(found) == id)
            .ok_or_else(|| SnapshotError::damaged(id, "the list of its chunks is not what was written"))?;
        let manifest = Self::parse(&text).map_err(|why| SnapshotError::damaged(id, why))?;
        let record = manifest.record(digest);
        Ok((manifest, record))
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if !(FIRST_FORMAT..=FORMAT).contains(&manifest.format) {
            let format = manifest.format;
            return Err(format!(
                "it has the format {format}, and this daemon reads {FIRST_FORMAT} to {FORMAT}"
            ));
        }
        let in_chunks = sum(manifest.chunks.iter().map(|chunk| chunk.bytes.into()));
        let in_sections = sum(manifest.sections.iter().copied());
        if manifest.sections.len() > SECTIONS
            || in_chunks != in_sections
            || !manifest.chunks.iter().all(ChunkRef::is_possible)
        {
            return Err("the list of its chunks makes no sense".into());
        }
        Ok(manifest)
    }

    /// The chunks that it refers to, each once.
    pub fn distinct(&self) -> Vec<ChunkRef> {
        let mut seen = HashSet::new();
        self.chunks.iter().filter(|chunk| seen.insert(chunk.digest)).copied().collect()
    }

    /// What clients are told.
    pub fn record(&self, digest: ContentDigest) -> SnapshotRecord {
        let about = &self.about;
        let stored = sum(self.distinct().iter().map(|chunk| on_disk(chunk.stored.into())));
        SnapshotRecord {
            id: id_of(digest),
            digest: digest.to_string(),
            cell: about.cell,
            bytes: about.manifest.bytes,
            stored_bytes: stored,
            new_bytes: self.new_bytes,
            name: about.name.clone(),
            at: about.at.clone(),
            python: about.python.clone(),
            variables: about.manifest.variables,
            missing: about.manifest.missing.clone(),
            files: about.manifest.files.clone(),
        }
    }
}

fn sum(lengths: impl Iterator<Item = u64>) -> u64 {
    lengths.fold(0, u64::saturating_add)
}

fn read_text(folder: &Path, id: &str) -> Result<Vec<u8>, SnapshotError> {
    let path = path_of(folder, id).ok_or_else(|| SnapshotError::NoSuch(quotable(id)))?;
    let unread = |error| SnapshotError::Unread { id: id.to_owned(), error };
    let file = open_file(&path).map_err(|error| match ChunkError::from(error) {
        ChunkError::Unread(error) => unread(error),
        ChunkError::Missing => SnapshotError::NoSuch(id.to_owned()),
        ChunkError::NoFile | ChunkError::Differs => {
            SnapshotError::damaged(id, "something that is no file is in the place of the list of its chunks")
        }
    })?;
    let mut text = Vec::new();
    file.take(MANIFEST_BYTES + 1).read_to_end(&mut text).map_err(unread)?;
    if text.len() as u64 > MANIFEST_BYTES {
        return Err(SnapshotError::damaged(id, "the list of its chunks is too long"));
    }
    Ok(text)
}

pub(super) fn id_of(digest: ContentDigest) -> String {
    let mut id = digest.to_string();
    id.truncate(ID_DIGITS);
    id
}

/// The path of a snapshot's file. A text that is no id never becomes a path.
pub(super) fn path_of(folder: &Path, id: &str) -> Option<PathBuf> {
    is_id(id).then(|| folder.join(format!("{id}{SUFFIX}")))
}

/// The id in the name of a file, if it is that of a snapshot.
pub(super) fn id_in(file_name: &str) -> Option<&str> {
    file_name.strip_suffix(SUFFIX).filter(|id| is_id(id))
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
