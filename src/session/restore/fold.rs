//! The fold of a session's events into its present state.

mod waking;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::open::{Call, OpenCell};
use super::saved::SavedStates;
use super::{BegunCell, ProcessDeath, Restored, Span};
use crate::protocol::ask::{Approval, Subject};
use crate::protocol::clock::{self, Moment};
use crate::protocol::command::CommandSummary;
use crate::protocol::event::{Counters, Event, EventBody, ToolOutcome};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::limits::{COMMANDS_LISTED, TOOL_CALLS_IN_FLIGHT, TOOL_CALLS_LISTED};
use crate::protocol::packages::InstallEnd;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::{ExecutionResult, Mode, Reason, StateKind, Status};
use crate::protocol::tool::LentAnswer;
use crate::security_controls;
use crate::session::approvals::code_call;
use crate::session::notices;
use crate::session::outcome::{CellStart, EndedBy};
use crate::session::replay::{RecordedCalls, RecordedCell};
use crate::session::rules::{self, CellRules, SandboxRules};
use crate::tools::{Responses, ToolOutput};

/// Takes the events in their order. The journal contains the rules of asks; those for clients' cells are
/// given. The size of the fold does not grow with the output of cells or the arguments of tools.
#[derive(Debug, Default)]
pub struct Fold {
    restored: Restored,
    open: BTreeMap<CellNumber, OpenCell>,
    calls: BTreeMap<u64, Call>,
    client_rules: Arc<CellRules>,
    /// The newest cell that has begun.
    newest_begun: CellNumber,
    saved: SavedStates,
    /// The rules of the code of the sandbox before this one, whose variables a snapshot may bring back.
    earlier_rules: SandboxRules,
    /// The last answers to calls of cells, with the numbers of call and event: at most as many as can be in
    /// flight.
    answered: VecDeque<(CellNumber, u64, Seq)>,
    /// The number of resets that the kernel got or has to get, and has not confirmed.
    open_resets: u32,
    /// The cells of this journal that run again, since the last reset or since the session woke.
    runs_again: BTreeSet<CellNumber>,
    /// Whether cells failed that ran again since a result last told of such cells.
    untold: BTreeMap<CellNumber, bool>,
    /// Finished cells of an unfinished replay, with the cells that they replace.
    replayed: BTreeMap<CellNumber, CellNumber>,
}

impl Fold {
    #[must_use]
    pub fn new(client_rules: &Arc<CellRules>) -> Self {
        let mut fold = Self { client_rules: Arc::clone(client_rules), ..Self::default() };
        fold.restored.sandbox_rules = SandboxRules::new(Arc::clone(client_rules));
        fold
    }

    /// The cells that open cells replay, and the spans of their events: `end` needs their records.
    pub fn replayed(&self) -> impl Iterator<Item = (CellNumber, Span)> {
        let replayed = self.open.values().filter_map(|open| open.original);
        replayed.filter_map(|cell| Some((cell, *self.restored.spans.get(&cell)?)))
    }

    /// Gives the state after the last event.
    #[must_use]
    pub fn end(self, recorded: &BTreeMap<CellNumber, RecordedCell>, now: Moment) -> Restored {
        let Self { mut restored, mut open, calls, answered, saved, .. } = self;
        restored.unsaved = saved.is_unsaved();
        restored.wake = saved.wake(&restored);
        restored.saved = saved;
        let of_open = answered.into_iter().filter(|(cell, ..)| open.contains_key(cell));
        restored.answered_calls = of_open.map(|(_, call, seq)| (call, seq)).collect();
        for open in open.values_mut() {
            let Some(since) = open.paused_since.take() else { continue };
            // The time since the start of a lasting freeze is counted when that freeze ends.
            let frozen = restored.frozen_since.as_deref();
            open.frozen += frozen.map_or_else(|| now.since(&since), |frozen| clock::between(&since, frozen));
        }
        for (number, call) in calls {
            let open = call.cell.and_then(|cell| open.get(&cell));
            let is_replayed = open.is_some_and(|open| open.replays.is_some());
            let original = open.and_then(|open| open.original);
            let once = original.and_then(|cell| recorded.get(&cell)?.calls.0.get(call.position));
            restored.open_calls.push(call.end(number, is_replayed, once));
        }
        for open in open.values_mut() {
            if open.replays.is_none() {
                continue;
            }
            let record = open.original.and_then(|cell| recorded.get(&cell));
            let calls = record.map(|recorded| recorded.calls.0.iter().skip(open.calls).cloned());
            // Even without a record, a replayed cell makes no real calls.
            open.start.replay = Some(RecordedCalls(calls.map(Iterator::collect).unwrap_or_default()));
        }
        for (_, OpenCell { start, began, frozen, completed, passed, to_end, died, .. }) in open {
            match began {
                Some(at) => {
                    restored.running.push(BegunCell { start, at, frozen, completed, passed, to_end, died });
                }
                None => restored.queued.push(start),
            }
        }
        restored
    }

