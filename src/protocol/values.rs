//! JSON values that people, programs and models hand in: checks of their names, their nesting and size, and
//! that integers are not changed by parsing.

use super::text::quotable;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problem::{Code, Problem};

/// Keywords of Python.
pub const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// Bytes of memory of a value in a list or in an object, with the spare room of the list and a short text; then those
/// of a list and of an object with a single value.
const VALUE_BYTES: u64 = 96;
const LIST_BYTES: u64 = 192;
const OBJECT_BYTES: u64 = 768;

/// Digits of an integer that always fits into 64 bits.
const SHORT_DIGITS: usize = 18;

/// The values become variables, so their keys have to be names of Python variables.
pub fn check_names(values: &Map<String, Value>) -> Result<(), Problem> {
    match values.keys().find(|name| !is_variable_name(name)) {
        None => Ok(()),
        Some(bad) => Err(Problem::new(
            Code::BadRequest,
            format!("`{}` cannot be the name of a variable", quotable(bad)),
        )
        .hint(
            "use Python names: letters, digits and `_`, no keyword such as `class`, nothing like `__name__`",
        )),
    }
}

pub fn is_keyword(name: &str) -> bool {
    KEYWORDS.contains(&name)
}

/// Whether a text has the form of a name in Python; keywords have it, too.
pub fn is_identifier(text: &str) -> bool {
    text.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// As [`is_identifier`], for names that must be plain outside of Python, too.
pub fn is_ascii_identifier(text: &str) -> bool {
    text.is_ascii() && is_identifier(text)
}

fn is_variable_name(name: &str) -> bool {
    let is_pythons = is_keyword(name) || (name.starts_with("__") && name.ends_with("__"));
    is_identifier(name) && !is_pythons
}

/// Reads JSON. The error says what is wrong with it.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    check_integers(text)?;
    Ok(value)
}

/// Refuses integers of more than 64 bits, which parsing would silently turn into other numbers.
pub fn check_integers(json: &str) -> Result<(), String> {
    let in_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    between_strings(json).flat_map(|piece| piece.split(|c| !in_number(c))).try_for_each(fits)
}

/// The deepest nesting of JSON, found without parsing it.
pub fn depth(json: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for byte in between_strings(json).flat_map(str::bytes) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

/// Most bytes of memory that JSON takes as parsed values, in addition to its text, found without parsing it. A list of
/// small numbers takes many times its size as text, and a list of small objects even more.
pub fn parsed_bytes(json: &str) -> u64 {
    let of = |byte: u8| match byte {
        b',' => VALUE_BYTES,
        b'[' => LIST_BYTES,
        b'{' => OBJECT_BYTES,
        _ => 0,
    };
    let values = between_strings(json).map(|piece| piece.bytes().map(of).sum::<u64>());
    values.fold(json.len() as u64, u64::saturating_add)
}

/// The pieces of JSON outside of its strings.
fn between_strings(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(json);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let Some((piece, string)) = text.split_once('"') else { return Some(text) };
        rest = after_string(string);
        Some(piece)
    })
}

/// The text after a string whose opening quote is already cut off; none if the string has no end.
fn after_string(text: &str) -> Option<&str> {
    let mut from = 0;
    loop {
        let quote = from + text.get(from..)?.find('"')?;
        let before = text.as_bytes().get(from..quote)?;
        let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
        from = quote + 1;
        if backslashes % 2 == 0 {
            return text.get(from..);
        }
    }
}

fn fits(number: &str) -> Result<(), String> {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_integer = digits.len() > SHORT_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_integer || number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return Ok(());
    }
    Err(format!("the integer {} does not fit into 64 bits; write it as a string", quotable(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_json_takes_as_values_is_told_before_they_are_made() {
        let text = json!({"code": "[0,0,{}]\\".repeat(1000)}).to_string();
        let plain = parsed_bytes(&text);
        assert!((text.len() as u64..text.len() as u64 + 1000).contains(&plain), "{plain}");
        // The least that each piece takes: a value in its list, a list of one value, an object of one value.
        let value = size_of::<Value>() as u64;
        for (piece, least) in [("0,", value), ("\"\",", value), ("[0],", value * 5), ("{\"\":0},", 600)] {
            let bytes = parsed_bytes(&format!("[{}0]", piece.repeat(1000)));
            assert!(bytes >= 1000 * least, "{piece} {bytes}");
        }
        assert!(parsed_bytes("\"[[[[ never ended") < 100);
    }

    #[test]
    fn names_are_names_of_python() {
        let problem = |name: &str| check_names(&Map::from_iter([(name.to_owned(), json!(1))])).is_err();
        for good in ["x", "_", "größe", "数据", "a1", "classes", "match", "__x"] {
            assert!(!problem(good), "{good}");
        }
        for bad in ["", "1a", "a b", "a-b", "a.b", "class", "None", "yield", "__builtins__", "x\n", "a;b"] {
            assert!(problem(bad), "{bad}");
        }
    }

    #[test]
    fn integers_that_would_change_are_refused() {
        for good in [
            "18446744073709551615",
            "-9223372036854775808",
            "[1.5e300, 123456789012345678901234567890.0, 1e30]",
            r#"{"99999999999999999999999": "99999999999999999999999 \" 99999999999999999999999"}"#,
        ] {
            assert_eq!(from_json::<Value>(good).err(), None, "{good}");
        }
        for bad in [
            "18446744073709551616",
            "-9223372036854775809",
            r#"{"a": [1, {"b": 99999999999999999999999}]}"#,
            r#"["\\", 99999999999999999999999]"#,
        ] {
            let problem = from_json::<Value>(bad).unwrap_err();
            assert!(problem.contains("does not fit into 64 bits"), "{bad}: {problem}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC{0,40}") {
            let _ = check_integers(&text);
        }

        #[test]
        fn what_fits_stays_what_it_is(number: i64, other: u64, text in "\\PC{0,20}") {
            let value = json!({"a": [number, other], "b": text, "c": {text.as_str(): 1.5}});
            prop_assert_eq!(from_json::<Value>(&value.to_string()), Ok(value));
        }
    }
}
