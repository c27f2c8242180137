//! Rebuilding a session's variables: the cells that made them run again, in a fresh worker, with the
//! recorded answers of tools instead of calls, and what comes out differently is told.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::calls::ask;
use super::outcome::{RecordedCall, Replay};
use super::past::Past;
use super::session::{CellRequest, SessionMsg, SessionRef, events_of};
use crate::protocol::api::{ReplayReport, ReplayedCell};
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::frames::ToolFailure;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode, Status};
use crate::store::EventLog;

/// A cell as it once was.
struct Recorded {
    code: String,
    timeout: Duration,
    calls: Replay,
    result: Option<Box<ExecutionResult>>,
}

/// Runs the kept cells of a session again. It ends early when one of them dies.
pub async fn replay(session: &SessionRef, log: &EventLog) -> Result<ReplayReport, Problem> {
    let events = events_of(log);
    let kept = Past::of(events.iter().cloned()).kept;
    let mut recorded = record(events);
    ask(session, |reply_to| SessionMsg::Reset { reply_to }).await?;
    let mut report = ReplayReport { cells: Vec::new() };
    for cell in kept {
        let Some(was) = recorded.remove(&cell) else { continue };
        let request = CellRequest {
            code: was.code,
            mode: Mode::Main,
            expression: false,
            timeout: was.timeout,
            replay: Some(was.calls),
            origin: None,
        };
        let ticket = ask(session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
        let result = ticket.done.await.map_err(|_| {
            Problem::new(Code::Internal, format!("cell {} ended without a result", ticket.cell))
        })?;
        let differences = was.result.map(|before| differences(&before, &result)).unwrap_or_default();
        report.cells.push(ReplayedCell { cell, replayed_as: ticket.cell, differences });
        if matches!(result.status, Status::Timeout | Status::Crashed) {
            break;
        }
    }
    Ok(report)
}

fn record(events: Vec<Event>) -> BTreeMap<CellNumber, Recorded> {
    let mut cells: BTreeMap<CellNumber, Recorded> = BTreeMap::new();
    let mut open: HashMap<u64, (CellNumber, usize)> = HashMap::new();
    for event in events {
        match event.body {
            EventBody::CellQueued { cell, code, timeout_s, .. } => {
                let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
                cells.insert(cell, Recorded { code, timeout, calls: Replay::new(), result: None });
            }
            EventBody::ToolCalled { cell: Some(cell), call, name, arguments } => {
                if let Some(recorded) = cells.get_mut(&cell) {
                    open.insert(call, (cell, recorded.calls.len()));
                    let outcome = Err(ToolFailure {
                        code: "interrupted".into(),
                        message: "this call had no answer when the cell first ran".into(),
                    });
                    recorded.calls.push_back(RecordedCall { name, arguments, outcome });
                }
            }
            EventBody::ToolAnswered { call, outcome } => {
                let place = open.remove(&call);
                let call = place.and_then(|(cell, place)| cells.get_mut(&cell)?.calls.get_mut(place));
                if let Some(call) = call {
                    call.outcome = match outcome {
                        ToolOutcome::Value(value) => Ok(value),
                        ToolOutcome::Failure(failure) => Err(failure),
                    };
                }
            }
            EventBody::CellFinished { result } => {
                if let Some(recorded) = cells.get_mut(&result.cell) {
                    recorded.result = Some(result);
                }
            }
            _ => {}
        }
    }
    cells
}

/// What a person would call different; times and addresses of objects in the text count too.
fn differences(before: &ExecutionResult, after: &ExecutionResult) -> Vec<String> {
    let value = |result: &ExecutionResult| result.result.as_ref().map(|value| value.repr.clone());
    let raised = |result: &ExecutionResult| result.exception.as_ref().map(|exception| exception.repr.clone());
    let checks = [
        ("status", before.status == after.status),
        ("stdout", before.stdout == after.stdout),
        ("stderr", before.stderr == after.stderr),
        ("result", value(before) == value(after)),
        ("exception", raised(before) == raised(after)),
    ];
    checks.into_iter().filter(|(_, same)| !same).map(|(name, _)| name.to_owned()).collect()
}