    /// The state after the events so far.
    #[must_use]
    pub fn so_far(&self) -> &Restored {
        &self.restored
    }

    /// Takes an event. Gives the approval that the event decides on.
    pub fn take(&mut self, event: &Event, now: Moment) -> Option<Approval> {
        let decided = self.restored.approvals.take(&event.body, now);
        if self.is_activity(&event.body) {
            self.restored.active_at = Some(event.at.clone());
        }
        self.saved.take(&event.body);
        let restored = &mut self.restored;
        match &event.body {
            EventBody::CellQueued { .. } => self.queued(event),
            EventBody::CellStarted { cell, before, .. } => self.started(*cell, *before, &event.at),
            EventBody::CellDied { cell, exit_code, after, killed, rolled_back } => {
                if let Some(open) = self.open.get_mut(cell) {
                    let (exit_code, after) = (*exit_code, *after);
                    let (killed, rolled_back) = (*killed, *rolled_back);
                    open.died = Some(ProcessDeath { exit_code, after, killed, rolled_back });
                }
            }
            EventBody::Interrupting { cell, .. } => self.interrupting(*cell),
            EventBody::CellFinished { result } => self.finished(result, event.seq),
            EventBody::SandboxReady { receipt, preloaded, .. } => {
                restored.preloaded.clone_from(preloaded);
                self.sandbox_ready(receipt);
            }
            EventBody::PackagesInstalling { status, end } => {
                // Earlier versions said only in words that an installation had failed.
                restored.installing = end.is_none() && !status.starts_with("failed: ");
                // Packages that did not appear, or a reset that was refused: the session went on without one.
                restored.reset_due &= *end != Some(InstallEnd::Failed);
            }
            EventBody::PackagesInstalled { set, resets, .. } => {
                restored.packages = Some((**set).clone());
                (restored.installing, restored.reset_due) = (false, *resets);
            }
            // The daemon that attached sends at most the last reset again.
            EventBody::SandboxAttached => self.open_resets = u32::from(restored.reset),
            EventBody::SandboxGone { reason } => self.sandbox_gone(reason),
            EventBody::ToolCalled { .. } => self.called(event),
            EventBody::ToolBegun { call, lent, .. } => self.begun(*call, *lent),
            EventBody::AdminActed { admin, act } => restored.admin_acted(*admin, act),
            EventBody::ToolAnswered { call, outcome } => self.answered(*call, outcome, event.seq),
            EventBody::StateLost { reason, restored_to, gone } => {
                restored.pending_note = Some(notices::worker_replaced(reason, *restored_to, gone.as_deref()));
            }
            EventBody::Undone { .. } => self.undone(),
            EventBody::Woken { .. } | EventBody::Based { .. } => self.woken(&event.body),
            EventBody::Reset => {
                self.afresh(Vec::new(), false);
                self.restored.reset = true;
                if !security_controls::holds("restored_rules_end_when_a_reset_is_done") {
                    self.restored.sandbox_rules.release_up_to(CellNumber::MAX);
                }
            }
            EventBody::ResetDone { cells } => self.reset_done(*cells),
            EventBody::ReplayFinished => {
                restored.replaying = false;
                self.saved.leaves_out(&std::mem::take(&mut self.restored.waking));
                self.replayed.clear();
            }
            // Each replayed cell keeps its place in the list until its new run has ended.
            EventBody::ReplayStarted { cells } => self.afresh(cells.clone(), true),
            EventBody::Frozen => self.frozen(&event.at),
            EventBody::Thawed => self.thawed(&event.at),
            EventBody::AskStarted { ask, spec } => {
                restored.rules_of_asks.insert(*ask, Arc::new(CellRules::of_ask(spec)));
            }
            EventBody::ApprovalWanted { approval } => self.asked(approval),
            EventBody::ApprovalDecided { .. } => {
                // The time that a person took does not count as the cell's.
                let call = decided.as_ref().and_then(code_call);
                if let Some(open) = call.and_then(|(cell, _)| self.open.get_mut(&cell)) {
                    open.resume(&event.at);
                }
            }
            EventBody::SessionCreated { .. }
            | EventBody::SandboxStarting { .. }
            | EventBody::ImagePulling { .. }
            | EventBody::PackagesMissing { .. }
            | EventBody::SnapshotTaken { .. }
            | EventBody::SnapshotFailed { .. }
            | EventBody::SnapshotRemoved { .. }
            | EventBody::Slept { .. }
            | EventBody::WakeFailed { .. }
            | EventBody::Output { .. }
            | EventBody::OutputCut { .. }
            | EventBody::Display { .. }
            | EventBody::SessionRemoved
            | EventBody::ModelAsked { .. }
            | EventBody::ModelText { .. }
            | EventBody::ModelReplied { .. }
            | EventBody::ModelFailed { .. }
            | EventBody::ModelSpent { .. }
            | EventBody::AskSpentWithin { .. }
            | EventBody::AskWaitsWithin { .. }
            | EventBody::AskToolCalled { .. }
            | EventBody::AskToolAnswered { .. }
            | EventBody::AskNoted { .. }
            | EventBody::PlanChanged { .. }
            | EventBody::AskFinished { .. } => {}
        }
        decided
    }

