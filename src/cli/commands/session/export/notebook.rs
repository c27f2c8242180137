//! A session's events as a notebook.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Value, json};

use crate::cli::commands::cell::notebook::NOTEBOOK_BYTES;
use crate::cli::failure::Failure;
use crate::protocol::event::EventBody;
use crate::protocol::event::phrases::{state_note, what_happened};
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{ExecutionResult, Mode, SMALL_PICTURE, Status, Stream};

/// What `belljar jupyter install` calls the kernel. A notebook that was exported runs in a sandbox, as it did before.
const KERNEL: &str = "belljar";

/// Bytes that each cell and each output costs besides its text.
const EACH_BYTES: u64 = 256;

/// The cells of a session that count for its variables, by their numbers.
#[derive(Debug, Default)]
pub struct Notebook {
    cells: BTreeMap<CellNumber, Cell>,
    /// The version of the session's Python, as its last sandbox told it.
    python: Option<String>,
    /// About how many bytes the notebook has so far.
    bytes: u64,
}

#[derive(Debug, Default)]
struct Cell {
    code: String,
    has_started: bool,
    has_ended: bool,
    outputs: Vec<Output>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "output_type", rename_all = "snake_case")]
enum Output {
    Stream { name: Stream, text: String },
    DisplayData { data: Map<String, Value>, metadata: Map<String, Value> },
    ExecuteResult { data: Map<String, Value>, metadata: Map<String, Value>, execution_count: CellNumber },
    Error { ename: String, evalue: String, traceback: Vec<String> },
}

impl Notebook {
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Takes the next event of the session.
    pub fn take(&mut self, event: EventBody) -> Result<(), Failure> {
        match event {
            EventBody::SandboxReady { python, .. } => self.python = Some(python),
            EventBody::CellQueued {
                cell, mode: Mode::Main, code, expression: false, replays: None, ..
            } => {
                self.charge(code.len())?;
                self.cells.insert(cell, Cell { code, ..Cell::default() });
            }
            EventBody::CellStarted { cell, .. } => {
                if let Some(cell) = self.cells.get_mut(&cell) {
                    cell.has_started = true;
                }
            }
            EventBody::Output { cell: Some(cell), stream, text, .. } => {
                if let Some(cell) = self.cells.get_mut(&cell) {
                    cell.print(stream, &text);
                    self.charge(text.len())?;
                }
            }
            EventBody::Display { cell, mime } => {
                if let Some(cell) = self.cells.get_mut(&cell) {
                    let data = forms(mime);
                    let bytes = size(&data);
                    cell.outputs.push(Output::DisplayData { data, metadata: Map::new() });
                    self.charge(bytes)?;
                }
            }
            EventBody::CellFinished { result } => self.end(*result)?,
            // Cells that have not ended yet begin with the variables that the undoing left.
            EventBody::Undone { state_of } => {
                self.cells.retain(|number, cell| *number <= state_of || !cell.has_ended);
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, mut result: ExecutionResult) -> Result<(), Failure> {
        let Some(cell) = self.cells.get_mut(&result.cell) else { return Ok(()) };
        cell.has_ended = true;
        let notes = notes(&result);
        let mut bytes = 0;
        if let Some(value) = result.result.take() {
            let mut data = Map::from_iter([("text/plain".to_owned(), Value::String(value.repr))]);
            data.extend(forms(value.mime));
            bytes += size(&data);
            let execution_count = result.cell;
            cell.outputs.push(Output::ExecuteResult { data, metadata: Map::new(), execution_count });
        }
        for note in notes {
            cell.print(Stream::Stderr, &format!("belljar: {note}\n"));
        }
        if let Some(exception) = result.exception.take() {
            bytes += exception.traceback.len() + exception.type_name.len() + exception.value.len();
            cell.outputs.push(Output::Error {
                ename: exception.type_name,
                evalue: exception.value,
                traceback: exception.traceback.lines().map(ToOwned::to_owned).collect(),
            });
        } else if result.status != Status::Success {
            let why = what_happened(&result).unwrap_or_default();
            let ename = json!(result.status).as_str().unwrap_or_default().to_owned();
            cell.outputs.push(Output::Error { ename, evalue: why.clone(), traceback: vec![why] });
        }
        self.charge(bytes)
    }

    /// Counts what an event adds: its bytes, and what even an empty one takes.
    fn charge(&mut self, bytes: usize) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(bytes as u64 + EACH_BYTES);
        if self.bytes <= NOTEBOOK_BYTES {
            return Ok(());
        }
        let most = NOTEBOOK_BYTES >> 20;
        Err(Failure::new(format!(
            "the cells and what they showed are more than the {most} MiB of a notebook"
        ))
        .hint("`belljar logs` shows all of it, and `--cell N` that of one cell"))
    }

    /// The notebook in version 4.5 of its format, indented as Jupyter does it.
    pub fn text(&self) -> serde_json::Result<Vec<u8>> {
        let cells: Vec<Value> = self.cells.iter().map(|(number, cell)| cell.json(*number)).collect();
        let mut language = json!({"name": "python", "file_extension": ".py", "mimetype": "text/x-python",
            "pygments_lexer": "ipython3", "codemirror_mode": {"name": "ipython", "version": 3}});
        if let Some(version) = &self.python {
            language["version"] = json!(version);
        }
        let notebook = json!({
            "cells": cells,
            "metadata": {
                "kernelspec": {"name": KERNEL, "display_name": "Python (Belljar)", "language": "python"},
                "language_info": language,
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        });
        let mut text = Vec::new();
        notebook.serialize(&mut serde_json::Serializer::with_formatter(
            &mut text,
            PrettyFormatter::with_indent(b" "),
        ))?;
        text.push(b'\n');
        Ok(text)
    }
}

impl Cell {
    fn print(&mut self, stream: Stream, new: &str) {
        match self.outputs.last_mut() {
            Some(Output::Stream { name, text }) if *name == stream => text.push_str(new),
            _ => self.outputs.push(Output::Stream { name: stream, text: new.to_owned() }),
        }
    }

    fn json(&self, number: CellNumber) -> Value {
        json!({
            "id": format!("cell-{number}"),
            "cell_type": "code",
            "metadata": {},
            "execution_count": self.has_started.then_some(number),
            "source": self.code,
            "outputs": self.outputs,
        })
    }
}

/// What a reader would not expect after a cell: what is not shown, and what happened to the variables.
fn notes(result: &ExecutionResult) -> Vec<String> {
    let cut = &result.truncated;
    let displays = (cut.displays > 0)
        .then(|| format!("{} displays were too many or too large, and are left out", cut.displays));
    let output = (cut.dropped_bytes > 0)
        .then(|| format!("{} bytes of output were too many, and are left out", cut.dropped_bytes));
    displays.into_iter().chain(output).chain(state_note(result)).collect()
}

/// The forms that the format allows: text, and JSON where the type says so. A sandbox may claim others. What is for models
/// only is left out.
fn forms(mime: Map<String, Value>) -> Map<String, Value> {
    let is_json = |kind: &str| {
        kind.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
    };
    let is_wanted = |kind: &str, value: &Value| kind != SMALL_PICTURE && (value.is_string() || is_json(kind));
    mime.into_iter().filter(|(kind, value)| is_wanted(kind, value)).collect()
}

fn size(forms: &Map<String, Value>) -> usize {
    let of = |value: &Value| value.as_str().map_or_else(|| value.to_string().len(), str::len);
    forms.iter().map(|(kind, value)| kind.len() + of(value)).sum()
}

#[cfg(test)]
mod tests;
