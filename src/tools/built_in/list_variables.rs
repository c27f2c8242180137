//! `list_variables`: lists the session's variables without running code.

use serde_json::{Map, Value};
use std::fmt::Write;

use super::NoArguments;
use crate::protocol::api::VariableList;
use crate::protocol::text::visible_line;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput};
use crate::tools::port::as_failure;

pub struct ListVariables;

impl Tool for ListVariables {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some("列出会话中的变量：名称、类型、形状和内容的开头。".into()),
            local: true,
            read_only: true,
            ..Definition::new(
                "list_variables",
                "Lists the variables of the session: name, type, shape and the start of each value.",
                parameters_of::<NoArguments>(),
            )
        }
    }

    fn run(&self, _arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let listed = context.port()?.variables().await.map_err(as_failure)?;
            Ok(ToolOutput::Text(as_text(&listed)))
        })
    }
}

/// One line per variable; the kernel formats them in the same way for code in a cell.
fn as_text(listed: &VariableList) -> String {
    if listed.variables.is_empty() {
        return "no variables".into();
    }
    let mut text = String::new();
    for variable in &listed.variables {
        let shape = variable.shape.as_ref().map(|shape| format!(" {shape}")).unwrap_or_default();
        let preview = visible_line(&variable.preview);
        let _ = writeln!(text, "{}: {}{shape} = {preview}", variable.name, variable.type_name);
    }
    let hidden = listed.total.saturating_sub(listed.variables.len() as u64);
    if hidden > 0 {
        let _ = writeln!(text, "and {hidden} more");
    }
    if let Some(cell) = listed.as_before {
        let _ = writeln!(text, "as before cell {cell}, which is running");
    }
    text.truncate(text.trim_end().len());
    text
}
