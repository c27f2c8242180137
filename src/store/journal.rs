//! The journal: everything that must outlive the daemon, in one `SQLite` file and folders beside it.

use parking_lot::Mutex;
use rusqlite::Connection;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::blobs::Blobs;
use super::durability::{Durability, OnRefusal};
use super::error::JournalError;
use super::event_log::{EventLog, LogState};
use super::lane::WriteBacklog;
use super::rows;
use super::schema::{self, OpenError};
use super::used_amounts;
use super::writer::{self, Queue, Writer};
use crate::protocol::ids::SessionId;
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;

/// The kind of the events that administrators pay for.
const ADMIN_ACTED: &str = "admin_acted";

/// A handle; clones are cheap. Dropping the last handle, including those inside logs, writes all waiting commands and
/// ends the writer's thread.
#[derive(Clone)]
pub struct Journal {
    pub(super) core: Arc<Core>,
}

pub(super) struct Core {
    pub queue: Arc<Queue>,
    folder: PathBuf,
    pub(super) blobs: Blobs,
    /// Queries are short, so one connection serves all readers.
    reader: Mutex<Connection>,
    /// The connection for the few queries that are long, so that no reader waits for them.
    scanner: Mutex<Connection>,
    /// The open logs. Each session has only one shared state, because two would assign the same sequence numbers twice.
    logs: Mutex<HashMap<SessionId, Weak<LogState>>>,
    /// The backlog of each user who has an open log.
    lanes: Mutex<HashMap<Principal, Weak<WriteBacklog>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failed: CancellationToken,
}

impl Journal {
    /// Opens or makes `journal.db` in that folder, with `blobs` and `spill` beside it.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        let (connection, reader, scanner) = schema::open(folder)?;
        let unusable = |error: std::io::Error| OpenError::unusable(folder, &error);
        let blobs = Blobs::open(folder.join("blobs")).map_err(unusable)?;
        let queue = Arc::new(Queue::new(Writer::new(connection, blobs.clone())));
        let failed = CancellationToken::new();
        let (written, cannot_write) = (Arc::clone(&queue), failed.clone());
        let run = move || writer::run(&written, &cannot_write);
        let thread = std::thread::Builder::new().name("journal".into()).spawn(run);
        let core = Core {
            queue,
            folder: folder.to_owned(),
            blobs,
            reader: Mutex::new(reader),
            scanner: Mutex::new(scanner),
            logs: Mutex::default(),
            lanes: Mutex::default(),
            thread: Mutex::new(Some(thread.map_err(unusable)?)),
            failed,
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// The log of a session; new events are numbered after its newest one.
    pub fn log(&self, session: SessionId) -> Result<Arc<EventLog>, JournalError> {
        let mut logs = self.core.logs.lock();
        let state = if let Some(state) = logs.get(&session).and_then(Weak::upgrade) {
            state
        } else {
            let (newest, received, stored) = self.core.read(|file, _| {
                let newest = rows::newest(file, session)?;
                let received = if newest > 0 { rows::received(file, session)? } else { Vec::new() };
                // As long as the session lives, its owner does not pay for what administrators do in it.
                let stored = || used_amounts::stored(file, session, Some(ADMIN_ACTED));
                Ok((newest, received, if newest > 0 { stored()? } else { 0 }))
            })?;
            let stored = stored.saturating_add(used_amounts::output_bytes(&self.core.spill_folder(session)));
            let state = Arc::new(LogState::new(session, newest, received, stored));
            logs.retain(|_, state| state.strong_count() > 0);
            logs.insert(session, Arc::downgrade(&state));
            state
        };
        Ok(Arc::new(EventLog::new(state, Arc::clone(&self.core))))
    }

    /// Whether anything of the log of a session is still in memory.
    #[cfg(test)]
    pub(super) fn holds_log(&self, session: SessionId) -> bool {
        self.core.logs.lock().get(&session).is_some_and(|state| state.strong_count() > 0)
    }

    /// What each commit so far survives.
    #[cfg(test)]
    pub fn commits(&self) -> Vec<Durability> {
        self.core.queue.batches.lock().iter().map(|(durability, _)| *durability).collect()
    }

    /// Keeps the writer busy until the sender is dropped.
    #[cfg(test)]
    pub fn hold_writer(&self) -> std::sync::mpsc::Sender<()> {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (entered, is_held) = std::sync::mpsc::channel();
        let journal = self.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let work = move |_: &Connection, _: &Blobs| {
                let _ = entered.send(());
                let _ = released.recv();
                Ok(())
            };
            let _ = runtime.block_on(journal.core.queue.write(Durability::Normal, OnRefusal::Wait, work));
        });
        is_held.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        release
    }

    /// Waits until the writer has panicked too often; from then on nothing is written any more.
    pub async fn failed(&self) {
        self.core.failed.cancelled().await;
    }

    /// Why nothing can be written at the moment, if that is so.
    pub fn healthy(&self) -> Result<(), JournalError> {
        self.core.queue.healthy()
    }

    /// The problem of an outcome that the journal does not have.
    pub fn unwritten(&self, outcome: &str) -> Problem {
        self.core.queue.unwritten(outcome)
    }

    /// The folder of the spill files with the output of a session's cells.
    pub fn spill_folder(&self, session: SessionId) -> PathBuf {
        self.core.spill_folder(session)
    }

    /// Writes all waiting commands and ends the writer's thread; blocks until then. If the disk refuses, the batch is
    /// tried once more and then given up.
    pub fn close(&self) {
        self.core.close();
    }
}

