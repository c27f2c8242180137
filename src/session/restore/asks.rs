//! Rebuilds the asks of a session from its journal: the inputs of each in their order, and the calls that had
//! begun but had no answer when the daemon ended.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::agent::Input;
use crate::protocol::ask::{
    Approval, AskEnd, AskNumber, AskOutcome, AskSpec, AskState, AskView, PlanVersion,
};
use crate::protocol::chat::Usage;
use crate::protocol::clock::{self, Moment};
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::tool_names::COMPUTE_TOOL;
use crate::session::approvals::Approvals;
use crate::session::ask_clock::AskClock;

/// The code of a tool failure that stands for a cell that was not run.
pub const CELL_REFUSED: &str = "cell_refused";

/// An ask that was started before the daemon restarted.
#[derive(Debug)]
pub struct RecalledAsk {
    pub ask: AskNumber,
    pub spec: AskSpec,
    pub events_after: Seq,
    /// The inputs in the order in which the machine took them.
    pub inputs: Vec<Input>,
    pub end: Option<AskEnd>,
    /// Cells that were queued for a call of the ask and have not ended.
    pub cells: HashMap<String, CellNumber>,
    /// Tool calls that were begun, with or without an answer.
    pub called: BTreeSet<String>,
    /// The calls of `compute_with_python` without an answer, and the result of the last one that had one.
    expressions: BTreeSet<String>,
    pub last_result: Option<String>,
    /// How long the ask has worked, counted by the times of its events.
    clock: AskClock,
    /// Whether asks within the ask wait for people.
    waits_within: bool,
    /// Whether the model was asked, that is, the ask did not end while it was still queued.
    pub worked: bool,
    /// The newest step in which the model was asked.
    pub asked: u32,
}

impl RecalledAsk {
    #[must_use]
    pub fn view(&self) -> AskView {
        let view = queued_view(self.ask, &self.spec, self.events_after);
        let Some(end) = self.end.clone() else { return view };
        AskView { state: AskState::Done, steps: end.steps, usage: end.usage, end: Some(end), ..view }
    }

    /// The ids of the calls and cells that were begun, answered or decided.
    pub fn begun(&self) -> BTreeSet<String> {
        let answered = self.inputs.iter().filter_map(|input| match input {
            Input::CellFinished { id, .. }
            | Input::CellRefused { id, .. }
            | Input::ToolFinished { id, .. }
            | Input::Decided { id, .. } => Some(id),
            Input::Begin
            | Input::ModelReplied { .. }
            | Input::ModelFailed { .. }
            | Input::SandboxFailed { .. }
            | Input::SpentWithin { .. }
            | Input::Unanswered { .. }
            | Input::OutOfTokens
            | Input::OutOfSteps
            | Input::Cancel
            | Input::TimeUp => None,
        });
        answered.chain(&self.called).chain(self.cells.keys()).cloned().collect()
    }

    /// The ask's own time, without waiting for people, until its end or until now.
    pub fn work_time(&self, now: Moment) -> Duration {
        self.clock.worked(now.since_epoch)
    }
}

/// The view of an ask that has not begun.
#[must_use]
pub fn queued_view(ask: AskNumber, spec: &AskSpec, events_after: Seq) -> AskView {
    AskView {
        ask,
        state: AskState::Queued,
        text: spec.text.clone(),
        model: spec.model.clone(),
        dialect: spec.dialect,
        steps: 0,
        usage: Usage::default(),
        waits_for: Vec::new(),
        events_after,
        end: None,
    }
}

#[derive(Debug, Default)]
pub struct RecalledAsks {
    pub asks: BTreeMap<AskNumber, RecalledAsk>,
    pub approvals: Approvals,
    pub plans: Vec<PlanVersion>,
}

/// Folds the events of a session, one by one. It keeps no more of cell and tool output than a model would be
/// shown.
#[derive(Debug, Default)]
pub struct AsksFold {
    memory: RecalledAsks,
    /// For each cell, the ask and the call that it runs for.
    origins: HashMap<CellNumber, (AskNumber, String)>,
    /// The most characters that a model is shown of one result.
    told_chars: usize,
}

impl AsksFold {
    #[must_use]
    pub fn new(told_chars: usize) -> Self {
        Self { told_chars, ..Self::default() }
    }

    #[must_use]
    pub fn end(self, approvals: Approvals) -> RecalledAsks {
        RecalledAsks { approvals, ..self.memory }
    }

    /// Takes an event, the approval that it decides on, and those that wait after it.
    pub fn take(&mut self, event: Event, decided: Option<Approval>, approvals: &Approvals) {
        let Event { seq, at, body } = event;
        let ask = match &body {
            EventBody::ApprovalWanted { approval } => approval.ask,
            EventBody::ApprovalDecided { .. } => decided.as_ref().and_then(|approval| approval.ask),
            body => body.ask(),
        };
        self.note(seq, body, decided);
        let recalled = ask.and_then(|ask| self.memory.asks.get_mut(&ask));
        if let Some((recalled, at)) = recalled.zip(clock::since_epoch(&at)) {
            let waits = recalled.waits_within || approvals.of_ask(recalled.ask).next().is_some();
            recalled.clock.run(recalled.worked && recalled.end.is_none() && !waits, at);
        }
    }

