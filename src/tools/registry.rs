//! The tools of a session: which of them may be used, how models and code see them, and how a call reaches its tool
//! with arguments that fit.

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::Semaphore;

use super::contract::{
    Caller, Context, Definition, Tool, ToolFuture, ToolOutput, failure, with_optional_purpose, with_purpose,
};
use super::template::TemplateTool;
use super::{built_in, command};
use crate::config::{CommandTool, Named, Template};
use crate::memory::{Charge, NoRoom};
use crate::protocol::ask::Language;
use crate::protocol::chat::ModelTool;
use crate::protocol::frames::{ToolFailure, ToolSpec};
use crate::protocol::limits::TOOL_OUTPUT_BYTES;
use crate::protocol::text::quotable;
use crate::protocol::tool::LentAnswer;
use crate::protocol::tool_names::{self, PURPOSE, is_tool_name, names, tool_name};
use crate::schema::{Checker, Problem};

/// The most characters of a call's purpose and of a tool's description.
const PURPOSE_CHARS: usize = 4_000;
const DESCRIPTION_CHARS: usize = 8_000;

/// Why a set of tools is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error("there are two tools `{0}`; names have to be unique, because calls find their tool by them")]
    Collision(String),
    #[error(
        "`{0}` cannot be the name of a tool: letters, digits and `_`, at most 64, a letter first, no keyword of Python and neither `tools` nor `aio` nor `ToolError`"
    )]
    BadName(String),
    #[error("the tool `{tool}`: {problem}")]
    BadSchema { tool: String, problem: String },
    #[error("there is no tool `{name}`; known are: {known}")]
    Unknown { name: String, known: String },
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// Which tools may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// All tools except those that must be requested by name.
    All,
    Only(BTreeSet<String>),
}

impl Allowed {
    pub fn only<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Only(names.into_iter().map(Into::into).collect())
    }
}

#[derive(Clone)]
pub(super) struct Entry {
    definition: Arc<Definition>,
    arguments: Arc<Checker>,
    output: Option<Arc<Checker>>,
    tool: Arc<dyn Tool>,
    /// Only for a tool that a client lends.
    lent: Option<LendingState>,
}

#[derive(Clone)]
struct LendingState {
    /// What the owner has paid for the tool, for as long as any registry has it.
    _memory: Arc<Charge>,
    /// Answers of the tools that clients lend to a session are checked one at a time, because the client writes both
    /// the schema and the answer, and so can make each check as long as a check may be.
    checks: Arc<Semaphore>,
}

#[derive(Clone, Default)]
pub struct Registry {
    tools: BTreeMap<String, Entry>,
    /// Names of tools that were left out. No other tool may use them, because a model or program that knows the
    /// original tool would call the wrong one, and cells are recognised by the name of their tool.
    left_out: BTreeSet<String>,
}

impl Registry {
    /// The built-in tools.
    pub fn built_in() -> Result<Self, RegistryError> {
        let mut registry = Self::default();
        for tool in built_in::all() {
            registry.add(tool)?;
        }
        Ok(registry)
    }

    /// Adds the tools of the configuration.
    pub fn with_commands(mut self, commands: &Named<CommandTool>) -> Result<Self, RegistryError> {
        for (name, settings) in commands {
            self.add(Arc::new(command::Command::new(name, settings)?))?;
        }
        Ok(self)
    }

    /// Adds the templates of the configuration that are tools.
    pub fn with_templates(mut self, templates: &Named<Template>) -> Result<Self, RegistryError> {
        for (name, template) in templates {
            if let Some(tool) = TemplateTool::new(name, template)? {
                self.add(Arc::new(tool))?;
            }
        }
        Ok(self)
    }

