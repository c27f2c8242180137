//! An ask as it is watched: from its events to what is shown of them. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::protocol::ask::{
    Approval, AskEnd, AskNumber, AskOutcome, AskView, Decision, Dialect, PlanVersion, Subject,
};
use crate::protocol::chat::{ChatReply, Finish, ModelFailure, Usage};
use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::ids::CellNumber;
use crate::protocol::result::ExecutionResult;

use super::super::approval;
use super::super::cell::{artifact_line, display_line, state_note, what_happened};
use super::super::human::clipped;
use super::super::shown::{Section, Shown, call_line};
use super::speech::Speech;
use super::steps;

/// Of a tool's answer and of what a model thought for itself; the journal has all of it.
const TOOL_ANSWER_CHARS: usize = 1_000;
const REASONING_CHARS: usize = 2_000;

pub(super) struct Live {
    ask: AskNumber,
    dialect: Dialect,
    /// Cells and tool calls that belong to the ask; their events do not name it.
    cells: BTreeSet<CellNumber>,
    calls: BTreeSet<u64>,
    approvals: BTreeSet<String>,
    /// Those of asks within it.
    within: BTreeSet<String>,
    /// Names of the model's own calls that are not answered yet.
    names: BTreeMap<String, String>,
    speech: Speech,
    /// The section that the next piece may continue.
    open: Option<Section>,
    /// Code that a person has seen already, because they were asked about it.
    seen_code: Option<String>,
    doing: String,
    usage: Usage,
}

impl Live {
    pub fn new(view: &AskView) -> Self {
        Self {
            ask: view.ask,
            dialect: view.dialect,
            cells: BTreeSet::new(),
            calls: BTreeSet::new(),
            approvals: BTreeSet::new(),
            within: BTreeSet::new(),
            names: BTreeMap::new(),
            speech: Speech::default(),
            open: None,
            seen_code: None,
            doing: "waiting for its turn".to_owned(),
            usage: Usage::default(),
        }
    }

    /// Whether an event of the session is about this ask, its cells among it. Each event has to be
    /// given once, in order.
    pub fn concerns(&mut self, event: &EventBody) -> bool {
        match event {
            EventBody::CellQueued { cell, origin, .. } => {
                let ours = origin.as_ref().is_some_and(|origin| origin.ask == self.ask);
                if ours {
                    self.cells.insert(*cell);
                }
                ours
            }
            EventBody::ToolCalled { cell, call, .. } => {
                let ours = cell.is_some_and(|cell| self.cells.contains(&cell));
                if ours {
                    self.calls.insert(*call);
                }
                ours
            }
            EventBody::ToolAnswered { call, .. } => self.calls.remove(call),
            EventBody::ApprovalWanted { approval } => {
                let ours = approval.ask == Some(self.ask)
                    || approval.cell.is_some_and(|cell| self.cells.contains(&cell));
                if ours {
                    self.approvals.insert(approval.id.clone());
                }
                ours
            }
            EventBody::ApprovalDecided { id, .. } => self.approvals.remove(id),
            // What befalls the sandbox befalls the ask.
            EventBody::SandboxStarting { .. }
            | EventBody::ImagePulling { .. }
            | EventBody::SandboxReady { .. }
            | EventBody::SandboxAttached
            | EventBody::SandboxGone { .. }
            | EventBody::StateLost { .. }
            | EventBody::Reset
            | EventBody::ResetDone { .. }
            | EventBody::ReplayStarted { .. }
            | EventBody::ReplayFinished
            | EventBody::Frozen
            | EventBody::Thawed
            | EventBody::AdminActed { .. }
            | EventBody::SessionRemoved => true,
            event => match (event.ask(), event.cell()) {
                (Some(ask), _) => ask == self.ask,
                (None, Some(cell)) => self.cells.contains(&cell),
                (None, None) => false,
            },
        }
    }

    /// The last words of the model are the answer, and they were shown.
    pub fn has_told(&self, answer: &str) -> bool {
        !answer.trim().is_empty() && self.speech.told().trim() == answer.trim()
    }

    /// `thinking · 1234 tokens`, for the spinner.
    pub fn status(&self) -> String {
        match self.usage.total() {
            0 => self.doing.clone(),
            tokens => format!("{} · {tokens} tokens", self.doing),
        }
    }

