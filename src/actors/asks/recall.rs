//! The asks of a session as its journal tells them: what each was given, in which order, and what had
//! been begun without an answer when the daemon ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::agent::Input;
use crate::protocol::ask::{Approval, AskEnd, AskNumber, AskOutcome, AskSpec, PlanVersion};
use crate::protocol::clock;
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::ids::{CellNumber, Seq};

/// Code of a failure that stands for a cell which was not run.
pub const CELL_REFUSED: &str = "cell_refused";

/// One ask of before.
pub struct Recalled {
    pub ask: AskNumber,
    pub spec: AskSpec,
    pub events_after: Seq,
    /// In the order in which they were taken.
    pub inputs: Vec<Input>,
    pub end: Option<AskEnd>,
    /// Cells that were queued for a call of it and have not ended.
    pub cells: HashMap<String, CellNumber>,
    /// Calls that were begun, whatever became of them.
    pub called: BTreeSet<String>,
    /// RFC 3339: when it was asked for.
    pub began_at: String,
    /// How long it waited for people, up to the last decision.
    pub waited: Duration,
    /// The model was asked, so it did not end while it waited for its turn.
    pub worked: bool,
}

impl Recalled {
    /// Time that it took of its own; `since` is when a person was asked who has not decided yet.
    pub fn spent(&self, since: Option<&str>) -> Duration {
        let waits = since.map_or(Duration::ZERO, clock::since);
        clock::since(&self.began_at).saturating_sub(self.waited + waits)
    }
}

#[derive(Default)]
pub struct Memory {
    pub asks: BTreeMap<AskNumber, Recalled>,
    /// Approvals without a decision.
    pub approvals: Vec<Approval>,
    /// How many approvals there were in all.
    pub approvals_wanted: u64,
    pub plans: Vec<PlanVersion>,
}

impl Memory {
    pub fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut fold = Fold::default();
        for event in events {
            fold.take(event);
        }
        fold.memory
    }
}

#[derive(Default)]
struct Fold {
    memory: Memory,
    /// Which call of which ask a cell is for.
    origins: HashMap<CellNumber, (AskNumber, String)>,
}

impl Fold {
    fn take(&mut self, event: Event) {
        let Event { seq, at, body } = event;
        match body {
            EventBody::AskStarted { ask, spec } => {
                let recalled = Recalled {
                    ask,
                    spec: *spec,
                    events_after: seq.saturating_sub(1),
                    inputs: vec![Input::Begin],
                    end: None,
                    cells: HashMap::new(),
                    called: BTreeSet::new(),
                    began_at: at,
                    waited: Duration::ZERO,
                    worked: false,
                };
                self.memory.asks.insert(ask, recalled);
            }
            EventBody::ModelAsked { ask, .. } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask) {
                    recalled.worked = true;
                }
            }
            EventBody::ModelReplied { ask, step, reply } => {
                self.input(ask, Input::ModelReplied { step, reply });
            }
            EventBody::ModelFailed { ask, step, failure, retry_in_s: None } => {
                self.input(ask, Input::ModelFailed { step, failure });
            }
            EventBody::CellQueued { cell, origin: Some(origin), .. } => {
                self.origins.insert(cell, (origin.ask, origin.id.clone()));
                if let Some(recalled) = self.memory.asks.get_mut(&origin.ask) {
                    recalled.cells.insert(origin.id, cell);
                }
            }
            EventBody::CellFinished { result } => {
                if let Some((ask, id)) = self.origins.remove(&result.cell)
                    && let Some(recalled) = self.memory.asks.get_mut(&ask)
                {
                    recalled.cells.remove(&id);
                    recalled.inputs.push(Input::CellFinished { id, result });
                }
            }
            EventBody::AskToolCalled { ask, id, .. } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask) {
                    recalled.called.insert(id);
                }
            }
            EventBody::AskToolAnswered { ask, id, outcome } => {
                let input = match outcome {
                    ToolOutcome::Failure(failure) if failure.code == CELL_REFUSED => {
                        Input::CellRefused { id, message: failure.message }
                    }
                    outcome => Input::ToolFinished { id, outcome },
                };
                self.input(ask, input);
            }
            EventBody::ApprovalWanted { approval } => {
                self.memory.approvals.push(*approval);
                self.memory.approvals_wanted += 1;
            }
            EventBody::ApprovalDecided { id, decision, .. } => self.decided(&id, decision, &at),
            EventBody::PlanChanged { plan, .. } => self.memory.plans.push(*plan),
            EventBody::AskFinished { ask, end } => self.ended(ask, *end),
            _ => {}
        }
    }

    fn decided(&mut self, id: &str, decision: crate::protocol::ask::Decision, at: &str) {
        let approvals = &mut self.memory.approvals;
        let Some(place) = approvals.iter().position(|approval| approval.id == id) else { return };
        let approval = approvals.remove(place);
        let others = approvals.iter().filter(|other| other.ask == approval.ask);
        let since = others.map(|other| other.asked_at.as_str()).min().unwrap_or(at);
        if let Some(recalled) = approval.ask.and_then(|ask| self.memory.asks.get_mut(&ask)) {
            // Of questions that wait together, each counts up to where the next one begins.
            recalled.waited += clock::between(&approval.asked_at, since.min(at));
        }
        // A call within a cell is no concern of the machine.
        if let (Some(ask), Some(call), None) = (approval.ask, approval.call, approval.cell) {
            self.input(ask, Input::Decided { id: call, decision });
        }
    }

    fn ended(&mut self, ask: AskNumber, end: AskEnd) {
        // What ended it from outside left no event of its own.
        match end.outcome {
            AskOutcome::Cancelled => self.input(ask, Input::Cancel),
            AskOutcome::TimeLimit => self.input(ask, Input::TimeUp),
            AskOutcome::SandboxFailed => {
                let message = end.message.clone().unwrap_or_default();
                self.input(ask, Input::SandboxFailed { message });
            }
            _ => {}
        }
        self.memory.approvals.retain(|approval| approval.ask != Some(ask));
        if let Some(recalled) = self.memory.asks.get_mut(&ask) {
            recalled.end = Some(end);
        }
    }

    fn input(&mut self, ask: AskNumber, input: Input) {
        if let Some(recalled) = self.memory.asks.get_mut(&ask) {
            recalled.inputs.push(input);
        }
    }
}
