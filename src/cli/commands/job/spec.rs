//! `--spec job.toml`: the values of the flags in a file.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::config::{parse_duration, parse_size};
use crate::protocol::receipt::Backend;

/// People write specifications by hand, so a larger file is something else.
const SPEC_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::cli) struct Spec {
    /// The folder that every job gets, relative to the specification unless it is absolute.
    pub input: Option<PathBuf>,
    /// Patterns of the scripts in the folder.
    pub scripts: Vec<String>,
    pub args: Vec<String>,
    /// Environment variables with their values.
    pub env: BTreeMap<String, String>,
    /// Environment variables whose values are passed on from the caller.
    pub pass_env: Vec<String>,
    timeout: Option<Amount>,
    memory: Option<Amount>,
    pub cpus: Option<f64>,
    pub image: Option<String>,
    pub backend: Option<Backend>,
    pub matrix: BTreeMap<String, Vec<Word>>,
    pub artifacts: Vec<String>,
    pub require: Vec<String>,
    pub with: Vec<String>,
    pub jobs: Option<usize>,
    pub fail_fast: bool,
}

/// A size or a time: text with a unit, or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Amount {
    Text(String),
    Number(u64),
}

impl Amount {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// A value of the matrix, in any TOML type.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::cli) enum Word {
    Text(String),
    Whole(i64),
    Number(f64),
    Truth(bool),
}

impl Word {
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Truth(truth) => truth.to_string(),
        }
    }
}

impl Spec {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        use std::io::Read as _;
        let failed = |e: &std::io::Error| Failure::io(format_args!("failed to read `{}`", path.display()), e);
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|e| failed(&e))?;
        file.take(SPEC_BYTES).read_to_string(&mut text).map_err(|e| failed(&e))?;
        Self::parse(&text).map_err(|message| {
            Failure::usage(format!("`{}` is wrong: {message}", path.display()))
                .hint("`belljar job run --help` explains the flags of the same names")
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let spec: Self = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        spec.timeout_s()?;
        spec.memory_bytes()?;
        Ok(spec)
    }

    pub fn timeout_s(&self) -> Result<Option<f64>, String> {
        let time = self.timeout.as_ref().map(|time| parse_duration(&time.text())).transpose();
        Ok(time.map_err(|e| e.to_string())?.map(|time| time.as_secs_f64()))
    }

    pub fn memory_bytes(&self) -> Result<Option<u64>, String> {
        self.memory.as_ref().map(|size| parse_size(&size.text())).transpose().map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_is_read_strictly() {
        let spec = Spec::parse(
            "scripts = [\"t_*.py\"]\ntimeout = \"2min\"\nmemory = \"512MiB\"\nbackend = \"docker\"\n\
             [matrix]\nn = [1, \"two\", 2.5, true]\n[env]\nA = \"b\"\n",
        )
        .unwrap();
        assert_eq!((spec.timeout_s(), spec.memory_bytes()), (Ok(Some(120.0)), Ok(Some(512 << 20))));
        let words: Vec<_> = spec.matrix["n"].iter().map(Word::text).collect();
        assert_eq!(words, ["1", "two", "2.5", "true"]);
        for (wrong, expected) in [
            ("tiemout = 3", "tiemout"),
            ("timeout = \"3 parsecs\"", "parsecs"),
            ("memory = \"1 x\"", "unit"),
            ("backend = \"chroot\"", "chroot"),
            ("args = 3", "args"),
            ("[matrix]\nn = 3", "n"),
        ] {
            let message = Spec::parse(wrong).unwrap_err();
            assert!(message.contains(expected), "{wrong}: {message}");
        }
    }

    /// Lines of specifications, right and wrong.
    const LINES: &str = "((scripts|timeout|memory|backend|args|env|matrix|n|\\[matrix\\]|\\[env\\]|=|\\.|\\[|\\]|\\{|\\}|\"|'|,|\\\\u[0-9a-f]{4}|1e999|-1|nan|9999999999999999999|\"2min\"|\"1GiB\"|\"99999999999999h\"|\\PC| |\n)){0,40}";

    proptest::proptest! {
        #[test]
        fn every_specification_is_taken_or_refused(text in LINES) {
            drop(Spec::parse(&text));
        }

        #[test]
        fn every_number_of_a_specification_is_taken_or_refused(number in proptest::prelude::any::<f64>()) {
            for text in [format!("timeout = {number:?}"), format!("memory = \"{number:?}GiB\"")] {
                drop(Spec::parse(&text));
            }
        }
    }
}
