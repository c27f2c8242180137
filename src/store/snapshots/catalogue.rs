//! Which snapshots there are: the folders of all sessions, and what goes from them when it is not wanted any more.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunks::{ChunkFiles, remove_file};
use super::copy::{self, HeldSnapshot};
use super::error::SnapshotError;
use super::limits::{SnapshotCharge, SnapshotLimits, on_disk};
use super::manifest::{StoredManifest, id_in, path_of};
use super::reader::SnapshotReader;
use super::uses::{SessionUse, SharedUse};
use super::writer::{SnapshotWriter, mark_in};
use crate::protocol::ids::SessionId;
use crate::protocol::snapshot::SnapshotRecord;
use crate::protocol::text::quotable;

/// The folder in the daemon's home.
const FOLDER: &str = "snapshots";
/// Folders of sessions that are being removed begin so.
const REMOVED: &str = ".removed-";

/// The snapshots of all sessions. Clones are the same store.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    folder: Arc<PathBuf>,
    uses: Arc<Mutex<HashMap<SessionId, SharedUse>>>,
}

/// What a sweep has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Folders of sessions that are gone.
    pub sessions: usize,
    /// Bytes that no snapshot referred to.
    pub bytes: u64,
}

impl SnapshotStore {
    /// The store in the daemon's home.
    pub fn open(home: &Path) -> std::io::Result<Self> {
        let folder = home.join(FOLDER);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        // Its name outlives a power failure, as do those of the snapshots in it.
        File::open(home)?.sync_all()?;
        Ok(Self { folder: Arc::new(folder), uses: Arc::default() })
    }

    /// Begins a snapshot, which is charged as it comes.
    pub fn writer(
        &self,
        session: SessionId,
        limits: SnapshotLimits,
        charge: Arc<dyn SnapshotCharge>,
    ) -> Result<SnapshotWriter, SnapshotError> {
        // What is there already is not part of what this one is charged for.
        self.change(session, |_| Ok(()))?;
        SnapshotWriter::begin(self.folder_of(session), self.using(session), limits, charge)
    }

    /// Begins to read a snapshot, if its list of chunks has the digest that the journal has.
    pub fn read(&self, session: SessionId, id: &str, digest: &str) -> Result<SnapshotReader, SnapshotError> {
        SnapshotReader::open(&self.folder_of(session), self.using(session), id, digest)
    }

    /// The snapshots of a session, oldest first. One that cannot be read is left out.
    pub fn list(&self, session: SessionId) -> Result<Vec<SnapshotRecord>, SnapshotError> {
        let folder = self.folder_of(session);
        let mut records = Vec::new();
        for id in ids_in(&folder)? {
            match StoredManifest::read_listed(&folder, &id) {
                Ok((_, record)) => records.push(record),
                Err(error) => tracing::warn!(%error, %session, "a snapshot is not listed"),
            }
        }
        records.sort_by(|one, other| (&one.at, &one.id).cmp(&(&other.at, &other.id)));
        Ok(records)
    }

    /// Removes a snapshot, with the chunks that no other one has; returns the bytes that its owner is charged for no more.
    pub fn remove(&self, session: SessionId, id: &str) -> Result<u64, SnapshotError> {
        let folder = self.folder_of(session);
        let path = path_of(&folder, id).filter(|path| path.symlink_metadata().is_ok());
        let path = path.ok_or_else(|| SnapshotError::NoSuch(quotable(id)))?;
        self.change(session, |state| {
            remove_file(&path)?;
            collect(&folder, state)
        })
    }

    /// Removes all snapshots but these, and all chunks that none of these has; returns the bytes that their owner is charged
    /// for no more.
    pub fn keep_only(&self, session: SessionId, ids: &[String]) -> Result<u64, SnapshotError> {
        let folder = self.folder_of(session);
        self.change(session, |state| {
            for id in ids_in(&folder)?.iter().filter(|id| !ids.contains(id)) {
                if let Some(path) = path_of(&folder, id) {
                    remove_file(&path)?;
                }
            }
            collect(&folder, state)
        })
    }

