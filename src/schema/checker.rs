//! A checked schema, against which many values can be held.

use serde_json::Value;

use super::evaluate::Check;
use super::patterns::Patterns;
use super::problem::Problem;
use super::well_formed;
use crate::protocol::values::parsed_bytes;

#[derive(Debug)]
pub struct Checker {
    schema: Value,
    patterns: Patterns,
}

/// Checks whether values can be held against a schema.
pub fn check(schema: &Value) -> Result<(), String> {
    well_formed::check(schema).map(|_| ())
}

impl Checker {
    /// Prepares a schema. Nothing is fetched, because all references must lead into the schema itself.
    pub fn new(schema: &Value) -> Result<Self, String> {
        Ok(Self { patterns: well_formed::check(schema)?, schema: schema.clone() })
    }

    /// The most memory that the checker of a schema takes, found without making one.
    #[must_use]
    pub fn most_bytes(schema: &Value) -> u64 {
        let text = schema.to_string();
        // The names of both keywords with patterns begin like this.
        let patterns = if text.contains("\"pattern") { Patterns::MOST_BYTES } else { 0 };
        parsed_bytes(&text).saturating_add(patterns)
    }

    /// The memory that this checker takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        parsed_bytes(&self.schema.to_string()).saturating_add(self.patterns.memory_bytes())
    }

    #[must_use]
    pub fn fits(&self, value: &Value) -> bool {
        Check::new(&self.schema, &self.patterns).fits(value)
    }

    /// The problems of a value; empty if it fits.
    #[must_use]
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        Check::new(&self.schema, &self.patterns).problems(value)
    }
}
