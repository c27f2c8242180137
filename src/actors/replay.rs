//! Rebuilds a session's variables: the cells that made them run again in a fresh worker, with the recorded
//! answers of tools instead of calls, and differing results are reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::calls::ask;
use crate::actors::session::messages::{CellRequest, ReplayOf, SessionMsg, SessionRef};
use crate::actors::session::restore;
use crate::protocol::api::{ReplayReport, ReplayedCell};
use crate::protocol::event::Event;
use crate::protocol::problem::Problem;
use crate::protocol::result::{Mode, Status};
use crate::session::recorded::ResultDigest;
use crate::session::restore::Fold;
use crate::store::{EventLog, Overdraft};

/// Runs the kept cells of a session again. It stops early when one of them dies or is interrupted; the cells
/// that have not run then stay on the list for the next replay.
pub async fn replay(session: &SessionRef, log: &Arc<EventLog>) -> Result<ReplayReport, Problem> {
    ask(session, |reply_to| SessionMsg::PrepareReplay { reply_to }).await?;
    let mut under_way = UnderWay { session, finished: false };
    let take = |fold: &mut Fold, event: Event| {
        fold.take(&event);
        Ok(())
    };
    let fold = Fold::new(&Arc::default());
    let fold = restore::fold(log, (0, log.newest()), Overdraft::Refused, fold, take).await?;
    let past = fold.end(&BTreeMap::new());
    let replay = Some(past.replayable.clone());
    ask(session, |reply_to| SessionMsg::Reset { replay, reply_to }).await?;
    let (not_run, left_out) = (past.replayable.clone(), past.interrupted.clone());
    let mut report = ReplayReport { cells: Vec::new(), not_run, left_out };
    for cell in report.not_run.clone() {
        let span = past.spans.get(&cell).copied();
        // Records are loaded one by one, so that each is in memory only while its cell runs.
        let (was, _charge) = match span {
            Some(span) => restore::recorded(log, (cell, span), Overdraft::Refused).await?,
            None => (None, None),
        };
        report.not_run.remove(0);
        let Some(was) = was else { continue };
        let request = CellRequest {
            replay: Some(ReplayOf { cell, calls: was.calls }),
            // The code is the same, so the rules of its ask apply again.
            bound_by: was.ask,
            rules: was.ask.map(|ask| past.rules_of(ask)),
            ..CellRequest::new(was.code, Mode::Main, was.timeout)
        };
        let ticket = ask(session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
        let replayed_as = ticket.cell;
        let result = ticket.result(session).await?;
        let differences = was.result.map(|before| before.differences(&ResultDigest::of(&result)));
        let differences = differences.unwrap_or_default();
        report.cells.push(ReplayedCell { cell, replayed_as, differences });
        if matches!(result.status, Status::Timeout | Status::Crashed | Status::Interrupted) {
            return Ok(report);
        }
    }
    under_way.finished = true;
    Ok(report)
}

/// Tells the session that the replay is over, also if an error ends it.
struct UnderWay<'a> {
    session: &'a SessionRef,
    finished: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let _ = self.session.cast(SessionMsg::ReplayEnded { finished: self.finished });
    }
}
