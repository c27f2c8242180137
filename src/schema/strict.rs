//! Converts tool schemas to the strict form that OpenAI requires, and replies back.
//!
//! In the strict form every property is required, an optional one may be null instead, no object accepts further
//! properties, and nothing has a default. Some schemas have no strict form, such as an object with arbitrary keys;
//! those tools are sent as they are.

use serde_json::{Map, Value, json};

use super::nulls::{drop_nulls, is_required, mentions};

/// The text formats that strict mode accepts; it refuses others.
const FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
/// Keywords that strict mode refuses and that do not restrict the valid values.
const DROPPED: [&str; 6] =
    ["default", "examples", "$schema", "$id", "unevaluatedProperties", "unevaluatedItems"];
/// Keywords that strict mode refuses and that cannot be dropped without changing the meaning.
const REFUSED: [&str; 9] = [
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "propertyNames",
];
/// The strict form; `None` if the schema has none.
#[must_use]
pub fn strict(schema: &Value) -> Option<Value> {
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    is_object.then(|| form(schema)).flatten()
}

fn form(schema: &Value) -> Option<Value> {
    let schema = schema.as_object()?;
    if REFUSED.iter().any(|key| schema.contains_key(*key)) {
        return None;
    }
    let mut out = Map::new();
    for (key, value) in schema {
        match key.as_str() {
            key if DROPPED.contains(&key) => {}
            "properties" | "required" | "additionalProperties" => {}
            "format" if !FORMATS.iter().any(|known| value == known) => {}
            "anyOf" | "oneOf" => {
                let branches = value.as_array()?.iter().map(form).collect::<Option<Vec<_>>>()?;
                out.insert("anyOf".to_owned(), branches.into());
            }
            "items" => {
                out.insert(key.clone(), form(value)?);
            }
            "$defs" | "definitions" => {
                let forms =
                    value.as_object()?.iter().map(|(name, schema)| Some((name.clone(), form(schema)?)));
                out.insert(key.clone(), forms.collect::<Option<Map<_, _>>>()?.into());
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    if schema.get("type").is_some_and(|kind| mentions(kind, "object")) {
        object(schema, &mut out)?;
    } else if schema.get("type").is_some_and(|kind| mentions(kind, "array")) {
        out.get("items")?;
    }
    let says_something = ["type", "$ref", "anyOf", "enum", "const"].iter().any(|key| out.contains_key(*key));
    says_something.then(|| alone(out))
}

/// Converts the properties of an object: all become required, and optional ones may be null.
fn object(schema: &Map<String, Value>, out: &mut Map<String, Value>) -> Option<()> {
    let open = schema.get("additionalProperties").is_some_and(|more| more != &Value::Bool(false));
    let nothing = Map::new();
    let properties = match schema.get("properties") {
        Some(properties) => properties.as_object()?,
        // An object without properties that is not closed is meant to accept any.
        None if schema.contains_key("additionalProperties") => &nothing,
        None => return None,
    };
    if open {
        return None;
    }
    let mut forms = Map::new();
    for (name, property) in properties {
        let form = form(property)?;
        forms.insert(name.clone(), if is_required(schema, name) { form } else { nullable(form) });
    }
    out.insert("required".to_owned(), forms.keys().cloned().collect::<Vec<_>>().into());
    out.insert("properties".to_owned(), forms.into());
    out.insert("additionalProperties".to_owned(), false.into());
    Some(())
}

/// Wraps a reference that has other keywords beside it, because strict mode allows none there.
fn alone(mut schema: Map<String, Value>) -> Value {
    if schema.len() > 1
        && let Some(reference) = schema.remove("$ref")
    {
        schema.insert("anyOf".to_owned(), json!([{"$ref": reference}]));
    }
    schema.into()
}

fn nullable(schema: Value) -> Value {
    if names_null(&schema) {
        return schema;
    }
    let Value::Object(mut inner) = schema else { return schema };
    let description = inner.remove("description");
    let mut outer = Map::new();
    outer.insert("anyOf".to_owned(), json!([inner, {"type": "null"}]));
    outer.extend(description.map(|text| ("description".to_owned(), text)));
    outer.into()
}

/// Whether the schema explicitly allows null.
fn names_null(schema: &Value) -> bool {
    let branch =
        |key| schema.get(key).and_then(Value::as_array).is_some_and(|all| all.iter().any(names_null));
    schema.get("type").is_some_and(|kind| mentions(kind, "null")) || branch("anyOf") || branch("oneOf")
}

/// Converts what a model wrote for the strict form back to the real schema: drops nulls that only mean an omitted
/// value. The text is returned unchanged if there are none or if it is not JSON.
#[must_use]
pub fn undo(schema: &Value, text: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    if drop_nulls(schema, &mut value) { value.to_string() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn python_tool() -> Value {
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "additionalProperties": false,
            "unevaluatedProperties": true,
            "required": ["code"],
            "properties": {
                "code": {"type": "string", "description": "Python.", "examples": ["1 + 1"]},
                "timeout": {"type": "integer", "format": "uint32", "default": 30, "description": "Seconds."},
                "note": {"type": ["string", "null"]},
            },
        })
    }

    fn tree() -> Value {
        json!({
            "type": "object",
            "required": ["root"],
            "properties": {"root": {"$ref": "#/$defs/Node", "description": "The tree."}},
            "$defs": {"Node": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "level": {"oneOf": [{"const": "low"}, {"const": "high"}]},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
            }},
        })
    }

    #[test]
    fn optional_properties_become_required_and_nullable() {
        assert_eq!(
            strict(&python_tool()).unwrap(),
            json!({
                "type": "object",
                "additionalProperties": false,
                "required": ["code", "note", "timeout"],
                "properties": {
                    "code": {"type": "string", "description": "Python."},
                    "timeout": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "Seconds."},
                    "note": {"type": ["string", "null"]},
                },
            })
        );
    }

    #[test]
    fn recursive_schemas_keep_their_definitions() {
        let node = json!({"$ref": "#/$defs/Node"});
        assert_eq!(
            strict(&tree()).unwrap(),
            json!({
                "type": "object",
                "additionalProperties": false,
                "required": ["root"],
                "properties": {"root": {"anyOf": [node], "description": "The tree."}},
                "$defs": {"Node": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["children", "level", "name"],
                    "properties": {
                        "name": {"type": "string"},
                        "level": {"anyOf": [{"anyOf": [{"const": "low"}, {"const": "high"}]}, {"type": "null"}]},
                        "children": {"anyOf": [{"type": "array", "items": node}, {"type": "null"}]},
                    },
                }},
            })
        );
    }

    #[test]
    fn what_strict_mode_cannot_say_has_no_strict_form() {
        for property in [
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"type": "object"}),
            json!({"description": "anything"}),
            json!(true),
            json!({"allOf": [{"type": "string"}]}),
            json!({"type": "array"}),
        ] {
            let schema = json!({"type": "object", "properties": {"a": property}});
            assert_eq!(strict(&schema), None, "{schema}");
        }
        assert_eq!(strict(&json!({"anyOf": [{"type": "object"}]})), None);
    }

    #[test]
    fn nulls_that_mean_nothing_are_left_out_again() {
        assert_eq!(
            undo(&python_tool(), r#"{"code": "1", "timeout": null, "note": null}"#),
            r#"{"code":"1","note":null}"#
        );
        let untouched = r#"{"code": "1", "timeout": 3}"#;
        assert_eq!(undo(&python_tool(), untouched), untouched);
        assert_eq!(undo(&python_tool(), "{broken"), "{broken");
        assert_eq!(
            undo(
                &tree(),
                r#"{"root": {"name": "a", "level": null, "children": [{"name": "b", "level": "low", "children": null}]}}"#
            ),
            r#"{"root":{"children":[{"level":"low","name":"b"}],"name":"a"}}"#
        );
        let union = json!({"type": "object", "required": ["step"], "properties": {"step": {"anyOf": [
            {"type": "object", "required": ["tool"], "properties": {"tool": {"const": "a"}, "x": {"type": "null"}}},
            {"type": "object", "required": ["tool"], "properties": {"tool": {"const": "b"}, "x": {"type": "string"}}},
        ]}}});
        assert_eq!(undo(&union, r#"{"step": {"tool": "b", "x": null}}"#), r#"{"step":{"tool":"b"}}"#);
        let circle = json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}});
        assert_eq!(undo(&circle, r#"{"a": null}"#), r#"{"a": null}"#);
    }

    proptest! {
        #[test]
        fn what_fits_the_strict_form_fits_the_real_one_after_the_way_back(
            timeout in prop::option::of(0u32..100), note in prop::option::of("[a-z]{0,3}"),
        ) {
            let arguments = json!({"code": "1", "timeout": timeout, "note": note}).to_string();
            let valid = |schema: &Value, text: &str| {
                crate::schema::Checker::new(schema).unwrap().fits(&serde_json::from_str(text).unwrap())
            };
            prop_assert!(valid(&strict(&python_tool()).unwrap(), &arguments));
            prop_assert!(valid(&python_tool(), &undo(&python_tool(), &arguments)));
        }
    }
}
