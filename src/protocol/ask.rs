//! Asks: a model works on a request in a session until it answers. And approvals: a person decides
//! whether a cell or a tool call may run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat::{Message, ModelTool, Usage};
use super::ids::{CellNumber, SessionId, SessionName};
use super::principal::Principal;
use super::word_enums::words;

/// Number of an ask in its session: 1, 2, 3, …
pub type AskNumber = u64;

/// `POST /v1/sessions/{s}/asks`. What is not given comes from the settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewAsk {
    /// What the model shall do; empty if `template` and its `parameters` are given instead.
    pub text: String,
    pub template: Option<String>,
    pub parameters: Map<String, Value>,
    /// A `[model.NAME]` of the configuration.
    pub model: Option<String>,
    pub dialect: Option<Dialect>,
    pub language: Option<Language>,
    pub approval: Option<ApprovalPolicy>,
    /// Tools that the model and its code may use; if absent, all that the session may use.
    pub tools: Option<Vec<String>>,
    /// JSON Schema of the answer.
    pub schema: Option<Value>,
    /// Values that become variables of the session.
    pub context: Map<String, Value>,
    /// Only cells that pass the check of the restricted policy run.
    pub restricted: Option<bool>,
    pub limits: AskLimitsWanted,
    /// Forget the conversation so far.
    pub fresh: bool,
}

words! {
    #[derive(Default)]
    pub enum Dialect {
        #[default]
        ToolCalls = "tool_calls",
        NextStep = "next_step",
        JsonAction = "json_action",
        XmlTags = "xml_tags",
    }
}

words! {
    /// The language of the texts that a model gets.
    #[derive(Default)]
    pub enum Language {
        #[default]
        English = "en",
        Chinese = "zh",
    }
}

/// When a person has to approve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalPolicy {
    /// Never.
    Auto,
    /// Before every cell, and before every tool that acts outside of the sandbox.
    Ask,
    /// Before the tools named.
    Tools(Vec<String>),
}

impl ApprovalPolicy {
    /// The policy that is a single word, the same in JSON, in the configuration and on the command line.
    pub fn named(word: &str) -> Option<Self> {
        serde_json::from_value(word.into()).ok()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AskLimitsWanted {
    pub steps: Option<u32>,
    pub failures: Option<u32>,
    pub tokens: Option<u64>,
    pub seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AskLimits {
    /// Requests to the model.
    pub steps: u32,
    /// Successive replies of the model in which no cell and no tool call succeeded.
    pub failures: u32,
    /// Tokens of all requests and replies together.
    pub tokens: u64,
    /// Wall time; the time a person takes to decide is not counted.
    pub seconds: f64,
}

/// An ask with every default filled in, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AskSpec {
    pub text: String,
    pub model: String,
    pub dialect: Dialect,
    pub language: Language,
    pub approval: ApprovalPolicy,
    /// Further tools that a person has to approve, because the code that made this ask needs approval for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_approve: Vec<String>,
    pub tools: Vec<String>,
    /// Whether the ask names no tools. Then the model is told only of those that every ask needs, and may use all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lean: bool,
    pub schema: Option<Value>,
    pub context: Map<String, Value>,
    /// What the system prompt says of the model and its way of working, in place of the usual words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    pub restricted: bool,
    pub limits: AskLimits,
    pub fresh: bool,
    /// How deep the ask is nested: 0 for an ask of a client, 1 for an ask that a cell of such an ask made, …
    pub depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskState {
    /// Waits for another ask of the session to end.
    Queued,
    /// The model was asked and has not answered yet.
    Thinking,
    /// Cells or tools run.
    Acting,
    /// A person has to decide.
    Waiting,
    Done,
}

/// `GET /v1/sessions/{s}/asks/{a}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AskView {
    pub ask: AskNumber,
    pub state: AskState,
    pub text: String,
    pub model: String,
    pub dialect: Dialect,
    pub steps: u32,
    pub usage: Usage,
    /// Approvals that wait for a person, including those of nested asks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<Approval>,
    /// Events of this ask come after this sequence number.
    pub events_after: u64,
    pub end: Option<AskEnd>,
}

/// The replies of the model to an ask, without those of asks within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplyCount {
    pub all: u32,
    /// Those that had the agreed form: the dialect could be read, calls named a tool and gave what it wants, and the
    /// Python in it was Python.
    pub valid: u32,
}

/// How an ask ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AskEnd {
    pub outcome: AskOutcome,
    /// The final answer; for other outcomes, the last text of the model, if any.
    pub answer: Option<String>,
    /// The answer as JSON, if a schema was given.
    pub value: Option<Value>,
    /// Why the ask was not answered, if it was not.
    pub message: Option<String>,
    pub steps: u32,
    pub usage: Usage,
    #[serde(default)]
    pub replies: ReplyCount,
}

