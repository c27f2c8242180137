//! The names of tools: those of Belljar's own that other parts know, by which names models and code call them, and
//! which names are possible.

use std::collections::BTreeMap;

use super::limits::TOOL_NAME_CHARS;
use super::values;

pub const CELL_TOOL: &str = "execute_python_code";
/// The tool for cells with the name and the parameter that another source system uses.
pub const SHORT_CELL_TOOL: &str = "exec_code";
pub const COMPUTE_TOOL: &str = "compute_with_python";
/// The tool for commands, which is only there if the operator lists it.
pub const COMMAND_TOOL: &str = "run_command";
pub const PLAN_TOOL: &str = "recursive_plan_tree_todo";
pub const FILE_TOOL: &str = "file_reader";
pub const INSTALL_TOOL: &str = "install_packages";

/// The tool by which a step gives the answer, and the action that does so.
pub const COMPLETION: &str = "report_task_completion";
pub const ANSWER_ACTION: &str = "provide_answer";

/// The parameter in which a model says what a call is for.
pub const PURPOSE: &str = "tool_call_purpose";

/// Tools that a model is told of only if the ask or the configuration names them or wants all: most tasks need none of
/// them, and their descriptions cost tokens in every request. Packages are installed by `%pip` in cells as well.
const EXTRA: [&str; 8] = [
    COMPUTE_TOOL,
    PLAN_TOOL,
    FILE_TOOL,
    INSTALL_TOOL,
    "read_variable",
    "list_variables",
    "ask",
    "session_info",
];

pub fn is_extra(name: &str) -> bool {
    EXTRA.contains(&name)
}

/// Names that models know from other systems, and the tools that they mean.
const ALIASES: [(&str, &str); 2] = [("update_recursive_plan_tree", PLAN_TOOL), ("file_read", FILE_TOOL)];

/// Names under which code accesses its tools and their errors.
const RESERVED: [&str; 3] = ["tools", "aio", "ToolError"];

/// The name of the tool for the name of a type: without the suffix `Tool`, in snake case. `ExecutePythonCodeTool`
/// becomes `execute_python_code`; the name of a tool stays as it is.
pub fn tool_name(type_name: &str) -> String {
    let stem = match type_name.strip_suffix("Tool").or_else(|| type_name.strip_suffix("_tool")) {
        Some(stem) if !stem.is_empty() => stem,
        _ => type_name,
    };
    let letters: Vec<char> = stem.chars().collect();
    let mut name = String::with_capacity(stem.len() + 8);
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| letters.get(at));
        let after = letters.get(at + 1);
        // A new word begins after a lower-case letter or digit, or where a run of capitals ends (`HTTPGet`).
        let begins_word = letter.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_numeric()
                    || (before.is_uppercase() && after.is_some_and(|after| after.is_lowercase()))
            });
        if begins_word {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

/// The name of a tool and its aliases.
pub fn names(name: &str) -> impl Iterator<Item = &str> {
    let aliases = ALIASES.iter().filter(move |(_, meant)| *meant == name);
    std::iter::once(name).chain(aliases.map(|(alias, _)| *alias))
}

/// Finds a tool by its name, by the name of its type, or by an alias.
pub fn find<'t, T>(tools: &'t BTreeMap<String, T>, name: &str) -> Option<&'t T> {
    find_by(name, |name| tools.get(name))
}

/// Like [`find`], where the tools are no map. `get` finds one by its exact name.
pub fn find_by<T>(name: &str, get: impl Fn(&str) -> Option<T>) -> Option<T> {
    let plain = tool_name(name);
    let meant = ALIASES.iter().find(|(alias, _)| *alias == plain).map(|(_, meant)| *meant);
    [Some(name), Some(plain.as_str()), meant].into_iter().flatten().find_map(get)
}

/// Whether a call of the tool is a cell.
#[must_use]
pub fn is_cell_tool(name: &str) -> bool {
    matches!(name, CELL_TOOL | SHORT_CELL_TOOL)
}

/// Whether providers and Python accept the name.
pub fn is_tool_name(name: &str) -> bool {
    values::is_ascii_identifier(name)
        && !name.starts_with('_')
        && name.len() <= TOOL_NAME_CHARS
        && !values::is_keyword(name)
        && !RESERVED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_become_tool_names() {
        for (type_name, expected) in [
            ("ExecutePythonCodeTool", "execute_python_code"),
            ("RecursivePlanTreeTodoTool", "recursive_plan_tree_todo"),
            ("WeatherQueryTool", "weather_query"),
            ("SearchTool", "search"),
            ("DataProcessingTool", "data_processing"),
            ("FileReaderTool", "file_reader"),
            ("MyCustomTool", "my_custom"),
            ("HTTPGetTool", "http_get"),
            ("Top10Tool", "top10"),
            ("Sha256SumTool", "sha256_sum"),
            // Only the suffix is removed.
            ("ToolboxTool", "toolbox"),
            ("Tool", "tool"),
            ("file_reader", "file_reader"),
            ("", ""),
        ] {
            assert_eq!(tool_name(type_name), expected, "{type_name}");
        }
    }

    #[test]
    fn a_tool_is_found_by_all_of_its_names() {
        let tools = BTreeMap::from([(FILE_TOOL.to_owned(), 1), ("mine".to_owned(), 2)]);
        for name in ["file_reader", "file_read", "FileReaderTool", "FileReadTool"] {
            assert_eq!(find(&tools, name), Some(&1), "{name}");
        }
        assert_eq!((find(&tools, "mine"), find(&tools, PLAN_TOOL)), (Some(&2), None));
        assert_eq!(names(FILE_TOOL).collect::<Vec<_>>(), ["file_reader", "file_read"]);
    }

    #[test]
    fn names_that_providers_or_python_would_refuse_are_none() {
        assert!(is_tool_name("a") && is_tool_name("read_2") && is_tool_name(&"x".repeat(64)));
        for name in [
            "",
            "_a",
            "2a",
            "a-b",
            "a b",
            "a.b",
            "größe",
            "class",
            "tools",
            "aio",
            "ToolError",
            &"x".repeat(65),
        ] {
            assert!(!is_tool_name(name), "{name}");
        }
    }
}
