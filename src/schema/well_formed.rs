//! Checks whether a foreign schema may be used: it is small, refers to nothing outside itself, and every keyword in it
//! that restricts values is one that values can be held against. Each part of a schema is looked at once, without
//! recursion, so that no schema can exhaust the stack.

use serde_json::{Map, Value};
use std::collections::HashSet;

use super::circular_references::{self, Step};
use super::equality::count;
use super::keywords::{Form, form};
use super::patterns::Patterns;
use super::problem::{excerpt, short_json};
use super::references::target;
use crate::protocol::limits::{JSON_DEPTH, SCHEMA_BYTES, SCHEMA_PARTS};

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
/// Versions of JSON Schema in which keywords have another meaning.
const OLD_VERSIONS: [&str; 2] = ["draft-03", "draft-04"];

/// Checks a schema and compiles its patterns.
pub(super) fn check(schema: &Value) -> Result<Patterns, String> {
    if !schema.is_object() {
        return Err("it is no JSON Schema: it has to be an object".to_owned());
    }
    check_size(schema)?;
    let mut walk = Walk {
        root: schema,
        open: vec![schema],
        seen: HashSet::new(),
        steps: Vec::new(),
        patterns: Patterns::default(),
    };
    while let Some(next) = walk.open.pop() {
        // A schema that several references lead to is checked once.
        if walk.seen.insert(std::ptr::from_ref(next)) {
            walk.schema(next)?;
        }
    }
    match circular_references::find(&walk.steps) {
        Some(reference) => {
            Err(format!("`$ref` {:?} leads back to itself without going into a value", excerpt(reference)))
        }
        None => Ok(walk.patterns),
    }
}

fn check_size(schema: &Value) -> Result<(), String> {
    let (mut open, mut parts) = (vec![(schema, 1)], 0_usize);
    while let Some((value, depth)) = open.pop() {
        parts += 1;
        if depth > JSON_DEPTH {
            return Err("the schema is nested too deeply".to_owned());
        }
        if parts > SCHEMA_PARTS {
            return Err(format!("the schema has more than {SCHEMA_PARTS} parts"));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|part| (part, depth + 1))),
            _ => {}
        }
    }
    if schema.to_string().len() > SCHEMA_BYTES {
        return Err(format!("the schema has more than {SCHEMA_BYTES} bytes"));
    }
    Ok(())
}

struct Walk<'a> {
    root: &'a Value,
    /// Schemas that are still to be checked.
    open: Vec<&'a Value>,
    seen: HashSet<*const Value>,
    /// The steps between schemas that are held against the same value.
    steps: Vec<Step<'a>>,
    patterns: Patterns,
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value) -> Result<(), String> {
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(keywords) => {
                keywords.iter().try_for_each(|(keyword, rule)| self.keyword(schema, keywords, keyword, rule))
            }
            _ => Err(format!(
                "it is no JSON Schema: a schema has to be an object or a boolean, and not {}",
                short_json(schema)
            )),
        }
    }

    fn keyword(
        &mut self,
        schema: &'a Value,
        keywords: &Map<String, Value>,
        keyword: &str,
        rule: &'a Value,
    ) -> Result<(), String> {
        let form = form(keyword);
        let known = self.open.len();
        let is_well_formed = match (form, rule) {
            (Form::Version, Value::String(version)) => return self.version(version),
            (Form::Reference, Value::String(reference)) => {
                let Some(target) = target(self.root, reference) else {
                    return Err(format!("`$ref` {:?} leads nowhere in this schema", excerpt(reference)));
                };
                self.open.push(target);
                true
            }
            (Form::Pattern, Value::String(pattern)) => {
                self.patterns.add(pattern)?;
                true
            }
            (Form::Schema | Form::Items, Value::Object(_) | Value::Bool(_)) => {
                self.open.push(rule);
                true
            }
            (Form::Items, Value::Array(schemas)) => {
                self.open.extend(schemas);
                !keywords.contains_key("prefixItems")
            }
            (Form::Schemas, Value::Array(schemas)) => {
                self.open.extend(schemas);
                !schemas.is_empty()
            }
            (Form::SchemasByName, Value::Object(schemas)) => {
                self.open.extend(schemas.values());
                true
            }
            (Form::SchemasByPattern, Value::Object(schemas)) => {
                schemas.keys().try_for_each(|pattern| self.patterns.add(pattern))?;
                self.open.extend(schemas.values());
                true
            }
            (Form::Dependencies, Value::Object(all)) => {
                self.open.extend(all.values().filter(|one| !one.is_array()));
                all.values().all(|one| !one.is_array() || is_names(one))
            }
            (Form::NamesByName, Value::Object(all)) => all.values().all(is_names),
            (Form::Names, rule) => is_names(rule),
            (Form::Types, Value::Array(types)) => !types.is_empty() && types.iter().all(is_type),
            (Form::Types, rule) => is_type(rule),
            (Form::Anything, _)
            | (Form::Unevaluated, Value::Bool(true))
            | (Form::List, Value::Array(_))
            | (Form::Number, Value::Number(_))
            | (Form::Boolean, Value::Bool(_)) => true,
            (Form::Unsupported | Form::Unevaluated, _) => {
                return Err(format!("`{keyword}` is not supported in a schema"));
            }
            (Form::Count, rule) => count(rule).is_some(),
            (Form::PositiveNumber, rule) => rule.as_f64().is_some_and(|number| number > 0.0),
            _ => false,
        };
        if is_well_formed {
            self.note_steps(schema, keyword, rule, known);
            return Ok(());
        }
        Err(format!(
            "it is no JSON Schema: `{keyword}` has to be {}, and not {}",
            form.words(),
            short_json(rule)
        ))
    }

    /// Notes the steps from a schema to those that its keyword added to the open ones.
    fn note_steps(&mut self, schema: &Value, keyword: &str, rule: &'a Value, known: usize) {
        if circular_references::stays_at_the_value(keyword) {
            let reference = if keyword == "$ref" { rule.as_str() } else { None };
            let from = std::ptr::from_ref(schema);
            let added = self.open.iter().skip(known);
            self.steps.extend(added.map(|to| Step { from, to: std::ptr::from_ref(*to), reference }));
        }
    }

    fn version(&self, version: &str) -> Result<(), String> {
        let is_of_the_whole = self.root.get("$schema").is_some_and(|whole| whole == version);
        if !is_of_the_whole {
            return Err(
                "`$schema` below the top of a schema is not supported if it is another one".to_owned()
            );
        }
        if OLD_VERSIONS.iter().any(|old| version.contains(old)) {
            let version = excerpt(version);
            return Err(format!("`$schema` {version:?} is not supported; draft 6 or a later one is"));
        }
        Ok(())
    }
}

fn is_names(rule: &Value) -> bool {
    rule.as_array().is_some_and(|names| names.iter().all(Value::is_string))
}

fn is_type(rule: &Value) -> bool {
    rule.as_str().is_some_and(|name| TYPES.contains(&name))
}
