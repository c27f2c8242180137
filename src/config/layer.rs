//! One TOML document with the places of its values.
//!
//! Values are read from the parsed document itself and not through `Deserialize`, which stops at the first wrong value
//! and loses its place: here all wrong values of a file are found at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::json;
use super::load::SourcedValue;
use super::settings::PoolPreload;
use super::units::{parse_duration, parse_size};
use crate::protocol::word_enums::Word;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The embedded `config/default.toml`.
    Default,
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the defaults"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub source: Source,
    /// The line number, starting at 1.
    pub line: Option<usize>,
    /// The dotted key; empty if the problem is not about one key.
    pub key: String,
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": `{}`", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A document, split into `section.key` values.
pub(super) struct Layer<'t> {
    pub source: Source,
    text: &'t str,
    values: BTreeMap<String, Spanned<DeValue<'t>>>,
    /// The sections of the document, with their places.
    sections: BTreeMap<String, Range<usize>>,
    /// The place of each key.
    spans: BTreeMap<String, Range<usize>>,
}

impl<'t> Layer<'t> {
    /// Parses a document; syntax errors are added to `problems`.
    pub fn parse(source: Source, text: &'t str, problems: &mut Vec<ConfigProblem>) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut layer =
            Self { source, text, values: BTreeMap::new(), sections: BTreeMap::new(), spans: BTreeMap::new() };
        for error in errors {
            problems.push(layer.problem(error.span(), "", error.message()));
        }
        for (name, value) in table.into_inner() {
            let (span, name) = (name.span(), name.into_inner().into_owned());
            layer.spans.insert(name.clone(), span.clone());
            match value.into_inner() {
                DeValue::Table(section) => {
                    for (key, value) in section {
                        let path = format!("{name}.{}", key.get_ref());
                        layer.spans.insert(path.clone(), key.span());
                        layer.values.insert(path, value);
                    }
                    layer.sections.insert(name, span);
                }
                other => {
                    layer.values.insert(name, Spanned::new(span, other));
                }
            }
        }
        layer
    }

    /// Reports every key that is not in `known` as a mistake, with a guess in case it is misspelt.
    pub fn report_unknown(&self, known: &BTreeSet<&'static str>, problems: &mut Vec<ConfigProblem>) {
        let known_section = |name: &str| {
            known.iter().any(|key| key.split_once('.').is_some_and(|(section, _)| section == name))
        };
        for (name, span) in &self.sections {
            if !known_section(name) {
                problems.push(self.problem(Some(span.clone()), name, "there is no such section"));
            }
        }
        for (key, value) in &self.values {
            if known.contains(key.as_str()) {
                continue;
            }
            let section = key.split_once('.').map(|(section, _)| section);
            if section.is_some_and(|section| known.contains(any_of(section).as_str())) {
                continue;
            }
            let span = self.spans.get(key).cloned().or_else(|| Some(value.span()));
            match section {
                Some(section) if !known_section(section) => {}
                None if known_section(key) => {
                    let message = format!("expected a section, found {}", kind(value.get_ref()));
                    problems.push(self.problem(span, key, &message));
                }
                _ => {
                    let message = match nearest(key, known) {
                        Some(close) => format!("there is no such key; did you mean `{close}`?"),
                        None => "there is no such key".to_owned(),
                    };
                    problems.push(self.problem(span, key, &message));
                }
            }
        }
    }

    /// The value of a key, if the layer has it.
    pub fn read<T: FromToml>(&self, key: &str) -> Option<Result<T, ConfigProblem>> {
        let value = self.values.get(key)?;
        let wrong = |message: String| self.problem(Some(value.span()), key, &message);
        Some(T::from_toml(value.get_ref()).map_err(wrong))
    }

    /// The value of a key as it is written, if the layer has it.
    pub fn sourced_value(&self, key: &str) -> Option<SourcedValue> {
        // The reader has already checked the value, so it can be expressed in JSON.
        let value = json(self.values.get(key)?.get_ref()).ok()?;
        Some(SourcedValue { value, source: self.source.clone() })
    }

    /// The tables of a section whose names the user chooses.
    pub fn named(&self, section: &str) -> impl Iterator<Item = (&str, &Spanned<DeValue<'t>>)> {
        let prefix = format!("{section}.");
        self.values.iter().filter_map(move |(key, value)| Some((key.strip_prefix(&prefix)?, value)))
    }

    /// Resolves a path of the file: relative paths start at the file's own folder.
    pub fn beside(&self, path: &str) -> PathBuf {
        let folder = match &self.source {
            Source::Default => None,
            Source::File(file) => file.parent(),
        };
        let path = folder.map_or_else(|| PathBuf::from(path), |folder| folder.join(path));
        std::path::absolute(&path).unwrap_or(path)
    }

