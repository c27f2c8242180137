//! The contract of a tool: a definition for models, and a function.

use serde_json::{Map, Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::port::SessionPort;
use crate::memory::Charge;
use crate::protocol::ask::Language;
use crate::protocol::frames::ToolFailure;
use crate::protocol::tool::LentAnswer;
use crate::protocol::tool_names::PURPOSE;

/// The parameters of a tool plus the required purpose, in the form that a model gets.
pub fn with_purpose(parameters: &Value, description: &str) -> Value {
    let mut schema = with_optional_purpose(parameters, description);
    if let Some(root) = schema.as_object_mut() {
        let mut required = vec![Value::from(PURPOSE)];
        if let Some(Value::Array(own)) = root.remove("required") {
            required.extend(own);
        }
        root.insert("required".into(), Value::Array(required));
    }
    schema
}

/// The parameters of a tool plus an optional purpose, for code, which need not give one.
pub fn with_optional_purpose(parameters: &Value, description: &str) -> Value {
    let mut schema = parameters.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(PURPOSE.into(), json!({"type": "string", "description": description}));
    }
    schema
}

/// Describes a tool to models and programs. It is available without running anything.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each says another thing about a tool")]
pub struct Definition {
    pub name: String,
    pub description: String,
    /// The Chinese description; `None` if there is only the English one.
    pub description_zh: Option<String>,
    /// The JSON Schema of the arguments: an object with `additionalProperties` false, without the purpose.
    pub parameters: Value,
    /// The names of the parameters that only code can give; models are not told of them.
    pub for_code: &'static [&'static str],
    /// The JSON Schema of the tool's value; `None` if the tool returns text.
    pub output: Option<Value>,
    /// Whether the kernel itself runs the tool, in the worker, when code in a cell calls it.
    pub local: bool,
    /// Whether the tool is available only if it is requested by name.
    pub on_request: bool,
    /// Whether the tool acts outside the sandbox or causes others to do so: a program of the host, a client, another
    /// ask.
    pub outside: bool,
    /// Whether a call begins an ask within the caller's.
    pub nests: bool,
    /// Whether the tool is a program of the host; a daemon that shuts down waits for it for a while.
    pub program: bool,
    /// Whether a call changes nothing that outlives the daemon, so that a loss of power may take back that it was made.
    /// For a program of the host and for a client's tool, this is what its author declares.
    pub read_only: bool,
}

impl Definition {
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            description_zh: None,
            parameters,
            for_code: &[],
            output: None,
            local: false,
            on_request: false,
            outside: false,
            nests: false,
            program: false,
            read_only: false,
        }
    }

    /// What a client promises to answer with that lends this tool.
    pub(super) fn promised(&self) -> LentAnswer {
        if self.output.is_some() { LentAnswer::Value } else { LentAnswer::Text }
    }

    /// The parameters that a model is told of.
    pub(super) fn parameters_for_models(&self) -> Value {
        let mut parameters = self.parameters.clone();
        if let Some(properties) = parameters.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|name, _| !self.for_code.contains(&name.as_str()));
        }
        parameters
    }

    /// The description in the given language; never empty.
    pub fn described(&self, language: Language) -> &str {
        let (text, none) = match language {
            Language::English => (&self.description, "no tool description"),
            Language::Chinese => (self.description_zh.as_ref().unwrap_or(&self.description), "无工具描述"),
        };
        if text.trim().is_empty() { none } else { text }
    }
}

/// The result of a tool.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolOutput {
    /// The value of a tool with an output schema.
    Value(Value),
    Text(String),
    /// Text with pictures.
    Parts {
        text: String,
        images: Vec<Image>,
    },
}

/// A picture, in the form of a display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The media type, such as `image/png`.
    pub mime: String,
    pub base64: String,
}

impl ToolOutput {
    /// The result as the single value that the journal keeps.
    pub fn into_value(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Text(text) | Self::Parts { text, .. } => Value::String(text),
        }
    }
}

pub type ToolFuture = Pin<Box<dyn Future<Output = Result<ToolOutput, ToolFailure>> + Send>>;

/// The caller of a tool. A model has to give a purpose, code need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Model,
    Code,
}

/// Called when a call begins to wait for a person and when it stops: meanwhile the time limit of the caller is
/// suspended.
pub type OnWaiting = Arc<dyn Fn(bool) + Send + Sync>;

/// What a tool knows about its session, and its access to it.
#[derive(Clone)]
pub struct Context {
    /// The session's name, limits and image, as JSON.
    pub session: Value,
    port: Option<Arc<dyn SessionPort>>,
    on_waiting: Option<OnWaiting>,
    /// The charge for the arguments to the owner's share of the memory, for code that keeps the arguments.
    memory: Option<Arc<Charge>>,
    /// The id under which a client answers the call, if the journal determines it.
    call: Option<String>,
}

impl Context {
    /// A context for tools that need no access to the session.
    pub fn new(session: Value) -> Self {
        Self { session, port: None, on_waiting: None, memory: None, call: None }
    }

    #[must_use]
    pub fn with_port(mut self, port: Arc<dyn SessionPort>) -> Self {
        self.port = Some(port);
        self
    }

    #[must_use]
    pub fn with_on_waiting(mut self, on_waiting: OnWaiting) -> Self {
        self.on_waiting = Some(on_waiting);
        self
    }

    #[must_use]
    pub fn with_memory(mut self, memory: Option<Arc<Charge>>) -> Self {
        self.memory = memory;
        self
    }

    #[must_use]
    pub fn with_call(mut self, id: String) -> Self {
        self.call = Some(id);
        self
    }

    pub(super) fn call(&self) -> Option<&str> {
        self.call.as_deref()
    }

    pub(super) fn memory(&self) -> Option<Arc<Charge>> {
        self.memory.clone()
    }

    pub(super) fn on_waiting(&self) -> Option<OnWaiting> {
        self.on_waiting.clone()
    }

    pub fn port(&self) -> Result<Arc<dyn SessionPort>, ToolFailure> {
        self.port.clone().ok_or_else(|| failure("unavailable", "this tool needs a session with a sandbox"))
    }
}

pub trait Tool: Send + Sync {
    fn definition(&self) -> Definition;

    /// Runs the tool; the arguments fit its schema. The future is dropped when the caller no longer waits for it.
    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture;
}

pub(super) fn failure(code: &str, message: impl Into<String>) -> ToolFailure {
    ToolFailure { code: code.into(), message: message.into() }
}
