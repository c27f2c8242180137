//! Rebuilds the asks of a session from its journal: the inputs of each in their order, and the calls that had
//! begun but had no answer when the daemon ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::agent::Input;
use crate::protocol::ask::{Approval, AskEnd, AskNumber, AskOutcome, AskSpec, Decision, PlanVersion};
use crate::protocol::clock;
use crate::protocol::event::{Event, EventBody, ToolOutcome};
use crate::protocol::ids::{CellNumber, Seq};

/// The code of a tool failure that stands for a cell that was not run.
pub const CELL_REFUSED: &str = "cell_refused";

/// An ask that was started before the daemon restarted.
#[derive(Debug)]
pub struct Recalled {
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
    /// RFC 3339: when the ask was started.
    pub began_at: String,
    /// RFC 3339: when the ask ended.
    pub ended_at: Option<String>,
    /// How long the ask waited for people, up to the last decision.
    pub waited: Duration,
    /// Whether the model was asked, that is, the ask did not end while it was still queued.
    pub worked: bool,
    /// The newest step in which the model was asked.
    pub asked: u32,
}

impl Recalled {
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
    pub fn took(&self) -> Duration {
        match &self.ended_at {
            Some(at) => clock::between(&self.began_at, at).saturating_sub(self.waited),
            None => self.spent(None),
        }
    }

    /// The ask's own time until now; `since` is when the oldest question without a decision was put to a
    /// person.
    pub fn spent(&self, since: Option<&str>) -> Duration {
        let waits = since.map_or(Duration::ZERO, clock::since);
        clock::since(&self.began_at).saturating_sub(self.waited + waits)
    }
}

#[derive(Debug, Default)]
pub struct RecalledAsks {
    pub asks: BTreeMap<AskNumber, Recalled>,
    /// Approvals without a decision.
    pub approvals: Vec<Approval>,
    /// The ids of those approvals whose call or cell has ended.
    pub void: Vec<String>,
    /// The number of all approvals, decided ones included.
    pub approvals_wanted: u64,
    pub plans: Vec<PlanVersion>,
    /// Decisions on tool calls of cells that have neither begun nor been answered.
    pub early: BTreeMap<(CellNumber, u64), Decision>,
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
    pub fn end(self) -> RecalledAsks {
        self.memory
    }