    /// A problem with the value of `key` in this layer.
    pub fn problem_at(&self, key: &str, message: &str) -> ConfigProblem {
        self.problem(self.spans.get(key).cloned(), key, message)
    }

    pub fn problem(&self, span: Option<Range<usize>>, key: &str, message: &str) -> ConfigProblem {
        let line = span.map(|span| {
            let before = self.text.as_bytes().iter().take(span.start);
            1 + before.filter(|byte| **byte == b'\n').count()
        });
        ConfigProblem { source: self.source.clone(), line, key: key.to_owned(), message: message.to_owned() }
    }
}

/// Reads a setting of one type; the error says what was expected instead.
pub(super) trait FromToml: Sized {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String>;
}

#[derive(Clone, Copy, Default, PartialEq, PartialOrd)]
pub(super) struct Bytes(pub u64);

impl FromToml for Bytes {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::String(text) => parse_size(text).map(Self).map_err(|e| e.to_string()),
            DeValue::Integer(_) => u64::from_toml(value).map(Self),
            other => Err(expected("a size such as \"512MiB\"", other)),
        }
    }
}

impl FromToml for Duration {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::String(text) => parse_duration(text).map_err(|e| e.to_string()),
            DeValue::Integer(_) => u64::from_toml(value).map(Self::from_secs),
            other => Err(expected("a time such as \"30s\"", other)),
        }
    }
}

impl FromToml for u64 {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let DeValue::Integer(number) = value else {
            return Err(expected("a whole number", value));
        };
        let wrong = || format!("`{number}` is not a whole number from 0 to {}", i64::MAX);
        let number = i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())?;
        Self::try_from(number).map_err(|_| wrong())
    }
}

impl FromToml for u32 {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let number = u64::from_toml(value)?;
        Self::try_from(number)
            .map_err(|_| format!("`{number}` is not a whole number from 0 to {}", Self::MAX))
    }
}

impl FromToml for usize {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let number = u64::from_toml(value)?;
        Self::try_from(number).map_err(|_| format!("`{number}` is too large"))
    }
}

impl FromToml for f64 {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let number = match value {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
            other => return Err(expected("a number", other)),
        };
        number
            .filter(|number: &Self| number.is_finite())
            .ok_or_else(|| "it is not a finite number".to_owned())
    }
}

impl FromToml for String {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            other => Err(expected("text", other)),
        }
    }
}

impl FromToml for Vec<String> {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Array(items) => items.iter().map(|item| String::from_toml(item.get_ref())).collect(),
            other => Err(expected("a list of texts", other)),
        }
    }
}

/// A list is for all images, a table has one for each.
impl FromToml for PoolPreload {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Array(_) => {
                let modules = Vec::from_toml(value)?;
                Ok(Self(BTreeMap::from([(Self::OTHER_IMAGES.to_owned(), modules)])))
            }
            DeValue::Table(table) => {
                let mut by_image = BTreeMap::new();
                for (image, modules) in table {
                    let modules = Vec::from_toml(modules.get_ref())
                        .map_err(|why| format!("`{}`: {why}", image.get_ref()))?;
                    by_image.insert(image.get_ref().clone().into_owned(), modules);
                }
                Ok(Self(by_image))
            }
            other => Err(expected("a list of texts, or a table of such by image", other)),
        }
    }
}

impl FromToml for bool {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Boolean(value) => Ok(*value),
            other => Err(expected("true or false", other)),
        }
    }
}

impl<T: Word> FromToml for T {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let text = String::from_toml(value)?;
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| none_of(&text, T::WORDS.iter().map(|(word, _)| *word)))
    }
}

/// Says that a word is none of those that are possible.
pub(super) fn none_of<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> String {
    let printable: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    let all: Vec<String> = words.map(|word| format!("`{word}`")).collect();
    format!("`{printable}` is none of {}", all.join(", "))
}

pub(super) fn expected(what: &str, found: &DeValue<'_>) -> String {
    format!("expected {what}, found {}", kind(found))
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// The wildcard that stands among the known keys for a section whose names the user chooses.
pub(super) fn any_of(section: &str) -> String {
    format!("{section}.*")
}

/// The longest key for which a guess is made; real keys are short.
const GUESSED_BYTES: usize = 64;

/// The known key that differs least, if it is close enough to be a misspelling.
pub(super) fn nearest(key: &str, known: &BTreeSet<&'static str>) -> Option<&'static str> {
    let distances = known.iter().map(|candidate| (strsim::levenshtein(key, candidate), *candidate));
    let (distance, close) = Some(distances).filter(|_| key.len() <= GUESSED_BYTES)?.min()?;
    (distance <= 2).then_some(close)
}
