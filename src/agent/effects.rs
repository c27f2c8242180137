//! The inputs and effects between the machine and the actor that carries the effects out.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::time::Duration;

use super::words::Words;
use crate::protocol::api::ImagePackages;
use crate::protocol::ask::{AskEnd, AskSpec, Decision, Language, Subject};
use crate::protocol::chat::{ChatReply, ChatRequest, ModelFailure, ModelTool, Usage};
use crate::protocol::event::ToolOutcome;
use crate::protocol::result::ExecutionResult;
use crate::protocol::timeout::Timeouts;
use crate::protocol::tool_names::is_extra;
use crate::schema;

/// What happened. `id` and `step` are those of the effect that it answers; an input that answers
/// nothing outstanding is ignored, so a late or doubled one does no harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Input {
    /// The first input, given once.
    Begin,
    ModelReplied {
        step: u32,
        reply: Box<ChatReply>,
    },
    /// The request failed for good: all retries are used up.
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
    /// A person decided, or the deadline of the approval passed.
    Decided {
        id: String,
        decision: Decision,
    },
    /// The ask has no sandbox and will not get one.
    SandboxFailed {
        message: String,
    },
    /// An inner ask of this one used tokens and steps.
    SpentWithin {
        usage: Usage,
        steps: u32,
    },
    /// The tokens spent on the present request before it broke off.
    Unanswered {
        tokens: u64,
    },
    /// Too few of the tokens that the ask shares with other asks are left for the next request.
    OutOfTokens,
    /// No step is left of those that the ask shares with other asks.
    OutOfSteps,
    Cancel,
    /// The wall time of the ask is over.
    TimeUp,
}

impl Input {
    /// The same input, cut to the characters that a model is shown of one result. The machine uses no more
    /// than that.
    #[must_use]
    pub fn shortened(self, language: Language, told_chars: usize) -> Self {
        let shorten = |text: &str| Words(language).shorten(text, told_chars);
        match self {
            Self::ToolFinished { id, outcome: ToolOutcome::Value(value) } => {
                let text = match value {
                    Value::String(text) => shorten(&text),
                    value => shorten(&value.to_string()),
                };
                Self::ToolFinished { id, outcome: ToolOutcome::Value(text.into()) }
            }
            input => input,
        }
    }

    /// Whether the input ends an ask from outside, at any stage.
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

/// What has to be done. `AskModel`, `RunCell`, `CallTool` and `AskPerson` need an answer; until it comes,
/// [`super::AskMachine::outstanding`] lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Effect {
    /// Answered by `ModelReplied` or `ModelFailed`.
    AskModel {
        step: u32,
        request: ChatRequest,
        /// The estimated cost of the request, without the reply.
        tokens: u64,
    },
    /// Answered by `CellFinished`, `CellRefused` or `SandboxFailed`. Never two at a time.
    RunCell {
        id: String,
        code: String,
        /// What the model says that the code is for.
        #[serde(default)]
        purpose: Option<String>,
        timeout_s: f64,
        /// Whether the code has to pass the check of the restricted policy first.
        restricted: bool,
    },
    /// Answered by `ToolFinished`. The arguments fit the tool's schema.
    CallTool { id: String, name: String, arguments: Map<String, Value> },
    /// Answered by `Decided`. The id is that of the waiting cell or call.
    AskPerson { id: String, subject: Subject },
    /// A note for people: what was cut, repaired or fed back.
    Note { text: String },
    /// The last effect of all. Outstanding work has to be stopped; its answers are ignored.
    Finish { end: AskEnd },
}

impl Effect {
    /// The id of the cell or call that the effect concerns.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::RunCell { id, .. } | Self::CallTool { id, .. } | Self::AskPerson { id, .. } => Some(id),
            Self::AskModel { .. } | Self::Note { .. } | Self::Finish { .. } => None,
        }
    }

    /// The end of the ask, if this effect is `Finish`.
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

/// What a person has to allow of the calls that the model makes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelApprovals {
    /// Whether cells have to be allowed.
    pub cells: bool,
    /// The names of the tools whose calls have to be allowed.
    pub tools: BTreeSet<String>,
}

/// The facts that the machine needs beside the ask itself. Replaying the inputs gives the same effects only
/// with the same setup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Setup {
    /// The tools that `AskSpec::tools` names, as described to the model; further tools do no harm.
    pub tools: Vec<ModelTool>,
    #[serde(default)]
    pub approvals: ModelApprovals,
    /// How many malformed replies in a row are fed back before the ask ends.
    pub malformed: u32,
    /// Whether a legacy `function_call` is executed; otherwise it is answered with a correction.
    pub legacy_function_call: bool,
    /// The most characters of a result that the model is shown.
    pub told_chars: usize,
    /// If false, tools that run Python stay described, but their calls are refused.
    pub python: bool,
    /// The number of replies in a row with failing Python after which the ask continues without Python; 0 for
    /// never.
    pub degrade_after: u32,
    /// The tokens of a whole conversation that fit into the model.
    pub context_tokens: u64,
    /// Whether the model supports messages with tool calls. If not, they are sent as text.
    pub model_tools: bool,
    /// Whether the model is shown the pictures that cells made, in a message of the user behind the results.
    #[serde(default)]
    pub vision: bool,
    pub cell_timeout_s: f64,
    pub max_cell_timeout_s: f64,
    /// The path of the workspace in the sandbox.
    pub workspace: String,
    /// The packages of the image. The model is told the main ones.
    pub dependencies: ImagePackages,
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

    /// Checks that all tools that the ask allows exist and can be validated. Called before an ask is
    /// accepted; a machine that starts with such a problem ends at once.
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

    /// The tools that the model is told of.
    pub(super) fn told<'a>(&'a self, spec: &'a AskSpec) -> impl Iterator<Item = &'a ModelTool> {
        self.allowed(spec).filter(|tool| !spec.lean || !is_extra(&tool.name))
    }
}
