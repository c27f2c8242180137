//! Records what a kernel sends while cells run: output into spill files and events, displays into events, both into the
//! cell's result. The caps bound its memory regardless of what the kernel sends.
//!
//! Events record up to which frame of the kernel the journal is complete. Output that waits to be published counts as
//! not received; if the daemon dies, the kernel sends it again.

use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::account::ROW_BYTES;
use super::capture::{Capture, Captured, OutputCaps, whole_characters};
use super::event_log::{Draft, DraftBody, EventLog};
use super::rows::{AppliedFrame, IncompleteText, RecorderState};
use super::spill::Spill;
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::event::EventBody;
use crate::protocol::frames::OutputFrame;
use crate::protocol::ids::{CellNumber, SandboxId};
use crate::protocol::limits::{
    DISPLAY_BYTES, DISPLAYS, DISPLAYS_BYTES, MARKERS_BYTES, OUTPUT_COALESCE, OUTPUT_EVENT_BYTES,
};
use crate::protocol::result::{Display, Stream};
use crate::security_controls;

/// Placeholders in the output of a sandbox, which are replaced before the output is published.
pub trait Placeholders: Send + Sync {
    /// The length of `data` before a possible beginning of a placeholder whose end has not arrived yet.
    fn before_begun(&self, data: &[u8]) -> usize;

    /// `data` with its placeholders replaced, at most `most_bytes` longer; `None` if there is nothing to replace.
    fn replaced(&self, data: &[u8], most_bytes: usize) -> Option<Vec<u8>>;
}

pub struct Recorder {
    log: Arc<EventLog>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub spill: Spill,
    pub caps: OutputCaps,
    /// The sandbox whose frames are being recorded.
    pub sandbox: Option<SandboxId>,
    placeholders: Option<Arc<dyn Placeholders>>,
    /// Bytes by which replaced placeholders may still enlarge the output, until the next cell begins.
    placeholder_bytes_left: usize,
    pub running: HashMap<CellNumber, RunningCell>,
    pub pending: Option<UnpublishedOutput>,
    pub published: Option<Instant>,
    /// Another recorder has replaced this one; this one records nothing any more.
    sealed: bool,
}

pub(super) struct RunningCell {
    pub capture: Capture,
    pub displays: Vec<Display>,
    /// The charges for the displays to the owner's share of the memory.
    pub memory: Vec<Charge>,
    pub display_bytes: usize,
    pub displays_dropped: u64,
    /// Bytes on stdout and stderr that are not even in the spill file.
    pub lost: [u64; 2],
    pub cut_said: bool,
}

/// Output that waits to be published together with what follows.
pub(super) struct UnpublishedOutput {
    pub cell: Option<CellNumber>,
    pub stream: Stream,
    pub data: Vec<u8>,
    /// The number of the last frame in `data`.
    pub received: u64,
    /// `data` is only the beginning of a character or a placeholder, which waits for its end without a deadline.
    pub partial: bool,
}

/// Everything that was recorded of a cell.
#[derive(Debug, Default)]
pub struct CellRecord {
    pub captured: Captured,
    pub displays: Vec<Display>,
    pub displays_dropped: u64,
    /// Bytes that are not even in the spill file.
    pub dropped_bytes: u64,
}

impl State {
    pub fn new(spill: Spill, caps: OutputCaps) -> Self {
        Self {
            spill,
            caps,
            sandbox: None,
            placeholders: None,
            placeholder_bytes_left: MARKERS_BYTES,
            running: HashMap::new(),
            pending: None,
            published: None,
            sealed: false,
        }
    }

    fn applied(&self, received: u64) -> Option<AppliedFrame> {
        self.sandbox.clone().map(|sandbox| AppliedFrame { sandbox, received })
    }

    /// The length of `data` without an unfinished character or placeholder at its end.
    fn whole(&self, data: &[u8]) -> usize {
        let begun = self.placeholders.as_ref().map(|placeholders| placeholders.before_begun(data));
        whole_characters(data).min(begun.unwrap_or(data.len()))
    }

