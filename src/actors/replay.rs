//! Rebuilds a session's variables: the cells that made them run again in a fresh worker, with the recorded
//! answers of tools instead of calls, and differing results are reported. `session::replay` decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::calls::try_call;
use crate::actors::session::messages::{CellRequest, ReplayOf, SessionMsg, SessionRef};
use crate::actors::session::restore;
use crate::panics::TOO_MANY;
use crate::protocol::api::ReplayReport;
use crate::protocol::clock::Moment;
use crate::protocol::event::Event;
use crate::protocol::problem::Problem;
use crate::protocol::result::Mode;
use crate::session::machine::Input;
use crate::session::replay::Replay;
use crate::session::restore::Fold;
use crate::store::{EventLog, Overdraft};

/// Runs the cells of a session again whose changes its variables hold.
pub async fn replay(session: &SessionRef, log: &Arc<EventLog>) -> Result<ReplayReport, Problem> {
    try_call(session, |reply_to| SessionMsg::PrepareReplay { reply_to }).await?;
    let under_way = UnderWay { session, is_told: false };
    let replayed = run_again(session, log).await;
    under_way.end(replayed.as_ref().is_ok_and(|(_, is_whole)| *is_whole)).await;
    replayed.map(|(report, _)| report)
}

/// Runs the cells again. Also gives whether all of them have run.
async fn run_again(session: &SessionRef, log: &Arc<EventLog>) -> Result<(ReplayReport, bool), Problem> {
    let now = Moment::now();
    let take = move |fold: &mut Fold, event: Event| {
        let _ = fold.take(&event, now);
        Ok(())
    };
    let fold = Fold::new(&Arc::default());
    let fold = restore::fold(log, (0, log.newest()), Overdraft::Refused, fold, take).await?;
    let restored = fold.end(&BTreeMap::new(), now);
    let mut replay = Replay::of(&restored);
    let cells = Some(replay.to_run().to_vec());
    try_call(session, |reply_to| SessionMsg::Reset { replay: cells, reply_to }).await?;
    while let Some(cell) = replay.next_cell() {
        // Records are loaded one by one, so that each is in memory only while its cell runs.
        let Some(span) = restored.spans.get(&cell).copied() else { continue };
        let (Some(was), _charge) = restore::recorded(log, (cell, span), Overdraft::Refused).await? else {
            continue;
        };
        let request = CellRequest {
            replay: Some(ReplayOf { cell, calls: was.calls }),
            // The code is the same, so the rules of its ask apply again.
            bound_by: was.ask,
            rules: was.ask.map(|ask| restored.rules_of(ask)),
            ..CellRequest::new(was.code, Mode::Main, was.timeout)
        };
        let ticket = try_call(session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
        if !replay.ran(cell, was.result, &*ticket.result(session).await?) {
            return Ok((replay.report(), false));
        }
    }
    Ok((replay.report(), true))
}

/// Tells the session that the replay is over, also if a panic ends it.
struct UnderWay<'a> {
    session: &'a SessionRef,
    is_told: bool,
}

impl UnderWay<'_> {
    async fn end(mut self, finished: bool) {
        for _ in 0..TOO_MANY {
            // A session that dies over this message would take the replay for one that goes on, so it is told again.
            let ended = |reply_to| SessionMsg::ReplayEnded { finished, reply_to };
            if try_call(self.session, ended).await.is_ok() {
                break;
            }
        }
        self.is_told = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            let _ = self.session.cast(SessionMsg::Input(Input::ReplayEnded { finished: false }));
        }
    }
}
