//! Records what a kernel sends while cells run: output into spill files and events, displays into
//! events, both into the cell's result. Nothing it is sent can make it grow beyond its caps.

use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::capture::{Capture, Captured, OutputCaps, whole_characters};
use super::event_log::EventLog;
use super::spill::Spill;
use crate::protocol::event::EventBody;
use crate::protocol::frames::OutputFrame;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{DISPLAY_BYTES, DISPLAYS, DISPLAYS_BYTES, OUTPUT_COALESCE, OUTPUT_EVENT_BYTES};
use crate::protocol::result::{Display, Stream};

pub struct Recorder {
    log: Arc<EventLog>,
    state: Mutex<State>,
}

struct State {
    spill: Spill,
    caps: OutputCaps,
    running: HashMap<CellNumber, Running>,
    pending: Option<Pending>,
    published: Option<Instant>,
}

struct Running {
    capture: Capture,
    displays: Vec<Display>,
    display_bytes: usize,
    displays_dropped: u64,
    dropped_bytes: u64,
    cut_said: bool,
}

/// Output that waits to be published together with what follows.
struct Pending {
    cell: Option<CellNumber>,
    stream: Stream,
    data: Vec<u8>,
    /// Only the beginning of a character is left, which waits for its end without a deadline.
    partial: bool,
}

/// All that was recorded of a cell.
#[derive(Debug, Default)]
pub struct CellRecord {
    pub captured: Captured,
    pub displays: Vec<Display>,
    pub displays_dropped: u64,
    /// Bytes that are not even in the spill file.
    pub dropped_bytes: u64,
}

impl Recorder {
    #[must_use]
    pub fn new(log: Arc<EventLog>, spill: Spill, caps: OutputCaps) -> Self {
        let state = State { spill, caps, running: HashMap::new(), pending: None, published: None };
        Self { log, state: Mutex::new(state) }
    }

    pub fn begin(&self, cell: CellNumber) {
        let mut state = self.lock();
        let running = Running {
            capture: Capture::new(state.caps),
            displays: Vec::new(),
            display_bytes: 0,
            displays_dropped: 0,
            dropped_bytes: 0,
            cut_said: false,
        };
        state.running.insert(cell, running);
    }

    pub fn output(&self, frame: &OutputFrame<'_>) {
        let mut state = self.lock();
        if let Some(cell) = frame.cell {
            // Output of a cell that is not running is forged or too late: nobody waits for it.
            let Some(running) = state.running.get_mut(&cell) else { return };
            running.capture.push(frame.stream, frame.data);
        }
        if state.pending.as_ref().is_some_and(|held| held.cell != frame.cell || held.stream != frame.stream) {
            self.publish(&mut state, Publish::All);
        }
        let held = state.pending.get_or_insert_with(|| Pending {
            cell: frame.cell,
            stream: frame.stream,
            data: Vec::new(),
            partial: false,
        });
        held.data.extend_from_slice(frame.data);
        held.partial = false;
        let full = held.data.len() >= OUTPUT_EVENT_BYTES;
        let due = state.published.is_none_or(|at| at.elapsed() >= OUTPUT_COALESCE);
        if full || due {
            self.publish(&mut state, Publish::WholeCharacters);
        }
    }

    pub fn display(&self, cell: CellNumber, mime: Map<String, Value>) {
        let mut state = self.lock();
        self.publish(&mut state, Publish::All);
        let Some(running) = state.running.get_mut(&cell) else { return };
        let bytes = serde_json::to_string(&mime).map_or(usize::MAX, |text| text.len());
        let fits = bytes <= DISPLAY_BYTES
            && running.displays.len() < DISPLAYS
            && running.display_bytes.saturating_add(bytes) <= DISPLAYS_BYTES;
        if !fits {
            running.displays_dropped += 1;
            return;
        }
        running.display_bytes += bytes;
        running.displays.push(Display { mime: mime.clone() });
        self.log.append(EventBody::Display { cell, mime });
    }

    /// Output that the kernel counted and did not send.
    pub fn gap(&self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64) {
        let mut state = self.lock();
        self.publish(&mut state, Publish::All);
        if let Some(running) = state.running.get_mut(&cell) {
            running.capture.skip(stdout_bytes, stderr_bytes);
            running.dropped_bytes =
                running.dropped_bytes.saturating_add(stdout_bytes).saturating_add(stderr_bytes);
            self.say_cut(cell, running);
        }
    }

    #[must_use]
    pub fn flush_at(&self) -> Option<Instant> {
        let state = self.lock();
        let waiting = state.pending.as_ref().is_some_and(|held| !held.partial);
        if waiting { state.published.map(|at| at + OUTPUT_COALESCE) } else { None }
    }

    pub fn flush(&self) {
        let mut state = self.lock();
        self.publish(&mut state, Publish::WholeCharacters);
    }