    fn put_in(&mut self, data: &mut Vec<u8>) {
        let replaced =
            self.placeholders.as_ref().and_then(|them| them.replaced(data, self.placeholder_bytes_left));
        if let Some(replaced) = replaced {
            self.placeholder_bytes_left =
                self.placeholder_bytes_left.saturating_sub(replaced.len().saturating_sub(data.len()));
            *data = replaced;
        }
    }

    /// The event that output is no longer kept, which each cell gets at most once.
    fn cut(
        &mut self,
        cell: CellNumber,
        applied: Option<AppliedFrame>,
        rest: Option<&IncompleteText>,
    ) -> Option<Draft> {
        let running = self.running.get_mut(&cell).filter(|running| !running.cut_said)?;
        running.cut_said = true;
        let recorder_state = running.recorder_state(0, rest);
        Some(Draft { body: DraftBody::Event(EventBody::OutputCut { cell }), applied, recorder_state })
    }
}

impl RunningCell {
    pub fn new(caps: OutputCaps) -> Self {
        Self {
            capture: Capture::new(caps),
            displays: Vec::new(),
            memory: Vec::new(),
            display_bytes: 0,
            displays_dropped: 0,
            lost: [0; 2],
            cut_said: false,
        }
    }

    fn recorder_state(&self, dropped: u64, rest: Option<&IncompleteText>) -> Option<RecorderState> {
        let displays_dropped = self.displays_dropped;
        let recorder_state =
            RecorderState { lost: self.lost, dropped, displays_dropped, rest: rest.cloned() };
        (recorder_state != RecorderState::default()).then_some(recorder_state)
    }

    fn lose(&mut self, stdout_bytes: u64, stderr_bytes: u64) {
        let [stdout, stderr] = &mut self.lost;
        *stdout = stdout.saturating_add(stdout_bytes);
        *stderr = stderr.saturating_add(stderr_bytes);
    }
}

impl Recorder {
    pub fn new(log: Arc<EventLog>, spill: Spill, caps: OutputCaps) -> Self {
        Self::with(log, State::new(spill, caps))
    }

    pub(super) fn with(log: Arc<EventLog>, state: State) -> Self {
        Self { log, state: Mutex::new(state) }
    }

    /// Attributes all further frames to this sandbox.
    pub fn attach(&self, sandbox: SandboxId) {
        let mut state = self.state.lock();
        if state.sandbox.as_ref().is_some_and(|current| *current != sandbox) {
            self.publish(&mut state, Publish::All);
        }
        state.sandbox = Some(sandbox);
    }

    /// Stops recording. No further frame counts as received because of this recorder, so the kernel sends everything
    /// that is not in the journal to the next recorder.
    pub fn seal(&self) {
        let mut state = self.state.lock();
        (state.sealed, state.pending) = (true, None);
    }

    pub fn is_sealed(&self) -> bool {
        self.state.lock().sealed
    }

    /// Sets the placeholders that are replaced in all output published from now on.
    pub fn replace(&self, placeholders: Arc<dyn Placeholders>) {
        self.state.lock().placeholders = Some(placeholders);
    }

    /// Starts recording a cell. A cell that was recovered keeps what is already recorded of it.
    pub fn begin(&self, cell: CellNumber) {
        let mut state = self.state.lock();
        let caps = state.caps;
        state.placeholder_bytes_left = MARKERS_BYTES;
        state.running.entry(cell).or_insert_with(|| RunningCell::new(caps));
    }