    /// What is shown of an event that concerns the ask.
    pub fn show(&mut self, event: &EventBody) -> Vec<Shown> {
        match event {
            EventBody::SandboxStarting { image, .. } => self.does(format!("starting a sandbox of {image}")),
            EventBody::ImagePulling { .. } => self.does("pulling the image".to_owned()),
            EventBody::SandboxGone { reason } => {
                vec![Shown::Warning(format!("the sandbox is gone: {reason}"))]
            }
            EventBody::StateLost { reason, .. } => {
                vec![Shown::Warning(format!("all variables are gone: {reason}"))]
            }
            EventBody::SandboxAttached => {
                vec![Shown::Note("the daemon was started anew; the sandbox goes on".to_owned())]
            }
            EventBody::Reset => vec![Shown::Warning("the session was reset".to_owned())],
            EventBody::AdminActed { admin, act } => {
                vec![Shown::Warning(format!("administrator {admin}: {act}"))]
            }
            EventBody::SessionRemoved => vec![Shown::Warning("the session was removed".to_owned())],
            EventBody::ModelAsked { step, .. } => {
                self.speech = Speech::default();
                self.does(format!("thinking · step {step}"))
            }
            EventBody::ModelText { text, .. } => self.hear(text),
            EventBody::ModelReplied { reply, .. } => self.replied(reply),
            EventBody::ModelFailed { failure, retry_in_s, .. } => self.model_failed(failure, *retry_in_s),
            EventBody::AskSpentWithin { usage, .. } => {
                self.usage += *usage;
                Vec::new()
            }
            EventBody::AskWaitsWithin { approvals, .. } => self.waits_within(approvals),
            EventBody::CellQueued { cell, code, .. } => self.code(*cell, code),
            EventBody::Output { text, .. } => self.flow(Section::Output, text),
            EventBody::OutputCut { .. } => {
                vec![Shown::Warning("further output of this cell is not kept".to_owned())]
            }
            EventBody::Display { mime, .. } => vec![Shown::Note(display_line(mime))],
            EventBody::CellFinished { result } => self.cell_ended(result),
            EventBody::ToolCalled { name, arguments, .. } => {
                self.head(Section::Tool, call_line(name, arguments))
            }
            EventBody::ToolAnswered { outcome, .. } => self.tool_answer("", outcome),
            EventBody::AskToolCalled { id, name, arguments, .. } => {
                self.names.insert(id.clone(), name.clone());
                self.doing = format!("calling {name}");
                self.head(Section::Tool, call_line(name, arguments))
            }
            EventBody::AskToolAnswered { id, outcome, .. } => {
                let name = self.names.remove(id).unwrap_or_default();
                self.tool_answer(&name, outcome)
            }
            EventBody::AskNoted { note, .. } => vec![Shown::Note(note.clone())],
            EventBody::ApprovalWanted { approval } => {
                if let Subject::Cell { code, .. } = &approval.subject {
                    self.seen_code = Some(code.clone());
                }
                self.open = None;
                "waiting for a decision".clone_into(&mut self.doing);
                approval::shown(approval)
            }
            EventBody::ApprovalDecided { decision, .. } => {
                // What did not pass as it was is shown anew if it runs after all.
                if !matches!(decision, Decision::Accept { code: None }) {
                    self.seen_code = None;
                }
                vec![Shown::Note(approval::decided_line(decision))]
            }
            EventBody::PlanChanged { plan, .. } => self.plan(plan),
            EventBody::CellStarted { cell, .. } => self.does(format!("cell {cell} runs")),
            EventBody::Interrupting { cell } => {
                vec![Shown::Note(format!("cell {cell} is being interrupted"))]
            }
            EventBody::SandboxReady { .. }
            | EventBody::CellDied { .. }
            | EventBody::ToolBegun { .. }
            | EventBody::ReplayStarted { .. }
            | EventBody::ReplayFinished
            | EventBody::Frozen
            | EventBody::Thawed
            | EventBody::SessionCreated { .. }
            | EventBody::Undone { .. }
            | EventBody::AskStarted { .. }
            | EventBody::ModelSpent { .. }
            | EventBody::ResetDone { .. }
            | EventBody::AskFinished { .. } => Vec::new(),
        }
    }

    /// Each is shown once.
    fn waits_within(&mut self, approvals: &[Approval]) -> Vec<Shown> {
        let doing = if approvals.is_empty() { "an ask within it goes on" } else { "waiting for a decision" };
        let fresh = approvals.iter().filter(|approval| !self.within.contains(&approval.id));
        let shown = fresh.flat_map(approval::shown).collect();
        self.within = approvals.iter().map(|approval| approval.id.clone()).collect();
        self.does(doing.to_owned());
        shown
    }

    fn does(&mut self, doing: String) -> Vec<Shown> {
        (self.doing, self.open) = (doing, None);
        Vec::new()
    }

    fn head(&mut self, section: Section, more: String) -> Vec<Shown> {
        self.open = None;
        vec![Shown::Head(section, more)]
    }

    /// A piece of a section, which begins if it is not open yet.
    fn flow(&mut self, section: Section, text: &str) -> Vec<Shown> {
        let mut shown = Vec::new();
        if self.open != Some(section) {
            shown.push(Shown::Head(section, String::new()));
        }
        self.open = Some(section);
        shown.push(Shown::Flow(text.to_owned()));
        shown
    }

    fn hear(&mut self, text: &str) -> Vec<Shown> {
        match self.speech.hear(self.dialect, text) {
            Some(words) => self.flow(Section::Model, &words),
            None => Vec::new(),
        }
    }

