//! Modules that a session begins with: how they are asked for, and what became of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::{PRELOAD_CHARS, PRELOAD_ENTRIES};
use super::values::is_identifier;

/// A group of modules, of which all that are installed are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Family {
    #[serde(rename = "stdlib")]
    StandardLibrary,
    #[serde(rename = "third-party")]
    ThirdParty,
}

/// What is imported before the first cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preload {
    /// Python statements, each of them an import and nothing else.
    pub imports: Vec<String>,
    pub families: Vec<Family>,
}

/// A module that could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotImported {
    pub import: String,
    pub error: String,
}

/// What was imported when a sandbox started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Preloaded {
    /// Number of names that were bound.
    pub names: u64,
    /// Modules of families that could not be imported.
    pub skipped: Vec<NotImported>,
}

impl Preload {
    /// Takes `stdlib`, `third-party`, `numpy as np`, `import os, json` and `from math import sqrt`.
    ///
    /// # Errors
    /// Names the first entry that is none of these, or says that there are too many.
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        if entries.len() > PRELOAD_ENTRIES {
            return Err(format!("more than {PRELOAD_ENTRIES} things are to be preloaded"));
        }
        let mut preload = Self::default();
        for entry in entries {
            match entry.trim() {
                "stdlib" => preload.families.push(Family::StandardLibrary),
                "third-party" => preload.families.push(Family::ThirdParty),
                text => preload.imports.push(statement(text).ok_or_else(|| {
                    let printable: String = text.chars().take(80).flat_map(char::escape_debug).collect();
                    format!("`{printable}` is no import such as `numpy as np` or `from math import sqrt`")
                })?),
            }
        }
        Ok(preload)
    }

    pub fn is_empty(&self) -> bool {
        self.imports.is_empty() && self.families.is_empty()
    }
}

/// The entries of a file: one a line, without comments.
pub fn entries_of(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split_once('#').map_or(line, |(before, _)| before).trim())
        .filter(|line| !line.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

/// The import statement; none if the text is no import. Only names, dots, commas and a star pass, so no other code can.
fn statement(text: &str) -> Option<String> {
    if text.len() > PRELOAD_CHARS {
        return None;
    }
    let spaced = text.replace(',', " , ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let holds = match words.as_slice() {
        ["from", module, "import", "*"] => is_module(module),
        ["from", module, "import", names @ ..] => is_module(module) && is_list(names, is_identifier),
        ["import", modules @ ..] => is_list(modules, is_module),
        modules => return is_list(modules, is_module).then(|| format!("import {}", words.join(" "))),
    };
    holds.then(|| words.join(" "))
}

/// `a`, `a as b`, and more of these with commas between them.
fn is_list(words: &[&str], is_item: fn(&str) -> bool) -> bool {
    words.split(|word| *word == ",").all(|item| match item {
        [what] => is_item(what),
        [what, "as", name] => is_item(what) && is_identifier(name),
        _ => false,
    })
}

fn is_module(word: &str) -> bool {
    word.split('.').all(is_identifier)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(entry: &str) -> Result<Preload, String> {
        Preload::parse(&[entry.to_owned()])
    }

    #[test]
    fn imports_are_taken_in_short_and_in_full() {
        for (entry, statement) in [
            ("numpy", "import numpy"),
            (" numpy  as np ", "import numpy as np"),
            ("import os.path,json as j", "import os.path , json as j"),
            ("from math import sqrt as root, pi", "from math import sqrt as root , pi"),
            ("from a.b import *", "from a.b import *"),
        ] {
            assert_eq!(parsed(entry).unwrap().imports, [statement], "{entry}");
        }
    }

    #[test]
    fn families_have_names_of_their_own() {
        assert_eq!(parsed("stdlib").unwrap().families, [Family::StandardLibrary]);
        assert_eq!(parsed("third-party").unwrap().families, [Family::ThirdParty]);
        assert_eq!(parsed("import stdlib").unwrap().families, []);
    }

    #[test]
    fn nothing_else_gets_through() {
        for entry in [
            "",
            "numpy as",
            "a b",
            "a, ",
            "import os; os.abort()",
            "os\nx = 1",
            "from . import a",
            "from a import (b)",
            "import *",
            "x = 1",
            "__import__('os')",
        ] {
            let outcome = parsed(entry);
            // A line break only counts as white space, and the words around it form no import either.
            assert!(outcome.is_err(), "{entry:?}: {outcome:?}");
        }
        assert!(parsed(&"a".repeat(PRELOAD_CHARS + 1)).is_err());
        assert!(Preload::parse(&vec!["a".to_owned(); PRELOAD_ENTRIES + 1]).is_err());
    }

    #[test]
    fn a_file_has_one_a_line() {
        assert_eq!(entries_of("# mine\n\nnumpy as np  # arrays\r\nstdlib\n"), ["numpy as np", "stdlib"]);
    }
}
