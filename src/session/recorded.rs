//! The record of an earlier cell, read from its events: what a replay runs, and what it compares with. Only
//! digests are kept of its output, value and exception, and of the arguments of its tool calls.

use std::collections::HashMap;
use std::time::Duration;

use super::digest::{Digest, digest};
use super::outcome::{RecordedCall, Replay};
use crate::protocol::ask::AskNumber;
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::result::{ExecutionResult, Status};
use crate::protocol::values::parsed_bytes;

/// The memory of a recorded call beside its answer.
const CALL_BYTES: u64 = 256;

/// The range that contains all events of a cell, and those of other cells between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: Seq,
    pub last: Seq,
}

/// The record of an earlier cell.
#[derive(Debug)]
pub struct RecordedCell {
    pub code: String,
    pub timeout: Duration,
    pub calls: Replay,
    pub result: Option<ResultDigest>,
    /// The ask whose rules bound the cell.
    pub ask: Option<AskNumber>,
}

/// The parts of a result that a person would compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultDigest {
    status: Status,
    stdout: Digest,
    stderr: Digest,
    value: Option<Digest>,
    exception: Option<Digest>,
}

impl ResultDigest {
    #[must_use]
    pub fn of(result: &ExecutionResult) -> Self {
        Self {
            status: result.status,
            stdout: digest(&result.stdout),
            stderr: digest(&result.stderr),
            value: result.result.as_ref().map(|value| digest(&value.repr)),
            exception: result.exception.as_ref().map(|exception| digest(&exception.repr)),
        }
    }

    /// The differences that a person would see; times and object addresses in the text count too.
    #[must_use]
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let checks = [
            ("status", self.status == after.status),
            ("stdout", self.stdout == after.stdout),
            ("stderr", self.stderr == after.stderr),
            ("result", self.value == after.value),
            ("exception", self.exception == after.exception),
        ];
        checks.into_iter().filter(|(_, same)| !same).map(|(name, _)| name.to_owned()).collect()
    }
}

/// Builds the record of one cell from the events in its span.
#[derive(Debug)]
pub struct Recording {
    cell: CellNumber,
    found: Option<RecordedCell>,
    /// The positions of the calls that have no answer yet.
    open: HashMap<u64, usize>,
    bytes: u64,
}

impl Recording {
    #[must_use]
    pub fn of(cell: CellNumber) -> Self {
        Self { cell, found: None, open: HashMap::new(), bytes: 0 }
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
                self.found = Some(RecordedCell { code, timeout, calls: Replay::new(), result: None, ask });
            }
            EventBody::ToolCalled { cell: Some(cell), call, name, arguments, refused_bytes }
                if cell == self.cell =>
            {
                let Some(recorded) = &mut self.found else { return };
                self.open.insert(call, recorded.calls.len());
                let outcome = Err(ToolFailure {
                    code: "interrupted".into(),
                    message: "this call had no answer when the cell first ran".into(),
                });
                let arguments = digest(&arguments);
                recorded.calls.push_back(RecordedCall { name, arguments, refused_bytes, outcome });
                self.bytes = self.bytes.saturating_add(CALL_BYTES);
            }
            EventBody::ToolAnswered { call, outcome } => {
                let Some(place) = self.open.remove(&call) else { return };
                let found = self.found.as_mut().and_then(|recorded| recorded.calls.get_mut(place));
                let Some(found) = found else { return };
                let bytes = serde_json::to_string(&outcome).map_or(0, |text| parsed_bytes(&text));
                self.bytes = self.bytes.saturating_add(bytes);
                found.outcome = match outcome {
                    ToolOutcome::Value(value) => Ok(value),
                    ToolOutcome::Failure(failure) => Err(failure),
                };
            }
            EventBody::CellFinished { result } if result.cell == self.cell => {
                if let Some(recorded) = &mut self.found {
                    recorded.result = Some(ResultDigest::of(&result));
                }
            }
            _ => {}
        }
    }
}
