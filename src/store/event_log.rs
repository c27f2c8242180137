//! The events of one session: appended in order, visible once they are committed to the journal, read by sequence
//! number. A reader that waits for more events watches the newest number.

mod append_together;
mod payment;
mod read;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

use super::account::{Account, Exceeded, RESERVE_FOR_ENDS_BYTES, ROW_BYTES, UnlimitedAccount};
use super::commands::{self, Group};
use super::durability::Durability;
use super::idempotency::KeyTarget;
use super::journal::Core;
use super::lane::WriteBacklog;
use super::rows::{AppliedFrame, Content, Entry, RecorderState, Row};
use super::spill::Range;
use crate::memory::{Charge, MemoryPurpose, Pool, TINY_BYTES};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SandboxId, Seq, SessionId};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::problem::Problem;
use crate::protocol::result::Stream;

pub use payment::Payment;

/// How many events and bytes of one session are served from memory; older events are read from the file.
const TAIL_EVENTS: usize = 1_024;
const TAIL_BYTES: usize = 1024 * 1024;
/// The most bytes of events that one read brings into memory, not counting the first event.
const READ_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes of an event before its body: its sequence number and its time.
const HEAD_BYTES: u64 = 64;
/// When the owner's quota is exhausted, an event larger than this is written without its large fields.
const LEAN_BYTES: usize = 4 * 1024;

/// A handle on the log of one session. All handles of a session share their state.
pub struct EventLog {
    state: Arc<LogState>,
    core: Arc<Core>,
    spill: PathBuf,
}

/// The state that a log's handles and the writer share. It holds no reference to `Core`, so it does not keep the
/// journal open.
pub(super) struct LogState {
    session: SessionId,
    inner: Mutex<Inner>,
    newest: watch::Sender<Seq>,
    bill: Mutex<Bill>,
    /// The backlog of the owner, which counts the waiting events of all sessions of that owner.
    lane: OnceLock<Arc<WriteBacklog>>,
    /// The owner's share of the memory, to which events are charged.
    memory: OnceLock<Pool>,
    /// The most recent refusal of something that the sandbox sent, with the sentence for its owner.
    exceeded: watch::Sender<Option<Exceeded>>,
}

/// The bytes that a session has on the disk, and the account that pays for them. Until `EventLog::charge_to` names
/// one, this is a `Free` account.
struct Bill {
    account: Arc<dyn Account>,
    bytes: u64,
}

struct Inner {
    /// The sequence number of the next event.
    next: Seq,
    /// Everything up to here is committed.
    committed: Seq,
    /// The sequence number of the first event in the tail.
    first: Seq,
    tail: VecDeque<Arc<Entry>>,
    /// Bytes of the tail.
    bytes: usize,
    /// Bytes written beyond what the account allows.
    reserve_used: u64,
    received: HashMap<SandboxId, u64>,
    /// What waits for the end of [`EventLog::together`].
    batched: Option<Vec<Group>>,
    closed: bool,
    /// The journal ended before it had written everything.
    abandoned: bool,
}

/// The events asked for are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events up to {} are no longer kept", first - 1)]
pub struct EventsGone {
    pub first: Seq,
}

/// An event that has no number yet.
pub(super) struct Draft {
    pub body: DraftBody,
    pub applied: Option<AppliedFrame>,
    pub recorder_state: Option<RecorderState>,
}

pub(super) enum DraftBody {
    Event(EventBody),
    Output { cell: Option<CellNumber>, stream: Stream, range: Range },
}

impl Draft {
    fn of(body: EventBody, applied: Option<AppliedFrame>) -> Self {
        Self { body: DraftBody::Event(body), applied, recorder_state: None }
    }

