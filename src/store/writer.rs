//! The one thread that writes the journal, and the queue in front of it.
//!
//! All waiting commands go into one transaction, so that many small events cost little more than one. No reader or
//! caller learns of a write before its transaction is committed. When the disk refuses, the batch is kept and tried
//! again: the order never changes and nothing is half written.

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::blobs::{Blobs, INLINE_BYTES};
use super::crash::CrashAt;
use super::error::{JournalError, WriteTrouble};
use super::event_log::LogState;
use super::idempotency::KeyTarget;
use super::rows::Row;
use super::schema;
use crate::memory::Charge;
use crate::panics::CrashCounter;
use crate::protocol::problem::Problem;
use crate::security_controls;

/// Requests (commands other than events) that may be queued; further callers wait for a permit.
pub(super) const REQUESTS_WAITING: usize = 256;
/// Bytes that one event costs in the queue in addition to its JSON.
pub(super) const ROW_BYTES: usize = 512;
/// Commands and bytes in one transaction.
const BATCH_COMMANDS: usize = 4_096;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Time between two tries while the disk refuses.
const RETRY: Duration = Duration::from_secs(1);

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The commit survives any death of the daemon.
    Normal,
    /// The commit also survives a loss of power.
    Full,
}

/// What a request does while the disk refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// The request fails with an error to its caller.
    Fail,
    /// The request keeps its place in the queue until it is written.
    Wait,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("{0}")]
    Database(#[from] rusqlite::Error),
    #[error("{0}")]
    File(#[from] std::io::Error),
}

/// Events of one log that become visible together.
pub(super) struct Group {
    pub log: Arc<LogState>,
    pub rows: Vec<Row>,
    pub durability: Durability,
    /// The target for the idempotency key of the request that these events start.
    pub aim: Option<KeyTarget>,
    pub on_commit: Option<Box<dyn FnOnce() + Send>>,
    /// The charge for the memory that the events take until they are written.
    #[expect(dead_code, reason = "dropped with the events")]
    pub memory: Option<Charge>,
}

/// A write other than events. After a refused transaction `apply` runs again; the last outcome counts.
trait Work: Send {
    fn durability(&self) -> Durability;
    fn on_refusal(&self) -> OnRefusal;
    fn apply(&mut self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError>;
    fn committed(self: Box<Self>);
    fn refused(self: Box<Self>, reason: &str);
}

enum Command {
    Events(Group),
    Request(Box<dyn Work>),
}

impl Command {
    fn cost(&self) -> usize {
        match self {
            Self::Events(group) => group.rows.iter().map(|row| row.entry.cost() + ROW_BYTES).sum(),
            Self::Request(_) => 0,
        }
    }

    /// Whether writing the command requires a blob file.
    fn is_large(&self) -> bool {
        match self {
            Self::Events(group) => group.rows.iter().any(|row| row.entry.cost() > INLINE_BYTES),
            Self::Request(_) => false,
        }
    }

    fn durability(&self) -> Durability {
        match self {
            Self::Events(group) => group.durability,
            Self::Request(work) => work.durability(),
        }
    }

    fn apply(&mut self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError> {
        match self {
            Self::Events(group) => {
                group.rows.iter().try_for_each(|row| row.insert(connection, blobs))?;
                Ok(group.aim.iter().try_for_each(|aim| aim.note(connection))?)
            }
            Self::Request(work) => work.apply(connection, blobs),
        }
    }

    fn committed(self) {
        match self {
            Self::Events(group) => {
                group.log.publish(&group.rows);
                if let Some(on_commit) = group.on_commit
                    && std::panic::catch_unwind(AssertUnwindSafe(on_commit)).is_err()
                {
                    tracing::error!("a callback of the journal panicked");
                }
            }
            Self::Request(work) => work.committed(),
        }
    }

    fn abandon(self) {
        match self {
            Self::Events(group) => group.log.abandon(),
            Self::Request(work) => drop(work),
        }
    }
}

struct Request<T, F> {
    durability: Durability,
    on_refusal: OnRefusal,
    work: F,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, JournalError>>,
}

impl<T, F> Work for Request<T, F>
where
    T: Send,
    F: FnMut(&Connection, &Blobs) -> Result<T, WriteError> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn on_refusal(&self) -> OnRefusal {
        self.on_refusal
    }

    fn apply(&mut self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError> {
        self.outcome = Some((self.work)(connection, blobs)?);
        Ok(())
    }

    fn committed(self: Box<Self>) {
        if let Some(outcome) = self.outcome {
            let _ = self.reply.send(Ok(outcome));
        }
    }

    fn refused(self: Box<Self>, reason: &str) {
        let _ = self.reply.send(Err(JournalError::Refused(reason.to_owned())));
    }
}

#[derive(Default)]
struct QueuedCommands {
    commands: VecDeque<Command>,
    /// The previous batch overtook a large command; the next batch is that command alone.
    large_is_next: bool,
    closing: bool,
    /// The writer has ended; nothing will be written any more.
    ended: bool,
}

impl QueuedCommands {
    /// Whether no more commands are taken.
    fn is_over(&self) -> bool {
        self.ended || self.closing
    }
}

/// Takes the commands for the next transaction. An event that becomes a blob file takes long, so events of other logs
/// go before it, and then it goes alone: a log waits for at most one large event of another log. Each log keeps its
/// order, and a request is written after all commands that came before it.
fn next_batch(commands: &mut VecDeque<Command>, large_is_next: &mut bool) -> Vec<Command> {
    if std::mem::take(large_is_next) && commands.front().is_some_and(Command::is_large) {
        return commands.pop_front().into_iter().collect();
    }
    let (mut batch, mut bytes, mut passed) = (Vec::new(), 0, VecDeque::new());
    let mut logs: HashSet<*const LogState> = HashSet::new();
    while batch.len() < BATCH_COMMANDS
        && bytes < BATCH_BYTES
        && passed.len() < BATCH_COMMANDS
        && let Some(command) = commands.pop_front()
    {
        let waits = match &command {
            Command::Events(group) => command.is_large() || logs.contains(&Arc::as_ptr(&group.log)),
            Command::Request(_) => !passed.is_empty(),
        };
        match (&command, waits) {
            (_, false) => {
                bytes += command.cost();
                batch.push(command);
            }
            (Command::Events(group), true) => {
                logs.insert(Arc::as_ptr(&group.log));
                passed.push_back(command);
            }
            (Command::Request(_), true) => {
                commands.push_front(command);
                break;
            }
        }
    }
    *large_is_next = !batch.is_empty() && !passed.is_empty();
    if batch.is_empty() {
        batch.extend(passed.pop_front());
    }
    for command in passed.into_iter().rev() {
        commands.push_front(command);
    }
    batch
}

/// The queue that the writer's thread shares with all callers that write.
pub(super) struct Queue {
    waiting: Mutex<QueuedCommands>,
    /// Signals a new command or the closing of the queue.
    work: Condvar,
    requests: Semaphore,
    trouble: Mutex<Option<WriteTrouble>>,
    /// Durability and size of each batch.
    #[cfg(test)]
    pub batches: Mutex<Vec<(Durability, usize)>>,
}

impl Queue {
    pub fn new() -> Self {
        Self {
            waiting: Mutex::default(),
            work: Condvar::new(),
            requests: Semaphore::new(REQUESTS_WAITING),
            trouble: Mutex::default(),
            #[cfg(test)]
            batches: Mutex::default(),
        }
    }

    /// Queues events without blocking, all at once, so that they get into one transaction. Returns the events if the
    /// journal is closed.
    pub fn push_events(&self, groups: Vec<Group>) -> Result<(), Vec<Group>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_over() {
            return Err(groups);
        }
        waiting.commands.extend(groups.into_iter().map(Command::Events));
        self.work.notify_one();
        Ok(())
    }

    fn push_request(&self, work: Box<dyn Work>) -> Result<(), Box<dyn Work>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_over() {
            return Err(work);
        }
        waiting.commands.push_back(Command::Request(work));
        self.work.notify_one();
        Ok(())
    }

    /// Queues a write and returns its outcome once it is committed.
    pub async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        on_refusal: OnRefusal,
        work: impl FnMut(&Connection, &Blobs) -> Result<T, WriteError> + Send + 'static,
    ) -> Result<T, JournalError> {
        if on_refusal == OnRefusal::Fail {
            self.healthy()?;
        }
        let closed = || self.healthy().err().unwrap_or(JournalError::Closed);
        let _permit = self.requests.acquire().await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let request = Request { durability, on_refusal, work, outcome: None, reply };
        self.push_request(Box::new(request)).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    pub fn healthy(&self) -> Result<(), JournalError> {
        self.trouble.lock().clone().map_or(Ok(()), |trouble| Err(trouble.into()))
    }

    /// The problem of an outcome that is not written.
    pub fn unwritten(&self, outcome: &str) -> Problem {
        let slow = || JournalError::Refused("it is slow".into());
        let why = Problem::from(self.healthy().err().unwrap_or_else(slow));
        Problem { message: format!("{outcome}: {}", why.message), ..why }
    }

    /// Closes the queue: commands already in it are still written, later ones are rejected.
    pub fn close(&self) {
        self.waiting.lock().closing = true;
        self.work.notify_all();
    }

    /// The next batch, or `None` once the queue is closed and empty.
    fn take(&self) -> Option<Vec<Command>> {
        let mut waiting = self.waiting.lock();
        while waiting.commands.is_empty() && !waiting.closing {
            self.work.wait(&mut waiting);
        }
        let QueuedCommands { commands, large_is_next, .. } = &mut *waiting;
        let batch = next_batch(commands, large_is_next);
        (!batch.is_empty()).then_some(batch)
    }

    /// Waits for the next try; false if the journal is being closed.
    fn wait_to_retry(&self) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.closing {
            return false;
        }
        self.work.wait_while_for(&mut waiting, |waiting| !waiting.closing, RETRY);
        true
    }

    fn end(&self) {
        let rest = {
            let mut waiting = self.waiting.lock();
            (waiting.ended, waiting.closing) = (true, true);
            std::mem::take(&mut waiting.commands)
        };
        self.trouble.lock().get_or_insert(WriteTrouble::Closed);
        self.requests.close();
        rest.into_iter().for_each(Command::abandon);
    }
}

