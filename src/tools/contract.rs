//! What a tool is: a definition that can be told to a model, and a function.

use serde_json::{Map, Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::port::SessionPort;
use crate::memory::Charge;
use crate::protocol::ask::Language;
use crate::protocol::frames::ToolFailure;

/// The parameter that every tool has for a model: why it is called.
pub const PURPOSE: &str = "tool_call_purpose";

/// The parameters of a tool with the purpose beside them, as a model is told them.
#[must_use]
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

/// The same for code, which need not say why it calls.
#[must_use]
pub fn with_optional_purpose(parameters: &Value, description: &str) -> Value {
    let mut schema = parameters.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(PURPOSE.into(), json!({"type": "string", "description": description}));
    }
    schema
}

/// Tells a model or a program what a tool is for. Known without running anything.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each says another thing about a tool")]
pub struct Definition {
    pub name: String,
    pub description: String,
    /// None if it has only the one above.
    pub description_zh: Option<String>,
    /// JSON Schema of the arguments: an object, `additionalProperties` false, without the purpose.
    pub parameters: Value,
    /// JSON Schema of the value it gives; none if it gives text.
    pub output: Option<Value>,
    /// In a cell the kernel runs it itself, in the worker.
    pub local: bool,
    /// Only there if it is asked for by name.
    pub on_request: bool,
    /// It acts outside of the sandbox, or has others act there: a program of the host, a client, another ask.
    pub outside: bool,
    /// A program of the host: a daemon that ends waits for it for a while.
    pub program: bool,
    /// Other names that models give it.
    pub aliases: &'static [&'static str],
}

impl Definition {
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            description_zh: None,
            parameters,
            output: None,
            local: false,
            on_request: false,
            outside: false,
            program: false,
            aliases: &[],
        }
    }

    /// The words for a model; never empty.
    #[must_use]
    pub fn described(&self, language: Language) -> &str {
        let (text, none) = match language {
            Language::English => (&self.description, "no tool description"),
            Language::Chinese => (self.description_zh.as_ref().unwrap_or(&self.description), "无工具描述"),
        };
        if text.trim().is_empty() { none } else { text }
    }
}

/// What a tool gives back.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolOutput {
    /// Of a tool with an output schema.
    Value(Value),
    Text(String),
    /// Text with pictures.
    Parts {
        text: String,
        images: Vec<Image>,
    },
}

/// A picture, as a display holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Such as `image/png`.
    pub mime: String,
    pub base64: String,
}

impl ToolOutput {
    /// As the content of a message to a model.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Value(Value::String(text)) | Self::Text(text) | Self::Parts { text, .. } => text.clone(),
            Self::Value(value) => value.to_string(),
        }
    }

    /// As the one value that the journal keeps.
    #[must_use]
    pub fn into_value(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Text(text) | Self::Parts { text, .. } => Value::String(text),
        }
    }
}

pub type ToolFuture = Pin<Box<dyn Future<Output = Result<ToolOutput, ToolFailure>> + Send>>;

/// Who calls. A model has to say why, code need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    Model,
    Code,
}

/// Told when a call begins to wait for a person, and when it does so no more: the time of whoever made
/// the call stands still meanwhile.
pub type OnWaiting = Arc<dyn Fn(bool) + Send + Sync>;

/// What a tool may know about its session and do with it.
#[derive(Clone)]
pub struct Context {
    /// The session's name, limits and image, as JSON.
    pub session: Value,
    port: Option<Arc<dyn SessionPort>>,
    on_waiting: Option<OnWaiting>,
    /// What the arguments take of their owner's part of the memory, for whoever keeps them.
    memory: Option<Arc<Charge>>,
}

impl Context {
    /// For tools that only want to know.
    #[must_use]
    pub fn new(session: Value) -> Self {
        Self { session, port: None, on_waiting: None, memory: None }
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

    /// The arguments fit the schema. The future is dropped when nobody waits for it any more.
    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture;
}

pub(super) fn failure(code: &str, message: impl Into<String>) -> ToolFailure {
    ToolFailure { code: code.into(), message: message.into() }
}
