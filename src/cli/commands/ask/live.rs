//! Turns the events of an ask into what a watching person sees. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::speech::Speech;
use crate::cli::commands::ask::approval;
use crate::cli::render::block::{Block, Section};
use crate::cli::render::cell::{artifact_line, display_line};
use crate::protocol::ask::{Approval, AskView, Decision, Dialect, PlanVersion, Subject};
use crate::protocol::chat::{ChatReply, Finish, Usage};
use crate::protocol::event::{AskScope, EventBody, Severity, ToolOutcome, phrases};
use crate::protocol::ids::CellNumber;
use crate::protocol::result::ExecutionResult;
use crate::protocol::text::clipped;

/// Characters of a tool's answer and of a model's reasoning that are shown; the journal has all of it.
const TOOL_ANSWER_CHARS: usize = 1_000;
const REASONING_CHARS: usize = 2_000;

pub(in crate::cli) struct LiveView {
    scope: AskScope,
    dialect: Dialect,
    /// Ids of approvals that nested asks wait for.
    within: BTreeSet<String>,
    /// Names of the model's own tool calls that are not answered yet.
    names: BTreeMap<String, String>,
    speech: Speech,
    reasoning: ShownReasoning,
    /// The section that the next piece may continue.
    open: Option<Section>,
    /// Code that the person has seen already, because an approval showed it.
    seen_code: Option<String>,
    doing: String,
    usage: Usage,
}

/// How much of a reply's reasoning a person has seen.
#[derive(Default)]
struct ShownReasoning {
    /// The line that has not ended yet.
    line: String,
    /// The characters that were shown.
    chars: usize,
}

impl LiveView {
    pub fn new(view: &AskView) -> Self {
        Self {
            scope: AskScope::new(view.ask),
            dialect: view.dialect,
            within: BTreeSet::new(),
            names: BTreeMap::new(),
            speech: Speech::new(view.dialect),
            reasoning: ShownReasoning::default(),
            open: None,
            seen_code: None,
            doing: "waiting for its turn".to_owned(),
            usage: Usage::default(),
        }
    }

    /// Whether an event of the session concerns this ask. Each event has to be given once, in order.
    pub fn concerns(&mut self, event: &EventBody) -> bool {
        self.scope.concerns(event)
    }

    /// Whether the model's last text is the answer, so that the person has seen it already.
    pub fn has_shown(&self, answer: &str) -> bool {
        let texts = [Section::Model, Section::Thought].map(|section| self.speech.shown(section));
        !answer.trim().is_empty() && texts.iter().any(|text| text.trim() == answer.trim())
    }

    /// `thinking · 1234 tokens`, for the spinner.
    pub fn status(&self) -> String {
        match self.usage.total() {
            0 => self.doing.clone(),
            tokens => format!("{} · {tokens} tokens", self.doing),
        }
    }

    /// The blocks that a person sees of an event that concerns the ask.
    pub fn show(&mut self, event: &EventBody) -> Vec<Block> {
        match event {
            EventBody::SandboxStarting { .. }
            | EventBody::ImagePulling { .. }
            | EventBody::CellStarted { .. } => {
                self.does(event.sentence().map(|sentence| sentence.text).unwrap_or_default())
            }
            EventBody::ModelAsked { step, .. } => {
                (self.speech, self.reasoning) = (Speech::new(self.dialect), ShownReasoning::default());
                self.does(format!("thinking · step {step}"))
            }
            EventBody::ModelText { text, is_reasoning: true, .. } => self.think(text),
            EventBody::ModelText { text, .. } => {
                let mut blocks = self.end_of_thinking();
                blocks.extend(self.hear(text));
                blocks
            }
            EventBody::ModelReplied { reply, .. } => self.replied(reply),
            EventBody::ModelFailed { .. } => self.model_failed(event),
            EventBody::AskSpentWithin { usage, .. } => {
                self.usage += *usage;
                Vec::new()
            }
            EventBody::AskWaitsWithin { approvals, .. } => self.waits_within(approvals),
            EventBody::CellQueued { cell, code, origin, .. } => {
                let purpose = origin.as_ref().and_then(|origin| origin.purpose.as_deref());
                self.code(*cell, code, purpose)
            }
            EventBody::Output { text, .. } => self.flow(Section::Output, text),
            EventBody::Display { mime, .. } => vec![Block::Note(display_line(mime))],
            EventBody::CellFinished { result } => self.cell_ended(result),
            EventBody::ToolCalled { name, arguments, .. } => {
                self.head(Section::Tool, phrases::call(name, arguments))
            }
            EventBody::ToolAnswered { outcome, .. } => self.tool_answer("", outcome),
            EventBody::AskToolCalled { id, name, arguments, .. } => {
                self.names.insert(id.clone(), name.clone());
                self.doing = format!("calling {name}");
                self.head(Section::Tool, phrases::call(name, arguments))
            }
            EventBody::AskToolAnswered { id, outcome, .. } => {
                let name = self.names.remove(id).unwrap_or_default();
                self.tool_answer(&name, outcome)
            }
            EventBody::AskNoted { note, .. } => vec![Block::Note(note.clone())],
            EventBody::ApprovalWanted { approval } => {
                if let Subject::Cell { code, .. } = &approval.subject {
                    self.seen_code = Some(code.clone());
                }
                self.open = None;
                "waiting for a decision".clone_into(&mut self.doing);
                approval::blocks(approval)
            }
            EventBody::ApprovalDecided { decision, .. } => {
                // Code that was not accepted unchanged is shown again if it runs after all.
                if !matches!(decision, Decision::Accept { code: None }) {
                    self.seen_code = None;
                }
                vec![Block::Note(phrases::decision(decision))]
            }
            EventBody::PlanChanged { plan, .. } => self.plan(plan),
            event => tell(event),
        }
    }

