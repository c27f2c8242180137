//! Reads the code of a notebook, for `belljar run`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cli::failure::Failure;

/// Largest notebook that is read or written, with the outputs and pictures in it.
pub(in crate::cli) const NOTEBOOK_BYTES: u64 = 128 << 20;
/// The version of the format that has its cells in one list.
const FORMAT: u64 = 4;

/// Whether a file is a notebook, by its ending.
pub(in crate::cli) fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("ipynb"))
}

/// The code of each cell, in order. Blank cells are left out, which Jupyter neither runs nor counts.
pub(in crate::cli) fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let mut text = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(NOTEBOOK_BYTES.saturating_add(1)).read_to_end(&mut text));
    read.map_err(|e: io::Error| {
        Failure::io(format_args!("failed to read `{}`", path.display()), &e).hint("name a notebook")
    })?;
    if text.len() as u64 > NOTEBOOK_BYTES {
        let most = NOTEBOOK_BYTES >> 20;
        return Err(Failure::new(format!("`{}` is larger than {most} MiB", path.display()))
            .hint("clear its outputs, which are not needed to run it"));
    }
    code_of(&text).map_err(|(why, hint)| {
        Failure::new(format!("the notebook `{}` cannot be run: {why}", path.display())).hint(hint)
    })
}

/// The code of each cell that is not blank; or why there is none, and what to do about it.
fn code_of(text: &[u8]) -> Result<Vec<String>, (String, &'static str)> {
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    // A list of the values of the fields would be taken as well.
    let object: serde_json::Result<Map<String, Value>> = serde_json::from_slice(text);
    let notebook: Notebook = object
        .and_then(|object| serde_json::from_value(Value::Object(object)))
        .map_err(|e| (format!("it is not in the format of notebooks: {e}"), "save it anew in Jupyter"))?;
    if notebook.nbformat != FORMAT {
        let why = format!("it is in version {} of the format, and not in {FORMAT}", notebook.nbformat);
        return Err((why, "open it in Jupyter, and save it"));
    }
    if let Some(language) = notebook.language().filter(|name| !name.eq_ignore_ascii_case("python")) {
        let why = format!("it is written in {}", language.escape_debug());
        return Err((why, "only notebooks in Python run here"));
    }
    let cells = notebook.cells.into_iter().filter(|cell| cell.cell_type == "code");
    let code = cells.map(|cell| match cell.source {
        Source::Text(text) => text,
        Source::Lines(lines) => lines.concat(),
    });
    Ok(code.filter(|code| !code.trim().is_empty()).collect())
}

#[derive(Deserialize)]
struct Notebook {
    nbformat: u64,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    cells: Vec<Cell>,
}

impl Notebook {
    fn language(&self) -> Option<&str> {
        let Metadata { language_info, kernelspec } = &self.metadata;
        let of_kernel = kernelspec.as_ref().and_then(|kernel| kernel.language.as_deref());
        language_info.as_ref().and_then(|info| info.name.as_deref()).or(of_kernel)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    language_info: Option<LanguageInfo>,
    kernelspec: Option<KernelSpec>,
}

#[derive(Deserialize)]
struct LanguageInfo {
    name: Option<String>,
}

#[derive(Deserialize)]
struct KernelSpec {
    language: Option<String>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    source: Source,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    Text(String),
    Lines(Vec<String>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn code(notebook: &Value) -> Result<Vec<String>, String> {
        code_of(notebook.to_string().as_bytes()).map_err(|(why, _)| why)
    }

    #[test]
    fn code_cells_are_read_in_order() {
        let notebook = json!({"nbformat": 4, "nbformat_minor": 2, "metadata": {"kernelspec": {"language": "python"}},
        "cells": [
            {"cell_type": "markdown", "source": "# Title"},
            {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": [{"output_type": "stream"}]},
            {"cell_type": "code", "source": " \n"},
            {"cell_type": "raw", "source": "raw"},
            {"cell_type": "code", "source": "y = 2", "execution_count": null},
        ]});
        assert_eq!(code(&notebook).unwrap(), ["x = 1\nx", "y = 2"]);
        let marked = format!("\u{feff}{notebook}");
        assert_eq!(code_of(marked.as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn what_is_no_notebook_of_python_is_said_to_be_none() {
        for (wrong, why) in [
            (json!({"cells": []}), "not in the format"),
            (json!([1]), "not in the format"),
            (json!({"nbformat": 4, "cells": [{"cell_type": "code", "source": 1}]}), "not in the format"),
            (json!({"nbformat": 3, "worksheets": []}), "version 3"),
            (json!({"nbformat": 4, "metadata": {"language_info": {"name": "R"}}}), "written in R"),
        ] {
            assert!(code(&wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_notebook_is_known_by_its_ending() {
        assert!(["a.ipynb", "a/b.IPYNB"].into_iter().map(Path::new).all(is_notebook));
        assert!(!["a.py", "ipynb", "-"].into_iter().map(Path::new).any(is_notebook));
    }
}
