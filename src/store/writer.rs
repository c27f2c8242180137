//! What writes the journal: one connection, the thread that uses it, and the queue in front of it.
//!
//! All waiting commands go into one transaction, so that many small events cost little more than one. No reader or
//! caller learns of a write before its transaction is committed. When the disk refuses, the batch is kept and tried
//! again: the order never changes and nothing is half written. A caller with a few small events commits them on its own
//! thread if nothing else waits, because waking the writer's thread and being woken by it takes longer than the commit.

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::blobs::Blobs;
use super::commands::{Command, Group, Request, Work};
use super::crash::CrashAt;
use super::durability::{Durability, OnRefusal, WriteError};
use super::error::{JournalError, WriteTrouble};
use super::event_log::LogState;
use super::schema;
use crate::panics::CrashCounter;
use crate::protocol::problem::Problem;
use crate::security_controls;

/// Requests (commands other than events) that may be queued; further callers wait for a permit.
pub(super) const REQUESTS_WAITING: usize = 256;
/// Commands and bytes in one transaction.
const BATCH_COMMANDS: usize = 4_096;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// The most commands and bytes that a caller commits on its own thread.
const FEW_COMMANDS: usize = 8;
const FEW_BYTES: usize = 64 * 1024;
/// Bytes of the write-ahead log, as callers have filled it, after which the writer's thread moves it into the database,
/// and what a command adds to it, about, apart from its own bytes. `SQLite` does so by itself only within commits of that
/// thread, because it takes long.
pub(super) const CHECKPOINT_BYTES: usize = 4 * 1024 * 1024;
pub(super) const COMMAND_LOG_BYTES: usize = 16 * 1024;
/// Time between two tries while the disk refuses.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is told by somebody else")]
struct QueuedCommands {
    commands: VecDeque<Command>,
    /// The previous batch overtook a large command; the next batch is that command alone.
    large_is_next: bool,
    closing: bool,
    /// The writer's thread has something to do besides the commands: a batch that a caller could not commit, or a
    /// checkpoint.
    unfinished: bool,
    /// The writer has ended; nothing will be written any more.
    ended: bool,
}

impl QueuedCommands {
    /// Whether no more commands are taken.
    fn is_over(&self) -> bool {
        self.ended || self.closing
    }

    fn is_idle(&self) -> bool {
        self.commands.is_empty() && !self.unfinished && !self.closing
    }

