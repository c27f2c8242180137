//! Drops nulls that stand for an omitted optional value.

use serde_json::{Map, Value};

use super::references::resolve;

const UNIONS: [&str; 2] = ["anyOf", "oneOf"];

/// Returns true if the value changed.
pub(super) fn drop_nulls(schema: &Value, value: &mut Value) -> bool {
    drop_at(schema, schema, value)
}

/// The recursion ends because each call goes deeper into the finite value, or from a union into a branch that is not a
/// union.
fn drop_at(root: &Value, schema: &Value, value: &mut Value) -> bool {
    let Some(schema) = resolve(root, schema) else { return false };
    if let Some(branch) = branch_for(root, schema, value) {
        return drop_at(root, branch, value);
    }
    match value {
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return false };
            items.iter_mut().fold(false, |changed, item| drop_at(root, schema, item) | changed)
        }
        Value::Object(fields) => {
            let (Some(schema), Some(properties)) =
                (schema.as_object(), schema.get("properties").and_then(Value::as_object))
            else {
                return false;
            };
            let before = fields.len();
            fields.retain(|name, value| {
                !value.is_null()
                    || is_required(schema, name)
                    || properties.get(name).is_none_or(|property| takes_null(root, property))
            });
            let mut changed = fields.len() != before;
            for (name, value) in fields {
                if let Some(property) = properties.get(name) {
                    changed |= drop_at(root, property, value);
                }
            }
            changed
        }
        _ => false,
    }
}

/// The branch of a union that a value is meant for. Unions inside a union are skipped, because two unions that refer to
/// each other would never end.
fn branch_for<'s>(root: &'s Value, schema: &'s Value, value: &Value) -> Option<&'s Value> {
    let branches = UNIONS.iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    let plain: Vec<&Value> = branches
        .filter_map(|branch| resolve(root, branch))
        .filter(|branch| UNIONS.iter().all(|key| branch.get(key).is_none()))
        .filter(|branch| match value {
            Value::Array(_) => branch.get("items").is_some(),
            Value::Object(_) => branch.get("properties").is_some(),
            _ => false,
        })
        .collect();
    plain.iter().find(|branch| fits(branch, value)).or(plain.first()).copied()
}

/// Whether a branch of the right type may be meant: it has all fields of the value, and its constants match.
fn fits(branch: &Value, value: &Value) -> bool {
    let (Some(fields), Some(properties)) =
        (value.as_object(), branch.get("properties").and_then(Value::as_object))
    else {
        return true;
    };
    fields.iter().all(|(name, value)| {
        properties.get(name).is_some_and(|property| {
            let constant = property.get("const").is_none_or(|constant| constant == value);
            let choices = property.get("enum").and_then(Value::as_array);
            constant && choices.is_none_or(|all| value.is_null() || all.contains(value))
        })
    })
}

/// Whether null is a valid value here. A schema without restrictions accepts any value.
fn takes_null(root: &Value, schema: &Value) -> bool {
    let Some(schema) = resolve(root, schema) else { return true };
    if let Some(kind) = schema.get("type") {
        return mentions(kind, "null");
    }
    if let Some(choices) = schema.get("enum") {
        return mentions_value(choices, &Value::Null);
    }
    if let Some(constant) = schema.get("const") {
        return constant.is_null();
    }
    let mut branches = UNIONS.iter().filter_map(|key| schema.get(key)?.as_array()).flatten().peekable();
    branches.peek().is_none()
        || branches.any(|branch| match resolve(root, branch) {
            Some(branch) if UNIONS.iter().any(|key| branch.get(key).is_some()) => true,
            Some(branch) => takes_null(root, branch),
            None => true,
        })
}

fn mentions_value(choices: &Value, wanted: &Value) -> bool {
    choices.as_array().is_some_and(|all| all.contains(wanted))
}

/// `type` is a word or a list of words.
pub(super) fn mentions(kind: &Value, word: &str) -> bool {
    kind == word || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == word))
}

pub(super) fn is_required(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get("required").and_then(Value::as_array).is_some_and(|all| all.iter().any(|key| key == name))
}
