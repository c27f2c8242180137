//! Describes what is wrong with a value so that a model can act on it: the place, what is expected there, and what is
//! there.

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};

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
    /// The validator's own message, for rare rules.
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

    /// The problems in one error of the validator: several, if there are several unexpected fields.
    pub(super) fn from_error(error: &ValidationError) -> Vec<Self> {
        let path = error.instance_path.as_str().to_owned();
        let actual = excerpt(&error.instance.to_string());
        let (path, kind) = match &error.kind {
            ValidationErrorKind::Required { property } => {
                (format!("{path}/{}", property.as_str().unwrap_or_default()), Kind::Missing)
            }
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let problem = |name: &String| Self {
                    path: format!("{path}/{}", excerpt(name)),
                    kind: Kind::Unexpected,
                };
                return unexpected.iter().map(problem).collect();
            }
            ValidationErrorKind::Type { kind } => {
                (path, Kind::OtherThan { expected: type_names(kind), actual })
            }
            ValidationErrorKind::Enum { options } => {
                (path, Kind::NoneOf { options: excerpt(&options.to_string()), actual })
            }
            ValidationErrorKind::Constant { expected_value } => {
                (path, Kind::OtherThan { expected: excerpt(&expected_value.to_string()), actual })
            }
            _ => (path, Kind::Other(excerpt(&error.to_string()))),
        };
        vec![Self { path, kind }]
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

fn type_names(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(name) => name.to_string(),
        TypeKind::Multiple(names) => {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            names.join(" | ")
        }
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