/// The state of the writer's thread.
pub(super) struct Writer {
    pub queue: Arc<Queue>,
    pub connection: Connection,
    pub blobs: Blobs,
    pub durability: Durability,
    pub crash: CrashAt,
    /// The batch being written. After a panic, a batch that is not committed is written again, and of a committed batch
    /// the remaining callers are notified.
    pub batch: Batch,
    /// Cancelled when this process can never write the journal again.
    pub failed: CancellationToken,
}

/// Commands that are committed together.
#[derive(Default)]
pub(super) struct Batch {
    commands: VecDeque<Command>,
    /// The transaction is committed: only the waiting callers remain to be notified, and nothing is written again.
    is_committed: bool,
}

impl Writer {
    pub fn run(mut self) {
        // Dropping `end` releases all waiting callers, however this function returns.
        let end = EndOnDrop(Arc::clone(&self.queue));
        let mut deaths = CrashCounter::default();
        while std::panic::catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            if deaths.one_more() || !security_controls::holds("writer_lives_on") {
                tracing::error!("the journal's writer panicked too often; the daemon ends");
                *self.queue.trouble.lock() = Some(WriteTrouble::Failed);
                self.failed.cancel();
                std::mem::take(&mut self.batch.commands).into_iter().for_each(Command::abandon);
                return;
            }
            tracing::error!("the journal's writer panicked, and goes on");
        }
        // `SQLite` checkpoints by itself only when the last connection closes, and the readers' connection is still
        // open.
        let folded = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = folded {
            tracing::debug!(%error, "the write-ahead log stays for the next start");
        }
        drop(end);
    }

    /// Writes batches until the journal is closed.
    fn work(&mut self) {
        loop {
            if self.batch.commands.is_empty() && !self.batch.is_committed {
                let Some(commands) = self.queue.take() else { return };
                self.batch = Batch { commands: commands.into(), is_committed: false };
            }
            crate::panics::panic_if_requested("writer");
            if !self.write() {
                return;
            }
        }
    }

    /// False if the batch was given up because the journal is closed while the disk refuses.
    fn write(&mut self) -> bool {
        while !self.batch.is_committed {
            let Err(error) = self.attempt() else { break };
            let reason = error.to_string();
            let known = self.queue.trouble.lock().replace(WriteTrouble::Refused(reason.clone())).is_some();
            if !known {
                tracing::error!(%error, "the journal cannot be written; trying again until it can");
            }
            self.batch.refuse_impatient(&reason);
            if !self.queue.wait_to_retry() {
                let lost = std::mem::take(&mut self.batch.commands);
                tracing::error!(lost = lost.len(), "the journal is closed while it cannot be written");
                lost.into_iter().for_each(Command::abandon);
                return false;
            }
        }
        self.batch.is_committed = true;
        if self.queue.trouble.lock().take().is_some() {
            tracing::info!("the journal can be written again");
        }
        #[cfg(test)]
        self.queue.batches.lock().push((self.durability, self.batch.commands.len()));
        while let Some(command) = self.batch.commands.pop_front() {
            command.committed();
        }
        self.batch = Batch::default();
        true
    }

    fn attempt(&mut self) -> Result<(), WriteError> {
        let batch = &mut self.batch.commands;
        let wanted = batch.iter().map(Command::durability).max().unwrap_or(Durability::Normal);
        // `SQLite` cannot change this setting within a transaction.
        if wanted != self.durability {
            let level = match wanted {
                Durability::Normal => "NORMAL",
                Durability::Full => "FULL",
            };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.durability = wanted;
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if batch.is_empty() {
            // All requests of the refused batch have failed, so only a write can show whether the disk works again.
            schema::rewrite_version(&transaction)?;
        }
        for command in batch {
            command.apply(&transaction, &self.blobs)?;
        }
        self.crash.before_commit();
        transaction.commit()?;
        self.crash.after_commit();
        Ok(())
    }
}

impl Batch {
    /// Fails the requests that do not wait for the disk. The transaction was rolled back, so they leave no trace.
    fn refuse_impatient(&mut self, reason: &str) {
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Request(work) if work.on_refusal() == OnRefusal::Fail => work.refused(reason),
                other => self.commands.push_back(other),
            }
        }
    }
}

struct EndOnDrop(Arc<Queue>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}
