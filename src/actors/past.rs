//! What a session's events say about its present: the fold from which a session goes on after the
//! daemon was started anew.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::outcome::CellStart;
use super::recorded::record;
use super::rules::CellRules;
use crate::protocol::ask::{Approval, AskNumber, Subject};
use crate::protocol::clock;
use crate::protocol::event::{Counters, Event, EventBody, ToolOutcome};
use crate::protocol::frames::{StateAfter, ToolFailure};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::TOOL_CALLS_LISTED;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::{ExecutionResult, Mode, StateKind, Status};

#[derive(Clone, Debug, Default)]
pub struct Past {
    /// The number of the newest cell.
    pub cells: CellNumber,
    /// Cells that were to run and had not begun, in order.
    pub queued: Vec<CellStart>,
    /// Cells that ran.
    pub running: Vec<Begun>,
    /// The sandbox that was last there, if it was not said to be gone.
    pub sandbox: Option<Receipt>,
    /// The same, gone or not.
    pub last_sandbox: Option<Receipt>,
    /// Since when its processes are stopped (RFC 3339), if they are.
    pub frozen_since: Option<String>,
    /// Tool calls without an answer.
    pub open_calls: Vec<OpenCall>,
    /// A replay had begun and not ended.
    pub replaying: bool,
    /// Cells whose changes the variables hold, if nothing was lost since: what `replay` runs again.
    pub kept: Vec<CellNumber>,
    /// Of the newest cell of the main line that has begun.
    pub last_rules: Arc<CellRules>,
}

/// A cell that had begun.
#[derive(Clone, Debug)]
pub struct Begun {
    pub start: CellStart,
    /// RFC 3339.
    pub at: String,
    /// How long it was frozen since, without a freeze that lasts.
    pub frozen: Duration,
    /// Names of completed tool calls.
    pub completed: Vec<String>,
    /// A later cell had begun before it, or it had itself: that the kernel knows of later ones does not
    /// mean that it knows of this one.
    pub passed: bool,
    /// How its process ended, and what was left of the state, if it did.
    pub died: Option<(i32, StateAfter)>,
}