    /// Records output; `received` is the number of the frame that brought it.
    pub fn output(&self, frame: &OutputFrame<'_>, received: u64) {
        let mut state = self.state.lock();
        if state.sealed {
            return;
        }
        if let Some(cell) = frame.cell {
            // Output of a cell that is not running is forged or late; no client waits for it.
            let Some(running) = state.running.get_mut(&cell) else { return };
            running.capture.push(frame.stream, frame.data);
        }
        if state
            .pending
            .as_ref()
            .is_some_and(|output| output.cell != frame.cell || output.stream != frame.stream)
        {
            self.publish(&mut state, Publish::All);
        }
        let output = state.pending.get_or_insert_with(|| UnpublishedOutput {
            cell: frame.cell,
            stream: frame.stream,
            data: Vec::new(),
            received,
            partial: false,
        });
        output.data.extend_from_slice(frame.data);
        (output.received, output.partial) = (received, false);
        let full = output.data.len() >= OUTPUT_EVENT_BYTES;
        let due = state.published.is_none_or(|at| at.elapsed() >= OUTPUT_COALESCE);
        if full || due {
            self.publish(&mut state, Publish::Whole);
        }
    }

    pub fn display(&self, cell: CellNumber, mime: Map<String, Value>, received: u64) {
        let mut state = self.state.lock();
        if state.sealed {
            return;
        }
        self.publish(&mut state, Publish::All);
        let applied = state.applied(received);
        let Some(running) = state.running.get_mut(&cell) else { return };
        let bytes = serde_json::to_string(&mime).map_or(usize::MAX, |text| text.len());
        let fits = bytes <= DISPLAY_BYTES
            && running.displays.len() < DISPLAYS
            && running.display_bytes.saturating_add(bytes) <= DISPLAYS_BYTES;
        if !fits {
            running.displays_dropped = running.displays_dropped.saturating_add(1);
            return;
        }
        let memory = self.log.memory().filter(|_| security_controls::holds("display_memory_charge"));
        let Ok(memory) =
            memory.map(|pool| pool.try_charge(MemoryPurpose::Displays, bytes as u64)).transpose()
        else {
            running.displays_dropped += 1;
            return;
        };
        let body = EventBody::Display { cell, mime: mime.clone() };
        let paid = match self.log.pay_for(&body) {
            Ok(paid) => paid,
            Err(exceeded) => {
                running.displays_dropped += 1;
                return self.log.tell_exceeded(exceeded);
            }
        };
        running.display_bytes += bytes;
        running.displays.push(Display { mime });
        running.memory.extend(memory);
        let (body, recorder_state) = (DraftBody::Event(body), running.recorder_state(0, None));
        self.log.append_paid(Draft { body, applied, recorder_state }, paid);
    }

    /// Records output that the kernel counted and did not send.
    pub fn gap(&self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64, received: u64) {
        let mut state = self.state.lock();
        if state.sealed {
            return;
        }
        self.publish(&mut state, Publish::All);
        let Some(running) = state.running.get_mut(&cell) else { return };
        running.capture.skip(stdout_bytes, stderr_bytes);
        running.lose(stdout_bytes, stderr_bytes);
        let applied = state.applied(received);
        if let Some(cut) = state.cut(cell, applied, None) {
            self.log.append_group(vec![cut]);
        }
    }

    pub fn flush_at(&self) -> Option<Instant> {
        let state = self.state.lock();
        let waiting = state.pending.as_ref().is_some_and(|output| !output.partial);
        if waiting { state.published.map(|at| at + OUTPUT_COALESCE) } else { None }
    }

    /// Whether output waits to be published, even if only for the end of a character.
    pub fn has_pending(&self) -> bool {
        self.state.lock().pending.is_some()
    }

    /// Whether a running cell has produced any output or display.
    pub fn has_output(&self, cell: CellNumber) -> bool {
        let state = self.state.lock();
        let has_any = |running: &RunningCell| {
            !running.capture.is_empty() || !running.displays.is_empty() || running.lost != [0; 2]
        };
        state.running.get(&cell).is_some_and(has_any)
    }

    pub fn flush(&self) {
        let mut state = self.state.lock();
        self.publish(&mut state, Publish::Whole);
    }

    /// Ends the recording of a cell and publishes the rest.
    pub fn finish(&self, cell: CellNumber) -> CellRecord {
        let mut state = self.state.lock();
        self.publish(&mut state, Publish::All);
        let Some(running) = state.running.remove(&cell) else { return CellRecord::default() };
        CellRecord {
            captured: running.capture.finish(),
            displays: running.displays,
            displays_dropped: running.displays_dropped,
            dropped_bytes: running.lost.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
        }
    }

