//! The events of one session: appended in order, visible once the journal has them, read by
//! sequence number. Whoever waits for more watches the newest number.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

use super::account::{Account, Exceeded, Free, ROW_BYTES, SESSION_RESERVE_BYTES};
use super::idempotency::Aim;
use super::journal::Core;
use super::lane::Lane;
use super::rows::{self, Applied, Carry, Content, Entry, Recorded, Rendered, Row};
use super::spill::Range;
use super::writer::{self, Durability, Group, JournalError};
use crate::controls;
use crate::memory::{Charge, Pool, TINY_BYTES, Use};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SandboxId, Seq, SessionId};
use crate::protocol::result::Stream;

/// Events and their bytes of one session that are served from memory; older ones come from the file.
const TAIL_EVENTS: usize = 1_024;
const TAIL_BYTES: usize = 1024 * 1024;
/// Bytes of events that one read brings into memory, after the first event.
const READ_BYTES: u64 = 4 * 1024 * 1024;
/// What an event has before its body: its number and its time.
const HEAD_BYTES: u64 = 64;
/// An event that is larger is written without what is large about it where there is no room.
const LEAN_BYTES: usize = 4 * 1024;

/// A handle on the log of one session. All handles of a session share their state.
pub struct EventLog {
    state: Arc<LogState>,
    core: Arc<Core>,
    spill: PathBuf,
}

/// What the handles and the writer share. It does not hold the journal open.
pub(super) struct LogState {
    session: SessionId,
    inner: Mutex<Inner>,
    newest: watch::Sender<Seq>,
    bill: Mutex<Bill>,
    /// Where its events wait, together with those of its owner's other sessions.
    lane: OnceLock<Arc<Lane>>,
    /// Whose memory its events take.
    memory: OnceLock<Pool>,
    /// The last time that something of the sandbox's was too much, as it is told.
    exceeded: watch::Sender<Option<Exceeded>>,
}

/// What is on the disk of a session, and who pays for it: nobody until somebody is named.
struct Bill {
    account: Arc<dyn Account>,
    bytes: u64,
}

struct Inner {
    /// Number of the next event.
    next: Seq,
    /// Everything up to here is committed.
    committed: Seq,
    /// Number of the first event in the tail.
    first: Seq,
    tail: VecDeque<Arc<Entry>>,
    /// Bytes of the tail.
    bytes: usize,
    /// Bytes that were written beyond what the account allows.
    reserve_used: u64,
    received: HashMap<SandboxId, u64>,
    closed: bool,
    /// The journal ended before it had written everything.
    abandoned: bool,
}

/// An event that is charged and not appended yet.
pub struct Paid {
    state: Arc<LogState>,
    bytes: u64,
}

impl Paid {
    /// What was charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The event is appended: what was charged for it stays charged.
    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        self.state.bill().refund(self.bytes);
    }
}

/// The events asked for are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events up to {} are no longer kept", first - 1)]
pub struct Gone {
    pub first: Seq,
}

/// An event that has no number yet.
pub(super) struct Draft {
    pub body: DraftBody,
    pub applied: Option<Applied>,
    pub carry: Option<Carry>,
}

pub(super) enum DraftBody {
    Event(EventBody),
    Output { cell: Option<CellNumber>, stream: Stream, range: Range },
}

impl Draft {
    fn of(body: EventBody, applied: Option<Applied>) -> Self {
        Self { body: DraftBody::Event(body), applied, carry: None }
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

/// How events are appended.
struct How {
    durability: Durability,
    aim: Option<Aim>,
    paid: Option<Paid>,
    on_commit: Option<Box<dyn FnOnce() + Send>>,
}

impl Default for How {
    fn default() -> Self {
        Self { durability: Durability::Normal, aim: None, paid: None, on_commit: None }
    }
}

impl How {
    fn then(on_commit: impl FnOnce() + Send + 'static) -> Self {
        Self { on_commit: Some(Box::new(on_commit)), ..Self::default() }
    }
}

/// The event as it is written where there is no room for all of it.
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

    /// From here on whatever is written is charged to the account of its owner, and what is there already.
    pub fn charge_to(&self, owner: u32, account: Arc<dyn Account>, memory: Pool) {
        let _ = self.state.lane.set(self.core.lane(owner));
        let _ = self.state.memory.set(memory);
        let mut bill = self.state.bill();
        account.open(bill.bytes);
        bill.account = account;
    }

    /// Its owner's part of the memory, if it has an owner.
    #[must_use]
    pub fn memory(&self) -> Option<&Pool> {
        self.state.memory.get()
    }

    /// Whether more of its owner waits to be written than may.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.state.lane.get().is_some_and(|lane| lane.is_full())
            && !self.state.lock().abandoned
            && controls::holds("writer_lane")
    }

