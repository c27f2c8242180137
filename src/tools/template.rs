//! Templates of the configuration as tools: a call is an ask by the template, in a session of its own.

use serde_json::{Map, Value, json};

use super::contract::{Context, Definition, Tool, ToolFuture, ToolOutput};
use super::foreign_schemas;
use super::port::{NestedAsk, as_failure};
use super::registry::RegistryError;
use crate::config::Template;

pub struct TemplateTool {
    definition: Definition,
}

impl TemplateTool {
    /// None if the template is no tool.
    pub fn new(name: &str, template: &Template) -> Result<Option<Self>, RegistryError> {
        let Some(description) = &template.description else { return Ok(None) };
        let properties: Map<String, Value> = template
            .parameters
            .iter()
            .map(|(name, parameter)| (name.clone(), parameter.schema.clone()))
            .collect();
        let required = template.parameters.iter().filter(|(_, parameter)| parameter.default.is_none());
        let required: Vec<&String> = required.map(|(name, _)| name).collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let parameters = foreign_schemas::parameters(&schema)
            .map_err(|problem| RegistryError::BadSchema { tool: name.to_owned(), problem })?;
        let definition = Definition {
            // The schema of the answer is checked by the ask itself.
            output: Some(json!({})),
            outside: true,
            nests: true,
            ..Definition::new(name, description.clone(), parameters)
        };
        Ok(Some(Self { definition }))
    }
}

impl Tool for TemplateTool {
    fn definition(&self) -> Definition {
        self.definition.clone()
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        let template = Some(self.definition.name.clone());
        Box::pin(async move {
            let ask = NestedAsk { template, by_tool: true, parameters: arguments, ..NestedAsk::default() };
            let answer = context.port()?.ask(ask, context.on_waiting()).await.map_err(as_failure)?;
            Ok(ToolOutput::Value(answer))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use crate::tools::Registry;

    #[test]
    fn a_template_with_a_description_is_a_tool_that_begins_an_ask() {
        let text = "[template.sum]\nprompt = \"Sum {n}\"\nparameters = { n = \"int\", m = \"int = 1\" }\n\
                    description = \"Sums.\"\n[template.plain]\nprompt = \"x\"\n";
        let settings = load_text(std::path::Path::new("x"), text).unwrap().settings;
        let tools = Registry::default().with_templates(&settings.templates).unwrap();
        assert_eq!(tools.names(), ["sum"]);
        let definition = tools.definition("sum").unwrap();
        assert!(definition.nests && definition.outside, "{definition:?}");
        assert_eq!(definition.parameters["required"], json!(["n"]));
    }
}
