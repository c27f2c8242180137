//! Describes what is wrong with a value so that a model can act on it: the place, what is expected there, and what is
//! there.

use serde_json::Value;
use std::io::{self, Write};

use crate::protocol::ask::Language;

/// The most characters quoted from a value or from a list of allowed ones.
const QUOTED_CHARS: usize = 160;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A JSON pointer; empty for the whole value.
    path: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Missing,
    Unexpected,
    OtherThan {
        expected: String,
        actual: String,
    },
    NoneOf {
        options: String,
        actual: String,
    },
    /// A message of its own, for rare rules.
    Other(String),
}

impl Problem {
    #[must_use]
    pub fn missing(name: &str) -> Self {
        Self { path: format!("/{name}"), kind: Kind::Missing }
    }

    /// A problem with the value as a whole.
    pub(super) fn of_all(why: String) -> Self {
        Self { path: String::new(), kind: Kind::Other(why) }
    }

    pub(super) fn other(path: &str, words: String) -> Self {
        Self { path: path.to_owned(), kind: Kind::Other(words) }
    }

    pub(super) fn missing_below(path: &str, name: &str) -> Self {
        Self { path: format!("{path}/{}", excerpt(name)), kind: Kind::Missing }
    }

    pub(super) fn unexpected(path: &str, name: &str) -> Self {
        Self { path: format!("{path}/{}", excerpt(name)), kind: Kind::Unexpected }
    }

    pub(super) fn other_than(path: &str, expected: String, actual: &Value) -> Self {
        Self { path: path.to_owned(), kind: Kind::OtherThan { expected, actual: short_json(actual) } }
    }

    pub(super) fn none_of(path: &str, options: &Value, actual: &Value) -> Self {
        Self {
            path: path.to_owned(),
            kind: Kind::NoneOf { options: short_json(options), actual: short_json(actual) },
        }
    }

    #[must_use]
    pub fn describe(&self, language: Language) -> String {
        let chinese = language == Language::Chinese;
        let path = match (self.path.as_str(), chinese) {
            ("", false) => "the whole".to_owned(),
            ("", true) => "整体".to_owned(),
            (path, _) => format!("`{}`", excerpt(path)),
        };
        match (&self.kind, chinese) {
            (Kind::Missing, false) => format!("{path}: is required, but missing"),
            (Kind::Missing, true) => format!("{path}：缺少必需的字段"),
            (Kind::Unexpected, false) => format!("{path}: there is no such field"),
            (Kind::Unexpected, true) => format!("{path}：没有这样的字段"),
            (Kind::OtherThan { expected, actual }, false) => {
                format!("{path}: expected {expected}, got {actual}")
            }
            (Kind::OtherThan { expected, actual }, true) => format!("{path}：期望 {expected}，实际 {actual}"),
            (Kind::NoneOf { options, actual }, false) => {
                format!("{path}: expected one of {options}, got {actual}")
            }
            (Kind::NoneOf { options, actual }, true) => format!("{path}：期望 {options} 之一，实际 {actual}"),
            (Kind::Other(words), _) => format!("{path}: {words}"),
        }
    }
}

/// The beginning of a value as JSON. No more of a large value is written out than is shown.
pub(super) fn short_json(value: &Value) -> String {
    let mut beginning = Beginning(Vec::new());
    // The only error is that there is enough of it.
    drop(serde_json::to_writer(&mut beginning, value));
    excerpt(&String::from_utf8_lossy(&beginning.0))
}

/// The first bytes of a text: enough for one character more than is quoted.
struct Beginning(Vec<u8>);

impl Beginning {
    const BYTES: usize = (QUOTED_CHARS + 2) * 4;
}

impl Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes_left = Self::BYTES - self.0.len();
        if bytes_left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.get(..bytes_left.min(bytes.len())).unwrap_or_default();
        self.0.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of a text that may be long.
#[must_use]
pub fn excerpt(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
