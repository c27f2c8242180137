//! Settings of the agent: models, limits of an ask, command tools and templates.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::ask::{ApprovalPolicy, AskLimits, DefaultDecision, Dialect, Language};

/// `[agent]`
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Name of the `[model.NAME]` that an ask gets which names none.
    pub model: Option<String>,
    pub dialect: Dialect,
    pub language: Language,
    pub approval: ApprovalPolicy,
    /// After this time `approval_default` holds; none: a person decides, however long it takes.
    pub approval_deadline: Option<Duration>,
    pub approval_default: DefaultDecision,
    /// Default limits of an ask; what a client wants may not exceed `max_limits`.
    pub limits: AskLimits,
    pub max_limits: AskLimits,
    /// Steps of an ask in the `next_step` dialect.
    pub next_step_steps: u32,
    /// Malformed replies in a row that are fed back before the ask ends.
    pub malformed: u32,
    /// A legacy `function_call` is executed; else it is answered with a correction.
    pub legacy_function_call: bool,
    /// Characters of a result that the model is told.
    pub told_chars: usize,
    /// How deep an ask may nest in cells of another.
    pub depth: u32,
    /// False: the model keeps its tools' descriptions, but nothing is run (degraded mode).
    pub python: bool,
    /// Replies in a row whose cells failed, after which an ask goes on without Python; 0: never.
    pub degrade_after: u32,
    /// Tools of every session; empty: all.
    pub tools: Vec<String>,
    /// A file that replaces the built-in system prompt.
    pub prompt: Option<PathBuf>,
}

/// `[model.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub provider: Provider,
    /// The provider's name for it, such as `qwen-plus`.
    pub model: String,
    pub base_url: String,
    /// The environment variable of the daemon that holds the key; none if it wants none.
    pub key_variable: Option<String>,
    /// Of `script` and `replay`.
    pub file: Option<PathBuf>,
    /// Write a cassette of the traffic.
    pub record: Option<PathBuf>,
    /// Tool schemas in the strict form that OpenAI checks: all properties required.
    pub strict: bool,
    /// It understands `tools`.
    pub tools: bool,
    /// It understands `response_format` with a JSON Schema.
    pub json_schema: bool,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u64>,
    /// Tokens of a whole conversation that fit.
    pub context_tokens: u64,
    pub connect: Duration,
    pub first_byte: Duration,
    pub idle: Duration,
    pub total: Duration,
    /// Times a request is sent again.
    pub retries: u32,
    /// Requests at the same time.
    pub concurrency: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    OpenAi,
    DashScope,
    Ollama,
    Vllm,
    LlamaCpp,
    OpenRouter,
    /// Any other that speaks OpenAI's chat completions.
    Compatible,
    /// Plays a cassette.
    Replay,
    /// Plays a list of answers written by hand.
    Script,
}

/// `[tool.NAME]`: a program of the host as a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandTool {
    pub description: String,
    /// JSON Schema of its arguments: an object.
    pub parameters: Value,
    /// JSON Schema of what it prints; without one it prints text.
    pub output: Option<Value>,
    /// The program and its fixed arguments; never a shell line.
    pub argv: Vec<String>,
    pub timeout: Duration,
    pub output_bytes: u64,
}

/// `[template.NAME]`: a prompt with parameters, as `belljar ask @NAME k=v`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// With `{name}` for each parameter; `{{` and `}}` are braces.
    pub prompt: String,
    pub parameters: Vec<String>,
    pub schema: Option<Value>,
    pub tools: Option<Vec<String>>,
    pub model: Option<String>,
    pub dialect: Option<Dialect>,
}

pub type Named<T> = BTreeMap<String, T>;