    /// Shows each approval once.
    fn waits_within(&mut self, approvals: &[Approval]) -> Vec<Block> {
        let doing = if approvals.is_empty() { "an ask within it goes on" } else { "waiting for a decision" };
        let fresh = approvals.iter().filter(|approval| !self.within.contains(&approval.id));
        let blocks = fresh.flat_map(approval::blocks).collect();
        self.within = approvals.iter().map(|approval| approval.id.clone()).collect();
        self.does(doing.to_owned());
        blocks
    }

    fn does(&mut self, doing: String) -> Vec<Block> {
        (self.doing, self.open) = (doing, None);
        Vec::new()
    }

    fn head(&mut self, section: Section, more: String) -> Vec<Block> {
        self.open = None;
        vec![Block::Head(section, more)]
    }

    /// Continues a section, or begins it if it is not open.
    fn flow(&mut self, section: Section, text: &str) -> Vec<Block> {
        let mut blocks = Vec::new();
        if self.open != Some(section) {
            blocks.push(Block::Head(section, String::new()));
        }
        self.open = Some(section);
        blocks.push(Block::Flow(text.to_owned()));
        blocks
    }

    /// Shows the lines of a model's reasoning that are whole, up to the number of characters that are shown.
    fn think(&mut self, text: &str) -> Vec<Block> {
        let mut blocks = Vec::new();
        for piece in text.split_inclusive('\n') {
            if self.reasoning.chars >= REASONING_CHARS {
                break;
            }
            self.reasoning.line.push_str(piece);
            if piece.ends_with('\n') || self.reasoning.line.len() > REASONING_CHARS {
                blocks.extend(self.end_of_thinking());
            }
        }
        blocks
    }

    fn line_of_thought(&mut self, line: &str) -> Vec<Block> {
        if line.trim().is_empty() || self.reasoning.chars >= REASONING_CHARS {
            return Vec::new();
        }
        let mut blocks = Vec::new();
        if self.open != Some(Section::Reasoning) {
            blocks.push(Block::Head(Section::Reasoning, String::new()));
        }
        self.open = Some(Section::Reasoning);
        blocks.push(Block::Aside(clipped(line, REASONING_CHARS - self.reasoning.chars)));
        self.reasoning.chars += line.chars().count();
        blocks
    }

    /// Shows the last line of the reasoning, which has no line end.
    fn end_of_thinking(&mut self) -> Vec<Block> {
        let line = std::mem::take(&mut self.reasoning.line);
        self.line_of_thought(line.trim_end_matches('\n'))
    }

    fn hear(&mut self, text: &str) -> Vec<Block> {
        let pieces = self.speech.hear(text);
        pieces.iter().flat_map(|(section, words)| self.flow(*section, words)).collect()
    }

