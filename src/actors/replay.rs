//! Rebuilds a session's variables: the cells that made them run again in a fresh worker, with the recorded
//! answers of tools instead of calls, and differing results are reported. `session::replay` decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::calls::try_call;
use crate::actors::session::messages::{CellRequest, ReplayOf, SessionMsg, SessionRef};
use crate::actors::session::restore;
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
    let mut under_way = UnderWay { session, finished: false };
    let now = Moment::now();
    let take = move |fold: &mut Fold, event: Event| {
        let _ = fold.take(&event, now);
        Ok(())
    };
    let fold = Fold::new(&Arc::default());
    let fold = restore::fold(log, (0, log.newest()), Overdraft::Refused, fold, take).await?;
    let past = fold.end(&BTreeMap::new(), now);
    let mut replay = Replay::of(&past);
    let cells = Some(replay.to_run().to_vec());
    try_call(session, |reply_to| SessionMsg::Reset { replay: cells, reply_to }).await?;
    while let Some(cell) = replay.next_cell() {
        // Records are loaded one by one, so that each is in memory only while its cell runs.
        let Some(span) = past.spans.get(&cell).copied() else { continue };
        let (Some(was), _charge) = restore::recorded(log, (cell, span), Overdraft::Refused).await? else {
            continue;
        };
        let request = CellRequest {
            replay: Some(ReplayOf { cell, calls: was.calls }),
            // The code is the same, so the rules of its ask apply again.
            bound_by: was.ask,
            rules: was.ask.map(|ask| past.rules_of(ask)),
            ..CellRequest::new(was.code, Mode::Main, was.timeout)
        };
        let ticket = try_call(session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
        if !replay.ran(cell, was.result, &*ticket.result(session).await?) {
            return Ok(replay.report());
        }
    }
    under_way.finished = true;
    Ok(replay.report())
}

/// Tells the session that the replay is over, also if an error ends it.
struct UnderWay<'a> {
    session: &'a SessionRef,
    finished: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let _ = self.session.cast(SessionMsg::Input(Input::ReplayEnded { finished: self.finished }));
    }
}
