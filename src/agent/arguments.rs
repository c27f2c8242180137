//! From the name and the arguments that a model wrote to something that can be done.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::schema::{Checker, excerpt};
use super::words::Words;
use crate::protocol::chat::ModelTool;
use crate::protocol::limits::TOOL_NAME_CHARS;
use crate::protocol::values;

pub(super) const CELL_TOOL: &str = "execute_python_code";
pub(super) const COMPUTE_TOOL: &str = "compute_with_python";
pub(super) const PLAN_TOOL: &str = "recursive_plan_tree_todo";

/// Other names of tools that models know from elsewhere.
const TOOL_ALIASES: [(&str, &str); 3] =
    [("exec_code", CELL_TOOL), (CELL_TOOL, "exec_code"), ("update_recursive_plan_tree", PLAN_TOOL)];
/// Names of one and the same parameter; the schema of a tool has one of a row.
const PARAMETER_ALIASES: [&[&str]; 2] = [&CODE_PARAMETERS, &["recursive_plan_tree", "current_plan_tree"]];
const CODE_PARAMETERS: [&str; 3] = ["python_code_snippet", "code", "code_snippet"];

/// What a call comes to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    Cell { code: String, timeout_s: Option<f64> },
    Tool { name: String, arguments: Map<String, Value> },
}

impl Work {
    pub fn is_python(&self) -> bool {
        match self {
            Self::Cell { .. } => true,
            Self::Tool { name, .. } => name == COMPUTE_TOOL,
        }
    }
}

pub(super) fn is_cell_tool(name: &str) -> bool {
    matches!(name, CELL_TOOL | "exec_code")
}

#[derive(Debug)]
pub(super) struct Toolbox {
    tools: BTreeMap<String, (ModelTool, Checker)>,
}

impl Toolbox {
    /// Tools whose schema cannot be used are left out: `Setup::check` has named them before.
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

    pub fn has(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// The error is the answer that the model gets.
    pub fn resolve(&self, name: &str, arguments: &str, words: Words) -> Result<Work, String> {
        let Some((tool, checker)) = self.find(name) else {
            let shown: String = name.chars().take(TOOL_NAME_CHARS).collect();
            let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
            return Err(words.unknown_tool(&shown.escape_debug().to_string(), &known.join(", ")));
        };
        let mut arguments = parsed(arguments, words)?;
        accept_aliases(tool, &mut arguments);
        drop_optional_nulls(tool, &mut arguments);
        let value = Value::Object(arguments);
        let problems = checker.problems(&value, words);
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

    fn find(&self, name: &str) -> Option<&(ModelTool, Checker)> {
        self.tools.get(name).or_else(|| {
            let mut others = TOOL_ALIASES.iter().filter(|(alias, _)| *alias == name);
            others.find_map(|(_, meant)| self.tools.get(*meant))
        })
    }
}

/// No arguments at all are the same as an empty object; the schema says whether that is enough.
fn parsed(arguments: &str, words: Words) -> Result<Map<String, Value>, String> {
    if arguments.trim().is_empty() {
        return Ok(Map::new());
    }
    values::from_json(arguments).map_err(|problem| words.no_json(&problem, &excerpt(arguments)))
}

fn accept_aliases(tool: &ModelTool, arguments: &mut Map<String, Value>) {
    for row in PARAMETER_ALIASES {
        let Some(meant) = row.iter().find(|name| property(tool, name).is_some()) else { continue };
        if arguments.contains_key(*meant) {
            continue;
        }
        let alias = row.iter().find(|name| property(tool, name).is_none() && arguments.contains_key(**name));
        if let Some(value) = alias.and_then(|alias| arguments.remove(*alias)) {
            arguments.insert((*meant).to_owned(), value);
        }
    }
}

/// Providers with strict schemas make models write null for what they would leave out.
fn drop_optional_nulls(tool: &ModelTool, arguments: &mut Map<String, Value>) {
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|known| known == name));
    arguments.retain(|name, value| !value.is_null() || is_required(name) || property(tool, name).is_none());
}

fn property<'a>(tool: &'a ModelTool, name: &str) -> Option<&'a Value> {
    tool.parameters.get("properties")?.get(name)
}

fn cell(tool: &ModelTool, arguments: &Map<String, Value>, words: Words) -> Result<Work, String> {
    let code = CODE_PARAMETERS.iter().find_map(|name| arguments.get(*name)?.as_str());
    match code {
        Some(code) => Ok(Work::Cell {
            code: code.to_owned(),
            timeout_s: arguments.get("timeout").and_then(Value::as_f64),
        }),
        None => Err(words.bad_arguments(&tool.name, &[words.missing(&format!("/{}", CODE_PARAMETERS[0]))])),
    }
}
