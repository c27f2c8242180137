//! The names of tools.

use crate::protocol::limits::TOOL_NAME_CHARS;
use crate::protocol::values;

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

/// Whether providers and Python accept the name.
pub fn is_tool_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
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
