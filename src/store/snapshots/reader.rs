//! Reads a snapshot back, in the order in which it came, one chunk in memory at a time.

use std::mem;
use std::path::Path;

use super::chunks::{ChunkFiles, ChunkRef};
use super::error::SnapshotError;
use super::manifest::{SnapshotAbout, StoredManifest};
use super::uses::{Pins, SharedUse};

/// One step of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub enum SnapshotPiece {
    /// The next bytes of the section, no more than a record may have.
    Bytes(Vec<u8>),
    /// The section has ended.
    SectionEnd,
}

/// A snapshot that is being read. Its chunks stay until it is dropped, whatever is removed meanwhile.
#[derive(Debug)]
pub struct SnapshotReader {
    id: String,
    files: ChunkFiles,
    manifest: StoredManifest,
    using: SharedUse,
    _pins: Pins,
    /// The chunk that is read next, and the one that is given out now.
    next: usize,
    content: Vec<u8>,
    given: usize,
    /// The section, and the bytes of it that were given out.
    section: usize,
    of_section: u64,
}

impl SnapshotReader {
    pub(super) fn open(
        folder: &Path,
        using: SharedUse,
        id: &str,
        digest: &str,
    ) -> Result<Self, SnapshotError> {
        let files = ChunkFiles::of(folder);
        let mut pins = Pins::none(SharedUse::clone(&using));
        let manifest = {
            let mut state = using.lock();
            let (manifest, _) = StoredManifest::read(folder, id, digest)?;
            for chunk in manifest.distinct() {
                pins.add(&mut state, chunk.digest);
            }
            manifest
        };
        Ok(Self {
            id: id.to_owned(),
            files,
            manifest,
            using,
            _pins: pins,
            next: 0,
            content: Vec::new(),
            given: 0,
            section: 0,
            of_section: 0,
        })
    }

    /// What is known of the snapshot.
    pub fn about(&self) -> &SnapshotAbout {
        &self.manifest.about
    }

    /// The next step; `None` after the end of the last section. Each byte that is given out is as it was written.
    pub fn next_piece(&mut self) -> Result<Option<SnapshotPiece>, SnapshotError> {
        let Some(&length) = self.manifest.sections.get(self.section) else { return Ok(None) };
        let left = length.saturating_sub(self.of_section);
        if left == 0 {
            self.section += 1;
            self.of_section = 0;
            return Ok(Some(SnapshotPiece::SectionEnd));
        }
        if self.given == self.content.len() {
            self.read_chunk()?;
        }
        let rest = &self.content[self.given..];
        let count = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
        let piece = if count == self.content.len() {
            // Most chunks have bytes of one section, and are given out without a copy.
            mem::take(&mut self.content)
        } else {
            self.given += count;
            rest[..count].to_vec()
        };
        self.of_section = self.of_section.saturating_add(count as u64);
        Ok(Some(SnapshotPiece::Bytes(piece)))
    }

    fn read_chunk(&mut self) -> Result<(), SnapshotError> {
        let Some(chunk) = self.manifest.chunks.get(self.next).copied() else {
            return Err(SnapshotError::damaged(&self.id, "it has less than its sections say"));
        };
        self.content = self.files.read(&chunk).map_err(|error| {
            let error = error.of_snapshot(&self.id);
            if error.is_lasting() {
                self.forget(&chunk);
            }
            error
        })?;
        self.next += 1;
        self.given = 0;
        Ok(())
    }

    /// Removes the file of a chunk that is not what was written: a later snapshot with the same bytes would take it for
    /// what it should be. Its owner gets back what was charged for it with what is removed next.
    fn forget(&self, chunk: &ChunkRef) {
        tracing::warn!(snapshot = self.id, chunk = %chunk.digest, "a chunk of a snapshot was changed on the disk");
        let _state = self.using.lock();
        if let Err(error) = self.files.remove(chunk.digest) {
            tracing::warn!(%error, "a chunk of a snapshot that was changed on the disk stays");
        }
    }
}
