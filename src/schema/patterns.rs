//! `pattern` in schemas. Matching a text costs the size of the pattern times the length of the text, and untrusted
//! clients and models supply both. So both are bounded: the pattern when it is compiled, and the texts of one check by
//! a budget that all patterns share. A check that exceeds the budget fails as a whole: under a `not`, a text that could
//! not be matched would otherwise pass.

use jsonschema::paths::{LazyLocation, Location};
use jsonschema::{Keyword, PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value, json};
use std::cell::Cell;

use super::problem::excerpt;
use crate::protocol::limits::{PATTERN_BYTES, PATTERN_STEPS, PATTERN_TEXT_BYTES};

/// The compiled size up to which a pattern is small; each byte of text costs `TIMES_SMALLER` times less with a small
/// pattern.
const SMALL_BYTES: usize = PATTERN_BYTES / TIMES_SMALLER;
const TIMES_SMALLER: usize = 128;
/// The budget of one check: one byte of text costs 1 with a small pattern.
const BUDGET: usize = PATTERN_TEXT_BYTES * TIMES_SMALLER;
/// The fixed cost of each text, in addition to its bytes.
const TEXT_COST: usize = 16;

thread_local! {
    /// The rest of the budget of the current check.
    static LEFT: Cell<usize> = const { Cell::new(0) };
    static RAN_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a check on this thread; `None` if it exceeded the budget for patterns.
pub(super) fn within_budget<T>(check: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(BUDGET);
    RAN_OUT.set(false);
    let outcome = check();
    (!RAN_OUT.get()).then_some(outcome)
}

pub(super) fn options() -> PatternOptions<jsonschema::FancyRegex> {
    options_of(PATTERN_BYTES)
}

fn options_of(bytes: usize) -> PatternOptions<jsonschema::FancyRegex> {
    PatternOptions::fancy_regex().backtrack_limit(PATTERN_STEPS).size_limit(bytes).dfa_size_limit(bytes)
}

fn compiled(pattern: &Value, bytes: usize) -> Result<Validator, String> {
    let schema = json!({ "pattern": pattern });
    let built = jsonschema::options().with_pattern_options(options_of(bytes)).build(&schema);
    built.map_err(|error| error.to_string())
}

/// Whether the pattern is small enough to match every field name of a large value.
pub(super) fn is_small(pattern: &str) -> bool {
    compiled(&json!(pattern), SMALL_BYTES).is_ok()
}

/// Replaces the validator's own `pattern`.
#[expect(clippy::result_large_err, reason = "the validator's own type")]
pub(super) fn keyword<'a>(
    _parent: &'a Map<String, Value>,
    pattern: &'a Value,
    path: Location,
) -> Result<Box<dyn Keyword>, ValidationError<'a>> {
    let small = compiled(pattern, SMALL_BYTES).map(|validator| (validator, 1));
    match small.or_else(|_| compiled(pattern, PATTERN_BYTES).map(|validator| (validator, TIMES_SMALLER))) {
        Ok((validator, byte_cost)) => {
            Ok(Box::new(Pattern { validator, byte_cost, source: excerpt(&pattern.to_string()), path }))
        }
        Err(error) => Err(ValidationError::custom(path, Location::new(), pattern, error)),
    }
}

struct Pattern {
    validator: Validator,
    /// The cost of each byte of text.
    byte_cost: usize,
    source: String,
    path: Location,
}

impl Pattern {
    /// `None` if the budget does not suffice for the text.
    fn matches(&self, instance: &Value) -> Option<bool> {
        let Value::String(text) = instance else { return Some(true) };
        let left =
            LEFT.get().checked_sub(text.len().saturating_mul(self.byte_cost).saturating_add(TEXT_COST));
        LEFT.set(left.unwrap_or_default());
        if left.is_none() {
            RAN_OUT.set(true);
            return None;
        }
        Some(self.validator.is_valid(instance))
    }
}

impl Keyword for Pattern {
    fn validate<'i>(&self, instance: &'i Value, location: &LazyLocation) -> Result<(), ValidationError<'i>> {
        let message = match self.matches(instance) {
            Some(true) => return Ok(()),
            Some(false) => {
                format!(
                    "expected a text that matches {}, got {}",
                    self.source,
                    excerpt(&instance.to_string())
                )
            }
            // The message is not used: the caller reports that the budget is exceeded instead of any errors.
            None => String::new(),
        };
        Err(ValidationError::custom(self.path.clone(), location.into(), instance, message))
    }

    fn is_valid(&self, instance: &Value) -> bool {
        self.matches(instance) == Some(true)
    }
}
