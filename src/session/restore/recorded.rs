//! The fold of an earlier cell's events into its record, which a replay runs and compares with.

use std::collections::HashMap;
use std::time::Duration;

use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::values::parsed_bytes;
use crate::session::digest::digest;
use crate::session::replay::{RecordedCall, RecordedCalls, RecordedCell, ResultDigest};

/// The memory of a recorded call beside its answer.
const CALL_BYTES: u64 = 256;

/// The range that contains all events of a cell, and those of other cells between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: Seq,
    pub last: Seq,
}

/// Builds the record of one cell from the events in its span.
#[derive(Debug)]
pub struct Recording {
    cell: CellNumber,
    found: Option<RecordedCell>,
    /// The positions of the calls that have no answer yet.
    open: HashMap<u64, usize>,
    /// Whether somebody interrupts the cell: what its code does not wait for any more from then on, it may have given up for that.
    is_interrupted: bool,
    bytes: u64,
}

impl Recording {
    #[must_use]
    pub fn of(cell: CellNumber) -> Self {
        Self { cell, found: None, open: HashMap::new(), is_interrupted: false, bytes: 0 }
    }

    /// The memory that the record takes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[must_use]
    pub fn end(self) -> Option<RecordedCell> {
        self.found
    }

    pub fn take(&mut self, event: Event) {
        match event.body {
            EventBody::CellQueued { cell, code, timeout_s, origin, bound_by, .. } if cell == self.cell => {
                let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
                let ask = origin.map(|origin| origin.ask).or(bound_by);
                self.bytes = code.len() as u64;
                self.found =
                    Some(RecordedCell { code, timeout, calls: RecordedCalls::default(), result: None, ask });
            }
            EventBody::ToolCalled { cell: Some(cell), call, name, arguments, refused_bytes, .. }
                if cell == self.cell =>
            {
                let Some(recorded) = &mut self.found else { return };
                self.open.insert(call, recorded.calls.0.len());
                let outcome = Err(unanswered());
                let arguments = digest(&arguments);
                recorded.calls.0.push_back(RecordedCall { name, arguments, refused_bytes, outcome });
                self.bytes = self.bytes.saturating_add(CALL_BYTES);
            }
            EventBody::ToolAnswered { call, outcome } => {
                let Some(position) = self.open.remove(&call) else { return };
                let found = self.found.as_mut().and_then(|recorded| recorded.calls.0.get_mut(position));
                let Some(found) = found else { return };
                let bytes = serde_json::to_string(&outcome).map_or(0, |text| parsed_bytes(&text));
                self.bytes = self.bytes.saturating_add(bytes);
                found.outcome = match outcome {
                    ToolOutcome::Value(value) => Ok(value),
                    ToolOutcome::Failure(failure) => Err(failure),
                };
                // Nobody interrupts the cell when it runs again, so it would wait for as long as it may.
                if self.is_interrupted && found.was_given_up() {
                    found.outcome = Err(unanswered());
                }
            }
            EventBody::Interrupting { cell, .. } if cell == self.cell => self.is_interrupted = true,
            EventBody::CellFinished { result } if result.cell == self.cell => {
                if let Some(recorded) = &mut self.found {
                    recorded.result = Some(ResultDigest::of(&result));
                }
            }
            _ => {}
        }
    }
}

/// The failure that a replay gives to a call which had no answer.
fn unanswered() -> ToolFailure {
    ToolFailure {
        code: "interrupted".into(),
        message: "this call had no answer when the cell first ran".into(),
    }
}
