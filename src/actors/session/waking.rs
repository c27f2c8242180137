//! Wakes a session: its new sandbox has the variables of a snapshot, and the cells after it run again, with the recorded
//! answers of their tools, before any other. Where no snapshot was taken yet, all cells run again.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

use super::messages::{OwnSession, RanAgain, SessionMsg, WakeOutcome};
use super::refusals::base_is_unusable;
use super::restore::fold;
use super::state::SessionActorState;
use crate::actors::calls;
use crate::actors::executor::messages::WakePlan;
use crate::actors::replay::{Cut, run_cells};
use crate::actors::turns::UserTurn;
use crate::panics::spawn_reporting;
use crate::protocol::clock::Moment;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Reason, Status};
use crate::protocol::snapshot::SnapshotRecord;
use crate::session::machine::Input;
use crate::session::notices::{self, WokenFrom};
use crate::session::replay::Replay;
use crate::session::restore::{CellsAgain, Fold, Restored};
use crate::session::rules::CellRules;
use crate::store::{EventLog, Overdraft};

/// Sandboxes in a row that end before they have loaded a snapshot, until the person who waits is told of other ways.
const WAKES_TRIED: u32 = 3;

/// The cells that run again after the session woke.
#[derive(Default)]
pub(super) struct Rebuilding {
    number: u64,
    task: Option<AbortOnDropHandle<()>>,
    /// The cell of an earlier daemon, or an earlier generation, that runs again or waits for that.
    open: Option<CellNumber>,
    /// The snapshot that could not be loaded last for a reason that may pass.
    interrupted: Option<Interrupted>,
}

struct Interrupted {
    snapshot: String,
    /// How many times in a row.
    times: u32,
    /// Whether it took too long in one of them.
    was_too_slow: bool,
}

impl Rebuilding {
    /// Counts a sandbox that ended before it had loaded this snapshot.
    fn interrupted(&mut self, snapshot: String, problem: &Problem) -> u32 {
        let before = self.interrupted.take().filter(|before| before.snapshot == snapshot);
        let (times, was_too_slow) = before.map_or((0, false), |before| (before.times, before.was_too_slow));
        let times = times.saturating_add(1);
        let was_too_slow = was_too_slow || problem.code == Code::TooSlow;
        self.interrupted = Some(Interrupted { snapshot, times, was_too_slow });
        times
    }

    /// The snapshot that took too long to load last.
    pub fn too_slow(&self) -> Option<&str> {
        let slow = self.interrupted.as_ref().filter(|interrupted| interrupted.was_too_slow);
        slow.map(|interrupted| interrupted.snapshot.as_str())
    }

    pub fn of_before(restored: &Restored) -> Self {
        let running = restored.running.iter().map(|begun| &begun.start);
        let mut open = running.chain(&restored.queued).filter(|start| start.replay.is_some());
        let open = open.next().map(|start| start.cell).filter(|_| !restored.waking.is_empty());
        Self { open, ..Self::default() }
    }

    pub fn stop(&mut self) {
        (self.task, self.open) = (None, None);
    }
}

/// Why a session did not wake whose variables are still there. Who has tried often enough is told what else there is. All of
/// it is in the message, which is what the result of a cell shows.
fn not_awake(problem: &Problem, times: u32) -> Problem {
    let what = format!("the variables of the session could not be loaded: {}", problem.message);
    let next = if times < WAKES_TRIED {
        "they are saved, and the next cell tries again".to_owned()
    } else {
        format!(
            "they are saved, and this was tried {times} times in a row; `belljar replay` runs the cells again in \
             their place, and `belljar reset` begins without them"
        )
    };
    Problem::new(problem.code, format!("{what}; {next}"))
}

/// Why a session did not wake whose cells could not run again. `saved` is the snapshot that it has.
fn not_rebuilt(problem: &Problem, saved: Option<&SnapshotRecord>) -> Problem {
    let others = match saved {
        Some(snapshot) => format!(
            "`belljar branch --snapshot {}` makes a session with the variables that are saved; `belljar reset` begins without \
             any, also without those that are saved",
            snapshot.name.as_ref().unwrap_or(&snapshot.id)
        ),
        None => "`belljar reset` begins without them".to_owned(),
    };
    let what = format!(
        "cells of before could not run again, which make variables of the session: {}; nothing is lost, and the next cell tries \
         again ({others})",
        problem.message.trim_end_matches('.')
    );
    Problem::new(problem.code, what)
}

/// Whether no other cell runs again after one with this result: it died, or was interrupted. What did not run at all is a
/// problem, because it runs as well as before in the next sandbox.
fn is_cut_by(result: &ExecutionResult) -> Result<bool, Problem> {
    if result.reason == Reason::ByCancel {
        let why = result.state.note.as_deref().unwrap_or("one of them was cancelled");
        return Err(Problem::new(Code::Busy, why));
    }
    Ok(!matches!(result.status, Status::Success | Status::Failure))
}