impl Begun {
    /// How long it has run by now.
    pub fn ran(&self, frozen_since: Option<&str>) -> Duration {
        let frozen_now = frozen_since.map_or(Duration::ZERO, clock::since);
        clock::since(&self.at).saturating_sub(self.frozen + frozen_now)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpenCall {
    pub call: u64,
    /// In a replay, the answer that it once got.
    pub recorded: Option<Result<Value, ToolFailure>>,
    /// It waits for a person and was not made.
    pub waits: Option<WaitingCall>,
}

/// A tool call of a cell that a person has to allow.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingCall {
    pub cell: CellNumber,
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// A cell that has not ended.
struct Open {
    start: CellStart,
    replays: Option<CellNumber>,
    began: Option<String>,
    frozen: Duration,
    completed: Vec<String>,
    passed: bool,
    died: Option<(i32, StateAfter)>,
    /// Tool calls that it has made.
    calls: usize,
}

/// A tool call without an answer: the cell, the tool, and which call of the cell it is.
struct Call {
    cell: Option<CellNumber>,
    name: String,
    place: usize,
}

#[derive(Default)]
struct Fold {
    past: Past,
    open: BTreeMap<CellNumber, Open>,
    calls: BTreeMap<u64, Call>,
    /// What a person has not decided on yet, by the id of the approval.
    permits: BTreeMap<String, WaitingPermit>,
    /// Of the asks so far.
    rules: BTreeMap<AskNumber, Arc<CellRules>>,
    client_rules: Arc<CellRules>,
    /// The newest cell that has begun.
    newest_begun: CellNumber,
    /// The newest cell when the worker was last a fresh one: an undo cannot reach behind it.
    fresh_since: CellNumber,
}

/// A call of a cell that waits for a person.
struct WaitingPermit {
    cell: CellNumber,
    call: u64,
    asked_at: String,
    subject: Subject,
}

impl WaitingPermit {
    fn of(approval: &Approval) -> Option<Self> {
        Some(Self {
            cell: approval.cell?,
            call: approval.call.as_ref()?.parse().ok()?,
            asked_at: approval.asked_at.clone(),
            subject: approval.subject.clone(),
        })
    }

    fn call(&self) -> Option<WaitingCall> {
        match &self.subject {
            Subject::Tool { name, arguments } => {
                Some(WaitingCall { cell: self.cell, name: name.clone(), arguments: arguments.clone() })
            }
            Subject::Cell { .. } => None,
        }
    }
}

impl Past {
    /// Events in their order. The journal knows the rules of asks; those of clients' cells are as
    /// given.
    pub fn of(events: &[Event], client_rules: &Arc<CellRules>) -> Self {
        let mut fold = Fold { client_rules: Arc::clone(client_rules), ..Fold::default() };
        fold.past.last_rules = Arc::clone(client_rules);
        for event in events {
            fold.take(event);
        }
        let replays = fold.open.values().any(|open| open.replays.is_some());
        let recorded = if replays { record(events) } else { BTreeMap::new() };
        let Fold { mut past, mut open, calls, permits, .. } = fold;
        for permit in permits.values() {
            if let Some(open) = open.get_mut(&permit.cell) {
                open.frozen += clock::since(&permit.asked_at);
            }
        }
        for (call, Call { cell, place, .. }) in calls {
            let replays = cell.and_then(|cell| open.get(&cell)?.replays);
            let once = replays.and_then(|cell| recorded.get(&cell)?.calls.get(place));
            let waits = permits.values().find(|permit| permit.call == call && Some(permit.cell) == cell);
            past.open_calls.push(OpenCall {
                call,
                recorded: once.map(|once| once.outcome.clone()),
                waits: waits.and_then(WaitingPermit::call),
            });
        }
        for open in open.values_mut() {
            let Some(cell) = open.replays else { continue };
            let calls = recorded.get(&cell).map(|recorded| recorded.calls.iter().skip(open.calls).cloned());
            // Without a record, too, nothing outside happens again.
            open.start.replay = Some(calls.map(Iterator::collect).unwrap_or_default());
        }
        for (_, Open { start, began, frozen, completed, passed, died, .. }) in open {
            match began {
                Some(at) => past.running.push(Begun { start, at, frozen, completed, passed, died }),
                None => past.queued.push(start),
            }
        }
        past
    }
}

impl Fold {
    fn take(&mut self, event: &Event) {
        let past = &mut self.past;
        match &event.body {
            EventBody::CellQueued { cell, mode, code, expression, timeout_s, replays, origin } => {
                let (cell, mode, expression, code) = (*cell, *mode, *expression, code.clone());
                let timeout = Duration::try_from_secs_f64(*timeout_s).unwrap_or_default();
                let ask = origin.as_ref().map(|origin| origin.ask);
                let rules = ask.and_then(|ask| self.rules.get(&ask)).unwrap_or(&self.client_rules);
                let rules = Arc::clone(rules);
                let start =
                    CellStart { cell, code, mode, expression, timeout, ask, rules, ..CellStart::default() };
                let (frozen, completed, calls) = (Duration::ZERO, Vec::new(), 0);
                let (replays, began, passed, died) = (*replays, None, false, None);
                let open = Open { start, replays, began, frozen, completed, passed, died, calls };
                self.open.insert(cell, open);
                past.cells = past.cells.max(cell);
            }
            EventBody::CellStarted { cell, before } => self.started(*cell, *before, &event.at),
            EventBody::CellDied { cell, exit_code, after } => {
                if let Some(open) = self.open.get_mut(cell) {
                    open.died = Some((*exit_code, *after));
                }
            }
            EventBody::CellFinished { result } => self.finished(result),
            EventBody::SandboxReady { receipt, .. } => {
                past.sandbox = Some((**receipt).clone());
                past.last_sandbox.clone_from(&past.sandbox);
                self.fresh_since = past.cells;
            }
            EventBody::SandboxGone { .. } => {
                past.sandbox = None;
                past.frozen_since = None;
                self.calls.clear();
            }
            EventBody::ToolCalled { call, cell, name, .. } => {
                let open = cell.and_then(|cell| self.open.get_mut(&cell));
                let place = open.map_or(0, |open| {
                    open.calls += 1;
                    open.calls - 1
                });
                self.calls.insert(*call, Call { cell: *cell, name: name.clone(), place });
            }
            EventBody::ToolAnswered { call, outcome } => self.answered(*call, outcome),
            EventBody::StateLost { restored_to: None, .. } => self.fresh_since = past.cells,
            EventBody::Undone { state_of } => {
                let reach = (*state_of).max(self.fresh_since);
                past.kept.retain(|cell| *cell <= reach);
            }
            EventBody::Reset => {
                past.kept.clear();
                past.replaying = false;
                self.fresh_since = past.cells;
            }
            EventBody::ReplayFinished => past.replaying = false,
            EventBody::ReplayStarted { cells } => {
                // Each stays in its place until its new run has ended.
                past.kept.clone_from(cells);
                past.replaying = true;
                self.fresh_since = past.cells;
            }
            EventBody::Frozen => past.frozen_since = Some(event.at.clone()),
            EventBody::Thawed => {
                let Some(since) = past.frozen_since.take() else { return };
                let frozen = clock::between(&since, &event.at);
                self.open
                    .values_mut()
                    .filter(|open| open.began.is_some())
                    .for_each(|open| open.frozen += frozen);
            }
            EventBody::AskStarted { ask, spec } => {
                self.rules.insert(*ask, Arc::new(CellRules::of_ask(spec)));
            }
            EventBody::ApprovalWanted { approval } => {
                let permit = WaitingPermit::of(approval).map(|permit| (approval.id.clone(), permit));
                self.permits.extend(permit);
            }
            EventBody::ApprovalDecided { id, .. } => self.decided(id, &event.at),
            EventBody::SessionCreated { .. }
            | EventBody::SandboxStarting { .. }
            | EventBody::ImagePulling { .. }
            | EventBody::SandboxAttached
            | EventBody::Output { .. }
            | EventBody::OutputCut { .. }
            | EventBody::Display { .. }
            | EventBody::Interrupting { .. }
            | EventBody::StateLost { .. }
            | EventBody::SessionRemoved
            | EventBody::AdminActed { .. }
            | EventBody::ModelAsked { .. }
            | EventBody::ModelText { .. }
            | EventBody::ModelReplied { .. }
            | EventBody::ModelFailed { .. }
            | EventBody::AskToolCalled { .. }
            | EventBody::AskToolAnswered { .. }
            | EventBody::AskNoted { .. }
            | EventBody::PlanChanged { .. }
            | EventBody::AskFinished { .. } => {}
        }
    }

    fn started(&mut self, cell: CellNumber, before: Counters, at: &str) {
        if let Some(open) = self.open.get_mut(&cell) {
            open.began = Some(at.to_owned());
            open.start.before = before;
            open.passed = self.newest_begun >= cell;
            if open.start.mode == Mode::Main {
                self.past.last_rules = Arc::clone(&open.start.rules);
            }
        }
        self.newest_begun = self.newest_begun.max(cell);
    }

    /// The time that a person took is not the cell's.
    fn decided(&mut self, approval: &str, at: &str) {
        let Some(permit) = self.permits.remove(approval) else { return };
        if let Some(open) = self.open.get_mut(&permit.cell) {
            open.frozen += clock::between(&permit.asked_at, at);
        }
    }

    fn finished(&mut self, result: &ExecutionResult) {
        let replays = self.open.remove(&result.cell).and_then(|open| open.replays);
        let kept = &mut self.past.kept;
        if result.state.kind == StateKind::Lost {
            self.fresh_since = self.past.cells;
        }
        // What somebody interrupted is not meant to run again, to its end.
        let changed = matches!(result.status, Status::Success | Status::Failure);
        if result.mode != Mode::Main || !changed || result.state.kind != StateKind::Kept {
            return;
        }
        match replays.and_then(|replayed| kept.iter_mut().find(|cell| **cell == replayed)) {
            Some(place) => *place = result.cell,
            None => kept.push(result.cell),
        }
    }

    fn answered(&mut self, call: u64, outcome: &ToolOutcome) {
        let Some(Call { cell, name, .. }) = self.calls.remove(&call) else { return };
        if let (ToolOutcome::Value(_), Some(open)) = (outcome, cell.and_then(|cell| self.open.get_mut(&cell)))
            && open.completed.len() < TOOL_CALLS_LISTED
        {
            open.completed.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::result::{Reason, StateReport, Truncated};

    fn event(seq: u64, body: EventBody) -> Event {
        Event { seq, at: format!("t{seq}"), body }
    }

    fn queued(cell: CellNumber, mode: Mode) -> EventBody {
        EventBody::CellQueued {
            cell,
            mode,
            code: format!("c{cell}"),
            expression: false,
            timeout_s: 2.0,
            replays: None,
            origin: None,
        }
    }

    fn replayed(cell: CellNumber, of: CellNumber) -> EventBody {
        let EventBody::CellQueued { mode, code, expression, timeout_s, origin, .. } =
            queued(cell, Mode::Main)
        else {
            unreachable!()
        };
        EventBody::CellQueued { cell, mode, code, expression, timeout_s, replays: Some(of), origin }
    }

    fn started(cell: CellNumber) -> EventBody {
        EventBody::CellStarted { cell, before: Counters { oom_kills: cell, forks_refused: 0 } }
    }

    fn called(call: u64, cell: CellNumber) -> EventBody {
        let arguments = serde_json::Map::new();
        EventBody::ToolCalled { cell: Some(cell), call, name: format!("tool{call}"), arguments }
    }

    fn answered(call: u64) -> EventBody {
        EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(call.into()) }
    }

    fn kept(cell: CellNumber) -> EventBody {
        finished(cell, Status::Success, StateKind::Kept)
    }

    fn lost() -> EventBody {
        EventBody::StateLost { reason: String::new(), restored_to: None }
    }

    fn past(bodies: &[EventBody]) -> Past {
        let numbered = bodies.iter().cloned().zip(1..);
        Past::of(&numbered.map(|(body, seq)| event(seq, body)).collect::<Vec<_>>(), &Arc::default())
    }

    fn finished(cell: CellNumber, status: Status, kind: StateKind) -> EventBody {
        EventBody::CellFinished {
            result: Box::new(ExecutionResult {
                cell,
                mode: Mode::Main,
                status,
                reason: Reason::Ok,
                exit_code: Some(0),
                code: String::new(),
                timeout_s: 2.0,
                stdout: String::new(),
                stderr: String::new(),
                output: Vec::new(),
                result: None,
                displays: Vec::new(),
                artifacts: Vec::new(),
                exception: None,
                duration_ms: 0.0,
                truncated: Truncated::default(),
                state: StateReport {
                    kind,
                    restored_to: None,
                    unprotected: false,
                    as_before: None,
                    maybe_assigned: Vec::new(),
                    completed_tool_calls: Vec::new(),
                    note: None,
                },
            }),
        }
    }

    #[test]
    fn open_cells_and_kept_ones_are_told_apart() {
        let bodies = vec![
            queued(1, Mode::Main),
            started(1),
            finished(1, Status::Success, StateKind::Kept),
            queued(2, Mode::Main),
            started(2),
            finished(2, Status::Timeout, StateKind::Restored),
            queued(3, Mode::Main),
            started(3),
            finished(3, Status::Failure, StateKind::Kept),
            queued(4, Mode::Main),
            started(4),
            queued(5, Mode::Fork),
        ];
        let past = past(&bodies);
        assert_eq!((past.cells, &past.kept[..]), (5, &[1, 3][..]));
        let running: Vec<_> =
            past.running.iter().map(|begun| (begun.start.cell, begun.at.as_str())).collect();
        assert_eq!(running, [(4, "t11")]);
        assert_eq!(past.running[0].start.before.oom_kills, 4);
        assert_eq!(past.queued.iter().map(|start| start.cell).collect::<Vec<_>>(), [5]);
        assert_eq!(past.queued[0].timeout, Duration::from_secs(2));
    }

    #[test]
    fn undo_and_reset_take_cells_back() {
        let mut bodies = vec![];
        for cell in 1..=3 {
            bodies.extend([queued(cell, Mode::Main), finished(cell, Status::Success, StateKind::Kept)]);
        }
        bodies.push(EventBody::Undone { state_of: 1 });
        assert_eq!(past(&bodies).kept, [1]);
        bodies.push(EventBody::Reset);
        assert_eq!(past(&bodies).kept, Vec::<CellNumber>::new());
    }

    #[test]
    fn an_undo_in_a_fresh_worker_does_not_reach_the_cells_of_before() {
        for fresh in [lost(), finished(3, Status::Crashed, StateKind::Lost)] {
            let mut bodies = vec![queued(1, Mode::Main), kept(1), queued(2, Mode::Main), kept(2)];
            bodies.extend([queued(3, Mode::Main), fresh, queued(4, Mode::Main), kept(4)]);
            assert_eq!(past(&bodies).kept, [1, 2, 4]);
            bodies.push(EventBody::Undone { state_of: 0 });
            assert_eq!(past(&bodies).kept, [1, 2]);
        }
    }

    #[test]
    fn a_cell_that_a_later_one_passed_is_marked() {
        let mut bodies: Vec<_> = (1..=3).map(|cell| queued(cell, Mode::Main)).collect();
        bodies.extend([started(1), started(3), started(2)]);
        let passed = |bodies: &[EventBody]| past(bodies).running.iter().map(|b| b.passed).collect::<Vec<_>>();
        assert_eq!(passed(&bodies), [false, true, false]);
        // It was put back and begins once more.
        bodies.push(started(3));
        assert_eq!(passed(&bodies), [false, true, true]);
    }

    #[test]
    fn a_cell_that_never_ran_is_not_kept() {
        let EventBody::CellFinished { mut result } = finished(1, Status::Interrupted, StateKind::Kept) else {
            unreachable!()
        };
        result.reason = Reason::ByCancel;
        assert!(past(&[queued(1, Mode::Main), EventBody::CellFinished { result }]).kept.is_empty());
    }

    #[test]
    fn a_replay_that_is_broken_off_can_be_made_again() {
        let mut bodies = vec![];
        for cell in 1..=3 {
            bodies.extend([queued(cell, Mode::Main), kept(cell)]);
        }
        bodies.extend([EventBody::ReplayStarted { cells: vec![1, 2, 3] }, replayed(4, 1), kept(4)]);
        bodies.extend([replayed(5, 2), finished(5, Status::Crashed, StateKind::Lost)]);
        assert_eq!(past(&bodies).kept, [4, 2, 3]);
        bodies.extend([EventBody::ReplayStarted { cells: vec![4, 2, 3] }, replayed(6, 4), kept(6)]);
        bodies.extend([replayed(7, 2), kept(7), replayed(8, 3), kept(8), EventBody::ReplayFinished]);
        bodies.extend([queued(9, Mode::Main), kept(9)]);
        assert_eq!(past(&bodies).kept, [6, 7, 8, 9]);
    }

    #[test]
    fn a_replay_that_goes_on_does_not_call_tools() {
        let mut bodies = vec![queued(1, Mode::Main), started(1)];
        for call in 1..=3 {
            bodies.extend([called(call, 1), answered(call)]);
        }
        bodies.extend([kept(1), EventBody::ReplayStarted { cells: vec![1] }, replayed(2, 1), started(2)]);
        bodies.extend([called(4, 2), answered(4), called(5, 2)]);
        let past = past(&bodies);
        assert_eq!(past.open_calls, [OpenCall { call: 5, recorded: Some(Ok(2.into())), waits: None }]);
        let begun = &past.running[0];
        assert_eq!(begun.completed, ["tool4"]);
        let left: Vec<_> = begun.start.replay.iter().flatten().map(|call| call.name.as_str()).collect();
        assert_eq!(left, ["tool3"]);
    }

    #[test]
    fn the_time_in_which_a_cell_was_frozen_is_not_its_own() {
        let at =
            |second: u64, body| Event { seq: second, at: format!("2026-01-01T00:00:{second:02}.000Z"), body };
        let mut events = vec![at(1, queued(1, Mode::Main)), at(2, started(1)), at(5, EventBody::Frozen)];
        assert_eq!(
            Past::of(&events, &Arc::default()).frozen_since.as_deref(),
            Some("2026-01-01T00:00:05.000Z")
        );
        events.push(at(9, EventBody::Thawed));
        let past = Past::of(&events, &Arc::default());
        assert_eq!((past.frozen_since, past.running[0].frozen), (None, Duration::from_secs(4)));
    }
}
