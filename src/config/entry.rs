//! One table whose name the user chooses, such as `[model.qwen]`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::layer::{ConfigProblem, FromToml, Layer, any_of, expected, nearest};
use super::reader::Reader;

/// A schema is written by people; a file larger than this is refused as something else.
const SCHEMA_FILE_BYTES: u64 = 1024 * 1024;

impl Reader<'_> {
    /// Reads every table of a section. A table that is in several layers is taken whole from the last one, because
    /// settings of two different models must not be mixed.
    pub fn named<T>(
        &mut self,
        section: &'static str,
        wildcard: &'static str,
        read: impl Fn(&mut Entry<'_, '_>) -> Option<T>,
    ) -> std::collections::BTreeMap<String, T> {
        debug_assert_eq!(wildcard, any_of(section));
        self.known.insert(wildcard);
        let mut found = std::collections::BTreeMap::new();
        for layer in &self.layers {
            for (name, value) in layer.named(section) {
                let path = format!("{section}.{name}");
                let DeValue::Table(table) = value.get_ref() else {
                    let message = expected("a section", value.get_ref());
                    self.problems.push(layer.problem_at(&path, &message));
                    continue;
                };
                let mut entry =
                    Entry { name, path, layer, table, known: BTreeSet::new(), problems: Vec::new() };
                let read = read(&mut entry);
                self.problems.extend(entry.finish());
                if let Some(read) = read {
                    found.insert(name.to_owned(), read);
                }
            }
        }
        found
    }
}

pub(super) struct Entry<'l, 't> {
    pub name: &'l str,
    path: String,
    layer: &'l Layer<'t>,
    table: &'l DeTable<'t>,
    known: BTreeSet<&'static str>,
    problems: Vec<ConfigProblem>,
}

impl<'l, 't> Entry<'l, 't> {
    fn value(&mut self, key: &'static str) -> Option<&'l Spanned<DeValue<'t>>> {
        self.known.insert(key);
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// `None` also if the value is wrong: then the whole configuration is refused, and the value is not used.
    pub fn optional<T: FromToml>(&mut self, key: &'static str) -> Option<T> {
        let value = self.value(key)?;
        match T::from_toml(value.get_ref()) {
            Ok(value) => Some(value),
            Err(message) => {
                self.problem(key, &message);
                None
            }
        }
    }

    pub fn required<T: FromToml>(&mut self, key: &'static str) -> Option<T> {
        if self.value(key).is_none() {
            self.whole(&format!("`{key}` is missing"));
        }
        self.optional(key)
    }

    pub fn or<T: FromToml>(&mut self, key: &'static str, default: T) -> T {
        self.optional(key).unwrap_or(default)
    }

    /// Like [`Self::or`], for values that make no sense as zero.
    pub fn positive_or<T: FromToml + Default + PartialOrd>(&mut self, key: &'static str, default: T) -> T {
        let value = self.or(key, default);
        self.check(key, value > T::default(), "it has to be more than 0");
        value
    }

    /// A text that must not be empty.
    pub fn text(&mut self, key: &'static str) -> Option<String> {
        let text: String = self.optional(key)?;
        self.check(key, !text.trim().is_empty(), "it is empty");
        Some(text)
    }

    pub fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key).map(|path| self.layer.beside(&path))
    }

    /// A JSON Schema: a TOML table, or the name of a JSON file.
    pub fn schema(&mut self, key: &'static str) -> Option<Value> {
        let read = match self.value(key)?.get_ref() {
            DeValue::String(path) => read_json(&self.layer.beside(path)),
            table @ DeValue::Table(_) => json(table),
            other => Err(expected("a table, or the name of a JSON file", other)),
        };
        let checked = read.and_then(|schema| crate::schema::check(&schema).map(|()| schema));
        checked.map_err(|message| self.problem(key, &message)).ok()
    }

    /// A value of any shape, as JSON.
    pub fn json(&mut self, key: &'static str) -> Option<Value> {
        json(self.value(key)?.get_ref()).map_err(|message| self.problem(key, &message)).ok()
    }

    pub fn check(&mut self, key: &'static str, holds: bool, message: &str) {
        if !holds {
            self.problem(key, message);
        }
    }

    /// Reports a problem at the place of the key, or of the table if the key is missing.
    pub fn problem(&mut self, key: &'static str, message: &str) {
        let span = self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(name, _)| name.span());
        if span.is_none() {
            return self.whole(&format!("`{key}`: {message}"));
        }
        let problem = self.layer.problem(span, &format!("{}.{key}", self.path), message);
        self.problems.push(problem);
    }

    /// Reports a problem with the table as a whole.
    pub fn whole(&mut self, message: &str) {
        let problem = self.layer.problem_at(&self.path, message);
        self.problems.push(problem);
    }

    fn finish(mut self) -> Vec<ConfigProblem> {
        for (key, _) in self.table {
            if !self.known.contains(key.get_ref().as_ref()) {
                let message = match nearest(key.get_ref(), &self.known) {
                    Some(close) => format!("there is no such key; did you mean `{close}`?"),
                    None => "there is no such key".to_owned(),
                };
                let path = format!("{}.{}", self.path, key.get_ref());
                self.problems.push(self.layer.problem(Some(key.span()), &path, &message));
            }
        }
        self.problems
    }
}

fn read_json(path: &Path) -> Result<Value, String> {
    use std::io::Read as _;
    let printable_path = path.display();
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(SCHEMA_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| format!("{printable_path} cannot be read: {error}"))?;
    if text.len() as u64 > SCHEMA_FILE_BYTES {
        return Err(format!("{printable_path} is larger than 1 MiB"));
    }
    serde_json::from_str(&text).map_err(|error| format!("{printable_path} is no JSON: {error}"))
}

pub(super) fn json(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(Value::from)
            .map_err(|_| format!("`{number}` is too large"))?,
        DeValue::Float(_) => Value::from(f64::from_toml(value)?),
        DeValue::Boolean(value) => Value::from(*value),
        DeValue::Datetime(_) => return Err("JSON has no dates; write it as text".to_owned()),
        DeValue::Array(items) => {
            items.iter().map(|item| json(item.get_ref())).collect::<Result<Vec<_>, _>>()?.into()
        }
        DeValue::Table(table) => {
            let pairs =
                table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), json(value.get_ref())?)));
            pairs.collect::<Result<Map<_, _>, String>>()?.into()
        }
    })
}
