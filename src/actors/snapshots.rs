//! The snapshots of one session on the disk, and who pays for them.

use std::path::PathBuf;
use std::sync::Arc;

use crate::protocol::ids::SessionId;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::SnapshotRecord;
use crate::quota::{Amounts, Gauge, Ledger, Permit};
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::disk;
use crate::store::snapshots::{
    SnapshotCharge, SnapshotError, SnapshotLimits, SnapshotReader, SnapshotStore, SnapshotWriter,
};
use std::time::{Duration, Instant};

/// What the snapshots of a session take of its owner's disk; given back when it is dropped.
pub struct SnapshotRoom(Permit);

impl SnapshotRoom {
    /// The room of a session whose snapshots take so much already.
    pub fn keep(ledger: &Ledger, owner: Principal, by: &str, bytes: u64) -> Self {
        Self(ledger.keep(owner, by, Amounts::of([(Kind::Workspace, bytes)])))
    }

    fn gauge(&self) -> Gauge {
        self.0.gauge()
    }
}

impl SnapshotCharge for SnapshotRoom {
    fn take(&self, bytes: u64) -> Result<(), Problem> {
        Ok(self.gauge().grow(Kind::Workspace, bytes)?)
    }

    fn give(&self, bytes: u64) {
        self.gauge().shrink(Kind::Workspace, bytes);
    }
}

/// The room of a session on a disk of which some bytes are kept free. A snapshot may be larger than what is free, so the disk
/// is looked at before each chunk, and not only when the snapshot begins.
pub struct RoomOnDisk {
    room: Arc<SnapshotRoom>,
    home: PathBuf,
    reserve: u64,
}

impl RoomOnDisk {
    pub fn new(room: &Arc<SnapshotRoom>, launcher: &Launcher) -> Self {
        let reserve = launcher.settings.sandbox.disk_reserve_bytes;
        Self { room: Arc::clone(room), home: launcher.paths.home().to_owned(), reserve }
    }

    /// A refusal if the disk has less than its reserve left.
    pub fn check(&self) -> Result<(), Problem> {
        disk::check_at(&self.home, self.reserve)
    }
}

impl SnapshotCharge for RoomOnDisk {
    fn take(&self, bytes: u64) -> Result<(), Problem> {
        self.check()?;
        self.room.take(bytes)
    }

    fn give(&self, bytes: u64) {
        self.room.give(bytes);
    }
}

/// What a session begins with of another one.
pub struct SessionBase {
    pub source: BaseSource,
    /// The variables: a snapshot that is in the session's folder already.
    pub snapshot: Option<SnapshotRecord>,
    /// The rules of all code that comes from there.
    pub bound: BoundRules,
    /// What was charged for it.
    pub room: Arc<SnapshotRoom>,
}

/// The snapshots of one session. All of its methods block.
#[derive(Clone)]
pub struct SessionSnapshots {
    store: SnapshotStore,
    session: SessionId,
    room: Arc<SnapshotRoom>,
    launcher: Arc<Launcher>,
}

impl SessionSnapshots {
    pub fn new(
        store: SnapshotStore,
        session: SessionId,
        room: Arc<SnapshotRoom>,
        launcher: Arc<Launcher>,
    ) -> Self {
        Self { store, session, room, launcher }
    }

    /// The most bytes that a kernel may send.
    pub fn max_bytes(&self) -> u64 {
        self.launcher.settings.snapshots.max_bytes
    }

    /// Begins a snapshot.
    pub fn writer(&self) -> Result<SnapshotWriter, Problem> {
        let most = self.max_bytes();
        let limits = SnapshotLimits { bytes: most, stored_bytes: most };
        let charge = RoomOnDisk::new(&self.room, &self.launcher);
        // Before anything is made for it, too.
        charge.check()?;
        Ok(self.store.writer(self.session, limits, Arc::new(charge))?)
    }

    pub fn read(&self, snapshot: &SnapshotRecord) -> Result<SnapshotReader, SnapshotError> {
        self.store.read(self.session, &snapshot.id, &snapshot.digest)
    }

    /// Begins a snapshot as soon as no other one of the session is being written: one that was given up may still have to
    /// remove what it has written, or even to sync it.
    pub fn next_writer(&self) -> Result<SnapshotWriter, Problem> {
        const LONGEST_WAIT: Duration = Duration::from_secs(60);
        const PAUSE: Duration = Duration::from_millis(20);
        let began = Instant::now();
        loop {
            match self.writer() {
                Err(problem) if problem.code == Code::Busy && began.elapsed() < LONGEST_WAIT => {
                    std::thread::sleep(PAUSE);
                }
                writer => return writer,
            }
        }
    }

    /// Removes these, with what only they have.
    pub fn remove_these(&self, ids: &[String]) {
        for id in ids {
            match self.store.remove(self.session, id) {
                Ok(freed) => self.room.give(freed),
                Err(error) => tracing::warn!(%error, session = %self.session, "a snapshot stays for now"),
            }
        }
    }

    /// Removes all but these.
    pub fn keep_only(&self, ids: &[String]) {
        match self.store.keep_only(self.session, ids) {
            Ok(freed) => self.room.give(freed),
            Err(error) => tracing::warn!(%error, session = %self.session, "old snapshots stay for now"),
        }
    }

    /// Removes all of them, with the session.
    pub fn remove(&self) {
        match self.store.remove_session(self.session) {
            Ok(freed) => self.room.give(freed),
            Err(error) => {
                tracing::warn!(%error, session = %self.session, "the snapshots of a session stay for now");
            }
        }
    }
}

/// A snapshot that is on the disk, and not in the journal yet. It goes again if it never comes there.
pub struct TakenSnapshot {
    record: SnapshotRecord,
    on_disk: SessionSnapshots,
    is_kept: bool,
}

impl TakenSnapshot {
    pub fn new(record: SnapshotRecord, on_disk: SessionSnapshots) -> Self {
        Self { record, on_disk, is_kept: false }
    }

    /// What the journal has to say of it, from which it stays.
    pub fn keep(mut self) -> SnapshotRecord {
        self.is_kept = true;
        self.record.clone()
    }
}

impl Drop for TakenSnapshot {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (on_disk, id) = (self.on_disk.clone(), self.record.id.clone());
        let remove = move || on_disk.remove_these(&[id]);
        // Without a runtime the thread may wait; without its removal the next daemon removes it.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
