//! Labels of a session, by which its owner finds it again. The daemon only keeps and compares them.

use std::collections::BTreeMap;

use super::limits::{LABEL_CHARS, LABELS};
use super::text::quotable;

pub type Labels = BTreeMap<String, String>;

/// Characters that a key may have beside letters and digits.
const KEY_SIGNS: &str = "._/-";

/// Checks number, keys and values.
///
/// # Errors
/// Says what is wrong with the first label that cannot be kept, or that they are too many.
pub fn check(labels: &Labels) -> Result<(), String> {
    if labels.len() > LABELS {
        return Err(format!("a session has more than {LABELS} labels"));
    }
    labels.iter().try_for_each(|(key, value)| check_one(key, value))
}

fn check_one(key: &str, value: &str) -> Result<(), String> {
    let is_sound = |c: char| c.is_ascii_alphanumeric() || KEY_SIGNS.contains(c);
    if key.is_empty() || key.len() > LABEL_CHARS || !key.chars().all(is_sound) {
        return Err(format!(
            "`{}` is no key of a label: it has to consist of 1 to {LABEL_CHARS} letters, digits and `{KEY_SIGNS}`",
            quotable(key)
        ));
    }
    if value.chars().count() > LABEL_CHARS || value.chars().any(char::is_control) {
        return Err(format!(
            "the value of the label `{key}` has more than {LABEL_CHARS} characters, or one that cannot be shown"
        ));
    }
    Ok(())
}

/// Reads `KEY=VALUE`.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| "a label is `KEY=VALUE`".to_owned())?;
    check_one(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Whether a session with these labels has all the wanted ones.
pub fn has_all(labels: &Labels, wanted: &[(String, String)]) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_plain_key_and_a_value_that_can_be_shown() {
        assert_eq!(parse("team/a.b-c=x = y"), Ok(("team/a.b-c".into(), "x = y".into())));
        assert_eq!(parse("a="), Ok(("a".into(), String::new())));
        for wrong in ["", "a", "=b", "a b=c", "ä=b", "a=\u{1b}[31m", "a=b\nc"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&format!("{}=b", "a".repeat(LABEL_CHARS + 1))).is_err());
        assert!(parse(&format!("a={}", "b".repeat(LABEL_CHARS + 1))).is_err());
    }

    #[test]
    fn the_number_of_labels_is_bounded_and_all_wanted_ones_have_to_be_there() {
        let labels: Labels = (0..LABELS).map(|n| (format!("k{n}"), "v".to_owned())).collect();
        assert_eq!(check(&labels), Ok(()));
        let more = labels.clone().into_iter().chain([("one".into(), "more".into())]).collect();
        assert!(check(&more).is_err());
        let wanted = |pairs: &[&str]| pairs.iter().map(|pair| parse(pair).unwrap()).collect::<Vec<_>>();
        assert!(has_all(&labels, &wanted(&[])) && has_all(&labels, &wanted(&["k1=v", "k2=v"])));
        assert!(!has_all(&labels, &wanted(&["k1=v", "k2=w"])) && !has_all(&labels, &wanted(&["x=v"])));
    }
}