    fn entry(body: DraftBody, seq: Seq) -> Entry {
        let at = crate::protocol::clock::now();
        match body {
            DraftBody::Event(body) => {
                let (cell, name) = (body.cell(), body.name());
                let event = Event { seq, at: at.clone(), body };
                let json = serde_json::to_string(&event).unwrap_or_default();
                Entry { at, cell, name: name.into(), content: Content::Json(json.into()) }
            }
            DraftBody::Output { cell, stream, range } => {
                let content = Content::Output { stream, start: range.start, bytes: range.bytes };
                Entry { at, cell, name: "output".into(), content }
            }
        }
    }
}

/// Options for appending events.
struct AppendOptions {
    durability: Durability,
    aim: Option<KeyTarget>,
    paid: Option<Payment>,
    on_commit: Option<Box<dyn FnOnce() + Send>>,
}

impl Default for AppendOptions {
    fn default() -> Self {
        Self { durability: Durability::Normal, aim: None, paid: None, on_commit: None }
    }
}

impl AppendOptions {
    fn then(on_commit: impl FnOnce() + Send + 'static) -> Self {
        Self { on_commit: Some(Box::new(on_commit)), ..Self::default() }
    }
}

/// Drops the large fields of an event for which its owner's quota has no room.
fn lean(entry: Entry) -> Entry {
    match &entry.content {
        Content::Json(json) if json.len() > LEAN_BYTES => {
            let Ok(Event { seq, at, body }) = serde_json::from_str(json) else { return entry };
            let event = Event { seq, at, body: body.lean() };
            let json = serde_json::to_string(&event).unwrap_or_default();
            Entry { content: Content::Json(json.into()), ..entry }
        }
        _ => entry,
    }
}

impl EventLog {
    pub(super) fn new(state: Arc<LogState>, core: Arc<Core>) -> Self {
        let spill = core.spill_folder(state.session);
        Self { state, core, spill }
    }

    pub fn session(&self) -> SessionId {
        self.state.session
    }

    /// The folder where the output of this session's cells must be stored, because its events refer to files there.
    pub fn spill_folder(&self) -> &Path {
        &self.spill
    }

    /// Numbers an event and queues it for writing. Readers see it once it is committed.
    pub fn append(&self, body: EventBody) -> Seq {
        self.push(vec![Draft::of(body, None)], AppendOptions::default())
    }

    /// Like [`Self::append`], and records which frame of a kernel caused the event.
    pub fn append_applied(&self, body: EventBody, applied: AppliedFrame) -> Seq {
        self.push(vec![Draft::of(body, Some(applied))], AppendOptions::default())
    }

    /// Like [`Self::append_applied`]; `on_commit` runs once the event is committed and visible, on the thread that
    /// committed it.
    /// The callback must not block. It is dropped without being run if the journal closes first.
    pub fn append_then(
        &self,
        body: EventBody,
        applied: Option<AppliedFrame>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(vec![Draft::of(body, applied)], AppendOptions::then(on_commit))
    }

    /// Like [`Self::append_then`], for the paid event that starts the work of a request. If the request has an
    /// idempotency key, the same transaction records the key's target, so the key never leads to something that does
    /// not exist.
    pub fn append_keyed_then(
        &self,
        body: EventBody,
        paid: Payment,
        aim: Option<KeyTarget>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(
            vec![Draft::of(body, None)],
            AppendOptions { aim, paid: Some(paid), ..AppendOptions::then(on_commit) },
        )
    }

    /// Like [`Self::append_then`], for an intent whose effect is outside the journal: when `on_commit` runs, the event
    /// survives what `durability` says.
    pub fn append_intent_then(
        &self,
        durability: Durability,
        body: EventBody,
        paid: Option<Payment>,
        applied: Option<AppliedFrame>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        let options = AppendOptions { durability, paid, ..AppendOptions::then(on_commit) };
        self.push(vec![Draft::of(body, applied)], options)
    }

    /// Appends several events that are committed together or not at all; returns the number of the last.
    pub(super) fn append_group(&self, drafts: Vec<Draft>) -> Seq {
        self.push(drafts, AppendOptions::default())
    }