    /// Attaching to the sandbox is an action of a daemon, not an activity of the session; so is saving its variables. Nor is
    /// what commands do.
    fn is_activity(&self, event: &EventBody) -> bool {
        let is_of_command = |cell| self.open.get(&cell).is_some_and(|open| open.start.mode == Mode::Command);
        let is_of_daemon = matches!(
            event,
            EventBody::SandboxAttached
                | EventBody::SnapshotTaken { .. }
                | EventBody::SnapshotFailed { .. }
                | EventBody::SnapshotRemoved { .. }
        );
        !is_of_daemon && !event.cell().is_some_and(is_of_command)
    }

    fn queued(&mut self, event: &Event) {
        let EventBody::CellQueued {
            cell,
            mode,
            code,
            command,
            expression,
            timeout_s,
            replays,
            origin,
            bound_by,
            ..
        } = &event.body
        else {
            return;
        };
        let (cell, mode, expression, code) = (*cell, *mode, *expression, code.clone());
        let command = command.as_deref().cloned().map(Arc::new);
        let timeout = Duration::try_from_secs_f64(*timeout_s).unwrap_or_default();
        let ask = origin.as_ref().map(|origin| origin.ask).or(*bound_by);
        let rules = ask.map_or_else(|| Arc::clone(&self.client_rules), |ask| self.restored.rules_of(ask));
        let start =
            CellStart { cell, code, mode, command, expression, timeout, ask, rules, ..CellStart::default() };
        let original = replays.filter(|replayed| self.runs_again.contains(replayed));
        self.open.insert(cell, OpenCell { start, replays: *replays, original, ..OpenCell::default() });
        self.restored.spans.insert(cell, Span { first: event.seq, last: event.seq });
        self.restored.cells = self.restored.cells.max(cell);
    }

    fn started(&mut self, cell: CellNumber, before: Counters, at: &str) {
        if let Some(open) = self.open.get_mut(&cell) {
            // The kernel may have returned the cell to the queue, which the journal does not tell.
            open.put_back();
            open.began = Some(at.to_owned());
            open.start.before = before;
            open.passed = self.newest_begun >= cell;
            if open.start.mode.is_in_line() || open.start.mode == Mode::Background {
                self.restored.reset = false;
                self.saved.began(cell);
                if open.replays.is_none() {
                    self.saved.leaves_out(&std::mem::take(&mut self.restored.waking));
                }
            }
            if security_controls::holds("rules_survive_the_daemon") {
                self.restored.sandbox_rules.bind(open.start.ask, &open.start.rules, cell);
            }
        }
        self.newest_begun = self.newest_begun.max(cell);
    }

