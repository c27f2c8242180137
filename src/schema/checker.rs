//! A checked schema, against which many values can be held.

use serde_json::{Map, Value};

use super::arguments::normalise;
use super::evaluate::Check;
use super::patterns::Patterns;
use super::problem::Problem;
use super::well_formed;
use crate::offload::offload_if;
use crate::protocol::values::parsed_bytes;

/// Steps of a check that may be done on a thread which all users share; they take about a millisecond.
const SHORT_STEPS: u64 = 100_000;
/// The names of both keywords with patterns begin like this.
const PATTERN: &str = "pattern";
/// Keywords with which a check may visit a part of a value more often than the schema has parts.
const REPEATING: [&str; 2] = ["$ref", "uniqueItems"];
/// Bytes of a text that count as a part of its own.
const TEXT_BYTES_A_PART: usize = 32;

#[derive(Debug)]
pub struct Checker {
    schema: Value,
    patterns: Patterns,
    /// The most steps that one part of a value costs; none if that is not known beforehand.
    part_steps: Option<u64>,
}

/// Checks whether values can be held against a schema.
pub fn check(schema: &Value) -> Result<(), String> {
    compiled(schema).map(drop)
}

impl Checker {
    /// Prepares a schema. Nothing is fetched, because all references must lead into the schema itself.
    pub fn new(schema: &Value) -> Result<Self, String> {
        let patterns = compiled(schema)?;
        let repeats = mentions(schema, |name| name.starts_with(PATTERN) || REPEATING.contains(&name));
        let part_steps = (!repeats).then(|| parts(schema, u64::MAX));
        Ok(Self { patterns, schema: schema.clone(), part_steps })
    }

    /// The most memory that the checker of a schema takes, found without making one.
    #[must_use]
    pub fn most_bytes(schema: &Value) -> u64 {
        let patterns = if has_patterns(schema) { Patterns::MOST_BYTES } else { 0 };
        parsed_bytes(&schema.to_string()).saturating_add(patterns)
    }

    /// The memory that this checker takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        parsed_bytes(&self.schema.to_string()).saturating_add(self.patterns.memory_bytes())
    }

    #[must_use]
    pub fn fits(&self, value: &Value) -> bool {
        offload_if(self.is_long(value), || Check::new(&self.schema, &self.patterns).fits(value))
    }

    /// The problems of a value; empty if it fits.
    #[must_use]
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        offload_if(self.is_long(value), || Check::new(&self.schema, &self.patterns).problems(value))
    }

    /// The arguments of a call as the schema wants them: aliases of parameters are renamed, and nulls dropped that stand
    /// for an omitted optional value, because providers with a strict mode want every property to be written.
    #[must_use]
    pub fn normalised(&self, arguments: Map<String, Value>) -> Value {
        let mut arguments = Value::Object(arguments);
        offload_if(self.is_long(&arguments), || normalise(&self.schema, &mut arguments));
        arguments
    }

    /// Whether work on a value may need many steps.
    fn is_long(&self, value: &Value) -> bool {
        let Some(part_steps) = self.part_steps else { return true };
        let most = SHORT_STEPS / part_steps;
        parts(value, most) >= most
    }
}

/// Checks a schema and compiles its patterns, which takes long.
fn compiled(schema: &Value) -> Result<Patterns, String> {
    offload_if(has_patterns(schema), || well_formed::check(schema))
}

fn has_patterns(schema: &Value) -> bool {
    mentions(schema, |name| name.starts_with(PATTERN))
}

/// Whether a schema has such a name, as a keyword or otherwise.
fn mentions(schema: &Value, is_meant: impl Fn(&str) -> bool) -> bool {
    let mut open = vec![schema];
    while let Some(next) = open.pop() {
        match next {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) if fields.keys().any(|name| is_meant(name)) => return true,
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    false
}

/// Counts the parts of a value, up to about `most`; never none.
fn parts(value: &Value, most: u64) -> u64 {
    let of_text = |text: &str| (text.len() / TEXT_BYTES_A_PART) as u64;
    let (mut open, mut count) = (vec![value], 0);
    while let Some(next) = open.pop() {
        count += 1;
        match next {
            Value::String(text) => count += of_text(text),
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                count += fields.keys().map(|name| of_text(name)).sum::<u64>();
                open.extend(fields.values());
            }
            _ => {}
        }
        if count >= most {
            break;
        }
    }
    count
}
