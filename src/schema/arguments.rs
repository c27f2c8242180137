//! Normalises the arguments of a tool call to its schema, however a model or a program wrote them.

use serde_json::{Map, Value};

use super::nulls::drop_nulls;
use crate::protocol::values;

/// The names that models use for the parameter that holds code.
pub const CODE_PARAMETERS: [&str; 3] = ["python_code_snippet", "code", "code_snippet"];
/// Each row has alternative names of one parameter; the schema of a tool uses one of them.
const ALIASES: [&[&str]; 2] = [&CODE_PARAMETERS, &["recursive_plan_tree", "current_plan_tree"]];

/// Parses the arguments that a model wrote. An empty text counts as an empty object, because some models write nothing
/// for a tool without parameters.
pub fn parse(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    values::from_json(text)
}

/// Renames aliases of parameters, and drops nulls that stand for an omitted optional value, because providers with a
/// strict mode want every property to be written.
pub(super) fn normalise(schema: &Value, arguments: &mut Value) {
    let is_known = |name: &str| schema.get("properties").is_some_and(|all| all.get(name).is_some());
    for row in ALIASES {
        let Some(given) = arguments.as_object_mut() else { return };
        let Some(meant) = row.iter().find(|name| is_known(name)) else { continue };
        let alias = row.iter().find(|name| !is_known(name) && given.contains_key(**name));
        if let Some(alias) = alias.filter(|_| !given.contains_key(*meant))
            && let Some(value) = given.remove(*alias)
        {
            given.insert((*meant).to_owned(), value);
        }
    }
    drop_nulls(schema, arguments);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn other_names_and_needless_nulls_are_understood() {
        let schema = json!({"type": "object", "required": ["code"], "properties": {
            "code": {"type": "string"}, "timeout": {"type": "integer"}, "note": {"type": ["string", "null"]}}});
        for (given, meant) in [
            (json!({"code_snippet": "1", "timeout": null}), json!({"code": "1"})),
            (json!({"code": "1", "code_snippet": "2"}), json!({"code": "1", "code_snippet": "2"})),
            (
                json!({"code": null, "note": null, "more": null}),
                json!({"code": null, "note": null, "more": null}),
            ),
        ] {
            let mut arguments = given;
            normalise(&schema, &mut arguments);
            assert_eq!(arguments, meant);
        }
    }

    #[test]
    fn arguments_as_text_have_to_be_a_json_object() {
        assert_eq!(parse("{\"a\": 1}").map(Value::Object), Ok(json!({"a": 1})));
        assert_eq!(parse(" "), Ok(Map::new()));
        for text in ["{\"a\": 1,}", "'a'", "[1]", &"[".repeat(100_000)] {
            assert!(parse(text).is_err());
        }
    }
}