    fn frozen(&mut self, at: &str) {
        if self.restored.frozen_since.replace(at.to_owned()).is_none() {
            self.open.values_mut().filter(|open| open.began.is_some()).for_each(|open| open.pause(at));
        }
    }

    fn thawed(&mut self, at: &str) {
        if self.restored.frozen_since.take().is_some() {
            self.open.values_mut().filter(|open| open.began.is_some()).for_each(|open| open.resume(at));
        }
    }

    fn called(&mut self, event: &Event) {
        let EventBody::ToolCalled { cell, call, name, arguments, refused_bytes, lent, held } = &event.body
        else {
            return;
        };
        let (cell, seq, lent, held) = (*cell, event.seq, *lent, *held);
        let open = cell.and_then(|cell| self.open.get_mut(&cell));
        // The policy of an ask is in the journal; that of the configuration may have changed. Calls of a
        // replay are answered from the record.
        let is_made = open.as_ref().is_some_and(|open| open.replays.is_none());
        // No person is asked about a call that was refused, or is too large to be reviewed.
        let is_reviewable = refused_bytes.is_none() && rules::is_reviewable(arguments);
        let is_reviewed = is_reviewable && is_made && self.restored.sandbox_rules.an_ask_names(name);
        let reviewed = is_reviewed.then(|| arguments.clone());
        let position = open.map_or(0, |open| {
            open.calls += 1;
            open.calls - 1
        });
        let (waits, arguments) = (reviewed.is_some(), reviewed.unwrap_or_default());
        let name = name.clone();
        self.calls.insert(*call, Call { cell, name, arguments, position, waits, lent, held, seq });
        self.reaches(cell, seq);
    }

    fn asked(&mut self, approval: &Approval) {
        let Some((cell, call)) = code_call(approval) else { return };
        if let Some(call) = self.calls.get_mut(&call) {
            call.waits = true;
            if let Subject::Tool { arguments, .. } = &approval.subject {
                call.arguments.clone_from(arguments);
            }
        }
        if let Some(open) = self.open.get_mut(&cell) {
            open.pause(&approval.asked_at);
        }
    }

    /// Extends the span of a cell to this event.
    fn reaches(&mut self, cell: Option<CellNumber>, seq: Seq) {
        if let Some(span) = cell.and_then(|cell| self.restored.spans.get_mut(&cell)) {
            span.last = seq;
        }
    }

    fn finished(&mut self, result: &ExecutionResult, seq: Seq) {
        self.reaches(Some(result.cell), seq);
        let open = self.open.remove(&result.cell).unwrap_or_default();
        let (replays, original) = (open.replays, open.original);
        // Others begin after those that run again: even if the sandbox ends with one, it was not ended by these.
        if replays.is_none() && open.began.is_some() && result.reason != Reason::ByCancel {
            self.saved.goes_on();
        }
        if result.mode == Mode::Command {
            let ended = &mut self.restored.ended_commands;
            ended.push_back(CommandSummary::ended(result));
            if ended.len() > COMMANDS_LISTED {
                ended.pop_front();
            }
        }
        // A cell that a user interrupted must not be replayed to its end.
        let changed = matches!(result.status, Status::Success | Status::Failure);
        let rebuilt = replays.filter(|_| !self.restored.waking.is_empty());
        if let Some(replayed) = rebuilt {
            self.rebuilt(replayed, result);
        } else if result.mode.is_in_line() && result.reason != Reason::ByCancel {
            self.restored.pending_note = None;
            self.told();
        }
        if result.mode == Mode::Main
            && result.reason == Reason::ByUser
            && result.state.kind == StateKind::Kept
        {
            self.restored.interrupted.push(result.cell);
        }
        if result.mode != Mode::Main || !changed || result.state.kind != StateKind::Kept {
            self.restored.spans.remove(&result.cell);
            return;
        }
        self.ended(result, rebuilt);
        let replayable = &mut self.restored.replayable;
        match original.and_then(|replayed| replayable.iter_mut().find(|cell| **cell == replayed)) {
            Some(entry) => {
                self.replayed.insert(result.cell, *entry);
                *entry = result.cell;
            }
            None => replayable.push(result.cell),
        }
    }

