//! JSON Schemas of tools: made from types, read from strangers, and held against values.

use jsonschema::Validator;
use schemars::JsonSchema;
use serde_json::{Value, json};
use std::fmt::Write;

use super::contract::PURPOSE;
use crate::protocol::limits::{JSON_DEPTH, PATTERN_BYTES, PATTERN_STEPS};

/// Problems that are told at once; a model does not need more to see what it did wrong.
const PROBLEMS_TOLD: usize = 5;
/// Characters of a path, a wrong value or a validator's words that are shown.
const SHOWN_CHARS: usize = 200;
/// Steps through `$ref` from one place.
const REFERENCES: usize = 16;

/// The schema of a parameter struct, in the form that models are told.
#[must_use]
pub fn parameters_of<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12();
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("$schema");
        // The struct's own comment is for readers of the code.
        root.remove("description");
        root.entry("properties").or_insert_with(|| json!({}));
    }
    tidy(&mut schema, false);
    schema
}

/// Without what says nothing to a model: names of Rust types and widths of its integers.
fn tidy(schema: &mut Value, is_map_of_names: bool) {
    match schema {
        Value::Object(map) => {
            if !is_map_of_names {
                map.remove("title");
                map.remove("format");
            }
            for (key, value) in map.iter_mut() {
                let names = !is_map_of_names && (key == "properties" || key == "$defs");
                if is_map_of_names || !["default", "examples", "enum", "const"].contains(&key.as_str()) {
                    tidy(value, names);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| tidy(item, false)),
        _ => {}
    }
}

/// The same parameters with the purpose beside them, as a model is told them.
#[must_use]
pub fn with_purpose(parameters: &Value, description: &str) -> Value {
    let mut schema = with_optional_purpose(parameters, description);
    if let Some(root) = schema.as_object_mut() {
        let mut required = vec![Value::from(PURPOSE)];
        if let Some(Value::Array(own)) = root.remove("required") {
            required.extend(own);
        }
        root.insert("required".into(), Value::Array(required));
    }
    schema
}

/// Likewise for code, which need not say why it calls.
#[must_use]
pub fn with_optional_purpose(parameters: &Value, description: &str) -> Value {
    let mut schema = parameters.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(PURPOSE.into(), json!({"type": "string", "description": description}));
    }
    schema
}

/// A schema made ready, once, to hold many values against it.
pub fn compile(schema: &Value) -> Result<Validator, String> {
    // Nothing is fetched: references lead into the schema itself or nowhere.
    jsonschema::options()
        .with_pattern_options(
            jsonschema::PatternOptions::fancy_regex()
                .backtrack_limit(PATTERN_STEPS)
                .size_limit(PATTERN_BYTES)
                .dfa_size_limit(PATTERN_BYTES),
        )
        .build(schema)
        .map_err(|error| format!("no valid JSON Schema: {}", shortened(&error.to_string())))
}

/// What is wrong with a value: each line says where, what is there, and what should be. `whole` is what
/// the value is called.
pub fn problems(validator: &Validator, value: &Value, whole: &str) -> Vec<String> {
    let mut found = Vec::new();
    for error in validator.iter_errors(value) {
        if found.len() == PROBLEMS_TOLD {
            found.push("and more".into());
            break;
        }
        let at = path_of(error.instance_path.as_str(), whole);
        // The masked text says what was expected without the value, which may be long.
        let expected = error.masked_with("the value");
        found.push(format!("{at}: {expected} (it is {})", shown(&error.instance)));
    }
    found
}

/// `/tree_nodes/0/status` as `tree_nodes[0].status`.
fn path_of(pointer: &str, whole: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            let _ = write!(path, "[{part}]");
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&part);
        }
    }
    if path.is_empty() { whole.to_owned() } else { format!("`{}`", shortened(&path)) }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let keys: Vec<&str> = map.keys().take(PROBLEMS_TOLD).map(String::as_str).collect();
            shortened(&format!("an object with: {}", keys.join(", ")))
        }
        Value::Array(items) => format!("an array of {}", items.len()),
        other => shortened(&other.to_string()),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// Takes away `null`s that stand for an optional value which is not given: providers with a strict
/// mode want every property to be written.
pub fn drop_nulls(value: &mut Value, schema: &Value) {
    drop_nulls_at(value, schema, schema, JSON_DEPTH);
}

fn drop_nulls_at(value: &mut Value, schema: &Value, root: &Value, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match value {
        Value::Object(map) => {
            let Some(object) = form_of(schema, root, |form| form.get("properties").is_some()) else { return };
            let Some(properties) = object.get("properties").and_then(Value::as_object) else { return };
            let required = object.get("required").and_then(Value::as_array);
            let is_required =
                |name: &str| required.is_some_and(|names| names.iter().any(|each| each == name));
            map.retain(|name, value| {
                !value.is_null() || is_required(name) || properties.get(name).is_none_or(takes_null)
            });
            for (name, value) in map.iter_mut() {
                if let Some(property) = properties.get(name) {
                    drop_nulls_at(value, property, root, depth);
                }
            }
        }
        Value::Array(items) => {
            let Some(array) = form_of(schema, root, |form| form.get("items").is_some()) else { return };
            let Some(of_items) = array.get("items") else { return };
            for item in items {
                drop_nulls_at(item, of_items, root, depth);
            }
        }
        _ => {}
    }
}

fn takes_null(schema: &Value) -> bool {
    let is_null = |kind: &Value| kind == "null";
    match (schema.get("type"), schema.get("anyOf").or_else(|| schema.get("oneOf"))) {
        (Some(Value::Array(kinds)), _) => kinds.iter().any(is_null),
        (Some(kind), _) => is_null(kind),
        (None, Some(Value::Array(choices))) => choices.iter().any(takes_null),
        (None, _) => schema.get("$ref").is_none(),
    }
}

/// The part of a schema that the wanted form is in: itself, behind `$ref`, or one of its choices.
fn form_of<'a>(
    schema: &'a Value,
    root: &'a Value,
    wanted: impl Fn(&Value) -> bool + Copy,
) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..REFERENCES {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { break };
        schema = root.pointer(reference.strip_prefix('#')?)?;
    }
    if wanted(schema) {
        return Some(schema);
    }
    let choices = schema.get("anyOf").or_else(|| schema.get("oneOf"))?.as_array()?;
    choices.iter().find_map(|choice| {
        let target = choice.get("$ref").and_then(Value::as_str);
        let choice = match target {
            Some(reference) => root.pointer(reference.strip_prefix('#')?)?,
            None => choice,
        };
        wanted(choice).then_some(choice)
    })
}
