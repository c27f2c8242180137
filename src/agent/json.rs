//! Reads JSON as models write it: in fences, with prose around it, with trailing commas and with line breaks
//! inside of strings.

use serde_json::Value;

use crate::protocol::values;

/// The most positions that are tried as the start of JSON; each costs one pass over the text.
const STARTS: usize = 64;

/// The first JSON value in the text that `wanted` accepts. The error is a parser's error message for the
/// text.
pub(super) fn find(text: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, String> {
    let text = text.trim();
    let mut problem = match values::from_json::<Value>(text) {
        Ok(value) if wanted(&value) => return Ok(value),
        Ok(_) => "it is JSON, but not what was asked for".to_owned(),
        Err(problem) => problem,
    };
    let mut first = true;
    let starts = text.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'{' | b'['));
    for (start, _) in starts.take(STARTS) {
        let Some(piece) = balanced(&text[start..]) else { continue };
        match values::from_json::<Value>(&loosened(piece)) {
            Ok(value) if wanted(&value) => return Ok(value),
            // The error of the first JSON-like piece is more helpful than an error about the prose around it.
            Err(why) if first => problem = why,
            Ok(_) | Err(_) => {}
        }
        first = false;
    }
    Err(problem)
}

/// The text from an opening bracket to the matching closing one.
fn balanced(text: &str) -> Option<&str> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(&text[..=index]);
                }
            }
            _ => {}
        }
    }
    None
}

/// The text without trailing commas, and with control characters in strings escaped.
fn loosened(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for (index, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if in_string && c == '\\' {
            escaped = true;
        } else if c == '"' {
            in_string = !in_string;
        } else if in_string && c.is_ascii_control() {
            let escape = format!("\\u{:04x}", u32::from(c));
            out.push_str(&escape);
            continue;
        } else if !in_string && c == ',' {
            let rest = text[index + 1..].trim_start();
            if rest.starts_with(['}', ']']) {
                continue;
            }
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object(text: &str) -> Result<Value, String> {
        find(text, Value::is_object)
    }

    #[test]
    fn json_is_found_wherever_a_model_puts_it() {
        let wanted = json!({"a": [1, 2], "b": "x}"});
        for text in [
            r#"{"a": [1, 2], "b": "x}"}"#,
            "```json\n{\"a\": [1, 2], \"b\": \"x}\"}\n```",
            r#"Here {it} is: {"a": [1, 2,], "b": "x}",} I hope."#,
            r#"{"nested": 1 {"a": [1, 2], "b": "x}"}"#,
        ] {
            assert_eq!(object(text), Ok(wanted.clone()), "{text}");
        }
        assert_eq!(object("{\"code\": \"a = 1\nb = 2\"}"), Ok(json!({"code": "a = 1\nb = 2"})));
        assert_eq!(find("the list: [1, 2,]", Value::is_array), Ok(json!([1, 2])));
    }

    #[test]
    fn what_is_no_json_is_explained() {
        assert!(object("").unwrap_err().contains("EOF"));
        assert!(object("[1]").unwrap_err().contains("not what was asked for"));
        assert!(object("{'a': 1}").unwrap_err().contains("key must be a string"), "{:?}", object("{'a': 1}"));
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in "[{}\\[\\],:\"a1\\\\ \nä]{0,200}") {
            let _ = object(&text);
        }
    }
}
