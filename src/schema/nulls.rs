//! Drops nulls that stand for an omitted optional value.

use serde_json::{Map, Value};

use super::budget::{Budget, Stop};
use super::equality::same;
use super::references::resolve;

/// The most references in a row that are followed, so that a circle of references ends.
const REFERENCE_STEPS: u64 = 64;
const UNIONS: [&str; 2] = ["anyOf", "oneOf"];

/// Returns true if the value changed. A value that is too large for this to end soon keeps the rest of its nulls.
pub(super) fn drop_nulls(schema: &Value, value: &mut Value) -> bool {
    let mut dropping = NullDropper { root: schema, budget: Budget::new(), changed: false };
    let _ = dropping.at(schema, value);
    dropping.changed
}

struct NullDropper<'s> {
    root: &'s Value,
    budget: Budget,
    changed: bool,
}

impl<'s> NullDropper<'s> {
    /// The recursion ends because each call goes deeper into the finite value, or from a union into a branch that is not
    /// a union.
    fn at(&mut self, schema: &'s Value, value: &mut Value) -> Result<(), Stop> {
        let Some(schema) = self.resolve(schema)? else { return Ok(()) };
        if let Some(branch) = self.branch_for(schema, value)? {
            return self.at(branch, value);
        }
        match value {
            Value::Array(items) => {
                let Some(schema) = schema.get("items") else { return Ok(()) };
                items.iter_mut().try_for_each(|item| self.at(schema, item))
            }
            Value::Object(fields) => {
                let (Some(schema), Some(properties)) =
                    (schema.as_object(), schema.get("properties").and_then(Value::as_object))
                else {
                    return Ok(());
                };
                let mut needless = Vec::new();
                for (name, _) in fields.iter().filter(|(_, value)| value.is_null()) {
                    self.budget.charge(1 + required(schema).len() as u64)?;
                    if let Some(property) = properties.get(name)
                        && !is_required(schema, name)
                        && !self.takes_null(property)?
                    {
                        needless.push(name.clone());
                    }
                }
                self.changed |= !needless.is_empty();
                for name in &needless {
                    fields.remove(name);
                }
                for (name, value) in fields {
                    if let Some(property) = properties.get(name) {
                        self.at(property, value)?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn resolve(&mut self, schema: &'s Value) -> Result<Option<&'s Value>, Stop> {
        self.budget.charge(1)?;
        if schema.get("$ref").is_some() {
            self.budget.charge(REFERENCE_STEPS)?;
        }
        Ok(resolve(self.root, schema))
    }

    /// The branch of a union that a value is meant for. Unions inside a union are skipped, because two unions that refer
    /// to each other would never end.
    fn branch_for(&mut self, schema: &'s Value, value: &Value) -> Result<Option<&'s Value>, Stop> {
        if !value.is_array() && !value.is_object() {
            return Ok(None);
        }
        let mut first = None;
        for branch in UNIONS.iter().filter_map(|key| schema.get(key)?.as_array()).flatten() {
            let Some(branch) = self.resolve(branch)? else { continue };
            let meant = if value.is_array() { "items" } else { "properties" };
            if UNIONS.iter().any(|key| branch.get(key).is_some()) || branch.get(meant).is_none() {
                continue;
            }
            self.budget.charge(value.as_object().map_or(0, Map::len) as u64)?;
            if fits(branch, value, &mut self.budget)? {
                return Ok(Some(branch));
            }
            first = first.or(Some(branch));
        }
        Ok(first)
    }

    /// Whether null is a valid value here. A schema without restrictions accepts any value.
    fn takes_null(&mut self, schema: &'s Value) -> Result<bool, Stop> {
        let Some(schema) = self.resolve(schema)? else { return Ok(true) };
        if let Some(kind) = schema.get("type") {
            return Ok(mentions(kind, "null"));
        }
        if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
            self.budget.charge(choices.len() as u64)?;
            return Ok(choices.contains(&Value::Null));
        }
        if let Some(constant) = schema.get("const") {
            return Ok(constant.is_null());
        }
        let mut is_union = false;
        for branch in UNIONS.iter().filter_map(|key| schema.get(key)?.as_array()).flatten() {
            is_union = true;
            let takes = match self.resolve(branch)? {
                Some(branch) if UNIONS.iter().all(|key| branch.get(key).is_none()) => {
                    self.takes_null(branch)?
                }
                _ => true,
            };
            if takes {
                return Ok(true);
            }
        }
        Ok(!is_union)
    }
}

/// Whether a branch of the right type may be meant: it has all fields of the value, and its constants match.
fn fits(branch: &Value, value: &Value, budget: &mut Budget) -> Result<bool, Stop> {
    let (Some(fields), Some(properties)) =
        (value.as_object(), branch.get("properties").and_then(Value::as_object))
    else {
        return Ok(true);
    };
    for (name, value) in fields {
        let Some(property) = properties.get(name) else { return Ok(false) };
        if let Some(constant) = property.get("const")
            && !same(constant, value, budget)?
        {
            return Ok(false);
        }
        if let Some(choices) = property.get("enum").and_then(Value::as_array)
            && !value.is_null()
        {
            let mut is_choice = false;
            for choice in choices {
                is_choice = is_choice || same(choice, value, budget)?;
            }
            if !is_choice {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// `type` is a word or a list of words.
pub(super) fn mentions(kind: &Value, word: &str) -> bool {
    kind == word || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == word))
}

pub(super) fn is_required(schema: &Map<String, Value>, name: &str) -> bool {
    required(schema).iter().any(|key| key == name)
}

fn required(schema: &Map<String, Value>) -> &[Value] {
    schema.get("required").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_that_takes_too_many_steps_keeps_the_rest_of_its_nulls() {
        let names: Vec<String> = (0..4_000).map(|number| format!("n{number}")).collect();
        let schema = json!({"items": {"required": names, "properties": {"a": {"type": "string"}}}});
        let mut few = json!(vec![json!({"a": null}); 10]);
        assert!(drop_nulls(&schema, &mut few));
        assert_eq!(few, json!(vec![json!({}); 10]));
        let mut many = json!(vec![json!({"a": null}); 3_000]);
        assert!(drop_nulls(&schema, &mut many));
        assert_eq!((&many[0], &many[2_999]), (&json!({}), &json!({"a": null})));
    }
}
