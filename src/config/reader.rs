//! Reads the keys of fixed sections through all layers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::layer::{Bytes, ConfigProblem, FromToml, Layer};
use super::load::SourcedValue;
use super::load_packages::without_password;

/// Reads keys through all layers and records which keys exist, which layer's value won, and what was wrong.
pub(super) struct Reader<'t> {
    pub layers: Vec<Layer<'t>>,
    pub problems: Vec<ConfigProblem>,
    pub known: BTreeSet<&'static str>,
    /// The index of the layer whose value is used.
    pub winners: BTreeMap<&'static str, usize>,
}

impl Reader<'_> {
    /// The value of the last layer that has the key; the values of lower layers are checked as well.
    pub fn optional<T: FromToml>(&mut self, key: &'static str) -> Option<T> {
        self.known.insert(key);
        let mut found = None;
        for (index, layer) in self.layers.iter().enumerate() {
            match layer.read(key) {
                None => {}
                Some(Ok(value)) => {
                    found = Some(value);
                    self.winners.insert(key, index);
                }
                // A wrong value does not fall back to the layer below, because later messages would then be about a
                // value that is not in this file.
                Some(Err(problem)) => {
                    found = None;
                    self.problems.push(problem);
                }
            }
        }
        found
    }

    /// A key with a default. The value is `None` only after a problem was recorded, or if the defaults themselves are
    /// broken, which a test of this module rules out.
    pub fn required<T: FromToml>(&mut self, key: &'static str) -> Option<T> {
        let value = self.optional(key);
        if value.is_none() && self.problems.is_empty() {
            self.problem(key, "it has no value");
        }
        value
    }

    pub fn bytes(&mut self, key: &'static str) -> Option<u64> {
        self.required::<Bytes>(key).map(|bytes| bytes.0)
    }

    /// A required number or time that makes no sense as zero.
    pub fn positive<T: FromToml + Default + PartialOrd>(&mut self, key: &'static str) -> Option<T> {
        let value = self.required::<T>(key)?;
        self.check(key, value > T::default(), "it has to be more than 0");
        Some(value)
    }

    /// A required size that makes no sense as zero.
    pub fn positive_bytes(&mut self, key: &'static str) -> Option<u64> {
        self.positive::<Bytes>(key).map(|bytes| bytes.0)
    }

    pub fn check(&mut self, key: &'static str, holds: bool, message: &str) {
        if !holds {
            self.problem(key, message);
        }
    }

    /// Checks that `low` is not above `high`. The problem is reported for the one in the higher layer, because the
    /// other may be a default that the user never saw.
    pub fn ordered(&mut self, low: &'static str, high: &'static str, holds: bool) {
        if holds {
            return;
        }
        if self.winners.get(high) > self.winners.get(low) {
            self.problem(high, &format!("it is less than `{low}`"));
        } else {
            self.problem(low, &format!("it is more than `{high}`"));
        }
    }

    /// Every key with its value in the last layer that sets it, without passwords.
    pub fn sourced_values(&self) -> BTreeMap<String, Option<SourcedValue>> {
        let mut all = self.raw_values();
        if let Some(Some(index)) = all.get_mut("packages.index")
            && let Some(url) = index.value.as_str()
        {
            index.value = without_password(url).into();
        }
        all
    }

    fn raw_values(&self) -> BTreeMap<String, Option<SourcedValue>> {
        let mut all = BTreeMap::new();
        for known in &self.known {
            let Some(section) = known.strip_suffix(".*") else {
                let layer = self.winners.get(known).and_then(|index| self.layers.get(*index));
                all.insert((*known).to_owned(), layer.and_then(|layer| layer.sourced_value(known)));
                continue;
            };
            for layer in &self.layers {
                let keys = layer.named(section).map(|(name, _)| format!("{section}.{name}"));
                all.extend(keys.map(|key| (key.clone(), layer.sourced_value(&key))));
            }
        }
        all
    }

    /// The path in the value of `key`, relative to the file that set it.
    pub fn beside(&self, key: &'static str, path: &str) -> PathBuf {
        let layer = self.winners.get(key).and_then(|index| self.layers.get(*index));
        layer.map_or_else(|| PathBuf::from(path), |layer| layer.beside(path))
    }

    /// A problem with a value, at the place that set it.
    pub fn problem(&mut self, key: &'static str, message: &str) {
        let index = self.winners.get(key).copied().unwrap_or(0);
        let problem = self.layers.get(index).map(|layer| layer.problem_at(key, message));
        self.problems.extend(problem);
    }
}

/// Reads every field of a struct before one without a value ends the function with `None`, so that all problems are
/// found.
macro_rules! read_all {
    ($name:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        $(let $field = $value;)*
        $name { $($field: $field?),* }
    }};
}
pub(super) use read_all;