/// What a new sandbox wakes with, by the journal.
pub(in crate::actors) async fn plan(
    log: &Arc<EventLog>,
    client_rules: &Arc<CellRules>,
    turn: &UserTurn,
) -> Result<WakePlan, Problem> {
    if !log.is_flushed().await {
        return Err(log.unwritten("the session was not woken"));
    }
    let Restored { wake, sandbox_rules, .. } = read(log, client_rules, turn).await?;
    Ok(wake.map(|wake| (wake, sandbox_rules)))
}

/// Reads the whole journal, as a restore does: of one user one at a time, and few of all users at once.
async fn read(
    log: &Arc<EventLog>,
    client_rules: &Arc<CellRules>,
    turn: &UserTurn,
) -> Result<Restored, Problem> {
    let _turn = turn.take().await;
    let now = Moment::now();
    let take = move |fold: &mut Fold, event: Event| {
        let _ = fold.take(&event, now);
        Ok(())
    };
    let state = Fold::new(client_rules);
    let state = fold(log, (0, log.newest()), Overdraft::Allowed, state, take).await?;
    Ok(state.end(&BTreeMap::new(), now))
}

impl SessionActorState {
    /// The new sandbox has the variables of a snapshot, or could not load it, or has none. `is_past`: a reset has come meanwhile.
    pub(super) fn woken(&mut self, outcome: WakeOutcome, is_past: bool) {
        let (wake, report) = match outcome {
            WakeOutcome::Woken { wake, report, is_part } => {
                if is_part && !is_past {
                    self.base_is_there(Err(base_is_unusable("only a part of them can be")));
                }
                (*wake, report)
            }
            WakeOutcome::Rebuilds(cells) => return self.starts_over(cells, is_past),
            WakeOutcome::Failed { snapshot, reason } => {
                return self.wake_failed(snapshot, reason, is_past);
            }
        };
        let missing = wake.lacks(report.missing);
        // A replay that somebody wants runs them itself.
        let may_run_again = self.machine.may_run_again() && !is_past;
        let replays = if may_run_again { wake.replays } else { Vec::new() };
        let from = self.saving.states.woken_from(true, wake.state_of);
        let note = notices::woken(from, &missing, &report.reopened, &replays, &wake.left_out);
        let runs_again = !replays.is_empty();
        self.rebuilding.interrupted = None;
        let woken = EventBody::Woken {
            snapshot: Some(wake.snapshot.id),
            cell: wake.state_of,
            missing,
            reopened: report.reopened,
            replays,
            left_out: wake.left_out,
        };
        self.saving.states.take(&woken);
        self.log.append(woken);
        if !is_past {
            self.apply(Input::Woken { note, replays: runs_again });
        }
    }

    /// No snapshot was there, so the cells run again that made the variables. A replay that somebody wants runs them itself, and
    /// after a reset they are not wanted.
    fn starts_over(&mut self, cells: CellsAgain, is_past: bool) {
        if !self.machine.may_run_again() || is_past {
            return;
        }
        let CellsAgain { replays, left_out } = cells;
        let note = notices::woken(WokenFrom::Nothing, &[], &[], &replays, &left_out);
        let (missing, reopened) = (Vec::new(), Vec::new());
        let woken = EventBody::Woken { snapshot: None, cell: 0, missing, reopened, replays, left_out };
        self.saving.states.take(&woken);
        self.log.append(woken);
        self.apply(Input::Woken { note, replays: true });
    }

    /// A snapshot could not be loaded for a reason that may pass. Nothing is lost: what waited for the sandbox is refused, and
    /// whatever needs one next has the snapshot loaded again.
    pub(super) fn wake_interrupted(&mut self, snapshot: String, problem: &Problem) {
        let times = self.rebuilding.interrupted(snapshot, problem);
        let failed = self.sandbox_failed(not_awake(problem, times));
        self.apply(failed);
    }

    /// A snapshot could not be loaded. It is not tried again.
    pub(super) fn wake_failed(&mut self, snapshot: String, reason: String, is_past: bool) {
        let failed = EventBody::WakeFailed { snapshot, reason: reason.clone() };
        self.saving.states.take(&failed);
        self.log.append(failed);
        if !is_past {
            self.base_is_there(Err(base_is_unusable(&reason)));
            self.apply(Input::NotWoken { reason });
        }
    }

    /// Runs the cells again that follow the snapshot, if the session wakes and that is not under way.
    pub(super) fn rebuild(&mut self) {
        if !self.machine.is_waking() || self.rebuilding.task.is_some() {
            return;
        }
        self.rebuilding.number += 1;
        let (number, open) = (self.rebuilding.number, self.rebuilding.open.take());
        let (session, log) = (self.myself.clone(), Arc::clone(&self.log));
        let (worker, turn) = (session.clone(), self.args.restore_turn.clone());
        let waking = self.machine.replays().newest;
        let work = async move { rebuild(&worker, &log, &turn, waking, open).await };
        let task = spawn_reporting(work, move |outcome| {
            let panicked = || Err(Problem::new(Code::Internal, "an internal error ended that"));
            let outcome = outcome.unwrap_or_else(panicked);
            let _ = session.cast(SessionMsg::Rebuilt { number, outcome });
        });
        self.rebuilding.task = Some(AbortOnDropHandle::new(task));
    }