    /// Adds a tool. Every error in its definition is reported here and not during a call.
    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), RegistryError> {
        let definition = tool.definition();
        if !is_tool_name(&definition.name) {
            return Err(RegistryError::BadName(quotable(&definition.name)));
        }
        for name in names(&definition.name) {
            if self.find(name).is_some() || self.left_out.contains(&tool_name(name)) {
                return Err(RegistryError::Collision(name.to_owned()));
            }
        }
        let bad = |problem| RegistryError::BadSchema { tool: definition.name.clone(), problem };
        consistent(&definition).map_err(bad)?;
        let arguments = Arc::new(Checker::new(&definition.parameters).map_err(bad)?);
        let output = match &definition.output {
            Some(output) => Some(Arc::new(Checker::new(output).map_err(bad)?)),
            None => None,
        };
        let name = definition.name.clone();
        self.tools
            .insert(name, Entry { definition: Arc::new(definition), arguments, output, tool, lent: None });
        Ok(())
    }

    /// A tool with its compiled schemas, for other registries.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.tools.get(name)
    }

    /// Adds tools that were tried with this registry before.
    pub(super) fn extend<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) {
        self.tools.extend(entries.map(|entry| (entry.definition.name.clone(), entry.clone())));
    }

    /// The subset of the tools that is allowed.
    pub fn narrowed(&self, allowed: &Allowed) -> Result<Self, RegistryError> {
        let mut tools = BTreeMap::new();
        match allowed {
            Allowed::All => {
                let own = |(_, entry): &(&String, &Entry)| !entry.definition.on_request;
                tools
                    .extend(self.tools.iter().filter(own).map(|(name, entry)| (name.clone(), entry.clone())));
            }
            Allowed::Only(names) => {
                for name in names {
                    let entry = self.find(name).ok_or_else(|| RegistryError::Unknown {
                        name: quotable(name),
                        known: self.known(),
                    })?;
                    tools.insert(entry.definition.name.clone(), entry.clone());
                }
            }
        }
        let mut left_out = self.left_out.clone();
        for definition in self.tools.values().map(|entry| &entry.definition) {
            if !tools.contains_key(&definition.name) {
                left_out.extend(names(&definition.name).map(ToOwned::to_owned));
            }
        }
        Ok(Self { tools, left_out })
    }

    pub fn names(&self) -> Vec<String> {
        self.tools.keys().cloned().collect()
    }

    /// The definition of a tool, found by its name or an alias.
    pub fn definition(&self, name: &str) -> Option<&Definition> {
        self.find(name).map(|entry| entry.definition.as_ref())
    }

    /// What a client has promised to answer with, if the tool is lent by one.
    pub fn lent_answer(&self, name: &str) -> Option<LentAnswer> {
        let entry = self.find(name)?;
        entry.lent.as_ref().map(|_| entry.definition.promised())
    }

    /// The tools in the form that a model gets.
    pub fn model_tools(&self, language: Language) -> Vec<ModelTool> {
        let purpose = purpose_in(language);
        let model_tool = |entry: &Entry| ModelTool {
            name: entry.definition.name.clone(),
            description: entry.definition.described(language).to_owned(),
            parameters: with_purpose(&entry.definition.parameters_for_models(), purpose),
        };
        self.tools.values().map(model_tool).collect()
    }

    /// The tools in the form that code in a cell gets.
    pub fn specs(&self) -> Vec<ToolSpec> {
        let spec = |entry: &Entry| ToolSpec {
            name: entry.definition.name.clone(),
            description: entry.definition.described(Language::English).to_owned(),
            parameters: with_optional_purpose(&entry.definition.parameters, purpose_in(Language::English)),
            output: entry.definition.output.clone(),
            local: entry.definition.local,
        };
        self.tools.values().map(spec).collect()
    }

    /// Checks a call and returns its future. The failure for an unknown name lists the known ones; the failure for
    /// unsuitable arguments lists all their problems.
    pub fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        caller: Caller,
        context: Context,
    ) -> Result<ToolFuture, ToolFailure> {
        let Some(entry) = self.find(name) else {
            let message = format!("there is no tool `{}`; known are: {}", quotable(name), self.known());
            return Err(failure("unknown_tool", message));
        };
        let arguments = entry.checked_arguments(arguments, caller)?;
        let entry = entry.clone();
        Ok(Box::pin(async move {
            let tool = entry.definition.name.clone();
            // A panic of a tool becomes a failure for its caller and does not end the session.
            let running = AssertUnwindSafe(async { entry.tool.run(arguments, context).await }).catch_unwind();
            if let Ok(outcome) = running.await {
                return entry.checked(outcome?).await;
            }
            tracing::error!(tool, "a tool panicked");
            Err(failure("failed", format!("the tool `{tool}` has a bug: it panicked")))
        }))
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        tool_names::find(&self.tools, name)
    }

    fn known(&self) -> String {
        if self.tools.is_empty() {
            return "none".into();
        }
        self.names().join(", ")
    }
}

impl Entry {
    /// The memory that the compiled schemas take.
    pub(super) fn checker_bytes(&self) -> u64 {
        self.arguments.bytes() + self.output.as_ref().map_or(0, |output| output.bytes())
    }