    fn publish(&self, state: &mut State, how: Publish) {
        let Some(mut output) = state.pending.take() else { return };
        let end = match how {
            Publish::All => output.data.len(),
            Publish::Whole => state.whole(&output.data),
        };
        let rest = output.data.split_off(end);
        state.put_in(&mut output.data);
        if !output.data.is_empty() {
            self.publish_all(state, &output, &rest);
        }
        if !rest.is_empty() {
            state.pending = Some(UnpublishedOutput { data: rest, partial: true, ..output });
        }
        state.published = Some(Instant::now());
    }

    /// Publishes in one group of events, because a frame whose bytes are spread over several events must not be
    /// committed in part.
    fn publish_all(&self, state: &mut State, output: &UnpublishedOutput, rest: &[u8]) {
        let UnpublishedOutput { cell, stream, ref data, received, .. } = *output;
        let mut drafts = Vec::new();
        let mut left = data.as_slice();
        while !left.is_empty() {
            let (chunk, after) = left.split_at(chunk_end(left));
            if let Err(exceeded) = self.log.charge(chunk.len() as u64 + ROW_BYTES) {
                self.log.tell_exceeded(exceeded);
                break;
            }
            let range = state.spill.append(cell, chunk).unwrap_or_else(|error| {
                tracing::warn!(%error, "output cannot be spilled");
                None
            });
            let unwritten = match &range {
                Some(range) => (chunk.len() as u64).saturating_sub(range.bytes),
                None => chunk.len() as u64 + ROW_BYTES,
            };
            self.log.refund(unwritten.saturating_add(state.spill.take_freed()));
            let Some(range) = range else { break };
            let stored_bytes = usize::try_from(range.bytes).unwrap_or(chunk.len());
            let body = DraftBody::Output { cell, stream, range };
            drafts.push(Draft { body, applied: None, recorder_state: None });
            left = left.get(stored_bytes..).unwrap_or_default();
            if stored_bytes < chunk.len() {
                break;
            }
            left = after;
        }
        let dropped = left.len() as u64;
        let applied = state.applied(received);
        let rest = (!rest.is_empty()).then(|| IncompleteText { stream, bytes: rest.to_vec() });
        let running = cell.and_then(|cell| state.running.get_mut(&cell));
        let recorder_state = match running {
            Some(running) => {
                match stream {
                    Stream::Stdout => running.lose(dropped, 0),
                    Stream::Stderr => running.lose(0, dropped),
                }
                running.recorder_state(dropped, rest.as_ref())
            }
            None => rest.clone().map(|rest| RecorderState { rest: Some(rest), ..RecorderState::default() }),
        };
        if let Some(last) = drafts.last_mut() {
            (last.applied, last.recorder_state) = (applied.clone(), recorder_state);
        }
        if let Some(cell) = cell.filter(|_| dropped > 0) {
            drafts.extend(state.cut(cell, applied, rest.as_ref()));
        }
        if !drafts.is_empty() {
            self.log.append_group(drafts);
        }
    }

    /// Makes later output wait for publication, no matter how slowly the test runs.
    #[cfg(test)]
    pub(super) fn hold_back(&self) {
        self.state.lock().published = Some(Instant::now() + std::time::Duration::from_secs(3_600));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Publish {
    All,
    /// Hold back the beginning of a character or a placeholder whose end has not come yet.
    Whole,
}

/// The length of the next chunk that becomes one event; a chunk does not end within a character.
fn chunk_end(data: &[u8]) -> usize {
    match data.get(..OUTPUT_EVENT_BYTES) {
        Some(chunk) if chunk.len() < data.len() => match whole_characters(chunk) {
            0 => chunk.len(),
            end => end,
        },
        _ => data.len(),
    }
}

#[cfg(test)]
mod tests;
