//! Checks whether a schema may become a validator. A schema is a program for the validator, and clients, configurations
//! and models write it. So it must be small, even with every reference expanded, must refer to nothing outside itself,
//! and must be checked quickly against any value.

use serde_json::Value;
use std::collections::HashMap;

use super::circles;
use super::patterns::is_small;
use super::problem::excerpt;
use super::references::target;
use crate::protocol::limits::{CHECK_STEPS, JSON_DEPTH, PATTERN_NAME_BYTES};

const SCHEMA_BYTES: usize = 64 * 1024;
/// The most parts of a schema with every reference expanded, each circle once.
const PARTS: u64 = 10_000;

/// The parts that a pattern for names counts as, because every field name is matched against it.
const NAME_PATTERN_PARTS: u64 = 500;
/// Bytes of text that count as one more part of a value or of a schema.
const BYTES_A_PART: u64 = 32;
/// The factor for the parts below `unevaluatedProperties` and `unevaluatedItems`.
const UNEVALUATED_TIMES: u64 = 3;
/// The product of a schema's and a value's parts beyond which problems are not reported in detail.
const DETAIL_STEPS: u64 = 1_000_000;

/// Keywords that refer to something by other means than its place in this schema. In draft 4, `id` is one of them.
const REFUSED: [&str; 5] = ["$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"];

/// The cost of checking a value against a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    parts: u64,
    /// Whether the schema matches names of fields against patterns.
    has_name_patterns: bool,
}

impl Size {
    /// An error if checking this value would take too long.
    pub fn affords(self, value: &Value) -> Result<(), String> {
        let mut weight = Weight::default();
        weight.add(value);
        if self.parts.saturating_mul(weight.nodes.saturating_add(weight.text_parts)) > CHECK_STEPS {
            return Err(
                "it is too large to be held against this schema; send less, or make the schema smaller"
                    .into(),
            );
        }
        if self.has_name_patterns && weight.name_bytes > PATTERN_NAME_BYTES {
            return Err(format!(
                "names of fields that a pattern is for may have {PATTERN_NAME_BYTES} bytes in all"
            ));
        }
        Ok(())
    }

    /// Whether the cost of listing all problems of the value is acceptable.
    pub fn affords_details(self, value: &Value) -> bool {
        let mut weight = Weight::default();
        weight.add(value);
        self.parts.saturating_mul(weight.nodes) <= DETAIL_STEPS
    }
}

/// The size of a value. Its depth is limited where the value is parsed.
#[derive(Default)]
struct Weight {
    nodes: u64,
    text_parts: u64,
    name_bytes: u64,
}