    /// What could not run again does so in the next sandbox: this one ends, before any cell runs without what they make.
    pub(super) fn rebuilt(&mut self, number: u64, outcome: Result<RanAgain, Problem>) {
        if self.rebuilding.number != number || self.rebuilding.task.take().is_none() {
            return;
        }
        match outcome {
            Ok(RanAgain { finished, otherwise, not_run }) => {
                self.apply(Input::RanOtherwise { cells: otherwise });
                if let Some((cells, problem)) = not_run {
                    self.apply(Input::NotRunAgain { cells, problem });
                }
                self.replay_ended(self.machine.replays().newest, finished);
                self.resume_deferred();
            }
            Err(problem) => {
                tracing::warn!(%problem, session = %self.args.id, "cells were not run again");
                let problem = not_rebuilt(&problem, self.saving.states.latest());
                self.refuse_deferred(&problem);
                self.apply(Input::NotRebuilt(problem));
            }
        }
    }
}

/// Runs the cells that the journal says have to run again.
async fn rebuild(
    session: &OwnSession,
    log: &Arc<EventLog>,
    turn: &UserTurn,
    waking: u64,
    open: Option<CellNumber>,
) -> Result<RanAgain, Problem> {
    let actor = session.any_generation();
    let (mut is_cut, mut not_run) = (false, None);
    if let Some(cell) = open {
        let ticket = calls::call(actor, |reply_to| SessionMsg::Ticket { cell, reply_to }).await?;
        if let Some(ticket) = ticket {
            is_cut = is_cut_by(&*ticket.result(actor).await?)?;
        }
    }
    if !log.is_flushed().await {
        return Err(log.unwritten("the cells of before were not run again"));
    }
    let restored = read(log, &Arc::default(), turn).await?;
    let mut replay = Replay::again(&restored);
    if !is_cut && let Some(cut) = run_cells((actor, waking), log, &restored, &mut replay).await? {
        is_cut = match cut {
            Cut::Ended(last) => is_cut_by(&last)?,
            // It would be refused at each wake, so the session goes on without it and those after it.
            Cut::NoMemory { cell, problem } => {
                not_run = Some((iter::once(cell).chain(replay.to_run().iter().copied()).collect(), problem));
                true
            }
        };
    }
    let mut newly = replay.ended_otherwise(&restored);
    // An earlier daemon saw those of the journal.
    let mut otherwise = restored.ran_otherwise;
    otherwise.append(&mut newly);
    Ok(RanAgain { finished: !is_cut, otherwise, not_run })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exit_codes;

    #[test]
    fn who_has_tried_often_enough_is_told_of_other_ways() {
        let mut rebuilding = Rebuilding::default();
        let cause = Problem::new(Code::SandboxFailed, "the engine was restarted");
        let times =
            ["a", "a", "b", "b", "b"].map(|snapshot| rebuilding.interrupted(snapshot.to_owned(), &cause));
        assert_eq!(times, [1, 2, 1, 2, 3]);
        let names_replay = times.map(|times| not_awake(&cause, times).message.contains("belljar replay"));
        assert_eq!(names_replay, [false, false, false, false, true]);
    }

    #[test]
    fn a_cell_that_did_not_run_cuts_nothing_off() {
        let ended = |status, reason| is_cut_by(&exit_codes::tests::result(status, reason, None));
        assert!(!ended(Status::Success, Reason::Ok).unwrap());
        assert!(!ended(Status::Failure, Reason::Exception).unwrap());
        assert!(ended(Status::Interrupted, Reason::ByUser).unwrap());
        assert!(ended(Status::Crashed, Reason::Signal).unwrap());
        let problem = not_rebuilt(&ended(Status::Interrupted, Reason::ByCancel).unwrap_err(), None);
        assert!(problem.message.contains("nothing is lost"), "{problem}");
    }

    #[test]
    fn only_a_snapshot_that_took_too_long_before_is_too_slow() {
        let mut rebuilding = Rebuilding::default();
        let mut then = |snapshot: &str, code| {
            rebuilding.interrupted(snapshot.to_owned(), &Problem::new(code, ""));
            rebuilding.too_slow().map(str::to_owned)
        };
        assert_eq!(then("a", Code::SandboxFailed), None);
        assert_eq!(then("a", Code::TooSlow).as_deref(), Some("a"));
        assert_eq!(then("a", Code::Busy).as_deref(), Some("a"), "that is no reason to forget it");
        assert_eq!(then("b", Code::Busy), None, "nothing is known of another one");
    }
}
