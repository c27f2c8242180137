//! Writes a snapshot while it comes in. Until the file that lists its chunks is there, nothing refers to them; a
//! writer that is dropped before takes them away again.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunker::Chunker;
use super::chunks::{ChunkFiles, ChunkRef, ContentDigest, encode, remove_file, write_file};
use super::disk_thread::DiskThread;
use super::error::SnapshotError;
use super::limits::{MANIFEST_BYTES, SECTIONS, SnapshotCharge, SnapshotLimits, on_disk};
use super::lz4::Compressor;
use super::manifest::{SnapshotAbout, StoredManifest, id_of, path_of};
use super::uses::{Pins, SessionUse, SharedUse};
use crate::protocol::snapshot::{SNAPSHOT_FORMAT, SnapshotRecord};
use crate::security_controls;

/// One snapshot that is being written. After an error it can only be dropped.
pub struct SnapshotWriter {
    /// The folder of the session.
    folder: PathBuf,
    files: ChunkFiles,
    using: SharedUse,
    pins: Pins,
    limits: SnapshotLimits,
    charge: Arc<dyn SnapshotCharge>,
    chunker: Chunker,
    compressor: Compressor,
    chunks: Vec<ChunkRef>,
    sections: Vec<u64>,
    /// Bytes of the section that has not ended.
    section_bytes: u64,
    /// Bytes of all sections.
    bytes: u64,
    /// The chunks that were not there before, each with the length of its file.
    new: HashMap<ContentDigest, u32>,
    disk: DiskThread,
    new_bytes: u64,
    /// What was charged.
    charged: u64,
    is_finished: bool,
}

impl SnapshotWriter {
    /// Begins a snapshot in the folder of a session; there is one at a time.
    pub(super) fn begin(
        folder: PathBuf,
        using: SharedUse,
        limits: SnapshotLimits,
        charge: Arc<dyn SnapshotCharge>,
    ) -> Result<Self, SnapshotError> {
        let files = ChunkFiles::of(&folder);
        {
            let mut state = using.lock();
            if state.is_removed {
                return Err(SnapshotError::SessionGone);
            }
            if state.is_written {
                return Err(SnapshotError::Busy);
            }
            files.make_folder()?;
            File::options().write(true).create(true).truncate(false).mode(0o600).open(mark_in(&folder))?;
            state.is_written = true;
        }
        let disk = DiskThread::start(files.clone()).inspect_err(|_| end(&folder, &mut using.lock()))?;
        Ok(Self {
            disk,
            pins: Pins::none(Arc::clone(&using)),
            folder,
            files,
            using,
            limits,
            charge,
            chunker: Chunker::default(),
            compressor: Compressor::default(),
            chunks: Vec::new(),
            sections: Vec::new(),
            section_bytes: 0,
            bytes: 0,
            new: HashMap::new(),
            new_bytes: 0,
            charged: 0,
            is_finished: false,
        })
    }

    /// Takes the next bytes of the section.
    pub fn piece(&mut self, mut piece: &[u8]) -> Result<(), SnapshotError> {
        let length = piece.len() as u64;
        self.section_bytes = self.section_bytes.saturating_add(length);
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes > self.limits.bytes {
            return Err(SnapshotError::TooLarge { what: "of variables", limit: self.limits.bytes });
        }
        while !piece.is_empty() {
            let (taken, is_complete) = self.chunker.fill(piece);
            piece = &piece[taken..];
            if is_complete {
                self.keep_chunk()?;
            }
        }
        Ok(())
    }

    /// Ends the section; the next piece belongs to the next one.
    pub fn end_section(&mut self) -> Result<(), SnapshotError> {
        if self.sections.len() >= SECTIONS {
            return Err(SnapshotError::TooManySections(SECTIONS));
        }
        self.sections.push(std::mem::take(&mut self.section_bytes));
        if self.chunker.may_end() {
            self.keep_chunk()?;
        }
        Ok(())
    }

    /// Ends the snapshot, once what its sender says of it is what came. When this returns, it is on the disk.
    pub fn finish(mut self, mut about: SnapshotAbout) -> Result<SnapshotRecord, SnapshotError> {
        self.keep_chunk()?;
        about.manifest.bound();
        let said = &about.manifest;
        if said.format != SNAPSHOT_FORMAT {
            return Err(SnapshotError::Untrue(format!("it has the format {}", said.format)));
        }
        let sections = u64::from(said.sections);
        if self.section_bytes > 0 || sections != self.sections.len() as u64 || said.bytes != self.bytes {
            return Err(SnapshotError::Untrue(format!(
                "{} bytes in {} parts came, and it says {} bytes in {sections} parts",
                self.bytes,
                self.sections.len(),
                said.bytes
            )));
        }
        let (sections, chunks) = (std::mem::take(&mut self.sections), std::mem::take(&mut self.chunks));
        let manifest = StoredManifest::new(about, self.new_bytes, sections, chunks);
        let text = serde_json::to_vec(&manifest).map_err(std::io::Error::from)?;
        self.commit(&manifest, &text, ContentDigest::of(&text))
    }

