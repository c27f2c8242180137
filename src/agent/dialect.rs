//! Dialects: how a model asks to run code and reports that it is done, and how results return to it. Each
//! dialect has its own file; everything else is shared.

mod json_action;
mod next_step;
mod tool_calls;
mod xml_tags;

use serde_json::Value;

use super::budget::tokens_of_text;
use super::effects::Setup;
use super::history::tool_result;
use super::turn::AnsweredCall;
use super::words::Words;
use crate::protocol::ask::{ApprovalPolicy, AskSpec, Dialect};
use crate::protocol::chat::{AnswerSchema, ChatReply, Finish, Message, ModelTool, Role};
use crate::protocol::tool_names::INSTALL_TOOL;

pub(super) use next_step::{described_parameters, python_type};

/// The facts about the ask that a dialect may use.
#[derive(Clone, Copy)]
pub(super) struct DialectContext<'a> {
    pub spec: &'a AskSpec,
    pub setup: &'a Setup,
    pub words: Words,
}

impl DialectContext<'_> {
    /// Whether the model and its code may install packages. Restricted code has no commands of notebooks, such as `%pip`.
    pub fn installs(&self) -> bool {
        !self.spec.restricted && self.setup.allowed(self.spec).any(|tool| tool.name == INSTALL_TOOL)
    }

    /// Whether a person is asked before.
    pub fn asks_before_installing(&self) -> bool {
        let names = match &self.spec.approval {
            ApprovalPolicy::Ask => return true,
            ApprovalPolicy::Tools(names) => names.as_slice(),
            ApprovalPolicy::Auto => &[],
        };
        names.iter().chain(&self.spec.also_approve).any(|name| name == INSTALL_TOOL)
    }
}

/// The parts of a request beside its messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Format {
    pub tools: Vec<ModelTool>,
    pub answer: Option<AnswerSchema>,
}

impl Format {
    /// The estimated tokens of these parts.
    pub fn tokens(&self) -> u64 {
        let tools = self.tools.iter().map(|tool| {
            tokens_of_text(&tool.description).saturating_add(tokens_of_text(&tool.parameters.to_string()))
        });
        let answer = self.answer.iter().map(|answer| tokens_of_text(&answer.schema.to_string()));
        tools.chain(answer).fold(0, u64::saturating_add)
    }
}

/// A parsed reply.
#[derive(Debug)]
pub(super) struct ParsedReply {
    /// The reply as the history keeps it, without calls that get no answer.
    pub message: Message,
    pub intent: Intent,
    /// A user message to add after the results.
    pub after: Option<String>,
}

#[derive(Debug)]
pub(super) enum Intent {
    /// The final answer, with its value if the dialect itself carried one.
    Answer {
        text: String,
        value: Option<Value>,
    },
    Calls(Vec<Call>),
    /// The reply cannot be used; the text tells the model why.
    Malformed(String),
    /// The complete correction for the model, where the contract need not be repeated.
    Correct(String),
}

#[derive(Debug)]
pub(super) struct Call {
    /// The id that the model or the dialect wants; the machine makes it unique.
    pub id: String,
    pub name: String,
    pub input: CallInput,
    /// Whether the call came as `function_call`.
    pub legacy: bool,
}

#[derive(Debug, Hash)]
pub(super) enum CallInput {
    /// The arguments as JSON text, valid or not.
    Call(String),
    Cell(String),
    /// The dialect knows already that the call cannot be made; this is the answer.
    Impossible(String),
}

pub(super) trait Speech: Sync {
    fn format(&self, scene: DialectContext) -> Format;
    /// Whether the history of the dialect contains tool calls.
    fn has_calls(&self) -> bool {
        true
    }
    /// Whether results have headings and numbered source. Without them, a model is told the output itself first.
    fn has_headings(&self) -> bool {
        false
    }
    fn parse(&self, reply: &ChatReply, step: u32, scene: DialectContext) -> ParsedReply;
    /// The messages that a reply and the answers to its calls become in the history.
    fn record(&self, mut message: Message, answered: Vec<AnsweredCall>) -> Vec<Message> {
        for (call, answer) in message.tool_calls.iter_mut().zip(&answered) {
            call.id.clone_from(&answer.id);
        }
        let mut messages = vec![message];
        messages.extend(answered.into_iter().map(|answer| tool_result(&answer.id, answer.text)));
        messages
    }
}

pub(super) fn speech(dialect: Dialect) -> &'static dyn Speech {
    match dialect {
        Dialect::ToolCalls => &tool_calls::ToolCalls,
        Dialect::NextStep => &next_step::NextStep,
        Dialect::JsonAction => &json_action::JsonAction,
        Dialect::XmlTags => &xml_tags::XmlTags,
    }
}

impl ParsedReply {
    fn new(message: Message, intent: Intent) -> Self {
        Self { message, intent, after: None }
    }
}

impl Call {
    /// The only call of a reply, in dialects whose calls have no ids of their own.
    fn of_step(step: u32, name: &str, input: CallInput) -> Self {
        Self { id: format!("step_{}", step.saturating_sub(1)), name: name.to_owned(), input, legacy: false }
    }
}

/// The reply without calls, for dialects that have none of their own.
fn only_text(reply: &ChatReply) -> Message {
    Message::new(Role::Assistant, reply.message.content.clone())
}

/// Why a reply has no text to parse; none if it has.
fn nothing_said(reply: &ChatReply, words: Words) -> Option<String> {
    let called = !reply.message.tool_calls.is_empty() || reply.message.function_call.is_some();
    if reply.message.content.trim().is_empty() {
        Some(match (called, reply.finish) {
            (true, _) => words.native_calls(),
            (false, Finish::Length) => words.cut_reply(),
            (false, _) => words.empty_reply(),
        })
    } else {
        None
    }
}

/// Turns a name into one that providers accept in a history.
fn tame_name(name: &str) -> String {
    let tame: String = name
        .chars()
        .take(crate::protocol::limits::TOOL_NAME_CHARS)
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' })
        .collect();
    if tame.is_empty() { "unknown".to_owned() } else { tame }
}