    /// Appends one event that is already paid for.
    pub(super) fn append_paid(&self, draft: Draft, paid: Payment) -> Seq {
        self.push(vec![draft], AppendOptions { paid: Some(paid), ..AppendOptions::default() })
    }

    fn push(&self, drafts: Vec<Draft>, options: AppendOptions) -> Seq {
        let AppendOptions { durability, aim, mut paid, on_commit } = options;
        let mut inner = self.state.inner.lock();
        let mut rows = Vec::with_capacity(drafts.len());
        for Draft { body, applied, recorder_state } in drafts {
            let seq = inner.next;
            let entry = Arc::new(self.charged(&mut inner, Draft::entry(body, seq), paid.take()));
            inner.next += 1;
            inner.bytes += entry.cost();
            inner.tail.push_back(Arc::clone(&entry));
            rows.push(Row { session: self.state.session, seq, entry, applied, recorder_state });
        }
        let newest = inner.next - 1;
        if let Some(lane) = self.state.lane.get() {
            lane.enter(waiting_bytes(&rows));
        }
        let memory = self.in_memory(waiting_bytes(&rows) as u64);
        // Pushed while the lock is held, so that the writer gets the events in the order of their numbers.
        let group = Group { log: Arc::clone(&self.state), rows, durability, aim, on_commit, memory };
        match &mut inner.batched {
            Some(batched) => batched.push(group),
            None => {
                if self.send(inner, vec![group]) {
                    self.core.queue.wake();
                }
            }
        }
        newest
    }

    /// Queues events for the writer, which `wake` has to tell of it. False if the journal is closed.
    fn send(&self, mut inner: MutexGuard<'_, Inner>, groups: Vec<Group>) -> bool {
        let Err(refused) = self.core.queue.push_events(groups) else { return true };
        // An abandoned log never counts as crowded, so the bytes that it leaves in the lane do no harm to this session.
        inner.abandoned = true;
        drop(inner);
        self.state.newest.send_modify(|_| {});
        drop(refused);
        false
    }

    /// Charges waiting events to memory even beyond the limit: the request behind a large event was charged before, or
    /// the event is small.
    fn in_memory(&self, bytes: u64) -> Option<Charge> {
        let pool = self.memory().filter(|_| bytes > TINY_BYTES)?;
        Some(pool.charge_anyway(MemoryPurpose::Events, bytes))
    }

    /// An event always gets its sequence number. If its owner's quota has no room, the event is written without its
    /// large fields at the expense of the session's reserve, and the executor that watches over the sandbox is
    /// notified.
    fn charged(&self, inner: &mut Inner, entry: Entry, paid: Option<Payment>) -> Entry {
        let Content::Json(json) = &entry.content else { return entry };
        if let Some(paid) = paid {
            paid.keep();
            return entry;
        }
        match self.charge(json.len() as u64 + ROW_BYTES) {
            Ok(()) => {
                inner.reserve_used = 0;
                entry
            }
            Err(exceeded) => {
                let is_large = json.len() > LEAN_BYTES;
                let entry = lean(entry);
                let bytes = entry.cost() as u64 + ROW_BYTES;
                inner.reserve_used = inner.reserve_used.saturating_add(bytes);
                // Many small events are as much as a large one.
                if is_large || inner.reserve_used > RESERVE_FOR_ENDS_BYTES {
                    self.tell_exceeded(exceeded);
                }
                self.state.bill.lock().charge_anyway(bytes);
                entry
            }
        }
    }

    /// Declares that no more events will be appended, so that readers at the end stop waiting.
    pub fn close(&self) {
        self.state.inner.lock().closed = true;
        self.state.newest.send_modify(|_| {});
    }

    /// Whether no further event will become visible.
    pub fn is_closed(&self) -> bool {
        let inner = self.state.inner.lock();
        inner.abandoned || (inner.closed && inner.lag() == 0)
    }

    /// The sequence number of the newest committed event.
    pub fn newest(&self) -> Seq {
        *self.state.newest.borrow()
    }

