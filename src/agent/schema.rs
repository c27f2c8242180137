//! JSON Schemas, and what is wrong with a value in words that a model can act on.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use super::words::Words;
use crate::protocol::limits::{PATTERN_BYTES, PATTERN_STEPS};

/// Problems that are told of one value.
const PROBLEMS: usize = 8;
/// Characters of a value, or of a list of allowed ones, that are quoted.
const QUOTED_CHARS: usize = 160;

#[derive(Debug)]
pub(super) struct Checker(Validator);

/// Whether this is a JSON Schema that can be used here: it may refer to itself, not to elsewhere.
pub fn check(schema: &Value) -> Result<(), String> {
    Checker::new(schema).map(|_| ())
}

impl Checker {
    pub fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it has to be an object".to_owned());
        }
        refuse_endless(schema)?;
        let patterns = jsonschema::PatternOptions::fancy_regex()
            .backtrack_limit(PATTERN_STEPS)
            .size_limit(PATTERN_BYTES)
            .dfa_size_limit(PATTERN_BYTES);
        let built = jsonschema::options().with_pattern_options(patterns).build(schema);
        let validator = built.map_err(|error| excerpt(&error.to_string()))?;
        Ok(Self(validator))
    }

    /// Empty if the value fits.
    pub fn problems(&self, value: &Value, words: Words) -> Vec<String> {
        self.0.iter_errors(value).take(PROBLEMS).map(|error| told(&error, words)).collect()
    }
}

/// Path, expected, actual.
fn told(error: &ValidationError, words: Words) -> String {
    let path = error.instance_path.as_str();
    let actual = excerpt(&error.instance.to_string());
    match &error.kind {
        ValidationErrorKind::Required { property } => {
            words.missing(&format!("{path}/{}", property.as_str().unwrap_or_default()))
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let paths: Vec<String> =
                unexpected.iter().map(|name| format!("{path}/{}", excerpt(name))).collect();
            words.not_expected(&paths.join(", "))
        }
        ValidationErrorKind::Type { kind } => words.other_than_expected(path, &type_names(kind), &actual),
        ValidationErrorKind::Enum { options } => {
            words.other_than_expected(path, &words.one_of(&excerpt(&options.to_string())), &actual)
        }
        ValidationErrorKind::Constant { expected_value } => {
            words.other_than_expected(path, &excerpt(&expected_value.to_string()), &actual)
        }
        _ => format!("{}: {}", words.path(path), excerpt(&error.to_string())),
    }
}

fn type_names(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(name) => name.to_string(),
        TypeKind::Multiple(names) => {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            names.join(" | ")
        }
    }
}

pub(super) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A reference that leads back to itself without going into a value would never end.
fn refuse_endless(schema: &Value) -> Result<(), String> {
    let mut pointers = Vec::new();
    references(schema, &mut pointers);
    pointers.sort_unstable();
    pointers.dedup();
    for start in pointers {
        let mut seen = vec![start];
        let mut open = vec![start];
        while let Some(pointer) = open.pop() {
            let Some(target) = pointer.strip_prefix('#').and_then(|path| schema.pointer(path)) else {
                continue;
            };
            let mut next = Vec::new();
            same_value_references(target, &mut next);
            if next.contains(&start) {
                return Err(format!("the reference `{}` leads back to itself", excerpt(start)));
            }
            for pointer in next {
                if !seen.contains(&pointer) {
                    seen.push(pointer);
                    open.push(pointer);
                }
            }
        }
    }
    Ok(())
}

/// All references anywhere in a schema.
fn references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(pointer) if is_reference(key) => found.push(pointer),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// References that a schema applies to the very value that it is applied to.
fn same_value_references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    let Some(map) = schema.as_object() else { return };
    for (key, value) in map {
        match (key.as_str(), value) {
            (key, Value::String(pointer)) if is_reference(key) => found.push(pointer),
            ("allOf" | "anyOf" | "oneOf", Value::Array(items)) => {
                for item in items {
                    same_value_references(item, found);
                }
            }
            ("not" | "if" | "then" | "else", value) => same_value_references(value, found),
            ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                schemas.values().for_each(|value| same_value_references(value, found));
            }
            _ => {}
        }
    }
}

fn is_reference(key: &str) -> bool {
    matches!(key, "$ref" | "$dynamicRef" | "$recursiveRef")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::ask::Language;

    fn problems(schema: &Value, value: &Value) -> Vec<String> {
        Checker::new(schema).unwrap().problems(value, Words(Language::English))
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
        assert_eq!(problems(&schema, &json!({"n": 1})), Vec::<String>::new());
        let told = problems(&schema, &json!({"colour": "green", "points": [2, "x", 0], "more": 1}));
        insta::assert_snapshot!(told.join("\n"), @r#"
        `/colour`: expected one of ["red","blue"], got "green"
        `/points/1`: expected null | number, got "x"
        `/points/2`: 0 is less than the minimum of 1
        `/more`: there is no such field
        `/n`: is required, but missing
        "#);
    }

    #[test]
    fn a_plan_may_refer_to_itself_but_not_without_end() {
        let tree = json!({
            "$ref": "#/$defs/Node",
            "$defs": {"Node": {"type": "object", "properties": {
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}},
        });
        assert_eq!(problems(&tree, &json!({"children": [{"children": []}]})), Vec::<String>::new());
        assert_eq!(problems(&tree, &json!({"children": [{"children": 1}]})).len(), 1);
        for endless in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert!(check(&endless).unwrap_err().contains("leads back to itself"), "{endless}");
        }
        assert!(check(&json!({"$ref": "http://127.0.0.1:9/x.json"})).is_err());
        assert!(check(&json!({"type": "strange"})).is_err());
        assert!(check(&json!(true)).is_err());
    }
}