    pub fn take(&mut self, event: Event) {
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
                    ended_at: None,
                    waited: Duration::ZERO,
                    worked: false,
                    asked: 0,
                };
                self.memory.asks.insert(ask, recalled);
            }
            EventBody::ModelAsked { ask, step } => {
                if let Some(recalled) = self.memory.asks.get_mut(&ask) {
                    recalled.worked = true;
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
            EventBody::ToolBegun { cell, call } => drop(self.memory.early.remove(&(cell, call))),
            EventBody::ToolAnswered { call, .. } => {
                self.memory.early.retain(|(_, early), _| *early != call);
                let call = Some(call.to_string());
                self.void(|approval| approval.cell.is_some() && approval.call == call);
            }
            EventBody::CellFinished { mut result } => {
                result.leave_out_shown();
                self.void(|approval| approval.cell == Some(result.cell));
                self.memory.early.retain(|(cell, _), _| *cell != result.cell);
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
            EventBody::AskFinished { ask, end } => self.ended(ask, *end, at),
            _ => {}
        }
    }

    fn decided(&mut self, id: &str, decision: Decision, at: &str) {
        let approvals = &mut self.memory.approvals;
        let Some(place) = approvals.iter().position(|approval| approval.id == id) else { return };
        let approval = approvals.remove(place);
        let others = approvals.iter().filter(|other| other.ask == approval.ask);
        let since = others.map(|other| other.asked_at.as_str()).min().unwrap_or(at);
        if let Some(recalled) = approval.ask.and_then(|ask| self.memory.asks.get_mut(&ask)) {
            // While several questions wait together, each counts only up to the start of the next one.
            recalled.waited += clock::between(&approval.asked_at, since.min(at));
        }
        if let (Some(cell), Some(Ok(call))) = (approval.cell, approval.call.as_ref().map(|call| call.parse()))
        {
            self.memory.early.insert((cell, call), decision.clone());
        }
        // The machine does not take part in calls within a cell.
        if let (Some(ask), Some(call), None) = (approval.ask, approval.call, approval.cell) {
            self.input(ask, Input::Decided { id: call, decision });
        }
    }

    fn void(&mut self, which: impl Fn(&Approval) -> bool) {
        let void = self.memory.approvals.iter().filter(|approval| which(approval));
        self.memory.void.extend(void.map(|approval| approval.id.clone()));
    }

    fn ended(&mut self, ask: AskNumber, end: AskEnd, at: String) {
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
        self.memory.approvals.retain(|approval| approval.ask != Some(ask));
        if let Some(recalled) = self.memory.asks.get_mut(&ask) {
            (recalled.end, recalled.ended_at) = (Some(end), Some(at));
        }
    }

    fn input(&mut self, ask: AskNumber, input: Input) {
        if let Some(recalled) = self.memory.asks.get_mut(&ask) {
            recalled.inputs.push(input.shortened(recalled.spec.language, self.told_chars));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ask::{ApprovalPolicy, AskLimits, Dialect, Language, Subject};
    use crate::protocol::ids::{SessionId, SessionName};
    use crate::protocol::result::{ExecutionResult, Mode};

    const TOLD_CHARS: usize = 200;

    fn at(second: u64) -> String {
        format!("2026-01-01T00:00:{second:02}.000Z")
    }

    fn started() -> EventBody {
        let spec = AskSpec {
            text: "t".into(),
            model: "m".into(),
            dialect: Dialect::ToolCalls,
            language: Language::English,
            approval: ApprovalPolicy::Ask,
            also_approve: Vec::new(),
            tools: Vec::new(),
            schema: None,
            context: serde_json::Map::new(),
            restricted: false,
            limits: AskLimits { steps: 1, failures: 1, tokens: 1, seconds: 1.0 },
            fresh: false,
            depth: 0,
        };
        EventBody::AskStarted { ask: 1, spec: Box::new(spec) }
    }

    fn wanted(id: &str, second: u64) -> EventBody {
        let approval = Approval {
            id: id.into(),
            session: SessionId::fresh(),
            session_name: SessionName::parse("s").unwrap(),
            owner: 1,
            ask: Some(1),
            call: Some(id.into()),
            cell: None,
            bound_by: None,
            subject: Subject::Cell { code: "1".into(), timeout_s: 1.0 },
            asked_at: at(second),
            deadline_s: None,
            by_default: None,
        };
        EventBody::ApprovalWanted { approval: Box::new(approval) }
    }

    fn decided(id: &str) -> EventBody {
        EventBody::ApprovalDecided { id: id.into(), decision: Decision::Accept { code: None }, by: Some(1) }
    }

    fn memory(events: impl IntoIterator<Item = (u64, EventBody)>) -> RecalledAsks {
        let mut fold = AsksFold::new(TOLD_CHARS);
        events.into_iter().for_each(|(second, body)| fold.take(Event { seq: second, at: at(second), body }));
        fold.end()
    }

    #[test]
    fn waiting_for_people_is_counted_once() {
        let one_by_one = memory([
            (1, started()),
            (2, wanted("a", 2)),
            (5, decided("a")),
            (7, wanted("b", 7)),
            (8, decided("b")),
        ]);
        assert_eq!(one_by_one.asks[&1].waited, Duration::from_secs(4));
        for order in [["a", "b"], ["b", "a"]] {
            let together = memory([
                (1, started()),
                (2, wanted("a", 2)),
                (4, wanted("b", 4)),
                (6, decided(order[0])),
                (9, decided(order[1])),
            ]);
            assert_eq!(together.asks[&1].waited, Duration::from_secs(7), "{order:?}");
        }
    }

    #[test]
    fn a_decision_counts_until_something_has_come_of_it() {
        let wanted = |id: &str, second| {
            let EventBody::ApprovalWanted { mut approval } = wanted(id, second) else { unreachable!() };
            (approval.cell, approval.call) = (Some(4), Some("7".into()));
            (second, EventBody::ApprovalWanted { approval })
        };
        let early = |event: Option<EventBody>| {
            let events = [
                Some((1, started())),
                Some(wanted("a", 2)),
                Some((3, decided("a"))),
                event.map(|body| (4, body)),
            ];
            memory(events.into_iter().flatten()).early
        };
        assert_eq!(early(None).into_keys().collect::<Vec<_>>(), [(4, 7)]);
        let answered = EventBody::ToolAnswered { call: 7, outcome: ToolOutcome::Value(1.into()) };
        for body in [EventBody::ToolBegun { cell: 4, call: 7 }, answered] {
            assert!(early(Some(body)).is_empty());
        }
    }

    #[test]
    fn approvals_of_calls_that_have_ended_are_void() {
        let EventBody::ApprovalWanted { mut approval } = wanted("a", 2) else { unreachable!() };
        (approval.cell, approval.call) = (Some(4), Some("7".into()));
        let answered = |call| EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(1.into()) };
        for (call, void) in [(7, &["a"][..]), (8, &[])] {
            let wanted = EventBody::ApprovalWanted { approval: approval.clone() };
            assert_eq!(memory([(1, started()), (2, wanted), (3, answered(call))]).void, void);
        }
    }

    #[test]
    fn approvals_are_counted_and_those_without_a_decision_kept() {
        let memory = memory([(1, started()), (2, wanted("a", 2)), (3, decided("a")), (4, wanted("b", 4))]);
        assert_eq!(memory.approvals_wanted, 2);
        assert_eq!(memory.approvals.iter().map(|approval| approval.id.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(matches!(memory.asks[&1].inputs.as_slice(), [Input::Begin, Input::Decided { .. }]));
    }

    #[test]
    fn no_more_is_kept_of_results_than_a_model_is_told() {
        const LARGE: usize = 100_000;
        let large = "x".repeat(LARGE);
        let result = serde_json::json!({
            "cell": 1, "mode": "main", "status": "success", "reason": "ok", "exit_code": 0,
            "code": "1", "timeout_s": 30.0, "stdout": large, "stderr": "",
            "output": [{"stream": "stdout", "text": "short"}],
            "result": {"repr": "1", "type": "int", "mime": {"text/html": large}},
            "displays": [{"mime": {"image/png": large}}], "artifacts": [], "exception": null, "duration_ms": 1.0,
            "truncated": {
                "stdout_bytes": 0, "stderr_bytes": 0, "dropped_bytes": 0, "displays": 0, "artifacts": false
            },
            "state": { "kind": "kept" },
        });
        let result: Box<ExecutionResult> = serde_json::from_value(result).unwrap();
        let report = |result: &ExecutionResult| crate::agent::report(result, Language::English, 1_000);
        let told = report(&result);
        let queued = EventBody::CellQueued {
            cell: 1,
            mode: Mode::Main,
            code: "1".into(),
            expression: false,
            timeout_s: 30.0,
            replays: None,
            origin: Some(crate::protocol::event::CellOrigin { ask: 1, id: "a".into() }),
            bound_by: None,
        };
        let answered = |value: serde_json::Value| EventBody::AskToolAnswered {
            ask: 1,
            id: "b".into(),
            outcome: ToolOutcome::Value(value),
        };
        let events = [started(), queued, EventBody::CellFinished { result }, answered(large.into())];
        let memory = memory((1..).zip(events));
        assert!(format!("{memory:?}").len() < LARGE / 10, "{}", format!("{memory:?}").len());
        let [_, Input::CellFinished { result, .. }, Input::ToolFinished { outcome, .. }] =
            memory.asks[&1].inputs.as_slice()
        else {
            panic!("{:?}", memory.asks[&1].inputs)
        };
        assert_eq!(report(result), told);
        let ToolOutcome::Value(serde_json::Value::String(text)) = outcome else { panic!("{outcome:?}") };
        assert!(text.chars().count() <= TOLD_CHARS);
    }
}