    fn replied(&mut self, reply: &ChatReply) -> Vec<Block> {
        let mut blocks = Vec::new();
        if let Some(usage) = reply.usage {
            self.usage += usage;
        }
        blocks.extend(self.end_of_thinking());
        let was_shown = std::mem::take(&mut self.reasoning).chars > 0;
        if let Some(reasoning) =
            reply.reasoning.as_deref().filter(|text| !was_shown && !text.trim().is_empty())
        {
            blocks.extend(self.head(Section::Reasoning, String::new()));
            blocks.push(Block::Aside(clipped(reasoning.trim(), REASONING_CHARS)));
        }
        if let Some((section, words)) = self.speech.rest(self.dialect, &reply.message) {
            blocks.extend(self.flow(section, &words));
        }
        // The text of a reply ends with a line break, so that the spinner has a line of its own.
        let last = self.open.map_or("", |section| self.speech.shown(section));
        if !last.is_empty() && !last.ends_with('\n') {
            blocks.push(Block::Flow("\n".to_owned()));
        }
        if let Some(refusal) = &reply.refusal {
            blocks.extend(self.flow(Section::Refusal, &format!("{refusal}\n")));
        }
        match reply.finish {
            Finish::Length => {
                blocks.push(Block::Warning("the reply was cut at the provider's limit".to_owned()));
            }
            Finish::ContentFilter => {
                blocks.push(Block::Warning("the provider's filter cut the reply".to_owned()));
            }
            Finish::Stop | Finish::ToolCalls | Finish::Other => {}
        }
        self.open = None;
        blocks
    }

    fn model_failed(&mut self, event: &EventBody) -> Vec<Block> {
        // The text so far is void, because the next try sends the whole reply again.
        (self.speech, self.reasoning) = (Speech::new(self.dialect), ShownReasoning::default());
        self.open = None;
        tell(event)
    }

    fn code(&mut self, cell: CellNumber, code: &str, purpose: Option<&str>) -> Vec<Block> {
        self.doing = format!("cell {cell} waits");
        let purpose = purpose.map(|purpose| format!(" · {purpose}")).unwrap_or_default();
        if self.seen_code.take().is_some_and(|seen| seen == code) {
            return self.head(Section::Code, format!("· cell {cell} · as approved"));
        }
        if !code.trim().is_empty() && self.speech.shown(Section::Code).trim() == code.trim() {
            return self.head(Section::Code, format!("· cell {cell} · as above{purpose}"));
        }
        let mut blocks = self.head(Section::Code, format!("· cell {cell}{purpose}"));
        blocks.push(Block::Code(code.to_owned()));
        blocks
    }

    fn cell_ended(&mut self, result: &ExecutionResult) -> Vec<Block> {
        let mut blocks = Vec::new();
        if let Some(value) = &result.result {
            blocks.push(Block::Head(Section::Result, String::new()));
            blocks.push(Block::Flow(format!("{}\n", value.repr)));
        }
        if let Some(exception) = &result.exception {
            blocks.push(Block::Head(Section::Exception, String::new()));
            let text = if exception.traceback.is_empty() { &exception.repr } else { &exception.traceback };
            blocks.push(Block::Flow(format!("{}\n", text.trim_end())));
        }
        blocks.extend(phrases::what_happened(result).map(Block::Trouble));
        blocks.extend(result.artifacts.iter().map(|artifact| Block::Note(artifact_line(artifact))));
        blocks.extend(phrases::state_note(result).map(Block::Warning));
        self.does("thinking".to_owned());
        blocks
    }

    fn tool_answer(&mut self, name: &str, outcome: &ToolOutcome) -> Vec<Block> {
        let (more, text) = match outcome {
            ToolOutcome::Value(Value::String(text)) => (name.to_owned(), text.clone()),
            ToolOutcome::Value(value) => (name.to_owned(), value.to_string()),
            ToolOutcome::Failure(failure) => {
                (format!("{name} · {}", failure.code).trim().to_owned(), failure.message.clone())
            }
        };
        let mut blocks = self.head(Section::ToolAnswer, more);
        if !text.trim().is_empty() {
            blocks.push(Block::Aside(clipped(text.trim_end(), TOOL_ANSWER_CHARS)));
        }
        blocks
    }

    fn plan(&mut self, plan: &PlanVersion) -> Vec<Block> {
        let mut blocks = self.head(Section::Plan, format!("· version {}", plan.version));
        blocks.push(Block::Plan(plan.markdown.clone()));
        blocks
    }
}

/// The event's own sentence, if it is severe enough for a watching person.
fn tell(event: &EventBody) -> Vec<Block> {
    event
        .sentence()
        .into_iter()
        .filter_map(|sentence| match sentence.severity {
            Severity::Warning => Some(Block::Warning(sentence.text)),
            Severity::Notice => Some(Block::Note(sentence.text)),
            Severity::Progress => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
