//! Rebuilding a session's variables: the cells that made them run again, in a fresh worker, with the
//! recorded answers of tools instead of calls, and what comes out differently is told.

use crate::actors::calls::ask;
use crate::actors::session::messages::{CellRequest, ReplayOf, SessionMsg, SessionRef};
use crate::actors::session::restore::events as events_of;
use crate::protocol::api::{ReplayReport, ReplayedCell};
use crate::protocol::problem::Problem;
use crate::protocol::result::{ExecutionResult, Mode, Status};
use crate::session::recorded::record;
use crate::session::restore::Restored;
use crate::store::EventLog;

/// Runs the kept cells of a session again. It ends early when one of them dies or is interrupted; until
/// all have run, what is left stays on the list for the next replay.
pub async fn replay(session: &SessionRef, log: &EventLog) -> Result<ReplayReport, Problem> {
    let events = events_of(log);
    let Restored { replayable, interrupted, rules_of_asks, .. } =
        Restored::of(&events, &std::sync::Arc::default());
    let mut recorded = record(&events);
    drop(events);
    let replay = Some(replayable.clone());
    ask(session, |reply_to| SessionMsg::Reset { replay, reply_to }).await?;
    let mut under_way = UnderWay { session, finished: false };
    let mut report = ReplayReport { cells: Vec::new(), not_run: replayable, left_out: interrupted };
    for cell in report.not_run.clone() {
        report.not_run.remove(0);
        let Some(was) = recorded.remove(&cell) else { continue };
        let request = CellRequest {
            code: was.code,
            mode: Mode::Main,
            expression: false,
            timeout: was.timeout,
            replay: Some(ReplayOf { cell, calls: was.calls }),
            origin: None,
            // It is the same code, so the same rules bind what comes of it.
            bound_by: was.ask,
            rules: was.ask.and_then(|ask| rules_of_asks.get(&ask).cloned()),
            keyed: None,
        };
        let ticket = ask(session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
        let replayed_as = ticket.cell;
        let result = ticket.result(session).await?;
        let differences = was.result.map(|before| differences(&before, &result)).unwrap_or_default();
        report.cells.push(ReplayedCell { cell, replayed_as, differences });
        if matches!(result.status, Status::Timeout | Status::Crashed | Status::Interrupted) {
            return Ok(report);
        }
    }
    under_way.finished = true;
    Ok(report)
}

/// Tells the session when it is over, also if an error ends it.
struct UnderWay<'a> {
    session: &'a SessionRef,
    finished: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let _ = self.session.cast(SessionMsg::ReplayEnded { finished: self.finished });
    }
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
