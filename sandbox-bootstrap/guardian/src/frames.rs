//! Frames of the daemon, of which only the fields are parsed that the guardian needs, and what it answers.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Why a frame was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Malformed(String),
    Busy(&'static str),
    NoProcess(String),
    /// No descriptors are left for another process.
    NoDescriptors,
    /// The process that was to list the variables ended, or took too long.
    NotListed,
    NoWorker(&'static str),
    /// A line for a shell was given, and the image has none.
    NoShell,
    OutOfReach(String),
}

impl Refusal {
    pub fn no_process() -> Self {
        Self::NoProcess("the sandbox cannot start another process".into())
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Busy(_) => "busy",
            Self::NoProcess(_) => "no_process",
            Self::NoDescriptors => "no_descriptors",
            Self::NotListed => "not_listed",
            Self::NoWorker(_) => "no_worker",
            Self::NoShell => "no_shell",
            Self::OutOfReach(_) => "out_of_reach",
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Self::Malformed(message) | Self::NoProcess(message) | Self::OutOfReach(message) => message,
            Self::Busy(message) | Self::NoWorker(message) => message,
            Self::NoDescriptors => "no descriptors are left for another process",
            Self::NoShell => "the image has no shell (`/bin/sh`)",
            Self::NotListed => "the list took too long, or a variable ended the process when it was shown",
        }
    }
}

/// A frame whose fields are still text.
pub struct HostFrame<'a> {
    pub text: &'a str,
    pub kind: String,
    fields: BTreeMap<String, &'a RawValue>,
}

impl<'a> HostFrame<'a> {
    /// `None` if this is no JSON object with a type.
    pub fn parse(text: &'a str) -> Option<Self> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
        let kind = serde_json::from_str(fields.get("type")?.get()).ok()?;
        Some(Self { text, kind, fields })
    }

    fn malformed(&self, name: &str) -> Refusal {
        Refusal::Malformed(format!("{}: the field `{name}` is missing or has another type", self.kind))
    }

    /// A field as the daemon wrote it.
    pub fn raw(&self, name: &str) -> Result<&'a str, Refusal> {
        self.fields.get(name).map(|value| value.get()).ok_or_else(|| self.malformed(name))
    }

    pub fn get<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, Refusal> {
        serde_json::from_str(self.raw(name)?).map_err(|_| self.malformed(name))
    }

    /// The same for a field that may be missing or null.
    pub fn get_or_none<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Refusal> {
        if self.fields.contains_key(name) { self.get(name) } else { Ok(None) }
    }

    /// The numbers of a request and of a cell, if they are there, for a refusal.
    pub fn numbers(&self) -> (Option<u64>, Option<u64>) {
        (self.get("request").ok(), self.get("cell").ok())
    }
}

/// Where a lost cell has left the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// A cell in a copy cannot harm the main line.
    Kept,
    Lost,
    /// The state after this cell is back.
    Restored(u64),
}

impl After {
    pub fn to_json(self) -> Value {
        match self {
            Self::Kept => json!("kept"),
            Self::Lost => json!("lost"),
            Self::Restored(cell) => json!({"restored": cell}),
        }
    }
}

/// Bytes of a number that every worker can read: code of the session can set Python's limit on digits, to this at least.
const NUMBER_BYTES: usize = 640;

/// The values of all members of an object, in their order; also of those whose name comes again later.
struct Members<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some((_, value)) = map.next_entry::<String, &RawValue>()? {
                    values.push(value);
                }
                Ok(Members(values))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Whether these bytes are what repeats a cell: an object of plain values. User code may have forged them, and the
/// worker reads all of them, also a value that a later one of the same name replaces.
pub fn is_redo(written: &[u8]) -> bool {
    let Ok(Members(values)) = serde_json::from_slice(written) else { return false };
    let is_plain = |value: &str| match value.as_bytes().first() {
        Some(b'{' | b'[') => false,
        Some(b'"') => true,
        _ => value.len() <= NUMBER_BYTES,
    };
    values.iter().all(|value| is_plain(value.get()))
}

/// The names that a runner sent ahead, at most so many; `None` if user code wrote something else there.
pub fn parse_names(written: &[u8], most: usize) -> Option<Vec<String>> {
    let mut names: Vec<String> = serde_json::from_slice(written).ok()?;
    names.truncate(most);
    Some(names)
}

