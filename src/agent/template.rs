//! Prompts with parameters: `{name}` stands for a parameter, `{{` and `}}` for braces.

use serde_json::{Map, Value};

use crate::protocol::ask::Language;
use crate::schema::Checker;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateProblem {
    #[error("the template needs a value for `{0}`")]
    Missing(String),
    #[error("the template has no parameter `{name}`; it has {known}")]
    Unknown { name: String, known: String },
    #[error("the template speaks of `{{{0}}}`, which is none of its parameters")]
    Undeclared(String),
    #[error("the template has a brace too many at byte {0}; a brace itself is written twice")]
    Brace(usize),
}

/// Why a value does not fit the schema of its parameter, if it does not.
pub fn misfit(schema: &Value, value: &Value) -> Option<String> {
    match Checker::new(schema) {
        Ok(checker) => checker.problems(value).first().map(|problem| problem.describe(Language::English)),
        Err(problem) => Some(problem),
    }
}

/// Fills a template. Exactly its parameters have to be given. Strings are inserted as they are, other values
/// as JSON. An inserted value is not searched again, so it cannot introduce a parameter.
pub fn fill(
    prompt: &str,
    parameters: &[String],
    values: &Map<String, Value>,
) -> Result<String, TemplateProblem> {
    if let Some(name) = values.keys().find(|name| !parameters.contains(name)) {
        let known = if parameters.is_empty() { "none".to_owned() } else { parameters.join(", ") };
        return Err(TemplateProblem::Unknown { name: name.clone(), known });
    }
    if let Some(name) = parameters.iter().find(|name| !values.contains_key(*name)) {
        return Err(TemplateProblem::Missing(name.clone()));
    }
    let mut filled = String::with_capacity(prompt.len());
    let mut rest = prompt;
    while let Some(position) = rest.find(['{', '}']) {
        let at = prompt.len() - rest.len() + position;
        filled.push_str(&rest[..position]);
        rest = &rest[position..];
        if let Some(after) = rest.strip_prefix("{{") {
            filled.push('{');
            rest = after;
        } else if let Some(after) = rest.strip_prefix("}}") {
            filled.push('}');
            rest = after;
        } else {
            let inside = rest.strip_prefix('{').ok_or(TemplateProblem::Brace(at))?;
            let (name, after) = inside.split_once('}').ok_or(TemplateProblem::Brace(at))?;
            match values.get(name) {
                Some(Value::String(text)) => filled.push_str(text),
                Some(value) => filled.push_str(&value.to_string()),
                None => return Err(TemplateProblem::Undeclared(name.to_owned())),
            }
            rest = after;
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(prompt: &str, values: &Value) -> Result<String, TemplateProblem> {
        let parameters = ["city".to_owned(), "days".to_owned()];
        fill(prompt, &parameters, values.as_object().unwrap())
    }

    #[test]
    fn parameters_are_filled_in_once() {
        let values = json!({"city": "{days}", "days": 3});
        assert_eq!(
            filled("{days} days in {city}, as {{\"x\": {days}}}", &values).unwrap(),
            "3 days in {days}, as {\"x\": 3}"
        );
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let both = json!({"city": "Wien", "days": 3});
        assert_eq!(filled("{city}", &json!({"city": "Wien"})), Err(TemplateProblem::Missing("days".into())));
        let more = filled("{city}", &json!({"city": "Wien", "days": 3, "hours": 4}));
        assert_eq!(more.unwrap_err().to_string(), "the template has no parameter `hours`; it has city, days");
        assert_eq!(filled("{town}", &both), Err(TemplateProblem::Undeclared("town".into())));
        assert_eq!(filled("a {city", &both), Err(TemplateProblem::Brace(2)));
        assert_eq!(filled("a } b", &both), Err(TemplateProblem::Brace(2)));
    }
}