impl Weight {
    fn add(&mut self, value: &Value) {
        self.nodes += 1;
        match value {
            Value::String(text) => self.text_parts += text.len() as u64 / BYTES_A_PART,
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(map) => {
                for (name, value) in map {
                    self.name_bytes += name.len() as u64;
                    self.add(value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

pub(super) fn check(schema: &Value) -> Result<Size, String> {
    if !schema.is_object() {
        return Err("it is no JSON Schema: it has to be an object".to_owned());
    }
    if schema.to_string().len() > SCHEMA_BYTES {
        return Err(format!("the schema has more than {SCHEMA_BYTES} bytes"));
    }
    let mut counted = Counted {
        root: schema,
        references: HashMap::new(),
        has_name_patterns: false,
        has_unevaluated: false,
    };
    let parts = counted.parts(schema, JSON_DEPTH)?;
    if parts > PARTS {
        return Err(format!("the schema has more than {PARTS} parts, with its references written out"));
    }
    if counted.has_unevaluated && counted.has_name_patterns {
        return Err(
            "`patternProperties` is not supported in a schema with `unevaluatedProperties`".to_owned()
        );
    }
    circles::check(schema)?;
    Ok(Size { parts, has_name_patterns: counted.has_name_patterns })
}

struct Counted<'a> {
    root: &'a Value,
    /// The number of parts behind each reference; 1 while they are being counted.
    references: HashMap<&'a str, u64>,
    has_name_patterns: bool,
    has_unevaluated: bool,
}

impl<'a> Counted<'a> {
    /// Counts the parts. Every object counts as a schema; an object that is only a value then has to satisfy the same
    /// limits.
    fn parts(&mut self, schema: &'a Value, depth: usize) -> Result<u64, String> {
        let depth = depth.checked_sub(1).ok_or("the schema is nested too deeply")?;
        let mut sum = 1_u64;
        match schema {
            Value::Object(map) => {
                if let Some(keyword) = REFUSED.iter().find(|keyword| map.contains_key(**keyword)) {
                    return Err(format!("`{keyword}` is not supported in a schema"));
                }
                if let Some(Value::String(draft)) = map.get("$schema")
                    && draft.contains("draft-04")
                {
                    return Err(format!("`$schema` {draft:?} is not supported; draft 6 or a later one is"));
                }
                if let Some(Value::Object(patterns)) = map.get("patternProperties") {
                    self.has_name_patterns = true;
                    sum = sum.saturating_add(NAME_PATTERN_PARTS.saturating_mul(patterns.len() as u64));
                    if let Some(large) = patterns.keys().find(|pattern| !is_small(pattern)) {
                        return Err(format!(
                            "the pattern {:?} is too large for names of fields",
                            excerpt(large)
                        ));
                    }
                }
                for value in map.values() {
                    sum = sum.saturating_add(self.parts(value, depth)?);
                }
                if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                    sum = sum.saturating_add(self.parts_of_reference(reference, depth)?);
                }
                if map.keys().any(|keyword| keyword.starts_with("unevaluated")) {
                    self.has_unevaluated = true;
                    // The validator compiles everything below once more for this keyword.
                    sum = sum.saturating_mul(UNEVALUATED_TIMES);
                }
            }
            Value::Array(items) => {
                for item in items {
                    sum = sum.saturating_add(self.parts(item, depth)?);
                }
            }
            Value::String(text) => sum = sum.saturating_add(text.len() as u64 / BYTES_A_PART),
            _ => {}
        }
        Ok(sum)
    }

    fn parts_of_reference(&mut self, reference: &'a str, depth: usize) -> Result<u64, String> {
        if let Some(parts) = self.references.get(reference) {
            return Ok(*parts);
        }
        let Some(target) = target(self.root, reference) else {
            return Err(format!("`$ref` {reference:?} leads nowhere in this schema"));
        };
        self.references.insert(reference, 1);
        let parts = self.parts(target, depth)?;
        self.references.insert(reference, parts);
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_leads_outside_or_grows_without_bound_is_refused() {
        assert!(check(&json!(true)).unwrap_err().contains("to be an object"));
        assert!(check(&json!({"$ref": "http://127.0.0.1/schema"})).unwrap_err().contains("nowhere"));
        assert!(check(&json!({"$ref": "#/$defs/none"})).unwrap_err().contains("nowhere"));
        assert!(check(&json!({"$id": "http://127.0.0.1/"})).unwrap_err().contains("$id"));
        assert!(check(&json!({"x": "y".repeat(SCHEMA_BYTES)})).unwrap_err().contains("bytes"));
        // Each of the twenty definitions doubles the number of parts.
        let mut definitions = serde_json::Map::new();
        for step in 0..20 {
            let next = json!({"$ref": format!("#/$defs/s{}", step + 1)});
            definitions.insert(format!("s{step}"), json!({"anyOf": [next, next]}));
        }
        definitions.insert("s20".into(), json!({}));
        let doubling = json!({"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/s0"}}});
        assert!(check(&doubling).unwrap_err().contains("parts"));
        // The validator decodes `%62` as `b`, so this reference leads back to where it stands.
        let encoded = json!({
            "$defs": {"a%62": {}, "ab": {"anyOf": [{"$ref": "#/$defs/a%62"}]}},
            "properties": {"x": {"$ref": "#/$defs/ab"}},
        });
        assert!(crate::schema::check(&encoded).unwrap_err().contains("leads back to itself"));
        let draft_4 = json!({
            "$schema": "http://json-schema.org/draft-04/schema#",
            "definitions": {"a": {}},
            "properties": {"x": {
                "id": "http://127.0.0.1/other",
                "definitions": {"a": {"anyOf": [{"$ref": "#/definitions/a"}]}},
                "allOf": [{"$ref": "#/definitions/a"}],
            }},
        });
        let refusal = crate::schema::Checker::new(&draft_4).map(|checker| checker.fits(&json!({"x": 1})));
        assert!(refusal.unwrap_err().contains("draft"));
        let mut deep = json!({});
        for _ in 0..200 {
            deep = json!({"items": deep});
        }
        assert!(check(&deep).unwrap_err().contains("deeply"));
    }
}