    fn note(&mut self, seq: Seq, body: EventBody, decided: Option<Approval>) {
        match body {
            EventBody::AskStarted { ask, spec } => {
                let recalled = RecalledAsk {
                    ask,
                    spec: *spec,
                    events_after: seq.saturating_sub(1),
                    inputs: vec![Input::Begin],
                    end: None,
                    cells: HashMap::new(),
                    called: BTreeSet::new(),
                    expressions: BTreeSet::new(),
                    last_result: None,
                    clock: AskClock::default(),
                    waits_within: false,
                    worked: false,
                    asked: 0,
                };
                self.memory.asks.insert(ask, recalled);
            }
            EventBody::ModelAsked { ask, step } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask) {
                    // A model is not asked while its own calls wait, so what they asked for ended with an earlier daemon.
                    (recalled.worked, recalled.waits_within) = (true, false);
                    recalled.asked = recalled.asked.max(step);
                }
            }
            EventBody::ModelReplied { ask, step, reply } => {
                self.input(ask, Input::ModelReplied { step, reply });
            }
            EventBody::ModelFailed { ask, step, failure, retry_in_s: None } => {
                self.input(ask, Input::ModelFailed { step, failure });
            }
            EventBody::ModelSpent { ask, tokens, .. } => self.input(ask, Input::Unanswered { tokens }),
            EventBody::AskSpentWithin { ask, usage, steps } => {
                self.input(ask, Input::SpentWithin { usage, steps });
            }
            EventBody::CellQueued { cell, origin: Some(origin), .. } => {
                self.origins.insert(cell, (origin.ask, origin.id.clone()));
                if let Some(recalled) = self.memory.asks.get_mut(&origin.ask) {
                    recalled.cells.insert(origin.id, cell);
                }
            }
            EventBody::CellFinished { mut result } => {
                result.leave_out_displays();
                if let Some((ask, id)) = self.origins.remove(&result.cell)
                    && let Some(recalled) = self.memory.asks.get_mut(&ask)
                {
                    recalled.cells.remove(&id);
                    recalled.inputs.push(Input::CellFinished { id, result });
                }
            }
            EventBody::AskToolCalled { ask, id, name, .. } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask) {
                    if name == COMPUTE_TOOL {
                        recalled.expressions.insert(id.clone());
                    }
                    recalled.called.insert(id);
                }
            }
            EventBody::AskToolAnswered { ask, id, outcome } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask)
                    && recalled.expressions.remove(&id)
                    && let ToolOutcome::Value(Value::String(result)) = &outcome
                {
                    recalled.last_result = Some(result.clone());
                }
                let input = match outcome {
                    ToolOutcome::Failure(failure) if failure.code == CELL_REFUSED => {
                        Input::CellRefused { id, message: failure.message }
                    }
                    outcome => Input::ToolFinished { id, outcome },
                };
                self.input(ask, input);
            }
            EventBody::ApprovalDecided { decision, .. } => {
                let Some(approval) = decided else { return };
                // The machine does not take part in calls within a cell.
                if let (Some(ask), Some(call), None) = (approval.ask, approval.call, approval.cell) {
                    self.input(ask, Input::Decided { id: call, decision });
                }
            }
            EventBody::AskWaitsWithin { ask, approvals } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask) {
                    recalled.waits_within = !approvals.is_empty();
                }
            }
            EventBody::PlanChanged { plan, .. } => self.memory.plans.push(*plan),
            EventBody::AskFinished { ask, end } => self.ended(ask, *end),
            _ => {}
        }
    }

    fn ended(&mut self, ask: AskNumber, end: AskEnd) {
        // These ends come from outside the machine and have no input event of their own, so the input is made
        // here.
        match end.outcome {
            AskOutcome::Cancelled => self.input(ask, Input::Cancel),
            AskOutcome::TimeLimit => self.input(ask, Input::TimeUp),
            AskOutcome::TokenLimit => self.input(ask, Input::OutOfTokens),
            AskOutcome::StepLimit => self.input(ask, Input::OutOfSteps),
            AskOutcome::SandboxFailed => {
                let message = end.message.clone().unwrap_or_default();
                self.input(ask, Input::SandboxFailed { message });
            }
            _ => {}
        }
        if let Some(recalled) = self.memory.asks.get_mut(&ask) {
            recalled.end = Some(end);
            recalled.last_result = None;
        }
    }

    fn input(&mut self, ask: AskNumber, input: Input) {
        if let Some(recalled) = self.memory.asks.get_mut(&ask) {
            recalled.inputs.push(input.shortened(recalled.spec.language, self.told_chars));
        }
    }
}

#[cfg(test)]
mod tests;
