//! `belljar tools`: what models and code may call.

use clap::Args;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::Table;
use crate::protocol::ask::ToolList;
use crate::protocol::chat::ModelTool;
use crate::protocol::text::clipped;

/// Characters of a description in the list.
const DESCRIPTION_CHARS: usize = 80;

/// List the tools that models and code may call, or show one.
#[derive(Debug, Args)]
pub(in crate::cli) struct Tools {
    /// The tool to show with its parameters.
    name: Option<String>,
}

impl Tools {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get("/v1/tools").await?;
        let Some(name) = self.name else {
            return context.show(&answer, |screen, list: ToolList| screen.table(&table(&list.tools)));
        };
        let list: ToolList = answer.parse()?;
        let tool = list.tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
            Failure::new(format!("there is no tool `{name}`")).hint("`belljar tools` lists them")
        })?;
        context.show_value(tool, |screen, tool| screen.guest_line(&described(tool)))
    }
}

fn table(tools: &[ModelTool]) -> Table {
    let about = |tool: &ModelTool| tool.description.lines().next().unwrap_or_default().to_owned();
    let cells = |tool: &ModelTool| [tool.name.clone(), clipped(&about(tool), DESCRIPTION_CHARS)];
    Table::new(["NAME", "DESCRIPTION"], tools.iter().map(cells))
}

fn described(tool: &ModelTool) -> String {
    let parameters = serde_json::to_string_pretty(&tool.parameters).unwrap_or_default();
    format!("{}\n\n{}\n\n{parameters}\n", tool.name, tool.description.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_are_listed_and_described() {
        let tool = ModelTool {
            name: "file_reader".into(),
            description: "Reads a file.\nOnly of the workspace.".into(),
            parameters: json!({"type": "object"}),
        };
        insta::assert_snapshot!(table(std::slice::from_ref(&tool)).lines().join("\n"), @r"
        NAME         DESCRIPTION
        file_reader  Reads a file.
        ");
        insta::assert_snapshot!(described(&tool), @r#"
        file_reader

        Reads a file.
        Only of the workspace.

        {
          "type": "object"
        }
        "#);
    }
}