/// How far undo reaches, in words; `distances` are the numbers of cells back for which there are states, ascending.
pub fn describe_undo_distances(distances: &[u64]) -> String {
    let distances: Vec<u64> = distances.iter().copied().filter(|cells| *cells > 0).collect();
    let Some(last) = distances.last() else { return "there is nothing to undo".into() };
    if *last == distances.len() as u64 {
        return format!("undo reaches {last} {} back", if *last == 1 { "cell" } else { "cells" });
    }
    let listed: Vec<String> = distances.iter().map(ToString::to_string).collect();
    format!("undo reaches {last} cells back, and of those only: {}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{Noise, try_out};

    const TELLING: [&[u8]; 12] = [
        b"\"",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"\"type\":",
        b"\\u0000",
        b"1e999",
        b"18446744073709551616",
    ];

    /// JSON of an object, and what is nearly that. Names come twice, and values are nested.
    fn object(noise: &mut Noise) -> Vec<u8> {
        let (long, deep) = ("9".repeat(NUMBER_BYTES + 60), "[".repeat(1 + noise.below(300)));
        let names = ["type", "a", "cell", "\\u0061"];
        let values = ["1", "\"x\"", "null", "[1]", "{}", "-0.5", "\"[\"", long.as_str(), deep.as_str()];
        let members: Vec<String> = (0..noise.below(5))
            .map(|_| format!("\"{}\":{}", noise.one_of(&names), noise.one_of(&values)))
            .collect();
        let mut text = format!("{{{}}}", members.join(",")).into_bytes();
        let places = noise.below(3);
        noise.damage(&mut text, places, &TELLING);
        text
    }

    /// Whether something is nested in the outermost value, read byte by byte.
    fn is_nested(text: &[u8]) -> bool {
        let (mut depth, mut in_text, mut escaped) = (0, false, false);
        text.iter().any(|byte| {
            match (in_text, byte) {
                (true, _) if escaped => escaped = false,
                (true, b'\\') => escaped = true,
                (_, b'"') => in_text = !in_text,
                (false, b'{' | b'[') => depth += 1,
                _ => {}
            }
            depth > 1
        })
    }

    #[test]
    fn what_repeats_a_cell_is_never_nested_whatever_was_forged() {
        try_out(5000, |noise| {
            let text = object(noise);
            let is_plain = std::str::from_utf8(&text).is_ok() && !is_nested(&text);
            assert!(is_plain || !is_redo(&text), "{}", String::from_utf8_lossy(&text));
            let most = noise.below(3);
            assert!(parse_names(&text, most).is_none_or(|names| names.len() <= most));
        });
        let deep = format!("{{\"x\":{}{},\"x\":1}}", "[".repeat(5000), "]".repeat(5000));
        assert!(!is_redo(deep.as_bytes()));
    }

    #[test]
    fn a_frame_is_read_or_refused_and_its_fields_are_json() {
        try_out(5000, |noise| {
            let text = String::from_utf8_lossy(&object(noise)).into_owned();
            let Some(frame) = HostFrame::parse(&text) else { return };
            assert_eq!(frame.get::<String>("type").as_deref(), Ok(frame.kind.as_str()));
            for name in ["a", "cell"] {
                if let Ok(raw) = frame.raw(name) {
                    assert!(serde_json::from_str::<&RawValue>(raw).is_ok() && text.contains(raw), "{text}");
                }
            }
            assert_eq!(frame.numbers().0, None);
        });
    }

    #[test]
    fn only_an_object_with_a_type_is_a_frame() {
        for text in ["[]", "{}", "nonsense", r#"{"type": 3}"#, "", r#"{"type": "a"} {}"#] {
            assert!(HostFrame::parse(text).is_none(), "{text}");
        }
        let frame =
            HostFrame::parse(r#"{"type":"undo","request":18446744073709551615,"cells":"2","cell":-7}"#)
                .unwrap();
        assert_eq!((frame.kind.as_str(), frame.numbers()), ("undo", (Some(u64::MAX), None)));
        assert!(frame.get::<i64>("cells").is_err() && frame.get::<i64>("none").is_err());
    }

    #[test]
    fn what_repeats_a_cell_holds_plain_values_only() {
        for good in
            [r"{}", r#"{"a":1,"b":-0.5,"c":"[","d":null,"e":true}"#, r#"{"a":1180591620717411303424}"#]
        {
            assert!(is_redo(good.as_bytes()), "{good}");
        }
        for bad in
            ["", "{", "[]", r#"{"__builtins__":{}}"#, r#"{"x":[1]}"#, "1", r#"{"x":1}{}"#, r#"{"x": [1]}"#]
        {
            assert!(!is_redo(bad.as_bytes()), "{bad}");
        }
        assert!(!is_redo(b"\xff"));
        let number = |digits: usize| format!(r#"{{"x":{}}}"#, "9".repeat(digits));
        assert!(is_redo(number(NUMBER_BYTES).as_bytes()) && !is_redo(number(NUMBER_BYTES + 1).as_bytes()));
    }

    #[test]
    fn names_that_user_code_forged_are_not_believed() {
        assert_eq!(parse_names(br#"["a","b"]"#, 1), Some(vec!["a".to_owned()]));
        for bad in [&b"[1]"[..], b"{}", b"", &[b'['; 9000]] {
            assert_eq!(parse_names(bad, 9), None);
        }
    }

    #[test]
    fn the_reach_of_undo_in_words() {
        assert_eq!(describe_undo_distances(&[0]), "there is nothing to undo");
        assert_eq!(describe_undo_distances(&[0, 1]), "undo reaches 1 cell back");
        assert_eq!(describe_undo_distances(&[0, 1, 2]), "undo reaches 2 cells back");
        assert_eq!(describe_undo_distances(&[2, 3]), "undo reaches 3 cells back, and of those only: 2, 3");
    }
}
