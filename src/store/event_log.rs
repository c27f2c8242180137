//! The events of one session: appended in order, read by sequence number, kept within a number
//! and an amount of bytes. Whoever waits for more watches the newest number.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

use super::spill::Range;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::limits::EVENTS_KEPT;
use crate::protocol::result::Stream;

/// Bytes of events of one session in memory; results with large displays push old ones out early.
const EVENT_BYTES: usize = 32 * 1024 * 1024;

#[derive(Debug)]
pub struct EventLog {
    inner: Mutex<Inner>,
    newest: watch::Sender<Seq>,
}

#[derive(Debug)]
struct Inner {
    /// Sequence number of the first entry that is kept.
    first: Seq,
    entries: VecDeque<Entry>,
    bytes: usize,
    closed: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    at: String,
    cell: Option<CellNumber>,
    name: &'static str,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// Serialised once, for any number of readers; its size is its cost.
    Json(std::sync::Arc<str>),
    /// Output stays on disk until somebody reads it.
    Output { stream: Stream, range: Range },
}

/// An event ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub seq: Seq,
    pub name: &'static str,
    pub cell: Option<CellNumber>,
    /// JSON of [`Event`].
    pub json: std::sync::Arc<str>,
}

/// The events asked for are no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events up to {} are no longer kept", first - 1)]
pub struct Gone {
    pub first: Seq,
}

impl Default for EventLog {
    fn default() -> Self {
        let inner = Inner { first: 1, entries: VecDeque::new(), bytes: 0, closed: false };
        Self { inner: Mutex::new(inner), newest: watch::Sender::new(0) }
    }
}

impl EventLog {
    pub fn append(&self, body: EventBody) -> Seq {
        let (cell, name) = (body.cell(), body.name());
        self.push(cell, name, |seq, at| {
            let event = Event { seq, at, body };
            Content::Json(serde_json::to_string(&event).unwrap_or_default().into())
        })
    }

    pub(super) fn append_output(&self, cell: Option<CellNumber>, stream: Stream, range: Range) -> Seq {
        self.push(cell, "output", |_, _| Content::Output { stream, range })
    }

    fn push(
        &self,
        cell: Option<CellNumber>,
        name: &'static str,
        content: impl FnOnce(Seq, String) -> Content,
    ) -> Seq {
        let mut inner = self.lock();
        let seq = inner.first + inner.entries.len() as u64;
        let at = crate::protocol::clock::now();
        let entry = Entry { content: content(seq, at.clone()), at, cell, name };
        inner.bytes += entry.cost();
        inner.entries.push_back(entry);
        while inner.entries.len() > EVENTS_KEPT || (inner.bytes > EVENT_BYTES && inner.entries.len() > 1) {
            if let Some(oldest) = inner.entries.pop_front() {
                inner.bytes -= oldest.cost();
                inner.first += 1;
            }
        }
        self.newest.send_replace(seq);
        seq
    }

    /// No more events will come; readers at the end stop waiting.
    pub fn close(&self) {
        self.lock().closed = true;
        self.newest.send_modify(|_| {});
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    #[must_use]
    pub fn newest(&self) -> Seq {
        *self.newest.borrow()
    }

    /// Marks each append, also one that happened since the receiver was last looked at.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Seq> {
        self.newest.subscribe()
    }

    /// At most `limit` events after that number.
    pub fn read(&self, after: Seq, limit: usize) -> Result<Vec<Rendered>, Gone> {
        let (start, entries): (Seq, Vec<Entry>) = {
            let inner = self.lock();
            if after + 1 < inner.first {
                return Err(Gone { first: inner.first });
            }
            let skip = usize::try_from(after + 1 - inner.first).unwrap_or(usize::MAX);
            (after + 1, inner.entries.iter().skip(skip).take(limit).cloned().collect())
        };
        // Output is read from disk without the lock.
        Ok(entries.into_iter().zip(start..).map(|(entry, seq)| entry.render(seq)).collect())
    }

    /// The event with which that cell ended, if it is still kept.
    #[must_use]
    pub fn finished(&self, cell: CellNumber) -> Option<Rendered> {
        let inner = self.lock();
        let found = inner.entries.iter().enumerate().rev();
        let (place, entry) =
            found.into_iter().find(|(_, entry)| entry.cell == Some(cell) && entry.name == "cell_finished")?;
        let (entry, seq) = (entry.clone(), inner.first + place as u64);
        drop(inner);
        Some(entry.render(seq))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn cost(&self) -> usize {
        match &self.content {
            Content::Json(text) => text.len(),
            Content::Output { .. } => 0,
        }
    }

    fn render(self, seq: Seq) -> Rendered {
        let json = match self.content {
            Content::Json(text) => text,
            Content::Output { stream, range } => {
                let body = EventBody::Output { cell: self.cell, stream, text: range.text() };
                serde_json::to_string(&Event { seq, at: self.at, body }).unwrap_or_default().into()
            }
        };
        Rendered { seq, name: self.name, cell: self.cell, json }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_numbered_without_gaps_and_read_from_anywhere() {
        let log = EventLog::default();
        for _ in 0..5 {
            log.append(EventBody::Reset);
        }
        let seqs = |after, limit| log.read(after, limit).unwrap().iter().map(|e| e.seq).collect::<Vec<_>>();
        assert_eq!(seqs(0, 10), [1, 2, 3, 4, 5]);
        assert_eq!(seqs(3, 1), [4]);
        assert_eq!(seqs(5, 10), Vec::<Seq>::new());
    }

    #[test]
    fn old_events_are_dropped_at_the_bound_and_asking_for_them_says_so() {
        let log = EventLog::default();
        for _ in 0..EVENTS_KEPT + 3 {
            log.append(EventBody::Reset);
        }
        assert_eq!(log.read(0, 1), Err(Gone { first: 4 }));
        assert_eq!(log.read(3, 1).unwrap().first().map(|event| event.seq), Some(4));
    }

    #[test]
    fn large_events_are_bounded_by_bytes() {
        let log = EventLog::default();
        for _ in 0..40 {
            log.append(EventBody::SessionCreated { name: "x".repeat(EVENT_BYTES / 16) });
        }
        assert!(log.lock().bytes <= EVENT_BYTES);
        assert_eq!(log.newest(), 40);
    }
}
