//! Asks by a template of the configuration: its parameters are checked, filled in, and become variables of the code.

use serde_json::{Map, Value};

use crate::agent;
use crate::config::{Settings, Template};
use crate::protocol::ask::{AskLimitsWanted, NewAsk};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;

/// The template that an ask names.
pub(super) fn find<'a>(new: &NewAsk, settings: &'a Settings) -> Result<Option<&'a Template>, Problem> {
    let Some(name) = &new.template else {
        return match new.parameters.keys().next() {
            None => Ok(None),
            Some(_) => Err(bad("parameters are for templates").hint("name one in `template`")),
        };
    };
    if !new.text.is_empty() {
        return Err(bad("an ask has a text or a template, not both"));
    }
    settings.templates.get(name).map(Some).ok_or_else(|| {
        let known: Vec<&str> = settings.templates.keys().map(String::as_str).collect();
        bad(format!("there is no template `{}`", quotable(name))).hint(match known.as_slice() {
            [] => format!("write it into the configuration as `[template.{}]`", quotable(name)),
            known => format!("known are: {}", known.join(", ")),
        })
    })
}

/// The text of the ask, and the values of all parameters.
pub(super) fn filled(new: &NewAsk, template: &Template) -> Result<(String, Map<String, Value>), Problem> {
    let wrong = |problem: String| bad(problem).hint(usage(new, template));
    let mut values = new.parameters.clone();
    for (name, parameter) in &template.parameters {
        match (values.get_mut(name), &parameter.default) {
            (None, Some(default)) => drop(values.insert(name.clone(), default.clone())),
            // A command line cannot tell the text `3` from the number.
            (Some(value), _) if parameter.schema["type"] == "string" && !value.is_string() => {
                *value = Value::String(value.to_string());
            }
            _ => {}
        }
        if let Some(problem) = values.get(name).and_then(|value| agent::misfit(&parameter.schema, value)) {
            return Err(wrong(format!("the parameter `{name}` does not fit: {problem}")));
        }
    }
    let names: Vec<String> = template.parameters.keys().cloned().collect();
    let text = agent::fill_template(&template.prompt, &names, &values)
        .map_err(|problem| wrong(problem.to_string()))?;
    Ok((text, values))
}

/// The limits that an ask names, and for the others those of its template.
pub(super) fn limits(wanted: AskLimitsWanted, template: Option<&Template>) -> AskLimitsWanted {
    let usual = template.map(|template| template.limits).unwrap_or_default();
    AskLimitsWanted {
        steps: wanted.steps.or(usual.steps),
        failures: wanted.failures.or(usual.failures),
        tokens: wanted.tokens.or(usual.tokens),
        seconds: wanted.seconds.or(usual.seconds),
    }
}

/// The command line that asks for a template.
fn usage(new: &NewAsk, template: &Template) -> String {
    let name = new.template.as_deref().map(quotable).unwrap_or_default();
    let required = template.parameters.iter().filter(|(_, parameter)| parameter.default.is_none());
    let parameters = required.map(|(name, _)| format!("{name}=…"));
    let words: Vec<String> = std::iter::once(format!("@{name}")).chain(parameters).collect();
    format!("it is asked for as `belljar ask {}`", words.join(" "))
}

fn bad(message: impl Into<String>) -> Problem {
    Problem::new(Code::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use serde_json::json;

    #[test]
    fn parameters_are_checked_completed_and_filled_in() {
        let text = "[template.sum]\nprompt = \"Sum {n} rows of {file}\"\n\
                    parameters = { n = \"int = 3\", file = \"str\", rows = \"list = []\" }\n";
        let settings = load_text(std::path::Path::new("x"), text).unwrap().settings;
        let asked = |parameters: Value| {
            let parameters = parameters.as_object().cloned().unwrap();
            let new = NewAsk { template: Some("sum".into()), parameters, ..NewAsk::default() };
            filled(&new, find(&new, &settings)?.unwrap())
        };
        let (text, values) = asked(json!({"file": 2026})).unwrap();
        assert_eq!(text, "Sum 3 rows of 2026");
        assert_eq!(Value::Object(values), json!({"file": "2026", "n": 3, "rows": []}));
        let refused = asked(json!({"file": "a", "n": "many"})).unwrap_err();
        assert!(refused.message.contains("`n` does not fit"), "{refused:?}");
        assert_eq!(refused.hint.as_deref(), Some("it is asked for as `belljar ask @sum file=…`"));
        assert!(asked(json!({})).unwrap_err().message.contains("needs a value for `file`"));
        assert!(asked(json!({"file": "a", "x": 1})).unwrap_err().message.contains("no parameter `x`"));
    }
}
