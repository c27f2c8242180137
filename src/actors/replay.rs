//! Rebuilds a session's variables: the cells that made them run again in a fresh worker, with the recorded
//! answers of tools instead of calls, and differing results are reported. `session::replay` decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::calls::try_call;
use crate::actors::session::messages::{CellRequest, ReplayOf, SessionMsg, SessionRef};
use crate::actors::session::restore;
use crate::memory::Charge;
use crate::panics::TOO_MANY;
use crate::protocol::api::ReplayReport;
use crate::protocol::clock::Moment;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::problem::Problem;
use crate::protocol::result::{ExecutionResult, Mode};
use crate::session::machine::Input;
use crate::session::replay::{RecordedCell, Replay};
use crate::session::restore::{Fold, Restored};
use crate::session::rules::{CallOrigin, CellRules};
use crate::store::{EventLog, JournalError, Overdraft};

/// Runs the cells of a session again whose changes its variables hold.
pub async fn replay(session: &SessionRef, log: &Arc<EventLog>) -> Result<ReplayReport, Problem> {
    let under_way = UnderWay::begin(session).await?;
    let replayed = run_again((session, under_way.number), log).await;
    under_way.end(replayed.as_ref().is_ok_and(|(_, is_whole)| *is_whole)).await;
    replayed.map(|(report, _)| report)
}

/// Runs cells of another session in this one, with their records. In this journal they have no numbers of their own, so
/// after the end of the daemon they are not replayed again.
pub(in crate::actors) async fn replay_records(
    session: &SessionRef,
    replay: Replay,
    records: BTreeMap<CellNumber, Recorded>,
) -> Result<ReplayReport, Problem> {
    let under_way = UnderWay::begin(session).await?;
    let replayed = run_recorded((session, under_way.number), replay, Records::Given(records)).await;
    under_way.end(replayed.as_ref().is_ok_and(|(_, is_whole)| *is_whole)).await;
    replayed.map(|(report, _)| report)
}

/// A replay or waking by its session and its number.
type ReplayIn<'a> = (&'a SessionRef, u64);

/// Runs the cells again. Also gives whether all of them have run.
async fn run_again(of: ReplayIn<'_>, log: &Arc<EventLog>) -> Result<(ReplayReport, bool), Problem> {
    let past = fold_journal(log).await?;
    run_recorded(of, Replay::of(&past), Records::Journal { log, past: &past }).await
}

/// What the journal of a session says of its past. The rules of clients are not in it.
pub(in crate::actors) async fn fold_journal(log: &Arc<EventLog>) -> Result<Restored, Problem> {
    let now = Moment::now();
    let take = move |fold: &mut Fold, event: Event| {
        let _ = fold.take(&event, now);
        Ok(())
    };
    let fold = Fold::new(&Arc::default());
    let fold = restore::fold(log, (0, log.newest()), Overdraft::Refused, fold, take).await?;
    Ok(fold.end(&BTreeMap::new(), now))
}

/// The past, and the rules of all code that ran in the sandbox at any time since an event was the newest: a reset may have
/// ended some of it.
pub(in crate::actors) async fn fold_journal_with_rules(
    log: &Arc<EventLog>,
    since: Seq,
) -> Result<(Restored, CellRules), Problem> {
    let now = Moment::now();
    let take = move |state: &mut FoldWithRules, event: Event| {
        state.take(&event, since, now);
        Ok(())
    };
    let state = FoldWithRules { fold: Fold::new(&Arc::default()), rules: CellRules::default() };
    let mut state = restore::fold(log, (0, log.newest()), Overdraft::Refused, state, take).await?;
    state.bind();
    Ok((state.fold.end(&BTreeMap::new(), now), state.rules))
}

struct FoldWithRules {
    fold: Fold,
    rules: CellRules,
}

impl FoldWithRules {
    fn take(&mut self, event: &Event, since: Seq, now: Moment) {
        if event.seq > since && may_end_rules(&event.body) {
            self.bind();
        }
        let _ = self.fold.take(event, now);
    }

    /// Adds the rules that hold after the events so far.
    fn bind(&mut self) {
        let now = self.fold.so_far().sandbox_rules.combined(CallOrigin::Leftover);
        self.rules = self.rules.tightened(&now);
    }
}

/// Whether rules may hold no more after this event. All other events only add rules, so that those that hold later have
/// them, too, and combining them for each event of a long journal is not needed.
const fn may_end_rules(event: &EventBody) -> bool {
    matches!(
        event,
        EventBody::SandboxReady { .. }
            | EventBody::Woken { .. }
            | EventBody::Reset
            | EventBody::ResetDone { .. }
    )
}

/// A cell that runs again.
pub(in crate::actors) struct Recorded {
    pub was: RecordedCell,
    /// The rules for its code; those of clients if there are none.
    pub rules: Option<Arc<CellRules>>,
    /// For the memory of the record.
    pub _charge: Option<Charge>,
}

/// Where the records of a replay are.
enum Records<'a> {
    /// In the journal of the session. They are loaded one by one, so that each is in memory only while its cell runs.
    Journal {
        log: &'a Arc<EventLog>,
        past: &'a Restored,
    },
    Given(BTreeMap<CellNumber, Recorded>),
}