    /// A receiver that changes with each commit, including one since the receiver was last looked at.
    pub fn watch(&self) -> watch::Receiver<Seq> {
        self.state.newest.subscribe()
    }

    /// Events that are appended and not committed yet.
    pub fn lag(&self) -> usize {
        usize::try_from(self.state.inner.lock().lag()).unwrap_or(usize::MAX)
    }

    /// Whether appended events wait that cannot be written at the moment.
    pub fn is_stuck(&self) -> bool {
        self.core.queue.healthy().is_err() && self.lag() > 0
    }

    /// The problem of an outcome that the journal does not have.
    pub fn unwritten(&self, outcome: &str) -> Problem {
        self.core.queue.unwritten(outcome)
    }

    /// Waits until all events appended so far are committed, or the log is abandoned.
    pub async fn flushed(&self) {
        let last = self.state.inner.lock().next - 1;
        self.until(|inner| inner.committed >= last).await;
    }

    /// Whether all events appended so far are committed, now or within `JOURNAL_TIMEOUT`.
    pub async fn is_flushed(&self) -> bool {
        let last = self.state.inner.lock().next - 1;
        let _ = tokio::time::timeout(JOURNAL_TIMEOUT, self.flushed()).await;
        self.newest() >= last
    }

    async fn until(&self, reached: impl Fn(&Inner) -> bool) {
        let mut watch = self.watch();
        loop {
            watch.borrow_and_update();
            {
                let inner = self.state.inner.lock();
                if inner.abandoned || reached(&inner) {
                    return;
                }
            }
            if watch.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Inner {
    fn lag(&self) -> u64 {
        self.next - 1 - self.committed
    }

    /// Drops the oldest committed events beyond the limits. Uncommitted events stay, because they exist only in memory.
    fn trim(&mut self) {
        while self.first <= self.committed && (self.tail.len() > TAIL_EVENTS || self.bytes > TAIL_BYTES) {
            let Some(oldest) = self.tail.pop_front() else { break };
            self.bytes -= oldest.cost();
            self.first += 1;
        }
    }
}

fn waiting_bytes(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.entry.cost() + commands::ROW_BYTES).sum()
}

impl LogState {
    pub fn new(session: SessionId, newest: Seq, received: Vec<AppliedFrame>, stored: u64) -> Self {
        let inner = Inner {
            next: newest + 1,
            committed: newest,
            first: newest + 1,
            tail: VecDeque::new(),
            bytes: 0,
            reserve_used: 0,
            received: received.into_iter().map(|applied| (applied.sandbox, applied.received)).collect(),
            batched: None,
            closed: false,
            abandoned: false,
        };
        Self {
            session,
            inner: Mutex::new(inner),
            newest: watch::Sender::new(newest),
            bill: Mutex::new(Bill { account: Arc::new(UnlimitedAccount), bytes: stored }),
            lane: OnceLock::new(),
            memory: OnceLock::new(),
            exceeded: watch::Sender::new(None),
        }
    }

    /// Makes committed rows visible. Only the writer calls this, in the order of the sequence numbers.
    pub fn publish(&self, rows: &[Row]) {
        let mut inner = self.inner.lock();
        for row in rows {
            inner.committed = row.seq;
            if let Some(applied) = &row.applied {
                match inner.received.get_mut(&applied.sandbox) {
                    Some(highest) => *highest = applied.received.max(*highest),
                    None => drop(inner.received.insert(applied.sandbox.clone(), applied.received)),
                }
            }
        }
        inner.trim();
        if let Some(lane) = self.lane.get() {
            lane.leave(waiting_bytes(rows));
        }
        self.newest.send_replace(inner.committed);
    }

    /// Marks the log as abandoned: its waiting rows will never be committed.
    pub fn abandon(&self) {
        self.inner.lock().abandoned = true;
        self.newest.send_modify(|_| {});
    }
}
