//! Tests of checks of values against schemas.

mod hostile;
mod meaning;
mod wording;

use super::Checker;
use crate::protocol::ask::Language;
use serde_json::Value;

/// The problems of a value as a model is told them, one a line.
fn problems_in(schema: &Value, value: &Value, language: Language) -> String {
    let found = Checker::new(schema).unwrap().problems(value);
    found.iter().map(|problem| problem.describe(language)).collect::<Vec<_>>().join("\n")
}

fn problems(schema: &Value, value: &Value) -> String {
    problems_in(schema, value, Language::English)
}
