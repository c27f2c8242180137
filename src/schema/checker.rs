//! A schema made ready, once, to hold many values against it.

use jsonschema::Validator;
use serde_json::Value;

use super::bounds;
use super::problem::{Problem, excerpt};
use crate::protocol::limits::{PATTERN_BYTES, PATTERN_STEPS};

/// Problems that are told of one value; a model does not need more to see what it did wrong.
const PROBLEMS: usize = 8;

#[derive(Debug)]
pub struct Checker(Validator);

/// Whether a validator can be made of a schema that always comes to an end soon.
pub fn check(schema: &Value) -> Result<(), String> {
    Checker::new(schema).map(|_| ())
}

impl Checker {
    /// Nothing is fetched: references lead into the schema itself.
    pub fn new(schema: &Value) -> Result<Self, String> {
        bounds::check(schema)?;
        let patterns = jsonschema::PatternOptions::fancy_regex()
            .backtrack_limit(PATTERN_STEPS)
            .size_limit(PATTERN_BYTES)
            .dfa_size_limit(PATTERN_BYTES);
        let built = jsonschema::options().with_pattern_options(patterns).build(schema);
        built.map(Self).map_err(|error| format!("it is no JSON Schema: {}", excerpt(&error.to_string())))
    }

    #[must_use]
    pub fn fits(&self, value: &Value) -> bool {
        self.0.is_valid(value)
    }

    /// Empty if the value fits.
    #[must_use]
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        self.0.iter_errors(value).flat_map(|error| Problem::from_error(&error)).take(PROBLEMS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ask::Language;
    use serde_json::json;

    fn problems(schema: &Value, value: &Value, language: Language) -> String {
        let found = Checker::new(schema).unwrap().problems(value);
        found.iter().map(|problem| problem.describe(language)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_problem_names_path_expected_and_actual() {
        let schema = json!({
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "colour": {"enum": ["red", "blue"]},
                "points": {"type": "array", "items": {"type": ["number", "null"], "minimum": 1}},
            },
            "required": ["n"],
            "additionalProperties": false,
        });
        assert_eq!(problems(&schema, &json!({"n": 1}), Language::English), "");
        let wrong = json!({"colour": "green", "points": [2, "x", 0], "more": 1, "than": 2});
        insta::assert_snapshot!(problems(&schema, &wrong, Language::English), @r#"
        `/colour`: expected one of ["red","blue"], got "green"
        `/points/1`: expected null | number, got "x"
        `/points/2`: 0 is less than the minimum of 1
        `/more`: there is no such field
        `/than`: there is no such field
        `/n`: is required, but missing
        "#);
        insta::assert_snapshot!(problems(&schema, &json!({"n": "x"}), Language::Chinese), @r#"`/n`：期望 integer，实际 "x""#);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let schema = json!({"additionalProperties": {"type": "string"}});
        let many: Value = (0..100)
            .map(|n| (format!("{n}"), json!(vec![n; 10_000])))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let told = problems(&schema, &many, Language::English);
        assert!(told.lines().count() == PROBLEMS && told.len() < 2_000, "{told}");
    }
}