    fn replied(&mut self, reply: &ChatReply) -> Vec<Shown> {
        let mut shown = Vec::new();
        if let Some(usage) = reply.usage {
            self.usage += usage;
        }
        if let Some(reasoning) = reply.reasoning.as_deref().filter(|text| !text.trim().is_empty()) {
            shown.extend(self.head(Section::Reasoning, String::new()));
            shown.push(Shown::Aside(clipped(reasoning.trim(), REASONING_CHARS)));
        }
        if let Some((section, words)) = self.speech.rest(self.dialect, &reply.message) {
            shown.extend(self.flow(section, &words));
        }
        // Words end with their reply, so that there is a line for the spinner.
        if !self.speech.told().is_empty() && !self.speech.told().ends_with('\n') {
            shown.push(Shown::Flow("\n".to_owned()));
        }
        if let Some(refusal) = &reply.refusal {
            shown.extend(self.flow(Section::Refusal, &format!("{refusal}\n")));
        }
        match reply.finish {
            Finish::Length => {
                shown.push(Shown::Warning("the reply was cut at the provider's limit".to_owned()));
            }
            Finish::ContentFilter => {
                shown.push(Shown::Warning("the provider's filter cut the reply".to_owned()));
            }
            Finish::Stop | Finish::ToolCalls | Finish::Other => {}
        }
        self.open = None;
        shown
    }

    fn model_failed(&mut self, failure: &ModelFailure, retry_in_s: Option<f64>) -> Vec<Shown> {
        // What came of the reply is void; the next try says it all again.
        self.speech = Speech::default();
        self.open = None;
        // The last one is told as the end of the ask.
        let Some(seconds) = retry_in_s else { return Vec::new() };
        let message = &failure.message;
        vec![Shown::Warning(format!("the model failed: {message}; it is asked again in {seconds:.1} s"))]
    }

    fn code(&mut self, cell: CellNumber, code: &str) -> Vec<Shown> {
        self.doing = format!("cell {cell} waits");
        if self.seen_code.take().is_some_and(|seen| seen == code) {
            return self.head(Section::Code, format!("· cell {cell} · as approved"));
        }
        let mut shown = self.head(Section::Code, format!("· cell {cell}"));
        shown.push(Shown::Code(code.to_owned()));
        shown
    }

    fn cell_ended(&mut self, result: &ExecutionResult) -> Vec<Shown> {
        let mut shown = Vec::new();
        if let Some(value) = &result.result {
            shown.push(Shown::Head(Section::Result, String::new()));
            shown.push(Shown::Flow(format!("{}\n", value.repr)));
        }
        if let Some(exception) = &result.exception {
            shown.push(Shown::Head(Section::Exception, String::new()));
            let text = if exception.traceback.is_empty() { &exception.repr } else { &exception.traceback };
            shown.push(Shown::Flow(format!("{}\n", text.trim_end())));
        }
        shown.extend(what_happened(result).map(Shown::Trouble));
        shown.extend(result.artifacts.iter().map(|artifact| Shown::Note(artifact_line(artifact))));
        shown.extend(state_note(result).map(Shown::Warning));
        self.does("thinking".to_owned());
        shown
    }

    fn tool_answer(&mut self, name: &str, outcome: &ToolOutcome) -> Vec<Shown> {
        let (more, text) = match outcome {
            ToolOutcome::Value(Value::String(text)) => (name.to_owned(), text.clone()),
            ToolOutcome::Value(value) => (name.to_owned(), value.to_string()),
            ToolOutcome::Failure(failure) => {
                (format!("{name} · {}", failure.code).trim().to_owned(), failure.message.clone())
            }
        };
        let mut shown = self.head(Section::ToolAnswer, more);
        if !text.trim().is_empty() {
            shown.push(Shown::Aside(clipped(text.trim_end(), TOOL_ANSWER_CHARS)));
        }
        shown
    }

    fn plan(&mut self, plan: &PlanVersion) -> Vec<Shown> {
        let mut shown = self.head(Section::Plan, format!("· version {}", plan.version));
        shown.push(Shown::Plan(plan.markdown.clone()));
        shown
    }
}

/// Why there is no answer.
pub(in crate::cli) fn why_not(end: &AskEnd) -> Option<String> {
    let what = match end.outcome {
        AskOutcome::Answered => return None,
        AskOutcome::StepLimit => format!("no answer after {}, which is the limit", steps(end.steps)),
        AskOutcome::FailureLimit => "no answer: too many failures in a row".to_owned(),
        AskOutcome::TokenLimit => "no answer: too few tokens are left".to_owned(),
        AskOutcome::TimeLimit => "no answer within the time limit".to_owned(),
        AskOutcome::Cancelled => "the ask was cancelled".to_owned(),
        AskOutcome::Rejected => "no answer: what the model wanted to run was rejected".to_owned(),
        AskOutcome::Malformed => "no answer: the model's replies cannot be understood".to_owned(),
        AskOutcome::ModelFailed => "no answer: the model failed".to_owned(),
        AskOutcome::SandboxFailed => "no answer: there is no sandbox to be had".to_owned(),
    };
    Some(match &end.message {
        Some(message) => format!("{what}: {message}"),
        None => what,
    })
}

#[cfg(test)]
mod tests;