    /// Stores the chunk that is complete, or that nothing more comes for.
    fn keep_chunk(&mut self) -> Result<(), SnapshotError> {
        let content = self.chunker.take();
        let Ok(bytes @ 1..) = u32::try_from(content.len()) else { return Ok(()) };
        let digest = ContentDigest::of(&content);
        // One that this snapshot has brought may still wait for the disk.
        let stored = match self.new.get(&digest) {
            Some(stored) => *stored,
            None => match self.pin(digest, bytes)? {
                Some(stored) => stored,
                None => self.store_chunk(digest, &content)?,
            },
        };
        self.chunks.push(ChunkRef { digest, bytes, stored });
        self.chunker.reuse(content);
        Ok(())
    }

    /// Lets the chunk stay, if it is there; the answer is the length of its file.
    pub(super) fn pin(&mut self, digest: ContentDigest, bytes: u32) -> Result<Option<u32>, SnapshotError> {
        let using = Arc::clone(&self.using);
        let mut state = using.lock();
        if state.is_removed {
            return Err(SnapshotError::SessionGone);
        }
        self.pins.add(&mut state, digest);
        Ok(self.files.stored(digest, bytes))
    }

    fn store_chunk(&mut self, digest: ContentDigest, content: &[u8]) -> Result<u32, SnapshotError> {
        let stored = encode(content, &mut self.compressor);
        let length = u32::try_from(stored.len()).unwrap_or(u32::MAX);
        self.pay_for_chunk(digest, length)?;
        self.write(digest, stored)?;
        Ok(length)
    }

    /// Puts a chunk that was paid for on the disk, before the snapshot is finished.
    pub(super) fn write(&mut self, digest: ContentDigest, stored: Vec<u8>) -> Result<(), SnapshotError> {
        Ok(self.disk.write(digest, stored)?)
    }

    /// Charges a chunk that is about to be written, and notes that this snapshot has brought it.
    pub(super) fn pay_for_chunk(&mut self, digest: ContentDigest, length: u32) -> Result<(), SnapshotError> {
        let cost = on_disk(length.into());
        self.pay(cost)?;
        self.new.insert(digest, length);
        self.using.lock().brought.insert(digest);
        self.new_bytes = self.new_bytes.saturating_add(cost);
        Ok(())
    }

    /// Ends the thread that writes, as the death of the process would.
    #[cfg(test)]
    pub(super) fn end_thread(&mut self) {
        let _ = self.disk.finish();
    }

    fn pay(&mut self, cost: u64) -> Result<(), SnapshotError> {
        let sum = self.charged.saturating_add(cost);
        if sum > self.limits.stored_bytes {
            return Err(SnapshotError::TooLarge { what: "of disk", limit: self.limits.stored_bytes });
        }
        if security_controls::holds("snapshot_charge") {
            self.charge.take(cost).map_err(SnapshotError::Refused)?;
            self.charged = sum;
        }
        Ok(())
    }

    /// Writes the file that lists the chunks, after all of them are on the disk. Chunks that were linked were there before.
    pub(super) fn commit(
        mut self,
        manifest: &StoredManifest,
        text: &[u8],
        digest: ContentDigest,
    ) -> Result<SnapshotRecord, SnapshotError> {
        let length = text.len() as u64;
        if length > MANIFEST_BYTES {
            return Err(SnapshotError::TooLarge { what: "to list what is in it", limit: MANIFEST_BYTES });
        }
        self.pay(on_disk(length))?;
        self.disk.finish()?;
        self.files.sync_folder()?;
        let record = manifest.record(digest);
        let Some(path) = path_of(&self.folder, &id_of(digest)) else {
            return Err(SnapshotError::Untrue("it has no id".into()));
        };
        let using = Arc::clone(&self.using);
        // From before the file appears until it is certain to stay, no chunk is removed.
        let mut state = using.lock();
        if state.is_removed {
            return Err(SnapshotError::SessionGone);
        }
        write_file(&path, text, File::sync_all)?;
        if let Err(error) = sync_names(&self.folder) {
            remove_file(&path)?;
            return Err(error.into());
        }
        state.keep_charged(self.charged);
        end(&self.folder, &mut state);
        self.is_finished = true;
        Ok(record)
    }
}

/// Has the disk keep the names in the folder of a session, and the name of that folder, which may be new.
fn sync_names(folder: &Path) -> std::io::Result<()> {
    let folders = [Some(folder), folder.parent()];
    folders.into_iter().flatten().try_for_each(|folder| File::open(folder)?.sync_all())
}

/// A file that is there while a snapshot is being written: where a daemon finds one, another one died meanwhile.
pub(super) fn mark_in(folder: &Path) -> PathBuf {
    folder.join(".writing")
}

/// Notes that no snapshot is being written any more.
fn end(folder: &Path, state: &mut SessionUse) {
    state.is_written = false;
    state.brought.clear();
    // Where it stays, the next start looks for chunks that no snapshot has, and finds none.
    if let Err(error) = remove_file(&mark_in(folder)) {
        tracing::warn!(%error, "the mark of a snapshot that was written stays");
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        if let Err(error) = self.disk.finish() {
            tracing::debug!(%error, "a snapshot that is given up could not be written");
        }
        {
            let mut state = self.using.lock();
            for digest in self.new.keys() {
                // What cannot be removed now is found and removed with the next snapshot, or at the next start.
                if let Err(error) = self.files.remove(*digest) {
                    tracing::warn!(%error, "a chunk of a snapshot that was given up stays for now");
                }
            }
            end(&self.folder, &mut state);
        }
        self.charge.give(self.charged);
    }
}
