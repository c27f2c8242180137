//! A checked schema, against which many values can be held.

use serde_json::Value;

use super::evaluate::Check;
use super::patterns::Patterns;
use super::problem::Problem;
use super::well_formed;

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
