//! Settings of the agent: models, limits of an ask, command tools and templates.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::ask::{ApprovalPolicy, AskLimits, AskLimitsWanted, DefaultDecision, Dialect, Language};

/// `[agent]`
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// The name of the `[model.NAME]` for an ask that names none.
    pub model: Option<String>,
    /// The dialect of asks that name none; `None` for the one of their model.
    pub dialect: Option<Dialect>,
    pub language: Language,
    pub approval: ApprovalPolicy,
    /// After this time `approval_default` applies; `None` means waiting for a person without a limit.
    pub approval_deadline: Option<Duration>,
    pub approval_default: DefaultDecision,
    /// The default limits of an ask; a client may request more, up to `max_limits`.
    pub limits: AskLimits,
    pub max_limits: AskLimits,
    /// The limit of steps for an ask in the `next_step` dialect.
    pub next_step_steps: u32,
    /// How many malformed replies in a row are returned to the model for correction before the ask ends.
    pub malformed: u32,
    /// Whether a legacy `function_call` is executed; otherwise it is answered with a correction.
    pub legacy_function_call: bool,
    /// The most characters of a result that the model gets.
    pub told_chars: usize,
    /// How many levels deep asks may be nested in cells of other asks.
    pub depth: u32,
    /// If false, the model still gets the descriptions of its tools, but nothing is run (degraded mode).
    pub python: bool,
    /// After this many replies in a row whose cells failed, an ask goes on without Python; 0 means never.
    pub degrade_after: u32,
    /// The tools of every session, `*` for all that need not be named; `None` for all, of which models are told few.
    pub tools: Option<Vec<String>>,
    /// A file that replaces the built-in system prompt.
    pub prompt: Option<PathBuf>,
}

/// `[model.NAME]`
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Model {
    pub provider: Provider,
    /// The provider's name for the model, such as `qwen-plus`.
    pub model: String,
    pub base_url: String,
    /// The environment variable of the daemon that holds the key; `None` if the provider needs no key.
    pub key_variable: Option<String>,
    /// The file that `script` and `replay` play.
    pub file: Option<PathBuf>,
    /// The file to which a cassette of the traffic is written.
    pub record: Option<PathBuf>,
    /// Tool schemas in the strict form that OpenAI checks: all properties required.
    pub strict: bool,
    /// Whether the provider supports `tools`.
    pub tools: bool,
    /// Whether the provider supports `response_format` with a JSON Schema.
    pub json_schema: bool,
    /// The dialect that suits the provider's models, used if neither the ask nor `agent.dialect` names one.
    pub dialect: Dialect,
    /// Whether the model is shown pictures. They are in a message of the user behind the results of calls, which the
    /// provider has to accept.
    pub vision: bool,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u64>,
    /// The tokens of the model's context window.
    pub context_tokens: u64,
    pub connect: Duration,
    pub first_byte: Duration,
    pub idle: Duration,
    pub total: Duration,
    /// How often a failed request is sent again.
    pub retries: u32,
    /// The most requests at the same time.
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
    /// Any other provider with the chat completions API of `OpenAI`.
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
    /// The JSON Schema of the arguments, which must be an object.
    pub parameters: Value,
    /// The JSON Schema of the value that the program prints; without a schema, the output is text.
    pub output: Option<Value>,
    /// The program and its fixed arguments; never a shell line.
    pub argv: Vec<String>,
    pub timeout: Duration,
    pub output_bytes: u64,
    /// Variables of the daemon's environment that the program gets.
    pub env: Vec<String>,
    /// A file with further variables, `NAME=VALUE` a line, read for each call.
    pub env_file: Option<PathBuf>,
    /// The folder in which the program starts.
    pub cwd: PathBuf,
    /// Whether the program changes nothing, so that its calls need not wait for the disk.
    pub read_only: bool,
}

/// `[template.NAME]`: a prompt with parameters, as `belljar ask @NAME k=v`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The text, with `{name}` for each parameter; `{{` and `}}` are literal braces.
    pub prompt: String,
    /// The parameters in the prompt, and those that are only variables of the code.
    pub parameters: Named<TemplateParameter>,
    /// What the system prompt says of the model and its way of working, in place of the usual words.
    pub system: Option<String>,
    pub schema: Option<Value>,
    pub tools: Option<Vec<String>>,
    pub model: Option<String>,
    pub dialect: Option<Dialect>,
    pub approval: Option<ApprovalPolicy>,
    pub limits: AskLimitsWanted,
    /// What a model is told of the template as a tool; `None` if it is no tool.
    pub description: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TemplateParameter {
    /// The JSON Schema of its values.
    pub schema: Value,
    pub default: Option<Value>,
}

pub type Named<T> = BTreeMap<String, T>;