    /// All commands, if they are so few and small that they are committed in no time.
    fn take_few(&mut self) -> Option<VecDeque<Command>> {
        let is_small = |command: &Command| {
            matches!(command, Command::Events(_))
                && command.durability() == Durability::Normal
                && !command.is_large()
        };
        let are_few = self.commands.len() <= FEW_COMMANDS
            && self.commands.iter().all(is_small)
            && self.commands.iter().map(Command::cost).sum::<usize>() <= FEW_BYTES;
        are_few.then(|| std::mem::take(&mut self.commands))
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

/// The queue that the writer's thread shares with all callers that write. Whoever takes commands from it holds the
/// writer, so that they are written in the order in which they were queued.
pub(super) struct Queue {
    writer: Mutex<Option<Writer>>,
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
    pub fn new(writer: Writer) -> Self {
        Self {
            writer: Mutex::new(Some(writer)),
            waiting: Mutex::default(),
            work: Condvar::new(),
            requests: Semaphore::new(REQUESTS_WAITING),
            trouble: Mutex::default(),
            #[cfg(test)]
            batches: Mutex::default(),
        }
    }

    /// Queues events without blocking, all at once, so that they get into one transaction. Returns the events if the
    /// journal is closed. They are written after a call of `wake` or `commit_here`.
    pub fn push_events(&self, groups: Vec<Group>) -> Result<(), Vec<Group>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_over() {
            return Err(groups);
        }
        waiting.commands.extend(groups.into_iter().map(Command::Events));
        Ok(())
    }

    /// Has the writer's thread write what is queued.
    pub fn wake(&self) {
        self.work.notify_one();
    }

    /// Commits what is queued on this thread if that is little and nothing else is being written, and otherwise wakes the
    /// writer's thread. To be called without any lock that a callback of an event takes.
    pub fn commit_here(&self) {
        let is_done = self.writer.try_lock().is_some_and(|mut writer| {
            let may_write = self.trouble.lock().is_none();
            may_write && writer.as_mut().is_some_and(|writer| writer.write_few(self))
        });
        if !is_done {
            self.wake();
        }
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

    /// Waits until the writer's thread has something to do.
    fn wait_for_work(&self) {
        let mut waiting = self.waiting.lock();
        self.work.wait_while(&mut waiting, |waiting| waiting.is_idle());
        waiting.unfinished = false;
    }

    /// The next batch, which may be empty, or `None` once the queue is closed and empty.
    fn take(&self) -> Option<Vec<Command>> {
        let mut waiting = self.waiting.lock();
        let QueuedCommands { commands, large_is_next, .. } = &mut *waiting;
        let batch = next_batch(commands, large_is_next);
        (!batch.is_empty() || !waiting.closing).then_some(batch)
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

    #[cfg(test)]
    fn note_batch(&self, durability: Durability, size: usize) {
        self.batches.lock().push((durability, size));
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "only tests keep batches")]
    fn note_batch(&self, _: Durability, _: usize) {}

    fn end(&self) {
        let rest = {
            let mut waiting = self.waiting.lock();
            (waiting.ended, waiting.closing) = (true, true);
            std::mem::take(&mut waiting.commands)
        };
        self.trouble.lock().get_or_insert(WriteTrouble::Closed);
        self.requests.close();
        let unwritten = self.writer.lock().take().map(|writer| writer.batch.commands);
        unwritten.into_iter().flatten().chain(rest).for_each(Command::abandon);
    }
}

/// The connection that writes, and the batch that it writes.
pub(super) struct Writer {
    connection: Connection,
    blobs: Blobs,
    durability: Durability,
    crash: CrashAt,
    /// The batch being written. After a panic, a batch that is not committed is written again, and of a committed batch
    /// the remaining callers are notified.
    batch: Batch,
    /// Bytes in the write-ahead log since it was last moved into the database, about.
    log_bytes: usize,
    /// Whether a commit moves the write-ahead log into the database when it is large.
    checkpoints: bool,
}

/// Commands that are committed together.
#[derive(Default)]
struct Batch {
    commands: VecDeque<Command>,
    /// The transaction is committed: only the waiting callers remain to be notified, and nothing is written again.
    is_committed: bool,
}

/// Runs on the writer's thread until the journal is closed. `failed` is cancelled when this process can never write the
/// journal again.
pub(super) fn run(queue: &Queue, failed: &CancellationToken) {
    // Dropping `end` releases all waiting callers, however this function returns.
    let end = EndOnDrop(queue);
    let mut deaths = CrashCounter::default();
    while std::panic::catch_unwind(AssertUnwindSafe(|| queue.write_until_closed())).is_err() {
        if deaths.one_more() || !security_controls::holds("writer_lives_on") {
            tracing::error!("the journal's writer panicked too often; the daemon ends");
            *queue.trouble.lock() = Some(WriteTrouble::Failed);
            failed.cancel();
            return;
        }
        tracing::error!("the journal's writer panicked, and goes on");
    }
    if let Some(writer) = queue.writer.lock().as_mut() {
        writer.close();
    }
    drop(end);
}

impl Queue {
    fn write_until_closed(&self) {
        // After a panic there is a batch to finish, so the writer looks before it waits.
        while self.writer.lock().as_mut().is_some_and(|writer| writer.write_next(self)) {
            self.wait_for_work();
        }
    }
}

impl Writer {
    pub fn new(connection: Connection, blobs: Blobs) -> Self {
        Self {
            connection,
            blobs,
            durability: Durability::Normal,
            crash: CrashAt::of_this_process(),
            batch: Batch::default(),
            log_bytes: 0,
            checkpoints: true,
        }
    }

    /// Writes a batch on the writer's thread. False once the journal is closed and all is written.
    fn write_next(&mut self, queue: &Queue) -> bool {
        if self.batch.commands.is_empty() && !self.batch.is_committed {
            let Some(commands) = queue.take() else { return false };
            self.batch.commands = commands.into();
        }
        if !self.batch.commands.is_empty() || self.batch.is_committed {
            crate::panics::panic_if_requested("writer");
            if !self.write(queue) {
                return false;
            }
        }
        if self.log_bytes >= CHECKPOINT_BYTES {
            self.checkpoint();
        }
        true
    }

    /// Commits what is queued on a caller's thread. False if that is left to the writer's thread.
    fn write_few(&mut self, queue: &Queue) -> bool {
        if !self.batch.commands.is_empty() || self.batch.is_committed {
            return false;
        }
        let Some(commands) = queue.waiting.lock().take_few() else { return false };
        if commands.is_empty() {
            return true;
        }
        self.batch.commands = commands;
        // After a panic here the batch is left to the writer's thread, which counts its own panics alone.
        let attempt = std::panic::catch_unwind(AssertUnwindSafe(|| {
            crate::panics::panic_if_requested("writer");
            self.attempt(false)?;
            self.tell_committed(queue);
            Ok::<_, WriteError>(())
        }));
        let is_done = matches!(attempt, Ok(Ok(()))) && self.log_bytes < CHECKPOINT_BYTES;
        queue.waiting.lock().unfinished |= !is_done;
        is_done
    }

    /// Moves the write-ahead log into the database and empties it. `SQLite` would do so when the last connection closes,
    /// and the readers' connections stay open.
    fn close(&self) {
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::debug!(%error, "the write-ahead log stays for the next start");
        }
    }

    /// Moves the write-ahead log into the database.
    fn checkpoint(&mut self) {
        self.log_bytes = 0;
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        // The first commit after that waits for the disk, so it is made here.
        if let Err(error) = moved.and_then(|()| schema::rewrite_version(&self.connection)) {
            tracing::debug!(%error, "the write-ahead log stays for the next time");
        }
    }

    /// False if the batch was given up because the journal is closed while the disk refuses.
    fn write(&mut self, queue: &Queue) -> bool {
        while !self.batch.is_committed {
            let Err(error) = self.attempt(true) else { break };
            let reason = error.to_string();
            let known = queue.trouble.lock().replace(WriteTrouble::Refused(reason.clone())).is_some();
            if !known {
                tracing::error!(%error, "the journal cannot be written; trying again until it can");
            }
            self.batch.refuse_impatient(&reason);
            if !queue.wait_to_retry() {
                let lost = std::mem::take(&mut self.batch.commands);
                tracing::error!(lost = lost.len(), "the journal is closed while it cannot be written");
                lost.into_iter().for_each(Command::abandon);
                return false;
            }
        }
        if queue.trouble.lock().take().is_some() {
            tracing::info!("the journal can be written again");
        }
        self.tell_committed(queue);
        true
    }

    /// Notifies the callers of a batch that is in the journal.
    fn tell_committed(&mut self, queue: &Queue) {
        self.batch.is_committed = true;
        queue.note_batch(self.durability, self.batch.commands.len());
        while let Some(command) = self.batch.commands.pop_front() {
            command.committed();
        }
        self.batch = Batch::default();
    }

    fn attempt(&mut self, checkpoints: bool) -> Result<(), WriteError> {
        let batch = &mut self.batch.commands;
        if checkpoints != self.checkpoints {
            let pages = if checkpoints { schema::CHECKPOINT_PAGES } else { 0 };
            self.connection.query_row(&format!("PRAGMA wal_autocheckpoint = {pages}"), [], |_| Ok(()))?;
            self.checkpoints = checkpoints;
        }
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
        let log_bytes: usize = batch.iter().map(|command| command.cost() + COMMAND_LOG_BYTES).sum();
        self.log_bytes = self.log_bytes.saturating_add(log_bytes);
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

struct EndOnDrop<'a>(&'a Queue);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
