//! A snapshot of one session becomes one of another. The files are the same on the disk, as none is ever changed, and
//! each session's owner is charged for all that its snapshots refer to.

use std::path::{Path, PathBuf};

use super::chunks::{ChunkFiles, ContentDigest, remove_file};
use super::error::SnapshotError;
use super::manifest::{StoredManifest, path_of};
use super::uses::{Pins, SharedUse};
use super::writer::SnapshotWriter;
use crate::protocol::snapshot::SnapshotRecord;

/// A snapshot that can be copied as long as this value exists and its session does, also if it is removed meanwhile.
#[derive(Debug)]
pub struct HeldSnapshot {
    /// The folder of its session.
    folder: PathBuf,
    id: String,
    manifest: StoredManifest,
    /// The manifest as it is on the disk, and its hash.
    text: Vec<u8>,
    digest: ContentDigest,
    _pins: Pins,
}

impl HeldSnapshot {
    pub(super) fn of(
        folder: PathBuf,
        using: &SharedUse,
        id: &str,
        digest: &str,
    ) -> Result<Self, SnapshotError> {
        let mut pins = Pins::none(SharedUse::clone(using));
        let (manifest, text) = {
            let mut state = using.lock();
            let (manifest, text) = StoredManifest::read(&folder, id, digest)?;
            for chunk in manifest.distinct() {
                pins.add(&mut state, chunk.digest);
            }
            (manifest, text)
        };
        let digest = ContentDigest::parse(digest).ok_or_else(|| SnapshotError::NoSuch(id.to_owned()))?;
        Ok(Self { folder, id: id.to_owned(), manifest, text, digest, _pins: pins })
    }
}

/// Copies a snapshot into the session of a writer that nothing was written with yet.
pub(super) fn copy(
    source: &HeldSnapshot,
    folder: &Path,
    mut writer: SnapshotWriter,
) -> Result<SnapshotRecord, SnapshotError> {
    let HeldSnapshot { folder: from, id, manifest, text, digest, .. } = source;
    if path_of(folder, id).is_some_and(|path| path.symlink_metadata().is_ok()) {
        let (_, record) = StoredManifest::read_listed(folder, id)?;
        return Ok(record);
    }
    let (theirs, own) = (ChunkFiles::of(from), ChunkFiles::of(folder));
    for chunk in manifest.distinct() {
        if writer.pin(chunk.digest, chunk.bytes)? == Some(chunk.stored) {
            continue;
        }
        writer.pay_for_chunk(chunk.digest, chunk.stored)?;
        let (path, link) = (theirs.path(chunk.digest), own.path(chunk.digest));
        // One of another length cannot be what it should be.
        remove_file(&link)?;
        let is_linked = std::fs::hard_link(&path, &link).is_ok();
        if !is_linked || own.stored(chunk.digest, chunk.bytes) != Some(chunk.stored) {
            // A file has only so many links. What is not what was written is refused here, whatever was linked.
            let stored = theirs.read_stored(&chunk).map_err(|error| error.of_snapshot(id))?;
            writer.write(chunk.digest, stored)?;
        }
    }
    writer.commit(manifest, text, *digest)
}
