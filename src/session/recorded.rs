//! Cells as they once were, read back from the events: what a replay runs, and what it compares with.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::outcome::{RecordedCall, Replay};
use crate::protocol::ask::AskNumber;
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::ExecutionResult;

/// A cell as it once was.
pub struct RecordedCell {
    pub code: String,
    pub timeout: Duration,
    pub calls: Replay,
    pub result: Option<Box<ExecutionResult>>,
    /// The ask whose rules it kept to.
    pub ask: Option<AskNumber>,
}

pub fn record(events: &[Event]) -> BTreeMap<CellNumber, RecordedCell> {
    let mut cells: BTreeMap<CellNumber, RecordedCell> = BTreeMap::new();
    let mut open: HashMap<u64, (CellNumber, usize)> = HashMap::new();
    for event in events {
        match &event.body {
            EventBody::CellQueued { cell, code, timeout_s, origin, bound_by, .. } => {
                let timeout = Duration::try_from_secs_f64(*timeout_s).unwrap_or_default();
                let ask = origin.as_ref().map(|origin| origin.ask).or(*bound_by);
                let (code, calls) = (code.clone(), Replay::new());
                let recorded = RecordedCell { code, timeout, calls, result: None, ask };
                cells.insert(*cell, recorded);
            }
            EventBody::ToolCalled { cell: Some(cell), call, name, arguments, refused_bytes } => {
                if let Some(recorded) = cells.get_mut(cell) {
                    open.insert(*call, (*cell, recorded.calls.len()));
                    let outcome = Err(ToolFailure {
                        code: "interrupted".into(),
                        message: "this call had no answer when the cell first ran".into(),
                    });
                    recorded.calls.push_back(RecordedCall {
                        name: name.clone(),
                        arguments: arguments.clone(),
                        refused_bytes: *refused_bytes,
                        outcome,
                    });
                }
            }
            EventBody::ToolAnswered { call, outcome } => {
                let place = open.remove(call);
                let call = place.and_then(|(cell, place)| cells.get_mut(&cell)?.calls.get_mut(place));
                if let Some(call) = call {
                    call.outcome = match outcome {
                        ToolOutcome::Value(value) => Ok(value.clone()),
                        ToolOutcome::Failure(failure) => Err(failure.clone()),
                    };
                }
            }
            EventBody::CellFinished { result } => {
                if let Some(recorded) = cells.get_mut(&result.cell) {
                    recorded.result = Some(result.clone());
                }
            }
            _ => {}
        }
    }
    cells
}
