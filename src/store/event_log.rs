//! The events of one session: appended in order, visible once the journal has them, read by
//! sequence number. Whoever waits for more watches the newest number.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

use super::idempotency::Aim;
use super::journal::Core;
use super::rows::{self, Applied, Carry, Content, Entry, Recorded, Rendered, Row};
use super::spill::Range;
use super::writer::{Durability, Group, JournalError};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SandboxId, Seq, SessionId};
use crate::protocol::result::Stream;

/// Events and their bytes of one session that are served from memory; older ones come from the file.
const TAIL_EVENTS: usize = 1_024;
const TAIL_BYTES: usize = 4 * 1024 * 1024;

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
    /// Of all events, with their output.
    stored: u64,
    received: HashMap<SandboxId, u64>,
    closed: bool,
    /// The journal ended before it had written everything.
    abandoned: bool,
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

impl EventLog {
    pub(super) fn new(state: Arc<LogState>, core: Arc<Core>) -> Self {
        let spill = core.spill_folder(state.session);
        Self { state, core, spill }
    }

    /// Bytes that events and output of the session take, or will when they are written.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.state.lock().stored
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
        self.push(vec![Draft::of(body, None)], Durability::Normal, None, None)
    }

    /// Likewise, as the effect of a kernel's frame.
    pub fn append_applied(&self, body: EventBody, applied: Applied) -> Seq {
        self.push(vec![Draft::of(body, Some(applied))], Durability::Normal, None, None)
    }

    /// Likewise; `on_commit` runs on the writer's thread once the event is committed and visible.
    /// It must not block. It is dropped unrun if the journal is closed before.
    pub fn append_then(
        &self,
        body: EventBody,
        applied: Option<Applied>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(vec![Draft::of(body, applied)], Durability::Normal, None, Some(Box::new(on_commit)))
    }

    /// Like [`Self::append_then`], for an event that begins what a request with a key is about: the key
    /// leads there as soon as there is anything to be found, and not before.
    pub fn append_aimed_then(
        &self,
        body: EventBody,
        aim: Option<Aim>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(vec![Draft::of(body, None)], Durability::Normal, aim, Some(Box::new(on_commit)))
    }

    /// Like [`Self::append_then`], for an intent whose effect is outside of the journal: when
    /// `on_commit` runs, not even a loss of power can make it unsaid.
    pub fn append_durably_then(
        &self,
        body: EventBody,
        applied: Option<Applied>,
        on_commit: impl FnOnce() + Send + 'static,
    ) -> Seq {
        self.push(vec![Draft::of(body, applied)], Durability::Full, None, Some(Box::new(on_commit)))
    }

    /// Several that are committed together or not at all; the number of the last.
    pub(super) fn append_group(&self, drafts: Vec<Draft>) -> Seq {
        self.push(drafts, Durability::Normal, None, None)
    }

    fn push(
        &self,
        drafts: Vec<Draft>,
        durability: Durability,
        aim: Option<Aim>,
        on_commit: Option<Box<dyn FnOnce() + Send>>,
    ) -> Seq {
        self.core.queue.wait_for_room();
        let mut inner = self.state.lock();
        let mut rows = Vec::with_capacity(drafts.len());
        for Draft { body, applied, carry } in drafts {
            let seq = inner.next;
            let entry = Arc::new(Draft::entry(body, seq));
            inner.next += 1;
            inner.bytes += entry.cost();
            inner.stored = inner.stored.saturating_add(entry.stored());
            inner.tail.push_back(Arc::clone(&entry));
            rows.push(Row { session: self.state.session, seq, entry, applied, carry });
        }
        let newest = inner.next - 1;
        // Under the lock, so that the writer gets the events in the order of their numbers.
        let group = Group { log: Arc::clone(&self.state), rows, durability, aim, on_commit };
        let refused = self.core.queue.push_events(group).err();
        if refused.is_some() {
            inner.abandoned = true;
        }
        drop(inner);
        if refused.is_some() {
            self.state.newest.send_modify(|_| {});
        }
        newest
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
        self.read_if(after, limit, |_| true).map(|(_, events)| events)
    }

    fn read_if(
        &self,
        after: Seq,
        limit: usize,
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
                inner.tail.iter().skip(skip).take(count).cloned().collect()
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
        let stored =
            self.core.read(|file, blobs| rows::read(file, blobs, session, (after, committed), limit));
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
        self.read_if(after, limit, told)
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

impl LogState {
    pub fn new(session: SessionId, newest: Seq, received: Vec<Applied>, stored: u64) -> Self {
        let inner = Inner {
            next: newest + 1,
            committed: newest,
            first: newest + 1,
            tail: VecDeque::new(),
            bytes: 0,
            stored,
            received: received.into_iter().map(|applied| (applied.sandbox, applied.received)).collect(),
            closed: false,
            abandoned: false,
        };
        Self { session, inner: Mutex::new(inner), newest: watch::Sender::new(newest) }
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
