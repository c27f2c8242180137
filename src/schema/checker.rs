//! A compiled schema, against which many values can be checked.

use jsonschema::Validator;
use serde_json::Value;

use super::bounds::{self, Size};
use super::patterns;
use super::problem::{Problem, excerpt};
use crate::protocol::limits::PATTERN_TEXT_BYTES;

/// The most problems reported for one value; a model does not need more to see its mistake.
const PROBLEMS: usize = 8;

#[derive(Debug)]
pub struct Checker {
    validator: Validator,
    size: Size,
}

/// Checks whether a schema can be compiled into a validator that always ends quickly.
pub fn check(schema: &Value) -> Result<(), String> {
    Checker::new(schema).map(|_| ())
}

impl Checker {
    /// Compiles a schema. Nothing is fetched, because all references must lead into the schema itself.
    pub fn new(schema: &Value) -> Result<Self, String> {
        let size = bounds::check(schema)?;
        let options = jsonschema::options().with_pattern_options(patterns::options());
        let options = options.with_keyword("pattern", patterns::keyword);
        match options.build(schema) {
            Ok(validator) => Ok(Self { validator, size }),
            Err(error) => Err(format!("it is no JSON Schema: {}", excerpt(&error.to_string()))),
        }
    }

    #[must_use]
    pub fn fits(&self, value: &Value) -> bool {
        self.verdict(value).is_ok_and(|fits| fits)
    }

    /// The problems of a value; empty if it fits.
    #[must_use]
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        match self.verdict(value) {
            Ok(true) => return Vec::new(),
            // The validator creates all errors before it returns the first, which would take too much here.
            Ok(false) if !self.size.affords_details(value) => {
                return vec![Problem::of_all(
                    "does not fit the schema, and is too large to say where".into(),
                )];
            }
            Ok(false) => {}
            Err(why) => return vec![Problem::of_all(why)],
        }
        let errors = || self.validator.iter_errors(value).flat_map(|error| Problem::from_error(&error));
        patterns::within_budget(|| errors().take(PROBLEMS).collect())
            .unwrap_or_else(|| vec![Problem::of_all("does not fit the schema".into())])
    }

    /// Whether the value fits; an error says why that cannot be decided.
    fn verdict(&self, value: &Value) -> Result<bool, String> {
        self.size.affords(value)?;
        patterns::within_budget(|| self.validator.is_valid(value)).ok_or_else(|| {
            format!("has more text than can be held against patterns: {PATTERN_TEXT_BYTES} bytes, or more if they are small")
        })
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
            .map(|n| (format!("{n}"), json!(vec![n; 1_000])))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let told = problems(&schema, &many, Language::English);
        assert!(told.lines().count() == PROBLEMS && told.len() < 2_000, "{told}");
    }

    /// A schema and a value that are each small enough would take minutes together.
    #[test]
    fn no_check_takes_long_whatever_the_schema_and_the_value_are() {
        let begun = std::time::Instant::now();
        let of_text = |schema: &Value| json!({"type": "object", "properties": {"a": schema}});
        assert!(Checker::new(&of_text(&json!({"pattern": "a[ab]{50000}[^ab]"}))).is_err(), "it is too large");
        let text = "ab".repeat(1 << 20);
        let slow = of_text(&json!({"pattern": "a[ab]{300}[^ab]"}));
        assert!(problems(&slow, &json!({"a": text}), Language::English).contains("more text than"));
        assert!(problems(&slow, &json!({"a": &text[..4_000]}), Language::English).contains("that matches"));
        let many = json!({"type": "array", "items": {"pattern": "a[ab]{300}[^ab]"}});
        assert!(!Checker::new(&many).unwrap().fits(&json!(vec!["abab".repeat(100); 10_000])));
        assert!(
            Checker::new(&json!({"patternProperties": {"a[ab]{2000}[^ab]": {}}})).is_err(),
            "for each name"
        );
        let names = json!({"patternProperties": {"^a": {"type": "integer"}}});
        let long = json!({"ab".repeat(40_000): 1});
        assert!(problems(&names, &long, Language::English).contains("names of fields"));
        assert!(Checker::new(&names).unwrap().fits(&json!({"abc": 1})));
        let mut levels = json!({"type": "object"});
        for _ in 0..40 {
            levels = json!({"anyOf": [levels], "unevaluatedProperties": true});
        }
        assert!(Checker::new(&levels).is_err(), "each level doubles the validator");
        let failing = json!({"items": {"allOf": vec![json!({"type": "string"}); 2_000]}});
        assert!(problems(&failing, &json!(vec![0; 10_000]), Language::English).contains("too large to say"));
        let wide = json!({"items": {"anyOf": vec![json!({"const": 1}); 3_000]}});
        assert!(problems(&wide, &json!(vec![2; 100_000]), Language::English).contains("too large"));
        assert!(Checker::new(&wide).unwrap().fits(&json!(vec![1; 100])));
        let lengths = json!({"allOf": vec![json!({"maxLength": 1 << 30}); 2_000]});
        assert!(!Checker::new(&lengths).unwrap().fits(&json!(text)));
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_a_pattern_forbids_does_not_pass_because_others_used_up_the_budget() {
        let schema = json!({
            "properties": {"a": {"pattern": "^x{0,2000}$"}, "path": {"not": {"pattern": "\\.\\."}}},
        });
        let checker = Checker::new(&schema).unwrap();
        assert!(!checker.fits(&json!({"a": "x", "path": "../etc"})));
        assert!(!checker.fits(&json!({"a": "x".repeat(1 << 20), "path": "../etc"})));
        assert!(!checker.problems(&json!({"path": format!("../{}", "x".repeat(1 << 20))})).is_empty());
        assert!(checker.fits(&json!({"a": "x", "path": "etc"})));
    }

    #[test]
    fn what_models_and_pydantic_send_is_checked() {
        let id = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
        let checker = Checker::new(&json!({"items": {"pattern": id}})).unwrap();
        assert!(checker.fits(&json!(vec!["01234567-89ab-cdef-0123-456789abcdef"; 5_000])));
        let long = json!({"properties": {"name": {"pattern": "^.{1,500}$"}, "code": {"type": "string"}}});
        let checker = Checker::new(&long).unwrap();
        assert!(checker.fits(&json!({"name": "a name", "code": "print(1)\n".repeat(500_000)})));
        let row = |n: u32| json!({"identifier": n, "description": "x", "quantity": 1});
        let rows: Vec<Value> = (0..500).map(row).collect();
        let table =
            json!({"properties": {"labels": {"patternProperties": {"^[a-z]+$": {"type": "string"}}}}});
        assert!(Checker::new(&table).unwrap().fits(&json!({"rows": rows, "labels": {"a": "b"}})));
    }
}
