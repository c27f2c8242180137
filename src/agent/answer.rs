//! Typed answers: finds the JSON in a model's final reply and checks it against the wanted schema.

use serde_json::Value;

use super::json;
use super::words::Words;
use crate::protocol::ask::AskSpec;
use crate::schema::Checker;

/// The most memory that the compiled schema of an ask's answer takes, found without compiling it.
#[must_use]
pub fn most_schema_bytes(spec: &AskSpec) -> u64 {
    spec.schema.as_ref().map_or(0, Checker::most_bytes)
}

/// The memory that the compiled schema of an ask's answer takes.
#[must_use]
pub fn schema_bytes(spec: &AskSpec) -> u64 {
    spec.schema.as_ref().and_then(|schema| Checker::new(schema).ok()).map_or(0, |checker| checker.bytes())
}

/// The answer as a value that fits the schema, or what is wrong with it. It tries, in this order: the value
/// that the dialect itself carried, JSON in the text, and the text as a string.
pub(super) fn typed_answer(
    checker: &Checker,
    text: &str,
    carried: Option<&Value>,
    words: Words,
) -> Result<Value, Vec<String>> {
    let fits = |value: &Value| checker.fits(value);
    if let Some(value) = carried.filter(|value| fits(value)) {
        return Ok(value.clone());
    }
    match json::find(text, fits) {
        Ok(value) => Ok(value),
        Err(problem) => {
            let as_text = Value::String(text.trim().to_owned());
            if fits(&as_text) {
                return Ok(as_text);
            }
            // The explanation refers to the value that the model most likely meant as its answer.
            let meant = carried.cloned().or_else(|| json::find(text, |_| true).ok());
            Err(match meant {
                Some(value) => words.problems(&checker.problems(&value)),
                None => vec![words.no_object(&problem)],
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::ask::Language;

    fn answer(schema: Value, text: &str) -> Result<Value, Vec<String>> {
        typed_answer(&Checker::new(&schema).unwrap(), text, None, Words(Language::English))
    }

    #[test]
    fn the_answer_is_found_in_what_surrounds_it() {
        let point = json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}});
        assert_eq!(
            answer(point.clone(), "I first thought {\"x\": \"?\"}, but:\n```json\n{\"x\": 3,}\n```"),
            Ok(json!({"x": 3}))
        );
        assert_eq!(answer(json!({"type": "integer"}), " 2 "), Ok(json!(2)));
        assert_eq!(answer(json!({"type": "string"}), "two"), Ok(json!("two")));
        assert_eq!(answer(json!({"type": "string"}), "\"two\""), Ok(json!("two")));
        assert_eq!(
            answer(point.clone(), "{\"x\": \"3\"}"),
            Err(vec!["`/x`: expected integer, got \"3\"".to_owned()])
        );
        assert!(answer(point, "three").is_err());
    }
}