impl Core {
    pub fn spill_folder(&self, session: SessionId) -> PathBuf {
        self.folder.join("spill").join(session.to_string())
    }

    pub fn lane(&self, owner: Principal) -> Arc<WriteBacklog> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(&owner).and_then(Weak::upgrade) {
            return lane;
        }
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let lane = Arc::new(WriteBacklog::default());
        lanes.insert(owner, Arc::downgrade(&lane));
        lane
    }

    pub fn read<T>(
        &self,
        query: impl FnOnce(&Connection, &Blobs) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        query(&self.reader.lock(), &self.blobs)
    }

    /// Like [`Self::read`], for what looks at many rows of many users. To be called where a thread may wait.
    pub fn scan<T>(
        &self,
        query: impl FnOnce(&Connection, &Blobs) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        query(&self.scanner.lock(), &self.blobs)
    }

    /// Writes with one statement; returns how many rows it changed.
    pub async fn execute<V: rusqlite::Params + Clone + Send + 'static>(
        &self,
        durability: Durability,
        on_refusal: OnRefusal,
        query: &'static str,
        values: V,
    ) -> Result<usize, JournalError> {
        let execute = move |file: &Connection, _: &Blobs| Ok(file.execute(query, values.clone())?);
        self.queue.write(durability, on_refusal, execute).await
    }

    fn close(&self) {
        self.queue.close();
        let thread = self.thread.lock().take();
        // A callback on the writer's thread may drop the last handle, and a thread cannot join itself.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the journal's thread panicked");
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Longer than anything takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Otherwise every request of every user waits while the watch over removed sessions looks at all of them.
    #[test]
    fn long_queries_and_short_ones_do_not_wait_for_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        let done = |query: Box<dyn FnOnce(&Journal) + Send>| {
            let (journal, (done, is_done)) = (journal.clone(), std::sync::mpsc::channel());
            std::thread::spawn(move || {
                query(&journal);
                done.send(())
            });
            is_done.recv_timeout(PATIENCE).is_ok()
        };
        let short = journal.core.reader.lock();
        assert!(done(Box::new(|journal| drop(journal.removed().unwrap()))));
        assert!(done(Box::new(|journal| drop(journal.ended_jobs().unwrap()))));
        assert!(done(Box::new(|journal| assert_eq!(journal.stored(SessionId::fresh()).unwrap(), 0))));
        drop(short);
        let _long = journal.core.scanner.lock();
        assert!(done(Box::new(|journal| drop(journal.sessions().unwrap()))));
    }
}