    /// Waits until less of its owner waits to be written, or never will be.
    pub async fn room(&self) {
        let Some(lane) = self.state.lane.get() else { return };
        let (mut waiting, mut newest) = (lane.watch(), self.watch());
        while self.is_crowded() {
            let changed = tokio::select! {
                changed = waiting.changed() => changed.is_ok(),
                changed = newest.changed() => changed.is_ok(),
            };
            if !changed {
                return;
            }
        }
    }

    /// For bytes that are about to be written beside the log, such as output. An error if it is too much.
    pub fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        if controls::holds("journal_charge") {
            self.state.bill().charge(bytes)
        } else {
            self.state.bill().charge_anyway(bytes);
            Ok(())
        }
    }

    /// Whether so many bytes could be written now.
    pub fn has_room(&self, bytes: u64) -> Result<(), Exceeded> {
        self.charge(bytes)?;
        self.refund(bytes);
        Ok(())
    }

    /// For bytes that are not on the disk any more, or never came to be.
    pub fn refund(&self, bytes: u64) {
        self.state.bill().refund(bytes);
    }

    /// Whether anything but an end can still be written of this session.
    pub fn has_reserve(&self) -> Result<(), Exceeded> {
        let used = self.state.lock().reserve_used;
        if used <= SESSION_RESERVE_BYTES / 2 { Ok(()) } else { self.charge(0) }
    }

    /// Charges an event before anything is done for it. What is paid and not appended is given back.
    pub fn pay_for(&self, body: &EventBody) -> Result<Paid, Exceeded> {
        let bytes = serde_json::to_string(body).map_or(0, |json| json.len() as u64) + HEAD_BYTES + ROW_BYTES;
        self.charge(bytes)?;
        Ok(Paid { state: Arc::clone(&self.state), bytes })
    }

    /// Something that the sandbox sent was too much: whoever watches over it hears of that.
    pub fn tell_exceeded(&self, exceeded: Exceeded) {
        self.state.exceeded.send_replace(Some(exceeded));
    }

    /// Marks each time that something of the sandbox's was too much.
    #[must_use]
    pub fn watch_exceeded(&self) -> watch::Receiver<Option<Exceeded>> {
        self.state.exceeded.subscribe()
    }

    #[must_use]
    pub fn session(&self) -> SessionId {
        self.state.session
    }

    /// Where the output of this session's cells has to be, so that its events find it.
    #[must_use]
    pub fn spill_folder(&self) -> &Path {
        &self.spill
    }

    /// Numbers an event and has it written. Readers see it when it is committed.
    pub fn append(&self, body: EventBody) -> Seq {
        self.push(vec![Draft::of(body, None)], How::default())
    }

    /// Likewise, as the effect of a kernel's frame.
    pub fn append_applied(&self, body: EventBody, applied: Applied) -> Seq {
        self.push(vec![Draft::of(body, Some(applied))], How::default())
    }

    /// Likewise; `on_commit` runs on the writer's thread once the event is committed and visible.
    /// It must not block. It is dropped unrun if the journal is closed before.
    pub fn append_then(
        &self,
        body: EventBody,
        applied: Option<Applied>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(vec![Draft::of(body, applied)], How::then(on_commit))
    }

    /// Like [`Self::append_then`], for an event that begins what a request is about and was paid for. If the
    /// request has a key, that leads there as soon as there is anything to be found, and not before.
    pub fn append_aimed_then(
        &self,
        body: EventBody,
        paid: Paid,
        aim: Option<Aim>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(vec![Draft::of(body, None)], How { aim, paid: Some(paid), ..How::then(on_commit) })
    }

    /// Like [`Self::append_then`], for an intent whose effect is outside of the journal: when
    /// `on_commit` runs, not even a loss of power can make it unsaid.
    pub fn append_durably_then(
        &self,
        body: EventBody,
        paid: Option<Paid>,
        applied: Option<Applied>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        let how = How { durability: Durability::Full, paid, ..How::then(on_commit) };
        self.push(vec![Draft::of(body, applied)], how)
    }

    /// Several that are committed together or not at all; the number of the last.
    pub(super) fn append_group(&self, drafts: Vec<Draft>) -> Seq {
        self.push(drafts, How::default())
    }

    /// One that was paid for.
    pub(super) fn append_paid(&self, draft: Draft, paid: Paid) -> Seq {
        self.push(vec![draft], How { paid: Some(paid), ..How::default() })
    }

    fn push(&self, drafts: Vec<Draft>, how: How) -> Seq {
        let How { durability, aim, mut paid, on_commit } = how;
        let mut inner = self.state.lock();
        let mut rows = Vec::with_capacity(drafts.len());
        for Draft { body, applied, carry } in drafts {
            let seq = inner.next;
            let entry = Arc::new(self.charged(&mut inner, Draft::entry(body, seq), paid.take()));
            inner.next += 1;
            inner.bytes += entry.cost();
            inner.tail.push_back(Arc::clone(&entry));
            rows.push(Row { session: self.state.session, seq, entry, applied, carry });
        }
        let newest = inner.next - 1;
        if let Some(lane) = self.state.lane.get() {
            lane.enter(waiting_bytes(&rows));
        }
        let memory = self.in_memory(waiting_bytes(&rows) as u64);
        // Under the lock, so that the writer gets the events in the order of their numbers.
        let group = Group { log: Arc::clone(&self.state), rows, durability, aim, on_commit, memory };
        let refused = self.core.queue.push_events(group).err();
        if refused.is_some() {
            // Nothing is read from a sandbox for its sake any more, so what it left in the lane is of no account.
            inner.abandoned = true;
        }
        drop(inner);
        if refused.is_some() {
            self.state.newest.send_modify(|_| {});
        }
        newest
    }

    /// What waits to be written is charged in any case: whoever caused it was charged before, or sent little.
    fn in_memory(&self, bytes: u64) -> Option<Charge> {
        let pool = self.memory().filter(|_| bytes > TINY_BYTES)?;
        Some(pool.charge_anyway(Use::Events, bytes))
    }

    /// An event always gets its place. Where its owner has no room for it, it is written without what is large
    /// about it, at the expense of the session's reserve, and whoever watches over the sandbox hears of it.
    fn charged(&self, inner: &mut Inner, entry: Entry, paid: Option<Paid>) -> Entry {
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
                if json.len() > LEAN_BYTES {
                    self.tell_exceeded(exceeded);
                }
                let entry = lean(entry);
                let bytes = entry.cost() as u64 + ROW_BYTES;
                inner.reserve_used = inner.reserve_used.saturating_add(bytes);
                self.state.bill().charge_anyway(bytes);
                entry
            }
        }
    }

    /// No more events will come; readers at the end stop waiting.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.state.newest.send_modify(|_| {});
    }

    /// No more events will become visible.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let inner = self.state.lock();
        inner.abandoned || (inner.closed && inner.lag() == 0)
    }

    /// Number of the newest event that is committed.
    #[must_use]
    pub fn newest(&self) -> Seq {
        *self.state.newest.borrow()
    }

    /// Marks each commit, also one that happened since the receiver was last looked at.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Seq> {
        self.state.newest.subscribe()
    }

    /// Events that are appended and not committed yet.
    #[must_use]
    pub fn lag(&self) -> usize {
        usize::try_from(self.state.lock().lag()).unwrap_or(usize::MAX)
    }

    /// Why what is appended cannot be written at the moment, if that is so.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        self.core.queue.healthy().err().filter(|_| self.lag() > 0)
    }

    /// Waits until at most that many events are not committed, or never will be.
    pub async fn settled(&self, at_most: usize) {
        self.until(|inner| inner.lag() <= at_most as u64).await;
    }

    /// Waits until everything that is appended now is committed, or never will be.
    pub async fn flushed(&self) {
        let last = self.state.lock().next - 1;
        self.until(|inner| inner.committed >= last).await;
    }

    async fn until(&self, reached: impl Fn(&Inner) -> bool) {
        let mut watch = self.watch();
        loop {
            watch.borrow_and_update();
            {
                let inner = self.state.lock();
                if inner.abandoned || reached(&inner) {
                    return;
                }
            }
            if watch.changed().await.is_err() {
                return;
            }
        }
    }

    /// The highest number of that sandbox's frames whose effect is committed; 0 if there is none.
    #[must_use]
    pub fn received(&self, sandbox: &SandboxId) -> u64 {
        self.state.lock().received.get(sandbox).copied().unwrap_or(0)
    }

    /// At most `limit` events after that number. Fewer do not mean that there are no more.
    pub fn read(&self, after: Seq, limit: usize) -> Result<Vec<Rendered>, Gone> {
        self.read_within(after, limit, READ_BYTES)
    }

    /// The same, and at most so many bytes of them, but one in any case.
    pub fn read_within(&self, after: Seq, limit: usize, most_bytes: u64) -> Result<Vec<Rendered>, Gone> {
        self.read_if(after, (limit, most_bytes), |_| true).map(|(_, events)| events)
    }

    /// Bytes of the first event after that number at most; none if there is none. It is not read for that.
    #[must_use]
    pub fn next_size(&self, after: Seq) -> Option<u64> {
        {
            let inner = self.state.lock();
            if after >= inner.committed {
                return None;
            }
            if let Some(place) = (after + 1).checked_sub(inner.first) {
                let place = usize::try_from(place).ok()?;
                return inner.tail.get(place).map(|entry| entry.size());
            }
        }
        let session = self.state.session;
        // One that is gone is told of when it is read.
        self.core.read(|file, _| rows::size(file, session, after + 1)).ok().flatten().or(Some(0))
    }

    fn read_if(
        &self,
        after: Seq,
        (limit, most_bytes): (usize, u64),
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<(Option<Seq>, Vec<Rendered>), Gone> {
        let (first, committed, entries) = {
            let inner = self.state.lock();
            if after >= inner.committed || limit == 0 {
                return Ok((None, Vec::new()));
            }
            let count = usize::try_from(inner.committed - after).unwrap_or(usize::MAX).min(limit);
            let entries: Option<Vec<_>> = (after + 1).checked_sub(inner.first).map(|skip| {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                let mut bytes = 0_u64;
                let fits = |entry: &&Arc<Entry>| {
                    let is_first = bytes == 0;
                    bytes = bytes.saturating_add(entry.size().max(1));
                    is_first || bytes <= most_bytes
                };
                inner.tail.iter().skip(skip).take(count).take_while(fits).cloned().collect()
            });
            (inner.first, inner.committed, entries)
        };
        // Files are read without the lock.
        if let Some(entries) = entries {
            let last = (after + entries.len() as u64).max(after);
            let numbered = entries.iter().zip(after + 1..).filter(|(entry, _)| wanted(entry));
            let events = numbered.map(|(entry, seq)| entry.render(seq, &self.spill)).collect();
            return Ok(((!entries.is_empty()).then_some(last), events));
        }
        let session = self.state.session;
        let stored = self
            .core
            .read(|file, blobs| rows::read(file, blobs, session, (after, committed), (limit, most_bytes)));
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                // They are not gone; the reader finds nothing for now.
                tracing::error!(%error, %session, "events cannot be read");
                return Ok((None, Vec::new()));
            }
        };
        match stored.first() {
            Some((seq, _)) if *seq == after + 1 => {}
            Some((seq, _)) => return Err(Gone { first: *seq }),
            None => return Err(Gone { first }),
        }
        let last = stored.last().map(|(seq, _)| *seq);
        let stored = stored.iter().filter(|(_, entry)| wanted(entry));
        Ok((last, stored.map(|(seq, entry)| entry.render(*seq, &self.spill)).collect()))
    }

    /// The same, without what was printed and shown: that is a lot to read, and nothing follows from it.
    /// The number is that of the last event looked at, none if there are no more.
    pub fn read_told(&self, after: Seq, limit: usize) -> Result<(Option<Seq>, Vec<Rendered>), Gone> {
        let told = |entry: &Entry| entry.name != "output" && entry.name != "display";
        self.read_if(after, (limit, READ_BYTES), told)
    }

    /// The event with which that cell ended, if it is still kept.
    #[must_use]
    pub fn finished(&self, cell: CellNumber) -> Option<Rendered> {
        let ends = |entry: &Entry| entry.cell == Some(cell) && entry.name == "cell_finished";
        let (found, in_file) = {
            let inner = self.state.lock();
            let numbered = inner.tail.iter().enumerate().rev();
            let mut visible = numbered
                .map(|(place, entry)| (inner.first + place as u64, entry))
                .skip_while(|(seq, _)| *seq > inner.committed);
            let found = visible.find(|(_, entry)| ends(entry));
            (found.map(|(seq, entry)| (seq, Arc::clone(entry))), inner.first > 1)
        };
        if let Some((seq, entry)) = found {
            return Some(entry.render(seq, &self.spill));
        }
        if !in_file {
            return None;
        }
        let session = self.state.session;
        let found = self.core.read(|file, blobs| rows::finished(file, blobs, session, cell));
        let (seq, entry) = found.ok().flatten()?;
        // The file is ahead of what was published for the length of a moment.
        (seq <= self.newest()).then(|| entry.render(seq, &self.spill))
    }

    /// What is committed of a cell since it last started.
    pub(super) fn of_cell(&self, cell: CellNumber, each: impl FnMut(Recorded)) -> Result<(), JournalError> {
        let session = self.state.session;
        Ok(self.core.read(|file, blobs| rows::of_cell(file, blobs, session, cell, each))?)
    }

    pub(super) fn last_output(&self, between_cells: bool) -> Result<Option<Recorded>, JournalError> {
        let session = self.state.session;
        Ok(self.core.read(|file, blobs| rows::last_output(file, blobs, session, between_cells))?)
    }

    #[cfg(test)]
    pub(super) fn tail(&self) -> (usize, usize) {
        let inner = self.state.lock();
        (inner.tail.len(), inner.bytes)
    }
}