    /// Removes undone cells. Those that an unfinished replay had rebuilt are replaced by their originals, so
    /// that the next replay rebuilds them.
    fn undone(&mut self) {
        let (replayed, saved) = (&mut self.replayed, &self.saved);
        self.restored.interrupted.retain(|cell| !saved.is_undone(*cell));
        self.restored.replayable.retain_mut(|cell| {
            let before = if saved.is_undone(*cell) { replayed.remove(cell) } else { Some(*cell) };
            *cell = before.unwrap_or(*cell);
            before.is_some()
        });
    }

    /// The worker is fresh; `kept` are the cells to run in it, if any.
    fn afresh(&mut self, kept_cells: Vec<CellNumber>, replaying: bool) {
        for open in self.open.values_mut() {
            open.to_end.get_or_insert(EndedBy::Cancel);
        }
        self.runs_again = kept_cells.iter().copied().collect();
        let restored = &mut self.restored;
        let still: BTreeSet<CellNumber> = kept_cells.iter().chain(self.open.keys()).copied().collect();
        restored.spans.retain(|cell, _| still.contains(cell));
        restored.failed.retain(|cell| still.contains(cell));
        self.untold.clear();
        (restored.replayable, restored.replaying, restored.reset, restored.pending_note) =
            (kept_cells, replaying, false, None);
        restored.interrupted.clear();
        restored.reset_due = false;
        restored.waking.clear();
        self.open_resets = self.open_resets.saturating_add(1);
        self.replayed.clear();
    }

    fn interrupting(&mut self, cell: CellNumber) {
        if let Some(open) = self.open.get_mut(&cell) {
            open.to_end.get_or_insert(EndedBy::Interrupt);
        }
    }

    fn begun(&mut self, call: u64, lent: Option<LentAnswer>) {
        if let Some(call) = self.calls.get_mut(&call) {
            (call.waits, call.held, call.lent) = (false, false, lent);
        }
    }

    fn sandbox_ready(&mut self, receipt: &Receipt) {
        let restored = &mut self.restored;
        (restored.reset, restored.reset_due, self.open_resets) = (false, false, 0);
        let rules = SandboxRules::begin(&self.client_rules, self.saved.inherited());
        self.earlier_rules = std::mem::replace(&mut restored.sandbox_rules, rules);
        restored.tool_responses = Responses::default();
        restored.sandbox = Some(receipt.clone());
        restored.last_sandbox.clone_from(&restored.sandbox);
    }

    fn sandbox_gone(&mut self, reason: &str) {
        if self.restored.sandbox.take().is_some() {
            self.restored.pending_note = Some(notices::new_sandbox(reason, self.saved.has_variables()));
        }
        // The next sandbox begins with the packages.
        (self.restored.frozen_since, self.restored.reset_due) = (None, false);
        self.restored.waking.clear();
        self.calls.clear();
        // Cells that ran in the sandbox were reported as ended; all others never reached it.
        self.open.values_mut().for_each(OpenCell::put_back);
    }

    fn answered(&mut self, call: u64, outcome: &ToolOutcome, seq: Seq) {
        let Some(Call { cell, name, .. }) = self.calls.remove(&call) else { return };
        self.reaches(cell, seq);
        if let Some(cell) = cell.filter(|cell| self.open.contains_key(cell)) {
            self.answered.push_back((cell, call, seq));
            if self.answered.len() > TOOL_CALLS_IN_FLIGHT {
                self.answered.pop_front();
            }
        }
        if let ToolOutcome::Value(Value::String(text)) = outcome {
            self.restored.tool_responses.answer(call, ToolOutput::Text(text.clone()));
        }
        if let (ToolOutcome::Value(_), Some(open)) = (outcome, cell.and_then(|cell| self.open.get_mut(&cell)))
            && open.completed.len() < TOOL_CALLS_LISTED
        {
            open.completed.push(name);
        }
    }
}
