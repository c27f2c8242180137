//! The system prompt. The built-in text is assembled from the features of the ask; the text of a file can
//! replace it, in which only these placeholders are filled:
//!
//! - `{tools}`: the tools, one per line, in the form that the dialect needs;
//! - `{workspace}`: the path of the workspace in the sandbox;
//! - `{dependencies}`: the main packages of the image;
//! - `{install}`: whether and how more can be installed;
//! - `{contract}`: the required form of a reply in the dialect;
//! - `{answer}`: the schema of the final answer, empty if there is none;
//! - `{context}`: the given variables, empty if there are none.

mod chinese;
mod english;

use serde_json::Value;

use super::dialect::{DialectContext, described_parameters, python_type};
use crate::protocol::ask::{Dialect, Language};
use crate::protocol::chat::ModelTool;
use crate::protocol::tool_names::{COMPLETION, COMPUTE_TOOL, PLAN_TOOL, is_cell_tool};

/// The most names of given variables that are listed.
const CONTEXT_NAMES: usize = 50;

/// The pieces of a prompt in one language, each with placeholders.
struct Texts {
    role: &'static str,
    work: &'static str,
    plan: &'static str,
    python: &'static str,
    compute: &'static str,
    errors: &'static str,
    tools: &'static str,
    no_tools: &'static str,
    answer: &'static str,
    context: &'static str,
    contract_tool_calls: &'static str,
    contract_next_step: &'static str,
    contract_json_action: &'static str,
    contract_xml_tags: &'static str,
}

fn texts(language: Language) -> &'static Texts {
    match language {
        Language::English => &english::TEXTS,
        Language::Chinese => &chinese::TEXTS,
    }
}

pub(super) fn system(scene: DialectContext) -> String {
    let texts = texts(scene.spec.language);
    let placeholders = [
        ("tools", tool_lines(scene)),
        ("workspace", scene.setup.workspace.clone()),
        ("dependencies", scene.words.dependencies(&scene.setup.dependencies.main)),
        ("install", scene.words.install(scene.installs(), scene.asks_before_installing())),
        ("contract", contract(scene)),
        ("answer", scene.spec.schema.as_ref().map(Value::to_string).unwrap_or_default()),
        ("context", context_names(scene)),
    ];
    match &scene.setup.prompt {
        Some(text) if scene.spec.system.is_none() => filled(text, &placeholders),
        _ => filled(&built_in(texts, scene), &placeholders),
    }
}

/// The required form of a reply, also used to remind a model that does not follow it.
pub(super) fn contract(scene: DialectContext) -> String {
    let texts = texts(scene.spec.language);
    let text = match scene.spec.dialect {
        Dialect::ToolCalls => texts.contract_tool_calls,
        Dialect::NextStep => texts.contract_next_step,
        Dialect::JsonAction => texts.contract_json_action,
        Dialect::XmlTags => texts.contract_xml_tags,
    };
    filled(text, &[("completion", COMPLETION.to_owned())])
}

/// What changes from ask to ask comes last: providers reuse the work on a beginning that they have seen.
fn built_in(texts: &Texts, scene: DialectContext) -> String {
    let tools: Vec<&ModelTool> = scene.setup.told(scene.spec).collect();
    // A prompt of the ask's own says who the model is and how it works; what it has to know of its means stays.
    let own = scene.spec.system.as_deref();
    let has = |name: &str| tools.iter().any(|tool| tool.name == name);
    let has_cells = tools.iter().any(|tool| is_cell_tool(&tool.name));
    let listed = tools.iter().any(|tool| is_listed(scene, tool));
    let parts = [
        (own.unwrap_or(texts.role), true),
        (texts.work, own.is_none()),
        (texts.plan, has(PLAN_TOOL)),
        (texts.python, has_cells),
        (texts.compute, has(COMPUTE_TOOL)),
        (texts.errors, !tools.is_empty()),
        (texts.tools, listed),
        (texts.no_tools, tools.is_empty()),
        ("{contract}", true),
        (texts.answer, scene.spec.schema.is_some()),
        (texts.context, !scene.spec.context.is_empty() && (has_cells || has(COMPUTE_TOOL))),
    ];
    let parts: Vec<&str> =
        parts.into_iter().filter(|(_, wanted)| *wanted).map(|(text, _)| text.trim()).collect();
    parts.join("\n\n")
}

/// Fills placeholders in one pass, so that inserted text is not searched again.
fn filled(text: &str, placeholders: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('{') {
        out.push_str(&rest[..position]);
        rest = &rest[position..];
        let known = placeholders.iter().find_map(|(name, value)| {
            Some((rest.strip_prefix('{')?.strip_prefix(name)?.strip_prefix('}')?, value))
        });
        if let Some((after, value)) = known {
            out.push_str(value);
            rest = after;
        } else {
            out.push('{');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// Whether the prompt lists the tool: not where schemas beside the messages describe it. If the model calls tools from
/// Python, the tool that runs Python is not listed.
fn is_listed(scene: DialectContext, tool: &ModelTool) -> bool {
    match scene.spec.dialect {
        Dialect::ToolCalls => false,
        Dialect::NextStep => true,
        Dialect::JsonAction | Dialect::XmlTags => !is_cell_tool(&tool.name),
    }
}

fn tool_lines(scene: DialectContext) -> String {
    let tools = scene.setup.told(scene.spec).filter(|tool| is_listed(scene, tool));
    let lines: Vec<String> = tools
        .map(|tool| {
            let description = tool.description.trim();
            match scene.spec.dialect {
                Dialect::ToolCalls | Dialect::NextStep => {
                    format!("- `{}`: {description} {}", tool.name, described_parameters(tool))
                }
                Dialect::JsonAction | Dialect::XmlTags => format!("- `{}`: {description}", signature(tool)),
            }
        })
        .collect();
    lines.join("\n")
}

/// The tool as a Python function: required parameters first, the others with their default.
fn signature(tool: &ModelTool) -> String {
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|known| known == name));
    let mut must = Vec::new();
    let mut may = Vec::new();
    for (name, schema) in properties.into_iter().flatten() {
        let kind = python_type(schema).unwrap_or("object");
        if is_required(name) {
            must.push(format!("{name}: {kind}"));
        } else {
            let default = schema.get("default").filter(|value| !value.is_null());
            may.push(format!("{name}: {kind} = {}", default.map_or("None".to_owned(), Value::to_string)));
        }
    }
    must.extend(may);
    format!("{}({})", tool.name, must.join(", "))
}

fn context_names(scene: DialectContext) -> String {
    let names: Vec<String> =
        scene.spec.context.keys().take(CONTEXT_NAMES).map(|name| format!("`{name}`")).collect();
    let more = scene.spec.context.len().saturating_sub(CONTEXT_NAMES);
    if more == 0 { names.join(", ") } else { format!("{}, … (+{more})", names.join(", ")) }
}
