//! Numbers and equality as JSON Schema means them: 1 and 1.0 are the same, and integers are compared exactly, also
//! where a float could not tell them apart.

use serde_json::{Number, Value};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt::Write as _;

use super::budget::{Budget, Stop};

/// Floats below this are exact as integers of 128 bits.
const LARGEST_INTEGRAL: f64 = 1e38;
/// How far from an integer the quotient of a float and its divisor may be.
const TOLERANCE: f64 = 1e-9;
/// Steps that it costs to remember an item, in addition to its parts.
const UNIQUE_STEPS: u64 = 4;

/// The number as an integer, if it is one.
pub(super) fn integral(number: &Number) -> Option<i128> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    number.as_f64().filter(|float| float.fract() == 0.0).and_then(truncated)
}

/// The integer part of a float; none if it is too large.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn truncated(float: f64) -> Option<i128> {
    (float.abs() < LARGEST_INTEGRAL).then_some(float.trunc() as i128)
}

/// A count such as `maxLength`.
pub(super) fn count(rule: &Value) -> Option<u64> {
    let Value::Number(number) = rule else { return None };
    // A count that is larger than any length restricts nothing.
    integral(number).filter(|count| *count >= 0).map(|count| u64::try_from(count).unwrap_or(u64::MAX))
}

pub(super) fn compare(a: &Number, b: &Number) -> Ordering {
    match (integral(a), integral(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => compare_mixed(a, float(b)),
        (None, Some(b)) => compare_mixed(b, float(a)).reverse(),
        (None, None) => float(a).total_cmp(&float(b)),
    }
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or_default()
}

/// Compares an integer with a float that is none, or is too large for one.
fn compare_mixed(integer: i128, float: f64) -> Ordering {
    match truncated(float) {
        Some(whole) => integer.cmp(&whole).then_with(|| 0.0_f64.total_cmp(&float.fract())),
        None => 0.0_f64.total_cmp(&float),
    }
}

pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    if let (Some(number), Some(of)) = (integral(number), integral(of)) {
        return of != 0 && number % of == 0;
    }
    let (number, of) = (float(number), float(of));
    let quotient = number / of;
    let whole = quotient.round();
    if !quotient.is_finite() {
        return number % of == 0.0;
    }
    (quotient - whole).abs() < TOLERANCE && (whole != 0.0 || number == 0.0)
}

/// Whether two values are equal. The recursion is as deep as the shallower of them, and one of them is part of a schema.
pub(super) fn same(a: &Value, b: &Value, budget: &mut Budget) -> Result<bool, Stop> {
    budget.charge(1)?;
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Ok(compare(a, b) == Ordering::Equal),
        (Value::String(a), Value::String(b)) => {
            if a.len() == b.len() {
                budget.charge_text(a)?;
            }
            Ok(a == b)
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !same(a, b, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Object(a), Value::Object(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (name, a) in a {
                budget.charge_text(name)?;
                let Some(b) = b.get(name) else { return Ok(false) };
                if !same(a, b, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (a, b) => Ok(a == b),
    }
}

/// Whether no two items are equal: equal values have the same canonical text.
pub(super) fn are_unique(items: &[Value], budget: &mut Budget) -> Result<bool, Stop> {
    let mut seen = HashSet::new();
    for item in items {
        budget.charge(UNIQUE_STEPS)?;
        let mut text = String::new();
        write_canonical(item, &mut text, budget)?;
        if !seen.insert(text) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn write_canonical(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Stop> {
    budget.charge_part(value)?;
    match value {
        Value::Number(number) => {
            // Writing into a text cannot fail.
            let _ = match integral(number) {
                Some(integer) => write!(out, "{integer}"),
                None => write!(out, "{:e}", float(number)),
            };
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out, budget)?;
                out.push(',');
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            for (name, field) in sorted {
                budget.charge_text(name)?;
                write_text(name, out);
                write_canonical(field, out, budget)?;
                out.push(',');
            }
            out.push('}');
        }
        Value::String(text) => write_text(text, out),
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// The length comes first, so that no text can look like the end of itself and the beginning of another.
fn write_text(text: &str, out: &mut String) {
    let _ = write!(out, "\"{}:", text.len());
    out.push_str(text);
}