    /// Ends the recording of a cell and publishes the rest.
    #[must_use]
    pub fn finish(&self, cell: CellNumber) -> CellRecord {
        let mut state = self.lock();
        self.publish(&mut state, Publish::All);
        let Some(running) = state.running.remove(&cell) else { return CellRecord::default() };
        CellRecord {
            captured: running.capture.finish(),
            displays: running.displays,
            displays_dropped: running.displays_dropped,
            dropped_bytes: running.dropped_bytes,
        }
    }

    fn publish(&self, state: &mut State, how: Publish) {
        let Some(mut held) = state.pending.take() else { return };
        let end = match how {
            Publish::All => held.data.len(),
            Publish::WholeCharacters => whole_characters(&held.data),
        };
        let rest = held.data.split_off(end);
        for chunk in held.data.chunks(OUTPUT_EVENT_BYTES) {
            self.publish_chunk(state, held.cell, held.stream, chunk);
        }
        if !rest.is_empty() {
            state.pending = Some(Pending { data: rest, partial: true, ..held });
        }
        state.published = Some(Instant::now());
    }

    fn publish_chunk(&self, state: &mut State, cell: Option<CellNumber>, stream: Stream, chunk: &[u8]) {
        let spilled = match state.spill.append(cell.unwrap_or(0), chunk) {
            Ok(range) => range,
            Err(error) => {
                tracing::warn!(%error, "output cannot be spilled");
                None
            }
        };
        let kept = spilled.as_ref().map_or(0, |range| range.bytes);
        if let Some(range) = spilled {
            self.log.append_output(cell, stream, range);
        }
        let dropped = chunk.len() as u64 - kept;
        if dropped > 0
            && let Some(cell) = cell
            && let Some(running) = state.running.get_mut(&cell)
        {
            running.dropped_bytes += dropped;
            self.say_cut(cell, running);
        }
    }

    fn say_cut(&self, cell: CellNumber, running: &mut Running) {
        if !running.cut_said {
            running.cut_said = true;
            self.log.append(EventBody::OutputCut { cell });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Publish {
    All,
    /// Hold back the beginning of a character whose end has not come yet.
    WholeCharacters,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::event::Event;

    fn recorder(folder: &std::path::Path, spill_bytes: u64) -> (Arc<EventLog>, Recorder) {
        let log = Arc::new(EventLog::default());
        let spill = Spill::new(folder.join("spill"), spill_bytes);
        (Arc::clone(&log), Recorder::new(log, spill, OutputCaps { head: 100, tail: 100 }))
    }

    fn events(log: &EventLog) -> Vec<EventBody> {
        let read = log.read(0, 1000).unwrap();
        read.iter().map(|event| serde_json::from_str::<Event>(&event.json).unwrap().body).collect()
    }

    fn write(recorder: &Recorder, cell: Option<CellNumber>, data: &[u8]) {
        recorder.output(&OutputFrame { stream: Stream::Stdout, cell, data });
    }

    #[test]
    fn a_character_that_arrives_in_halves_is_published_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (log, recorder) = recorder(folder.path(), 1000);
        recorder.begin(1);
        for byte in "中文".as_bytes() {
            write(&recorder, Some(1), &[*byte]);
        }
        let record = recorder.finish(1);
        assert_eq!(record.captured.stdout, "中文");
        let text: String = events(&log)
            .into_iter()
            .filter_map(|body| if let EventBody::Output { text, .. } = body { Some(text) } else { None })
            .collect();
        assert_eq!(text, "中文");
    }

    #[test]
    fn beyond_the_spill_output_is_counted_and_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let (log, recorder) = recorder(folder.path(), 10);
        recorder.begin(1);
        for _ in 0..5 {
            write(&recorder, Some(1), b"12345678");
            recorder.flush();
        }
        let record = recorder.finish(1);
        assert_eq!(record.dropped_bytes, 30);
        let cuts =
            events(&log).into_iter().filter(|body| matches!(body, EventBody::OutputCut { cell: 1 })).count();
        assert_eq!(cuts, 1);
    }

    #[test]
    fn output_of_cells_that_do_not_run_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let (log, recorder) = recorder(folder.path(), 1000);
        write(&recorder, Some(7), b"forged");
        recorder.flush();
        assert_eq!(events(&log), []);
        write(&recorder, None, b"between cells\n");
        let expected =
            EventBody::Output { cell: None, stream: Stream::Stdout, text: "between cells\n".into() };
        assert_eq!(events(&log), [expected]);
    }

    #[test]
    fn too_many_displays_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (_, recorder) = recorder(folder.path(), 1000);
        recorder.begin(1);
        for _ in 0..DISPLAYS + 2 {
            recorder.display(1, Map::new());
        }
        let record = recorder.finish(1);
        assert_eq!((record.displays.len(), record.displays_dropped), (DISPLAYS, 2));
    }
}