/// The message of an ask that was cancelled because its session was removed.
pub const ENDED_WITH_SESSION: &str = "the ask ended with its session";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskOutcome {
    Answered,
    StepLimit,
    FailureLimit,
    /// The model repeated a step that failed, also after it was told so.
    RepeatedFailure,
    TokenLimit,
    TimeLimit,
    /// A client cancelled the ask, or its session ended it.
    Cancelled,
    /// A person refused what the model wanted to run.
    Rejected,
    /// The model kept replying with something that cannot be understood.
    Malformed,
    /// The model could not be reached, or refused.
    ModelFailed,
    /// The ask could not get a sandbox.
    SandboxFailed,
}

/// A cell or a tool call that waits for a person's decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Approval {
    /// Unique for the whole daemon; safe in a URL.
    pub id: String,
    pub session: SessionId,
    pub session_name: SessionName,
    /// User id of the session's owner.
    #[serde(default = "unnamed_owner")]
    pub owner: Principal,
    pub ask: Option<AskNumber>,
    /// Id of the model's call that waits for this decision.
    pub call: Option<String>,
    /// The cell whose tool call waits, if code in a cell made the call.
    pub cell: Option<CellNumber>,
    /// The ask whose rules require the approval: code of that ask may still run in the session and may be the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_by: Option<AskNumber>,
    pub subject: Subject,
    /// RFC 3339.
    pub asked_at: String,
    /// Seconds from `asked_at`, after which `by_default` holds.
    pub deadline_s: Option<f64>,
    pub by_default: Option<DefaultDecision>,
}

/// Events of earlier versions name no owner; the session that reads them fills in its own.
const fn unnamed_owner() -> Principal {
    Principal::ROOT
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    Cell {
        code: String,
        timeout_s: f64,
        /// What the model says that the code is for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        purpose: Option<String>,
    },
    Tool {
        name: String,
        arguments: Map<String, Value>,
    },
}

/// `GET /v1/approvals`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalList {
    pub approvals: Vec<Approval>,
}

/// `POST /v1/approvals/{p}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decision {
    /// Run it; for a cell, `code` may replace its code.
    Accept {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// Do not run it. The ask ends; inside a cell `ToolError` is raised.
    Reject {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Do not run it; the model gets these words as the answer.
    Respond { text: String },
    /// Do not run it; the model is told that the person would rather have this code.
    Edit { text: String },
}

words! {
    pub enum DefaultDecision {
        Accept = "accept",
        Reject = "reject",
    }
}

/// `GET /v1/sessions/{s}/asks`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AskList {
    pub asks: Vec<AskView>,
}

/// `GET /v1/sessions/{s}/history`: the conversation that the next ask continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    pub messages: Vec<Message>,
}

/// `GET /v1/sessions/{s}/plan`: all versions, the newest last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanView {
    pub versions: Vec<PlanVersion>,
}

/// One version of the plan tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanVersion {
    /// 1, 2, 3, …
    pub version: u64,
    /// The tree as the model gave it, with ids filled in.
    pub tree: Value,
    /// What differs from the previous version.
    pub changes: Vec<String>,
    pub markdown: String,
    /// Counts per status, `__total`, `__completion_rate`, `__pending_rate`.
    pub statistics: Map<String, Value>,
}

/// `GET /v1/models`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelList {
    pub models: Vec<ModelView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelView {
    /// The NAME of the model's section `[model.NAME]`.
    pub name: String,
    /// `openai`, `dashscope`, …; `script` and `replay` give prepared replies from a file.
    pub provider: String,
    /// The provider's own name for the model.
    pub model: String,
    /// An ask that names no model gets this one.
    pub default: bool,
    /// The environment variable of the daemon that should hold the API key, if it is not set.
    pub missing_key: Option<String>,
}

/// `GET /v1/tools`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolList {
    pub tools: Vec<ModelTool>,
}
