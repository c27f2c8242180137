//! Restores the recorder after a restart: the state of cells that were running, from the events in the journal.

use std::sync::Arc;

use super::capture::OutputCaps;
use super::error::JournalError;
use super::event_log::EventLog;
use super::recorder::{Recorder, RunningCell, State, UnpublishedOutput};
use super::rows::{Content, IncompleteText, RecorderState, StoredEvent};
use super::spill::{Range, Spill};
use crate::memory::MemoryPurpose;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SandboxId};
use crate::protocol::result::{Display, Stream};
use crate::security_controls;

impl Recorder {
    /// A recorder that continues where the journal ends; `running` are the cells that had not ended.
    ///
    /// Output that was spilled and not committed is cut off, because the kernel sends it again with every frame after
    /// [`EventLog::received`].
    pub fn recover(
        log: Arc<EventLog>,
        spill: Spill,
        caps: OutputCaps,
        sandbox: Option<SandboxId>,
        running: &[CellNumber],
    ) -> Result<Self, JournalError> {
        let mut state = State::new(spill, caps);
        state.sandbox = sandbox;
        for cell in running {
            let recovered = recover_cell(&log, *cell, caps)?;
            cut(&mut state.spill, Some(*cell), recovered.end);
            state.running.insert(*cell, recovered.running);
        }
        let between = log.last_output(true)?;
        cut(&mut state.spill, None, between.as_ref().map_or(0, end));
        if let Some(last) = log.last_output(false)? {
            state.pending = unfinished(&mut state, last);
        }
        Ok(Self::with(log, state))
    }
}

struct RecoveredCell {
    running: RunningCell,
    /// The committed length of the cell's spill file.
    end: u64,
}

fn recover_cell(log: &EventLog, cell: CellNumber, caps: OutputCaps) -> Result<RecoveredCell, JournalError> {
    let mut recovered = RecoveredCell { running: RunningCell::new(caps), end: 0 };
    log.of_cell(cell, |recorded| {
        let (running, end) = (&mut recovered.running, &mut recovered.end);
        let dropped = recorded.recorder_state.as_ref().map_or(0, |recorder_state| recorder_state.dropped);
        let stream = match &recorded.entry.content {
            Content::Output { stream, .. } => Some(*stream),
            Content::Json(_) => None,
        };
        let after = match stream {
            Some(Stream::Stdout) => [dropped, 0],
            Some(Stream::Stderr) => [0, dropped],
            None => [0, 0],
        };
        if let Some(recorder_state) = &recorded.recorder_state {
            skip_lost(running, recorder_state, after);
        }
        match &recorded.entry.content {
            Content::Output { stream, start, bytes } => {
                *end = (*end).max(start + bytes);
                match Range::new(log.spill_folder(), Some(cell), *start, *bytes).read() {
                    Ok(data) => running.capture.push(*stream, &data),
                    Err(error) => {
                        tracing::warn!(%error, cell, "committed output cannot be read");
                        match stream {
                            Stream::Stdout => running.capture.skip(*bytes, 0),
                            Stream::Stderr => running.capture.skip(0, *bytes),
                        }
                    }
                }
            }
            Content::Json(text) => take_event(running, log, text),
        }
        running.capture.skip(after[0], after[1]);
    })?;
    Ok(recovered)
}

/// Counts bytes lost since the previous event, except those that were dropped after this event's own bytes.
fn skip_lost(running: &mut RunningCell, recorder_state: &RecorderState, after: [u64; 2]) {
    let [stdout, stderr] = [0, 1].map(|of: usize| {
        let [now, before, later] = [recorder_state.lost, running.lost, after].map(|bytes| bytes[of]);
        now.saturating_sub(before).saturating_sub(later)
    });
    running.capture.skip(stdout, stderr);
    running.lost = recorder_state.lost;
    running.displays_dropped = recorder_state.displays_dropped;
}

fn take_event(running: &mut RunningCell, log: &EventLog, text: &str) {
    match serde_json::from_str::<Event>(text).map(|event| event.body) {
        Ok(EventBody::Display { mime, .. }) => {
            let bytes = serde_json::to_string(&mime).map_or(0, |text| text.len());
            running.display_bytes += bytes;
            // The displays are already in memory and their cell must not lose them, so they are charged even without
            // room.
            let memory = log.memory().filter(|_| security_controls::holds("restored_display_charge"));
            running
                .memory
                .extend(memory.map(|pool| pool.charge_anyway(MemoryPurpose::Displays, bytes as u64)));
            running.displays.push(Display { mime });
        }
        Ok(EventBody::OutputCut { .. }) => running.cut_said = true,
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "an event is not understood"),
    }
}

fn end(recorded: &StoredEvent) -> u64 {
    match &recorded.entry.content {
        Content::Output { start, bytes, .. } => start + bytes,
        Content::Json(_) => 0,
    }
}

fn cut(spill: &mut Spill, cell: Option<CellNumber>, end: u64) {
    if let Err(error) = spill.cut(cell, end) {
        // This is not fatal: the next range is written at its own offset in any case.
        tracing::warn!(%error, "a spill file cannot be cut to its committed length");
    }
}

/// The beginning of a character or placeholder that arrived with the last committed frame.
fn unfinished(state: &mut State, last: StoredEvent) -> Option<UnpublishedOutput> {
    let IncompleteText { stream, bytes } =
        last.recorder_state.and_then(|recorder_state| recorder_state.rest)?;
    if let Some(cell) = last.cell {
        // A cell that has ended got its rest when it ended.
        state.running.get_mut(&cell)?.capture.push(stream, &bytes);
    }
    let received = last.received.unwrap_or(0);
    Some(UnpublishedOutput { cell: last.cell, stream, data: bytes, received, partial: true })
}