impl Bill {
    fn charge(&mut self, bytes: u64) -> Result<(), Exceeded> {
        self.account.charge(bytes)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    fn charge_anyway(&mut self, bytes: u64) {
        self.account.charge_anyway(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn refund(&mut self, bytes: u64) {
        self.account.refund(bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Inner {
    fn lag(&self) -> u64 {
        self.next - 1 - self.committed
    }

    /// What is not committed stays in memory in any case, because it is nowhere else.
    fn trim(&mut self) {
        while self.first <= self.committed && (self.tail.len() > TAIL_EVENTS || self.bytes > TAIL_BYTES) {
            let Some(oldest) = self.tail.pop_front() else { break };
            self.bytes -= oldest.cost();
            self.first += 1;
        }
    }
}

fn waiting_bytes(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.entry.cost() + writer::ROW_BYTES).sum()
}

impl LogState {
    pub fn new(session: SessionId, newest: Seq, received: Vec<Applied>, stored: u64) -> Self {
        let inner = Inner {
            next: newest + 1,
            committed: newest,
            first: newest + 1,
            tail: VecDeque::new(),
            bytes: 0,
            reserve_used: 0,
            received: received.into_iter().map(|applied| (applied.sandbox, applied.received)).collect(),
            closed: false,
            abandoned: false,
        };
        Self {
            session,
            inner: Mutex::new(inner),
            newest: watch::Sender::new(newest),
            bill: Mutex::new(Bill { account: Arc::new(Free), bytes: stored }),
            lane: OnceLock::new(),
            memory: OnceLock::new(),
            exceeded: watch::Sender::new(None),
        }
    }

    fn bill(&self) -> MutexGuard<'_, Bill> {
        self.bill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These rows are committed. Called by the writer only, in the order of their numbers.
    pub fn publish(&self, rows: &[Row]) {
        let mut inner = self.lock();
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

    /// These rows will never be committed.
    pub fn abandon(&self) {
        self.lock().abandoned = true;
        self.newest.send_modify(|_| {});
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
