//! Schemas that strangers wrote: the configuration's and clients'. A schema is a program for the
//! validator, so it is looked at before it may become one: it has to be small, refer to nothing
//! outside of itself, and come to an end at every value.

use serde_json::{Value, json};
use std::collections::HashMap;

use super::contract::PURPOSE;
use crate::protocol::limits::JSON_DEPTH;

const SCHEMA_BYTES: usize = 64 * 1024;
/// Schemas that one value is held against, all choices and references counted.
const SCHEMAS_AT_A_VALUE: u64 = 2_000;

/// Keywords whose schemas apply to the very same value.
const SAME_VALUE: [&str; 8] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"];
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
    let mut counted = Counted { root: schema, weights: HashMap::new() };
    counted.visit(schema, JSON_DEPTH)
}

struct Counted<'a> {
    root: &'a Value,
    /// Of a reference, how many schemas it leads to at one value; none while that is being found out.
    weights: HashMap<&'a str, Option<u64>>,
}

impl<'a> Counted<'a> {
    /// Every object is taken for a schema: what is a mere value then only has to be as harmless.
    fn visit(&mut self, schema: &'a Value, depth: usize) -> Result<(), String> {
        let depth = depth.checked_sub(1).ok_or("the schema is nested too deeply")?;
        match schema {
            Value::Object(map) => {
                if let Some(keyword) = REFUSED.iter().find(|keyword| map.contains_key(**keyword)) {
                    return Err(format!("`{keyword}` is not supported in a tool's schema"));
                }
                if self.weight(schema, JSON_DEPTH)? > SCHEMAS_AT_A_VALUE {
                    return Err("the schema has too many choices".into());
                }
                map.values().try_for_each(|value| self.visit(value, depth))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.visit(item, depth)),
            _ => Ok(()),
        }
    }

    /// How many schemas apply to a value that this one applies to.
    fn weight(&mut self, schema: &'a Value, depth: usize) -> Result<u64, String> {
        let depth = depth.checked_sub(1).ok_or("the schema is nested too deeply")?;
        let Some(map) = schema.as_object() else { return Ok(1) };
        let mut sum = 1_u64;
        for keyword in SAME_VALUE {
            let weight = match map.get(keyword) {
                None => 0,
                Some(Value::Array(schemas)) => self.sum(schemas.iter(), depth)?,
                Some(Value::Object(schemas)) if keyword == "dependentSchemas" => {
                    self.sum(schemas.values(), depth)?
                }
                Some(schema) => self.weight(schema, depth)?,
            };
            sum = sum.saturating_add(weight);
        }
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            sum = sum.saturating_add(self.weight_of_reference(reference, depth)?);
        }
        Ok(sum)
    }

    fn sum(&mut self, schemas: impl Iterator<Item = &'a Value>, depth: usize) -> Result<u64, String> {
        let mut sum = 0_u64;
        for schema in schemas {
            sum = sum.saturating_add(self.weight(schema, depth)?);
        }
        Ok(sum)
    }

    fn weight_of_reference(&mut self, reference: &'a str, depth: usize) -> Result<u64, String> {
        match self.weights.get(reference) {
            Some(Some(weight)) => return Ok(*weight),
            Some(None) => return Err(format!("`$ref` {reference:?} leads back to itself")),
            None => {}
        }
        let pointer = reference.strip_prefix('#');
        let Some(target) = pointer.and_then(|pointer| self.root.pointer(pointer)) else {
            return Err(format!("`$ref` {reference:?} leads nowhere in this schema"));
        };
        self.weights.insert(reference, None);
        let weight = self.weight(target, depth)?;
        self.weights.insert(reference, Some(weight));
        Ok(weight)
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
    fn recursion_over_values_is_allowed_and_recursion_in_place_is_not() {
        let node = json!({"properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}});
        check(&json!({"properties": {"tree": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})).unwrap();
        check(&json!({"properties": {"self": {"$ref": "#"}}})).unwrap();
        for schema in [
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            json!({"properties": {"x": {"not": {"$ref": "#/properties/x"}}}}),
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
        assert!(check(&doubling).unwrap_err().contains("choices"));
        let mut deep = json!({});
        for _ in 0..200 {
            deep = json!({"items": deep});
        }
        assert!(check(&deep).unwrap_err().contains("deeply"));
    }
}