    pub(super) fn lent(self, charge: &Arc<Charge>, checks: &Arc<Semaphore>) -> Self {
        Self { lent: Some(LendingState { _memory: Arc::clone(charge), checks: Arc::clone(checks) }), ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.definition.name
    }

    /// The output of a call, checked in turn with other answers of clients.
    pub(super) async fn checked(&self, output: ToolOutput) -> Result<ToolOutput, ToolFailure> {
        let checks = self.lent.as_ref().map(|lent| Arc::clone(&lent.checks));
        let _turn = OptionFuture::from(checks.map(Semaphore::acquire_owned)).await;
        self.checked_output(output)
    }

    /// The arguments without the purpose, checked against the schema.
    pub(super) fn checked_arguments(
        &self,
        mut arguments: Map<String, Value>,
        caller: Caller,
    ) -> Result<Map<String, Value>, ToolFailure> {
        let mut problems = Vec::new();
        match arguments.remove(PURPOSE) {
            Some(Value::String(purpose)) if purpose.chars().count() <= PURPOSE_CHARS => {}
            Some(Value::String(_)) => {
                problems.push(format!("`/{PURPOSE}`: expected at most {PURPOSE_CHARS} characters"));
            }
            None | Some(Value::Null) if caller == Caller::Code => {}
            None => problems.extend(described(&[Problem::missing(PURPOSE)])),
            Some(_) => problems.push(format!("`/{PURPOSE}`: expected string")),
        }
        let arguments = self.arguments.normalised(arguments);
        problems.extend(described(&self.arguments.problems(&arguments)));
        match arguments {
            Value::Object(arguments) if problems.is_empty() => Ok(arguments),
            _ => Err(failure(
                "bad_arguments",
                format!(
                    "the arguments of `{}` do not fit its schema:\n- {}",
                    self.definition.name,
                    problems.join("\n- ")
                ),
            )),
        }
    }

    /// Checks the output of a tool, which is not trusted either: it may come from a program or a client.
    fn checked_output(&self, output: ToolOutput) -> Result<ToolOutput, ToolFailure> {
        let name = &self.definition.name;
        let output = bounded_output(name, output)?;
        let problems = match (&output, &self.output) {
            (ToolOutput::Value(value), Some(checker)) => described(&checker.problems(value)),
            (ToolOutput::Text(_) | ToolOutput::Parts { .. }, None) => return Ok(output),
            (_, Some(_)) => vec!["it is text, though the tool has an output schema".into()],
            (_, None) => vec!["it is a value, though the tool has no output schema".into()],
        };
        if problems.is_empty() {
            return Ok(output);
        }
        Err(failure(
            "failed",
            format!("the answer of `{name}` is not as promised:\n- {}", problems.join("\n- ")),
        ))
    }
}

/// The output of a tool, if it is not too large.
pub(super) fn bounded_output(name: &str, output: ToolOutput) -> Result<ToolOutput, ToolFailure> {
    let bytes = match &output {
        ToolOutput::Value(value) => value.to_string().len(),
        ToolOutput::Text(text) => text.len(),
        ToolOutput::Parts { text, images } => {
            images.iter().fold(text.len(), |sum, image| sum.saturating_add(image.base64.len()))
        }
    };
    if bytes > TOOL_OUTPUT_BYTES {
        let message = format!("the answer of `{name}` has {bytes} bytes, more than {TOOL_OUTPUT_BYTES}");
        return Err(failure("too_large", message));
    }
    Ok(output)
}

fn purpose_in(language: Language) -> &'static str {
    match language {
        Language::English => "Why you call this tool now, and what you want to get from it.",
        Language::Chinese => "说明此刻为什么调用该工具，以及希望得到什么。",
    }
}

/// Checks that the schema sent to a model is the one that calls are checked against.
fn consistent(definition: &Definition) -> Result<(), String> {
    if definition.description.chars().count() > DESCRIPTION_CHARS {
        return Err(format!("its description has more than {DESCRIPTION_CHARS} characters"));
    }
    let parameters = &definition.parameters;
    if parameters.get("type").is_none_or(|kind| kind != "object") {
        return Err("its parameters are no object".into());
    }
    if parameters.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Err("its parameters have to be closed (`additionalProperties: false`)".into());
    }
    let properties = parameters.get("properties").and_then(Value::as_object);
    let properties = properties.ok_or("its parameters have no `properties`")?;
    if properties.contains_key(PURPOSE) {
        return Err(format!("`{PURPOSE}` is added to every tool and cannot be its own"));
    }
    let required = parameters.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten() {
        if !name.as_str().is_some_and(|name| properties.contains_key(name)) {
            return Err(format!("the required parameter {name} is not described"));
        }
    }
    Ok(())
}

/// The problems in English, for code in cells.
fn described(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|problem| problem.describe(Language::English)).collect()
}
