//! The words between the machine and the actor that carries its wishes out.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::time::Duration;

use super::words::Words;
use crate::protocol::ask::{AskEnd, AskSpec, Decision, Language, Subject};
use crate::protocol::chat::{ChatReply, ChatRequest, ModelFailure, ModelTool, Usage};
use crate::protocol::event::ToolOutcome;
use crate::protocol::result::ExecutionResult;
use crate::protocol::timeout::Timeouts;
use crate::schema;

/// What happened. `id` and `step` are those of the effect that it answers; an input that answers
/// nothing outstanding is ignored, so a late or doubled one does no harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Input {
    /// Once, before everything else.
    Begin,
    ModelReplied {
        step: u32,
        reply: Box<ChatReply>,
    },
    /// There will be no reply: all retries are used up.
    ModelFailed {
        step: u32,
        failure: ModelFailure,
    },
    CellFinished {
        id: String,
        result: Box<ExecutionResult>,
    },
    /// The cell did not run: the queue is full, the restricted policy forbids it, …
    CellRefused {
        id: String,
        message: String,
    },
    ToolFinished {
        id: String,
        outcome: ToolOutcome,
    },
    /// A person decided, or the deadline of the approval did.
    Decided {
        id: String,
        decision: Decision,
    },
    /// There is no sandbox and there will be none.
    SandboxFailed {
        message: String,
    },
    /// An ask within this one used tokens and steps.
    SpentWithin {
        usage: Usage,
        steps: u32,
    },
    /// What was spent on the present request before it broke off.
    Unanswered {
        tokens: u64,
    },
    /// Of the tokens that it shares with other asks, too few are left for the next request.
    OutOfTokens,
    /// Of the steps that it shares with other asks, none is left.
    OutOfSteps,
    Cancel,
    /// The wall time of the ask is over.
    TimeUp,
}

impl Input {
    /// The same, for a machine to which nothing else is told: without what is beyond the characters that a model is
    /// told of one result.
    #[must_use]
    pub fn as_told(self, language: Language, told_chars: usize) -> Self {
        let told = |text: &str| Words(language).told(text, told_chars);
        match self {
            Self::ToolFinished { id, outcome: ToolOutcome::Value(value) } => {
                let text = match value {
                    Value::String(text) => told(&text),
                    value => told(&value.to_string()),
                };
                Self::ToolFinished { id, outcome: ToolOutcome::Value(text.into()) }
            }
            input => input,
        }
    }

    /// Whether it ends an ask from outside, whatever is under way.
    #[must_use]
    pub fn ends(&self) -> bool {
        match self {
            Self::SandboxFailed { .. }
            | Self::OutOfTokens
            | Self::OutOfSteps
            | Self::Cancel
            | Self::TimeUp => true,
            Self::Begin
            | Self::ModelReplied { .. }
            | Self::ModelFailed { .. }
            | Self::CellFinished { .. }
            | Self::CellRefused { .. }
            | Self::ToolFinished { .. }
            | Self::Decided { .. }
            | Self::SpentWithin { .. }
            | Self::Unanswered { .. } => false,
        }
    }
}

/// What has to be done. `AskModel`, `RunCell`, `CallTool` and `AskPerson` want an answer; until it
/// comes [`super::Machine::outstanding`] names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Effect {
    /// Answered by `ModelReplied` or `ModelFailed`.
    AskModel {
        step: u32,
        request: ChatRequest,
        /// What the request will cost, without the reply.
        tokens: u64,
    },
    /// Answered by `CellFinished`, `CellRefused` or `SandboxFailed`. Never two at a time.
    RunCell {
        id: String,
        code: String,
        timeout_s: f64,
        /// The code has to pass the check of the restricted policy first.
        restricted: bool,
    },
    /// Answered by `ToolFinished`. The arguments fit the tool's schema.
    CallTool { id: String, name: String, arguments: Map<String, Value> },
    /// Answered by `Decided`. Has the id of the cell or call that waits for it.
    AskPerson { id: String, subject: Subject },
    /// For people: what was cut, repaired or fed back.
    Note { text: String },
    /// The last effect of all. What is still outstanding has to be stopped; its answers are ignored.
    Finish { end: AskEnd },
}