    /// Removes all snapshots of a session that is gone; returns the bytes that their owner was charged for. A snapshot that is
    /// being written fails, and gives back its part itself.
    pub fn remove_session(&self, session: SessionId) -> Result<u64, SnapshotError> {
        let folder = self.folder_of(session);
        let freed = self.change(session, |state| {
            let aside = self.folder.join(format!("{REMOVED}{session}"));
            match std::fs::rename(&folder, &aside) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(state.charge_only(0)),
                moved => moved?,
            }
            state.is_removed = true;
            // What cannot be removed now is removed at the next start.
            if let Err(error) = std::fs::remove_dir_all(&aside) {
                tracing::warn!(%error, %session, "the snapshots of a session that is gone stay for now");
            }
            Ok(state.charge_only(0))
        })?;
        self.uses.lock().remove(&session);
        Ok(freed)
    }

    /// Keeps a snapshot for copies of it.
    pub fn hold(&self, session: SessionId, snapshot: &SnapshotRecord) -> Result<HeldSnapshot, SnapshotError> {
        HeldSnapshot::of(self.folder_of(session), &self.using(session), &snapshot.id, &snapshot.digest)
    }

    /// Gives a session a snapshot of another one, which is charged like one that it has taken.
    pub fn copy(
        &self,
        source: &HeldSnapshot,
        to: SessionId,
        limits: SnapshotLimits,
        charge: Arc<dyn SnapshotCharge>,
    ) -> Result<SnapshotRecord, SnapshotError> {
        let writer = self.writer(to, limits, charge)?;
        copy::copy(source, &self.folder_of(to), writer)
    }

    /// What the snapshots of a session take on the disk. The first who asks charges that to their owner.
    pub fn stored_bytes(&self, session: SessionId) -> Result<u64, SnapshotError> {
        self.change(session, |_| Ok(bytes_in(&self.folder_of(session))?))
    }

    /// Nobody was charged for what the session has, so nothing of it is given back.
    pub fn is_not_charged(&self, session: SessionId) {
        self.using(session).lock().charged = Some(0);
    }

    /// Removes what a daemon left that died: folders of sessions that are not known, and, where a snapshot was being
    /// written, drafts and chunks that no snapshot refers to. For the start, before any session.
    pub fn sweep(&self, known: &HashSet<SessionId>) -> Result<Swept, SnapshotError> {
        let mut swept = Swept::default();
        for entry in std::fs::read_dir(&*self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let session = name.to_str().and_then(|name| name.parse().ok()).map(SessionId);
            let is_known = |session: &SessionId| known.contains(session) && name == *session.to_string();
            let Some(session) = session.filter(is_known) else {
                let removed = if entry.file_type()?.is_dir() {
                    std::fs::remove_dir_all(entry.path())
                } else {
                    std::fs::remove_file(entry.path())
                };
                match removed {
                    Ok(()) => swept.sessions += 1,
                    Err(error) => tracing::warn!(%error, "the snapshots of a session that is gone stay"),
                }
                continue;
            };
            let folder = self.folder_of(session);
            if !mark_in(&folder).exists() {
                continue;
            }
            let freed = self.change(session, |state| {
                for draft in drafts_in(&folder)? {
                    remove_file(&draft)?;
                }
                collect(&folder, state)
            });
            match freed {
                Ok(freed) => swept.bytes = swept.bytes.saturating_add(freed),
                Err(error) => tracing::warn!(%error, %session, "the snapshots of a session were not swept"),
            }
        }
        Ok(swept)
    }

    fn folder_of(&self, session: SessionId) -> PathBuf {
        self.folder.join(session.to_string())
    }

    fn using(&self, session: SessionId) -> SharedUse {
        Arc::clone(self.uses.lock().entry(session).or_default())
    }

    /// Does something while no reference to a chunk of the session is added.
    fn change<T>(
        &self,
        session: SessionId,
        work: impl FnOnce(&mut SessionUse) -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let using = self.using(session);
        let mut state = using.lock();
        if state.charged.is_none() {
            // What an earlier daemon has left is charged by the length that it is found to have.
            state.charged = Some(bytes_in(&self.folder_of(session))?);
        }
        work(&mut state)
    }
}

/// The names of all files in the folder of a session; none if there is no folder.
fn names_in(folder: &Path) -> std::io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

fn ids_in(folder: &Path) -> std::io::Result<Vec<String>> {
    let names = names_in(folder)?;
    Ok(names.iter().filter_map(|name| id_in(name)).map(str::to_owned).collect())
}

/// Files that are not complete, and others that no snapshot has.
fn drafts_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let names = names_in(folder)?;
    let files = names.into_iter().filter(|name| id_in(name).is_none()).map(|name| folder.join(name));
    let of_snapshots = files.filter(|path| !path.is_dir());
    let (_, of_chunks) = ChunkFiles::of(folder).list()?;
    Ok(of_snapshots.chain(of_chunks).collect())
}

/// What the files of a session take on the disk.
fn bytes_in(folder: &Path) -> std::io::Result<u64> {
    let (chunks, _) = ChunkFiles::of(folder).list()?;
    let of_chunks = chunks.iter().fold(0, |sum: u64, (_, length)| sum.saturating_add(on_disk(*length)));
    Ok(bytes_of_manifests(folder)?.saturating_add(of_chunks))
}

fn bytes_of_manifests(folder: &Path) -> std::io::Result<u64> {
    let ids = ids_in(folder)?;
    let lengths = ids.iter().filter_map(|id| path_of(folder, id)).map(|path| {
        let found = std::fs::symlink_metadata(path);
        found.map_or(0, |found| on_disk(found.len()))
    });
    Ok(lengths.fold(0, u64::saturating_add))
}

/// Removes the chunks that no snapshot refers to and that are not in use. Then all that is left is counted: the answer is what
/// its owner is charged for no more. A chunk counts with the length that its snapshots say it was written with, so that the
/// account is right also where a file has another length now.
fn collect(folder: &Path, state: &mut SessionUse) -> Result<u64, SnapshotError> {
    let (mut referenced, mut are_all_known) = (HashMap::new(), true);
    for id in ids_in(folder)? {
        match StoredManifest::read_listed(folder, &id) {
            Ok((manifest, _)) => {
                referenced.extend(manifest.chunks.iter().map(|chunk| (chunk.digest, chunk.stored)));
            }
            Err(error) => {
                // It may be a later daemon's, and which chunks it needs is not known.
                tracing::warn!(%error, "chunks of snapshots are not removed");
                are_all_known = false;
            }
        }
    }
    let files = ChunkFiles::of(folder);
    let mut left = bytes_of_manifests(folder)?;
    let (chunks, _) = files.list()?;
    for (digest, found) in chunks {
        let bytes = match referenced.get(&digest) {
            Some(stored) => on_disk(u64::from(*stored)),
            None if are_all_known && !state.is_pinned(digest) => {
                files.remove(digest)?;
                0
            }
            None if state.brought.contains(&digest) => 0,
            None => on_disk(found),
        };
        left = left.saturating_add(bytes);
    }
    Ok(state.charge_only(left))
}
