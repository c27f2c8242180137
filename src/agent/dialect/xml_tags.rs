//! Text with tags: `<pip-dependencies-to-install>` names packages, `<execution-code>` holds Python. A reply
//! without code is the final answer. Other tools are called as functions in Python.
//!
//! Several blocks of code form one program, in their order. Results return as tool messages that answer a
//! call which stands for the tag.

use std::collections::HashSet;

use super::{Call, CallInput, DialectContext, Format, Intent, ParsedReply, Speech, nothing_said, only_text};
use crate::agent::history::NO_ARGUMENTS;
use crate::agent::words::Field;
use crate::protocol::chat::{ChatReply, Finish, ToolCall};
use crate::protocol::tool_names::CELL_TOOL;

const DEPENDENCIES: &str = "pip-dependencies-to-install";
const CODE: &str = "execution-code";
const CALL_NAME: &str = "execution_code";
/// The most packages of one reply that are looked at.
const DEPENDENCIES_LISTED: usize = 100;

/// Modules of the standard library that models often list as packages to install.
const STANDARD: [&str; 24] = [
    "collections",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "os",
    "pathlib",
    "random",
    "re",
    "sqlite3",
    "statistics",
    "string",
    "sys",
    "textwrap",
    "time",
    "typing",
];

pub(super) struct XmlTags;

impl Speech for XmlTags {
    fn format(&self, _scene: DialectContext) -> Format {
        Format::default()
    }

    fn parse(&self, reply: &ChatReply, step: u32, scene: DialectContext) -> ParsedReply {
        let words = scene.words;
        let malformed = |why| ParsedReply::new(only_text(reply), Intent::Malformed(why));
        if let Some(why) = nothing_said(reply, words) {
            return malformed(why);
        }
        let text = &reply.message.content;
        // In a truncated reply the tag may be unclosed, and only half of a program would run.
        if reply.finish == Finish::Length {
            return malformed(words.cut_reply());
        }
        let wanted = dependencies(text);
        let blocks = contents(text, CODE);
        let code: Vec<&str> =
            blocks.iter().map(|block| unfenced(block)).filter(|block| !block.trim().is_empty()).collect();
        if code.is_empty() {
            return if blocks.is_empty() && wanted.is_empty() {
                ParsedReply::new(only_text(reply), Intent::Answer { text: text.clone(), value: None })
            } else {
                malformed(words.field(CODE, Field::Empty))
            };
        }
        let missing: Vec<&str> = wanted.iter().filter(|name| !has(scene, name)).map(String::as_str).collect();
        let input = if missing.is_empty() {
            CallInput::Cell(code.join("\n"))
        } else {
            CallInput::Impossible(
                words.missing_dependencies(&missing.join(", "), &scene.setup.dependencies.main),
            )
        };
        let call = Call::of_step(step, CELL_TOOL, input);
        let mut message = only_text(reply);
        message.tool_calls.push(ToolCall {
            id: call.id.clone(),
            name: CALL_NAME.to_owned(),
            arguments: NO_ARGUMENTS.to_owned(),
        });
        ParsedReply::new(message, Intent::Calls(vec![call]))
    }
}

/// The contents of all tags of this name. A block extends to the last closing tag before the next opening
/// one, so that code may contain the closing tag; an unclosed tag extends to the end.
fn contents<'a>(text: &'a str, tag: &str) -> Vec<&'a str> {
    let lower = text.to_ascii_lowercase();
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let mut found = Vec::new();
    let mut position = 0;
    while let Some(start) = lower[position..].find(&open).map(|start| position + start + open.len()) {
        let next = lower[start..].find(&open).map_or(text.len(), |next| start + next);
        let end = lower[start..next].rfind(&close).map_or(next, |end| start + end);
        found.push(&text[start..end]);
        position = next;
    }
    found
}

/// The packages that a reply lists, each once, and no more than are looked at.
fn dependencies(text: &str) -> Vec<String> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for name in contents(text, DEPENDENCIES).iter().flat_map(|list| {
        // An unclosed list must not include the code after it.
        list.split('<').next().unwrap_or_default().split([',', '\n'])
    }) {
        let name = name.trim();
        if names.len() < DEPENDENCIES_LISTED && !name.is_empty() && seen.insert(name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The name as `pip` compares it, without versions and extras.
fn normal(name: &str) -> String {
    let bare = name.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.')).next();
    bare.unwrap_or_default().to_ascii_lowercase().replace(['_', '.'], "-")
}

fn has(scene: DialectContext, name: &str) -> bool {
    let name = normal(name);
    STANDARD.contains(&name.as_str())
        || scene.setup.dependencies.installed.iter().any(|known| normal(known) == name)
}

/// Removes a code fence, which models sometimes put into the tag.
fn unfenced(block: &str) -> &str {
    let trimmed = block.trim();
    let inside = trimmed.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match inside.and_then(|inside| inside.split_once('\n')) {
        Some((_language, code)) => code,
        None => block.trim_matches('\n'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_every_form() {
        for (text, wanted) in [
            ("no code", vec![]),
            ("<execution-code>a < b > c</execution-code> done", vec!["a < b > c"]),
            ("<EXECUTION-CODE>a</Execution-Code> x <execution-code>b</execution-code>", vec!["a", "b"]),
            (
                "<execution-code>print('</execution-code>')</execution-code>",
                vec!["print('</execution-code>')"],
            ),
            ("ä <execution-code>ä = 1", vec!["ä = 1"]),
            ("<execution-code>a<execution-code>b</execution-code>", vec!["a", "b"]),
        ] {
            assert_eq!(contents(text, CODE), wanted, "{text}");
        }
        assert_eq!(unfenced("\n```python\nx = 1\n```\n"), "x = 1\n");
        assert_eq!(unfenced("\n  x = 1\n"), "  x = 1");
    }

    #[test]
    fn dependencies_are_trimmed_and_named_once() {
        let list = |text: &str| dependencies(&format!("<{DEPENDENCIES}>{text}</{DEPENDENCIES}>"));
        assert_eq!(list(" pandas, ,numpy>=2,\npandas"), ["pandas", "numpy>=2"]);
        assert_eq!(list(""), Vec::<String>::new());
        let many: Vec<String> = (0..200_000).map(|number| format!("p{number}")).collect();
        assert_eq!(list(&many.join(",")), many[..DEPENDENCIES_LISTED]);
        assert_eq!(dependencies("<pip-dependencies-to-install>a, b<execution-code>c"), ["a", "b"]);
        assert_eq!(normal("Scikit_Learn[all]>=1.0"), "scikit-learn");
    }
}