impl Effect {
    /// The cell or call that it is about.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::RunCell { id, .. } | Self::CallTool { id, .. } | Self::AskPerson { id, .. } => Some(id),
            Self::AskModel { .. } | Self::Note { .. } | Self::Finish { .. } => None,
        }
    }

    /// The end of the ask, if it is that.
    #[must_use]
    pub fn into_end(self) -> Option<AskEnd> {
        match self {
            Self::Finish { end } => Some(end),
            Self::AskModel { .. }
            | Self::RunCell { .. }
            | Self::CallTool { .. }
            | Self::AskPerson { .. }
            | Self::Note { .. } => None,
        }
    }
}

/// What the machine needs to know beside the ask itself. Replaying inputs gives the same effects
/// only with the same setup, so it is kept with the ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The tools that `AskSpec::tools` names, as the model is told of them; more do no harm.
    pub tools: Vec<ModelTool>,
    /// Names of those that act outside of the sandbox.
    #[serde(default)]
    pub outside: BTreeSet<String>,
    /// Malformed replies in a row that are fed back before the ask ends.
    pub malformed: u32,
    /// A legacy `function_call` is executed; else it is answered with a correction.
    pub legacy_function_call: bool,
    /// Characters of a result that the model is told.
    pub told_chars: usize,
    /// False: tools that run Python stay described, but are answered with a refusal.
    pub python: bool,
    /// Replies in a row whose Python failed, after which the ask goes on without Python; 0: never.
    pub degrade_after: u32,
    /// Tokens of a whole conversation that fit into the model.
    pub context_tokens: u64,
    /// The model understands messages with tool calls. If not, they are told to it as text.
    pub model_tools: bool,
    pub cell_timeout_s: f64,
    pub max_cell_timeout_s: f64,
    /// Where the workspace is in the sandbox.
    pub workspace: String,
    /// Packages that the image has, in the words of `pip`.
    pub dependencies: Vec<String>,
    /// Text that replaces the built-in system prompt; placeholders as in `prompts`.
    pub prompt: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupProblem {
    #[error("tool `{0}` may be used, but nothing describes it")]
    NotDescribed(String),
    #[error("there are two tools `{0}`")]
    Twice(String),
    #[error("the schema of tool `{tool}` cannot be used: {problem}")]
    ToolSchema { tool: String, problem: String },
    #[error("the schema of the answer cannot be used: {0}")]
    AnswerSchema(String),
}

impl Setup {
    pub fn cell_timeouts(&self) -> Timeouts {
        let time = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Timeouts { default: time(self.cell_timeout_s), most: time(self.max_cell_timeout_s) }
    }

    /// Whether everything that the ask allows is there and can be checked. To be asked before an
    /// ask is accepted; a machine that starts with such a problem ends at once.
    pub fn check(&self, spec: &AskSpec) -> Result<(), SetupProblem> {
        for name in &spec.tools {
            match self.tools.iter().filter(|tool| tool.name == *name).count() {
                0 => return Err(SetupProblem::NotDescribed(name.clone())),
                1 => {}
                _ => return Err(SetupProblem::Twice(name.clone())),
            }
        }
        for tool in self.allowed(spec) {
            schema::check(&tool.parameters)
                .map_err(|problem| SetupProblem::ToolSchema { tool: tool.name.clone(), problem })?;
        }
        match &spec.schema {
            Some(answer) => schema::check(answer).map_err(SetupProblem::AnswerSchema),
            None => Ok(()),
        }
    }

    pub(super) fn allowed<'a>(&'a self, spec: &'a AskSpec) -> impl Iterator<Item = &'a ModelTool> {
        self.tools.iter().filter(|tool| spec.tools.contains(&tool.name))
    }
}
