//! Whether a schema may become a validator. A schema is a program for the validator, and clients, configurations and
//! models write them: it has to be small, also with every reference written out, to refer to nothing outside of
//! itself, and to come to an end soon with any value.

use serde_json::Value;
use std::collections::HashMap;

use super::circles;
use super::references::target;
use crate::protocol::limits::JSON_DEPTH;

const SCHEMA_BYTES: usize = 64 * 1024;
/// Parts of a schema with every reference written out, each circle once.
const PARTS: u64 = 10_000;

/// Ways to refer to something by other than its place in this schema.
const REFUSED: [&str; 5] = ["$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"];

pub(super) fn check(schema: &Value) -> Result<(), String> {
    if !schema.is_object() {
        return Err("it is no JSON Schema: it has to be an object".to_owned());
    }
    if schema.to_string().len() > SCHEMA_BYTES {
        return Err(format!("the schema has more than {SCHEMA_BYTES} bytes"));
    }
    let mut counted = Counted { root: schema, references: HashMap::new() };
    if counted.parts(schema, JSON_DEPTH)? > PARTS {
        return Err(format!("the schema has more than {PARTS} parts, with its references written out"));
    }
    circles::check(schema)
}

struct Counted<'a> {
    root: &'a Value,
    /// How many parts each reference stands for; one while they are being counted.
    references: HashMap<&'a str, u64>,
}

impl<'a> Counted<'a> {
    /// Every object is taken for a schema: what is a mere value then only has to be as harmless.
    fn parts(&mut self, schema: &'a Value, depth: usize) -> Result<u64, String> {
        let depth = depth.checked_sub(1).ok_or("the schema is nested too deeply")?;
        let mut sum = 1_u64;
        match schema {
            Value::Object(map) => {
                if let Some(keyword) = REFUSED.iter().find(|keyword| map.contains_key(**keyword)) {
                    return Err(format!("`{keyword}` is not supported in a schema"));
                }
                for value in map.values() {
                    sum = sum.saturating_add(self.parts(value, depth)?);
                }
                if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                    sum = sum.saturating_add(self.parts_of_reference(reference, depth)?);
                }
            }
            Value::Array(items) => {
                for item in items {
                    sum = sum.saturating_add(self.parts(item, depth)?);
                }
            }
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
        // Twenty steps that each double.
        let mut definitions = serde_json::Map::new();
        for step in 0..20 {
            let next = json!({"$ref": format!("#/$defs/s{}", step + 1)});
            definitions.insert(format!("s{step}"), json!({"anyOf": [next, next]}));
        }
        definitions.insert("s20".into(), json!({}));
        let doubling = json!({"$defs": definitions, "properties": {"x": {"$ref": "#/$defs/s0"}}});
        assert!(check(&doubling).unwrap_err().contains("parts"));
        let mut deep = json!({});
        for _ in 0..200 {
            deep = json!({"items": deep});
        }
        assert!(check(&deep).unwrap_err().contains("deeply"));
    }
}
