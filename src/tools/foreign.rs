//! Schemas that strangers wrote, of tools and of answers: the configuration's and clients'. A schema is a program for the
//! validator, so it is looked at before it may become one: it has to be small, also with every
//! reference written out, and to refer to nothing outside of itself. Recursive ones are refused: with
//! a choice in the circle, a small value could keep the validator busy for ever.

use serde_json::{Value, json};
use std::collections::HashMap;

use super::contract::PURPOSE;
use crate::protocol::limits::JSON_DEPTH;

const SCHEMA_BYTES: usize = 64 * 1024;
/// Parts of a schema with every reference written out.
const PARTS: u64 = 10_000;

/// Ways to refer to something by other than its place in this schema.
const REFUSED: [&str; 5] = ["$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"];

/// A stranger's schema as parameters: an object that takes nothing but what it names.
pub fn parameters(schema: &Value) -> Result<Value, String> {
    check(schema)?;
    let Some(object) = schema.as_object() else { return Err("the schema is no object".into()) };
    if object.get("type").is_some_and(|kind| kind != "object") {
        return Err("the schema's `type` has to be `object`".into());
    }
    let mut object = object.clone();
    object.insert("type".into(), "object".into());
    let properties = object.entry("properties").or_insert_with(|| json!({}));
    let Some(properties) = properties.as_object() else {
        return Err("`properties` has to be an object".into());
    };
    if properties.contains_key(PURPOSE) {
        return Err(format!("the parameter `{PURPOSE}` is there for every tool and cannot be its own"));
    }
    object.insert("additionalProperties".into(), Value::Bool(false));
    Ok(Value::Object(object))
}

/// Whether a validator can be made of it that always comes to an end soon.
pub fn check(schema: &Value) -> Result<(), String> {
    if schema.to_string().len() > SCHEMA_BYTES {
        return Err(format!("the schema has more than {SCHEMA_BYTES} bytes"));
    }
    let mut counted = Counted { root: schema, references: HashMap::new() };
    if counted.parts(schema, JSON_DEPTH)? > PARTS {
        return Err(format!("the schema has more than {PARTS} parts, with its references written out"));
    }
    Ok(())
}

struct Counted<'a> {
    root: &'a Value,
    /// How many parts each reference stands for; none while they are being counted.
    references: HashMap<&'a str, Option<u64>>,
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
        match self.references.get(reference) {
            Some(Some(parts)) => return Ok(*parts),
            Some(None) => {
                return Err(format!(
                    "`$ref` {reference:?} leads back to itself; write out as many levels as are needed"
                ));
            }
            None => {}
        }
        let pointer = reference.strip_prefix('#');
        let Some(target) = pointer.and_then(|pointer| self.root.pointer(pointer)) else {
            return Err(format!("`$ref` {reference:?} leads nowhere in this schema"));
        };
        self.references.insert(reference, None);
        let parts = self.parts(target, depth)?;
        self.references.insert(reference, Some(parts));
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strangers_schema_becomes_a_closed_object() {
        let given = json!({"properties": {"city": {"type": "string"}}, "required": ["city"]});
        assert_eq!(
            parameters(&given).unwrap(),
            json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": false})
        );
        for (given, why) in [
            (json!([]), "no object"),
            (json!({"type": "string"}), "`type`"),
            (json!({"properties": 5}), "`properties`"),
            (json!({"properties": {"tool_call_purpose": {}}}), "for every tool"),
        ] {
            assert!(parameters(&given).unwrap_err().contains(why), "{given}");
        }
    }

    #[test]
    fn references_are_followed_and_circles_refused() {
        let point = json!({"properties": {"x": {"type": "number"}}});
        let line =
            json!({"properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}});
        check(&json!({"items": {"$ref": "#/$defs/line"}, "$defs": {"point": point, "line": line}})).unwrap();
        for schema in [
            json!({"$ref": "#"}),
            json!({"properties": {"self": {"$ref": "#"}}}),
            json!({"items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"if": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert!(check(&schema).unwrap_err().contains("itself"), "{schema}");
        }
    }

    #[test]
    fn what_leads_outside_or_grows_without_bound_is_refused() {
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
