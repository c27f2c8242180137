//! `ask`: code or a model asks another model, which sees only what it is given.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read;
use crate::protocol::frames::ToolFailure;
use crate::protocol::tool::{ClientAnswer, ClientTool};
use crate::schema::{check, parameters_of};
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use crate::tools::port::{NestedAsk, as_failure};

/// The most characters of a prompt.
const PROMPT_CHARS: usize = 100_000;

/// The most files that an ask is given.
const FILES: usize = 64;
/// The most functions that an ask may call.
const FUNCTIONS: usize = 16;

/// The name of this tool.
const ASK: &str = "ask";
/// The parameter with which code goes on with an ask that has called one of its functions.
const GO_ON: &str = "go_on";

pub struct Ask;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// What the other model shall do or answer, or `@NAME` for a template of the configuration.
    #[schemars(length(min = 1, max = PROMPT_CHARS))]
    prompt: String,
    /// The parameters of the template.
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    /// JSON Schema of the answer; without one the answer is text.
    #[serde(default)]
    schema: Option<Map<String, Value>>,
    /// Values that it finds as variables.
    #[serde(default)]
    context: Option<Map<String, Value>>,
    /// Paths of files in the workspace that it finds in its own workspace, as copies.
    #[serde(default)]
    #[schemars(length(max = FILES))]
    files: Option<Vec<String>>,
    /// Functions of the cell that it may call, with type hints.
    #[serde(default)]
    #[schemars(length(max = FUNCTIONS))]
    functions: Option<Vec<Map<String, Value>>>,
    /// What a function returned that an ask has called; all else is ignored then.
    #[serde(default)]
    go_on: Option<Map<String, Value>>,
}

/// A function of a cell, as the cell describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    description: String,
    parameters: Value,
}

/// How a cell goes on with an ask.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GoOn {
    ask: String,
    /// Without an answer the ask ends.
    #[serde(default)]
    answer: Option<ClientAnswer>,
}

/// The ask that a call of this tool goes on with, if it does not begin one.
pub fn continued_ask<'a>(name: &str, arguments: &'a Map<String, Value>) -> Option<&'a str> {
    arguments.get(GO_ON).filter(|_| name == ASK)?.get("ask")?.as_str()
}

impl Tool for Ask {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(
                "让另一个模型在自己的会话中完成一个子任务。它只能看到给它的提示和变量。给出 schema 时，返回符合该 schema 的值。".into(),
            ),
            // Any value is accepted here, because the schema of the answer comes with the call.
            output: Some(json!({})),
            outside: true,
            nests: true,
            for_code: &["functions", GO_ON],
            ..Definition::new(
                ASK,
                "Lets a model work on a task of its own, in a session of its own. It sees only the prompt and the \
                 values it is given. Returns its answer: text, or a value of the schema.",
                parameters_of::<Arguments>(),
            )
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let Arguments { prompt, parameters, schema, context: values, files, functions, go_on } =
                read(arguments)?;
            if let Some(go_on) = go_on {
                let GoOn { ask, answer } = read(go_on)?;
                let said = context.port()?.go_on(ask, answer).await.map_err(as_failure)?;
                return Ok(ToolOutput::Value(said));
            }
            let functions = functions.unwrap_or_default().into_iter().map(lent).collect::<Result<_, _>>()?;
            let (prompt, template) = match prompt.strip_prefix('@') {
                Some(name) => (String::new(), Some(name.to_owned())),
                None => (prompt, None),
            };
            let schema = schema.map(Value::Object);
            if let Some(schema) = &schema {
                check(schema).map_err(|problem| failure("bad_arguments", format!("`schema`: {problem}")))?;
            }
            let ask = NestedAsk {
                prompt,
                template,
                by_tool: false,
                parameters: parameters.unwrap_or_default(),
                schema,
                context: values.unwrap_or_default(),
                files: files.unwrap_or_default(),
                functions,
            };
            let answer = context.port()?.ask(ask, context.on_waiting()).await.map_err(as_failure)?;
            Ok(ToolOutput::Value(answer))
        })
    }
}

/// A function as a tool that a client lends. It may return any value.
fn lent(function: Map<String, Value>) -> Result<ClientTool, ToolFailure> {
    let Function { name, description, parameters } = read(function)?;
    Ok(ClientTool { name, description, parameters, output: Some(json!({})), read_only: false })
}