impl Records<'_> {
    async fn take(&mut self, cell: CellNumber) -> Result<Option<Recorded>, JournalError> {
        let (log, past) = match self {
            Self::Journal { log, past } => (*log, *past),
            Self::Given(records) => return Ok(records.remove(&cell)),
        };
        let Some(span) = past.spans.get(&cell).copied() else { return Ok(None) };
        let (recorded, charge) = restore::recorded(log, (cell, span), Overdraft::Refused).await?;
        // The code is the same, so the rules of its ask apply again.
        let rules = |ask| past.rules_of(ask);
        Ok(recorded.map(|was| Recorded { rules: was.ask.map(rules), was, _charge: charge }))
    }
}

/// Runs the cells of a replay. The session was prepared for it.
async fn run_recorded(
    (session, number): ReplayIn<'_>,
    mut replay: Replay,
    mut records: Records<'_>,
) -> Result<(ReplayReport, bool), Problem> {
    // The journal of this session has no cells of others, and other ones of the same numbers.
    let cells = match &records {
        Records::Journal { .. } => replay.to_run().to_vec(),
        Records::Given(_) => Vec::new(),
    };
    try_call(session, |reply_to| SessionMsg::Reset { replay: Some((number, cells)), reply_to }).await?;
    match run_all((session, number), &mut replay, &mut records).await? {
        Some(Cut::NoMemory { problem, .. }) => Err(problem),
        cut => Ok((replay.report(), cut.is_none())),
    }
}

/// What cut a replay off before all of its cells had run.
pub(super) enum Cut {
    /// The last cell that ran died, or was interrupted.
    Ended(Arc<ExecutionResult>),
    /// The record of the next cell is larger than the memory that its owner may have, so it did not run, and cannot.
    NoMemory { cell: CellNumber, problem: Problem },
}

/// Runs cells of the session's journal again, one after the other. Gives what cut that off, if not all have run.
pub(super) async fn run_cells(
    of: ReplayIn<'_>,
    log: &Arc<EventLog>,
    past: &Restored,
    replay: &mut Replay,
) -> Result<Option<Cut>, Problem> {
    run_all(of, replay, &mut Records::Journal { log, past }).await
}

async fn run_all(
    (session, number): ReplayIn<'_>,
    replay: &mut Replay,
    records: &mut Records<'_>,
) -> Result<Option<Cut>, Problem> {
    while let Some(cell) = replay.next_cell() {
        let recorded = match records.take(cell).await {
            Err(JournalError::NoRoom(no_room)) if no_room.is_for_ever() => {
                let problem = no_room.too_large(&format!("what cell {cell} needs to run again"));
                return Ok(Some(Cut::NoMemory { cell, problem }));
            }
            recorded => recorded?,
        };
        let Some(Recorded { was, rules, _charge }) = recorded else { continue };
        let request = CellRequest {
            replay: Some(ReplayOf { number, cell, calls: was.calls }),
            bound_by: was.ask,
            rules,
            ..CellRequest::new(was.code, Mode::Main, was.timeout)
        };
        let ticket = try_call(session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
        let result = ticket.result(session).await?;
        if !replay.ran(cell, was.result, &result) {
            return Ok(Some(Cut::Ended(result)));
        }
    }
    Ok(None)
}

/// Tells the session that the replay is over, also if a panic ends it.
struct UnderWay<'a> {
    session: &'a SessionRef,
    /// The number of the replay in its session.
    number: u64,
    is_told: bool,
}

impl<'a> UnderWay<'a> {
    async fn begin(session: &'a SessionRef) -> Result<Self, Problem> {
        let number = try_call(session, |reply_to| SessionMsg::PrepareReplay { reply_to }).await?;
        Ok(Self { session, number, is_told: false })
    }

    async fn end(mut self, finished: bool) {
        for _ in 0..TOO_MANY {
            // A session that dies over this message would take the replay for one that goes on, so it is told again.
            let ended = |reply_to| SessionMsg::ReplayEnded { number: self.number, finished, reply_to };
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
            let ended = Input::ReplayEnded { number: self.number, finished: false };
            let _ = self.session.cast(SessionMsg::Input(ended));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::clock;
    use crate::protocol::saved_state::{BaseSource, BoundRules};

    #[test]
    fn rules_that_a_reset_ended_since_are_among_those_of_that_time() {
        let bound = Box::new(BoundRules { approve: vec!["mail".into()], ..BoundRules::default() });
        let on = BaseSource::Archive { name: "lab".into(), cell: 1 };
        let bodies = [
            EventBody::Based { on, snapshot: None, bound },
            EventBody::Frozen,
            EventBody::Reset,
            EventBody::ResetDone { cells: 0 },
            EventBody::Thawed,
        ];
        let holds = |since| {
            let mut state = FoldWithRules { fold: Fold::new(&Arc::default()), rules: CellRules::default() };
            for (seq, body) in (1..).zip(bodies.clone()) {
                state.take(&Event { seq, at: clock::now(), body }, since, Moment::now());
            }
            state.bind();
            state.rules.approve.contains("mail")
        };
        assert_eq!([1, 2, 3, 4, 5].map(holds), [true, true, true, false, false]);
    }
}
