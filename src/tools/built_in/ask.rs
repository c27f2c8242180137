//! `ask`: code or a model asks another model, which sees only what it is given.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::read;
use crate::schema::{check, parameters_of};
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use crate::tools::port::{NestedAsk, as_failure};

/// The most characters of a prompt.
const PROMPT_CHARS: usize = 100_000;

/// The name of this tool.
const ASK: &str = "ask";

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
            let Arguments { prompt, parameters, schema, context: values } = read(arguments)?;
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
            };
            let answer = context.port()?.ask(ask, context.on_waiting()).await.map_err(as_failure)?;
            Ok(ToolOutput::Value(answer))
        })
    }
}
