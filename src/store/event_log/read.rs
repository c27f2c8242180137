//! Reading the events of a session: the newest from memory, older ones from the journal.

use super::{EventLog, EventsGone, READ_BYTES};
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::event::Event;
use crate::protocol::ids::{CellNumber, SandboxId, Seq};
use crate::store::account::Overdraft;
use crate::store::error::JournalError;
use crate::store::rows::{self, Entry, RenderedEvent, StoredEvent};
use std::sync::Arc;

/// Rows that one read examines while a session is restored.
const BATCH_EVENTS: usize = 256;
/// How many times its own size an event takes in memory while it is read: its text, the parser's copies, and the parsed
/// event.
const READ_COPIES: u64 = 4;

impl EventLog {
    /// The highest frame number of the sandbox whose effect is committed; 0 if there is none.
    pub fn received(&self, sandbox: &SandboxId) -> u64 {
        self.state.inner.lock().received.get(sandbox).copied().unwrap_or(0)
    }

    /// At most `limit` events after `after`. Getting fewer does not mean that there are no more.
    pub fn read(&self, after: Seq, limit: usize) -> Result<Vec<RenderedEvent>, EventsGone> {
        self.read_within(after, limit, READ_BYTES)
    }

    /// Like [`Self::read`], with at most `most_bytes` of events; the first event is returned even if it is larger.
    pub fn read_within(
        &self,
        after: Seq,
        limit: usize,
        most_bytes: u64,
    ) -> Result<Vec<RenderedEvent>, EventsGone> {
        let (first, committed, entries) = {
            let inner = self.state.inner.lock();
            if after >= inner.committed || limit == 0 {
                return Ok(Vec::new());
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
        // The lock is released here, because rendering reads files.
        if let Some(entries) = entries {
            let numbered = entries.iter().zip(after + 1..);
            return Ok(numbered.map(|(entry, seq)| entry.render(seq, &self.spill)).collect());
        }
        let session = self.state.session;
        let stored = self
            .core
            .read(|file, blobs| rows::read(file, blobs, session, (after, committed), (limit, most_bytes)));
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => {
                // The events still exist, so this is not `Gone`; the reader gets an empty result and may try again.
                tracing::error!(%error, %session, "events cannot be read");
                return Ok(Vec::new());
            }
        };
        match stored.first() {
            Some((seq, _)) if *seq == after + 1 => {}
            Some((seq, _)) => return Err(EventsGone { first: *seq }),
            None => return Err(EventsGone { first }),
        }
        Ok(stored.iter().map(|(seq, entry)| entry.render(*seq, &self.spill)).collect())
    }

    /// An upper bound on the bytes of the first event after `after`; `None` if there is no such event. The event itself
    /// is not read.
    pub fn next_size(&self, after: Seq) -> Option<u64> {
        {
            let inner = self.state.inner.lock();
            if after >= inner.committed {
                return None;
            }
            if let Some(index) = (after + 1).checked_sub(inner.first) {
                let index = usize::try_from(index).ok()?;
                return inner.tail.get(index).map(|entry| entry.size());
            }
        }
        let session = self.state.session;
        // If the event is gone, the caller learns that when it reads it.
        self.core.read(|file, _| rows::size(file, session, after + 1)).ok().flatten().or(Some(0))
    }

    /// Passes each event after `after` and up to `until` to `take`, in order, without output and displays: they are
    /// large, and a session's state does not depend on them. This blocks.
    ///
    /// Only one batch is in memory at a time, charged to the owner: several small events or one large one. An event
    /// that cannot be read is an error, because a session restored from the remaining events would have a wrong state.
    pub fn each_event(
        &self,
        between: (Seq, Seq),
        overdraft: Overdraft,
        take: impl FnMut(Event) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut charge = self.memory().map(|pool| pool.open(MemoryPurpose::Reads));
        let read = self.each_charged(between, overdraft, &mut charge, take);
        read.map_err(|error| error.beside(charge.as_ref().map_or(0, Charge::bytes)))
    }

    fn each_charged(
        &self,
        (mut after, until): (Seq, Seq),
        overdraft: Overdraft,
        charge: &mut Option<Charge>,
        mut take: impl FnMut(Event) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let (session, until) = (self.state.session, until.min(self.newest()));
        while after < until {
            if let Some(charge) = charge {
                charge.shrink_to(0);
            }
            let reserve = |bytes: u64| match (&mut *charge, bytes.saturating_mul(READ_COPIES)) {
                (Some(charge), bytes) if overdraft == Overdraft::Refused => charge.try_grow(bytes),
                (Some(charge), bytes) => {
                    charge.grow_anyway(bytes);
                    Ok(())
                }
                (None, _) => Ok(()),
            };
            // The read lock is released before the events are parsed.
            let batch = self.core.read(|file, blobs| {
                Ok(rows::read_batch(
                    file,
                    blobs,
                    session,
                    (after, until),
                    (BATCH_EVENTS, READ_BYTES),
                    reserve,
                ))
            })??;
            after = batch.last;
            for (seq, json) in batch.events {
                let event = rows::parse(seq, &json)?;
                drop(json);
                take(event)?;
            }
        }
        Ok(())
    }

    /// The event that ended the cell, if it is still kept.
    pub fn finished(&self, cell: CellNumber) -> Option<RenderedEvent> {
        let ends = |entry: &Entry| entry.cell == Some(cell) && entry.name == "cell_finished";
        let (found, in_file) = {
            let inner = self.state.inner.lock();
            let numbered = inner.tail.iter().enumerate().rev();
            let mut visible = numbered
                .map(|(index, entry)| (inner.first + index as u64, entry))
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
        // A committed row is in the file a moment before it is published; until then it is not visible.
        (seq <= self.newest()).then(|| entry.render(seq, &self.spill))
    }

    /// Passes each committed event of a cell since its last start to `each`.
    pub(in crate::store) fn of_cell(
        &self,
        cell: CellNumber,
        each: impl FnMut(StoredEvent),
    ) -> Result<(), JournalError> {
        let session = self.state.session;
        Ok(self.core.read(|file, blobs| rows::of_cell(file, blobs, session, cell, each))?)
    }

    pub(in crate::store) fn last_output(
        &self,
        between_cells: bool,
    ) -> Result<Option<StoredEvent>, JournalError> {
        let session = self.state.session;
        Ok(self.core.read(|file, blobs| rows::last_output(file, blobs, session, between_cells))?)
    }

    #[cfg(test)]
    pub(in crate::store) fn tail(&self) -> (usize, usize) {
        let inner = self.state.inner.lock();
        (inner.tail.len(), inner.bytes)
    }
}
