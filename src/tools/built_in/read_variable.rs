//! `read_variable`: the value of one variable of the session.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::read;
use crate::protocol::result::Status;
use crate::protocol::values;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput, failure};
use crate::tools::port::as_failure;

/// Characters of a name.
const NAME_CHARS: usize = 200;

pub struct ReadVariable;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The name of the variable.
    #[schemars(extend("examples" = ["total"]))]
    name: String,
}

impl Tool for ReadVariable {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some("返回会话中一个变量的 repr，不会改变任何状态。".into()),
            local: true,
            read_only: true,
            ..Definition::new(
                "read_variable",
                "Returns the repr of one variable of the session. Changes nothing.",
                parameters_of::<Arguments>(),
            )
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let name = read::<Arguments>(arguments)?.name;
            if !is_name(&name) {
                return Err(failure("bad_arguments", "`name`: this is no name of a variable"));
            }
            let result = context.port()?.evaluate(name.clone()).await.map_err(as_failure)?;
            match (result.status, result.result, result.exception) {
                (Status::Success, Some(value), _) => Ok(ToolOutput::Text(value.repr)),
                (Status::Success, None, _) => Ok(ToolOutput::Text("None".into())),
                (_, _, Some(exception)) => {
                    let message = format!("{}: {}", exception.type_name, exception.value);
                    Err(failure("failed", message))
                }
                (_, _, None) => Err(failure("failed", format!("`{name}` could not be read"))),
            }
        })
    }
}

/// Whether the text is only a name; this matters because the text is evaluated.
fn is_name(name: &str) -> bool {
    values::is_identifier(name) && name.chars().count() <= NAME_CHARS && !values::is_keyword(name)
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn only_names_are_read() {
        assert!(["x", "_private", "总数", "a1"].into_iter().all(is_name));
        assert!(
            !["", "1a", "a.b", "f()", "a b", "None", "lambda", "a\n", &"x".repeat(201)]
                .into_iter()
                .any(is_name)
        );
    }
}
