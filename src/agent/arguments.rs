//! Finds out which work a model asks for with the name and the arguments that it wrote.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::words::Words;
use crate::protocol::chat::ModelTool;
use crate::protocol::limits::TOOL_NAME_CHARS;
use crate::protocol::text::clipped;
use crate::protocol::tool_names::{self, COMPUTE_TOOL, PURPOSE, is_cell_tool};
use crate::schema::{self, CODE_PARAMETERS, Checker, Problem, excerpt};

/// The most characters that are kept of what a model says that a cell is for.
const PURPOSE_CHARS: usize = 500;

/// The work that a call asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    Cell { code: String, timeout_s: Option<f64>, purpose: Option<String> },
    Tool { name: String, arguments: Map<String, Value> },
}

impl Work {
    /// What the work is, without what a model says that it is for, which differs from try to try.
    pub fn without_purpose(&self) -> (&str, String) {
        match self {
            Self::Cell { code, .. } => ("", code.clone()),
            Self::Tool { name, arguments } => {
                let own: Vec<_> = arguments.iter().filter(|(key, _)| *key != PURPOSE).collect();
                (name, serde_json::to_string(&own).unwrap_or_default())
            }
        }
    }

    pub fn is_python(&self) -> bool {
        match self {
            Self::Cell { .. } => true,
            Self::Tool { name, .. } => name == COMPUTE_TOOL,
        }
    }
}

#[derive(Debug)]
pub(super) struct Toolbox {
    tools: BTreeMap<String, (ModelTool, Checker)>,
}

impl Toolbox {
    /// Leaves out tools with an unusable schema: `Setup::check` has reported them before.
    pub fn new<'a>(tools: impl Iterator<Item = &'a ModelTool>) -> Self {
        let tools = tools.filter_map(|tool| {
            let checker = Checker::new(&tool.parameters).ok()?;
            Some((tool.name.clone(), (tool.clone(), checker)))
        });
        Self { tools: tools.collect() }
    }

    pub fn has_cells(&self) -> bool {
        self.tools.keys().any(|name| is_cell_tool(name))
    }

    /// The name of the tool that a model means by a name.
    pub fn name_of(&self, name: &str) -> Option<String> {
        self.find(name).map(|(tool, _)| tool.name.clone())
    }

    /// Resolves a call. The error is the answer for the model.
    pub fn resolve(&self, name: &str, arguments: &str, words: Words) -> Result<Work, String> {
        let Some((tool, checker)) = self.find(name) else {
            let brief_name: String = name.chars().take(TOOL_NAME_CHARS).collect();
            let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
            return Err(words.unknown_tool(&brief_name.escape_debug().to_string(), &known.join(", ")));
        };
        let arguments =
            schema::parse(arguments).map_err(|problem| words.no_json(&problem, &excerpt(arguments)))?;
        let value = checker.normalised(arguments);
        let problems = checker.problems(&value);
        if !problems.is_empty() {
            return Err(words.bad_arguments(&tool.name, &problems));
        }
        let Value::Object(arguments) = value else { return Err(words.no_json("", "")) };
        if is_cell_tool(&tool.name) {
            cell(tool, &arguments, words)
        } else {
            Ok(Work::Tool { name: tool.name.clone(), arguments })
        }
    }

    /// A model that knows one of the tools for cells may use the other one's name.
    fn find(&self, name: &str) -> Option<&(ModelTool, Checker)> {
        let other_cells = || self.tools.values().find(|(tool, _)| is_cell_tool(&tool.name));
        tool_names::find(&self.tools, name).or_else(|| other_cells().filter(|_| is_cell_tool(name)))
    }
}

fn cell(tool: &ModelTool, arguments: &Map<String, Value>, words: Words) -> Result<Work, String> {
    let code = CODE_PARAMETERS.iter().find_map(|name| arguments.get(*name)?.as_str());
    match code {
        Some(code) => Ok(Work::Cell {
            code: code.to_owned(),
            timeout_s: arguments.get("timeout").and_then(Value::as_f64),
            purpose: arguments.get(PURPOSE).and_then(Value::as_str).map(|text| clipped(text, PURPOSE_CHARS)),
        }),
        None => Err(words.bad_arguments(&tool.name, &[Problem::missing(CODE_PARAMETERS[0])])),
    }
}
