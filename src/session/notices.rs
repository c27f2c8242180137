//! Notes on what happened to a session's variables between two cells, shown with the next cell.

use std::fmt::Write as _;

use crate::protocol::ids::CellNumber;
use crate::protocol::snapshot::{MissingVariable, ReopenedFile};

/// Missing variables and reopened files that a note names; the event names all.
const NAMED: usize = 10;

/// The note after an incomplete replay.
pub const REPLAY_CUT: &str =
    "A replay was broken off, so only a part of the variables is there; replay again.";

pub fn new_sandbox(reason: &str) -> String {
    format!(
        "The sandbox is a new one, because the old one is gone: {reason}. Variables of earlier cells are gone; a replay rebuilds them."
    )
}

/// `restored_to` is the cell whose state was restored, 0 for the start; none if there is no such state.
/// `gone` says what else is lost.
pub fn worker_replaced(reason: &str, restored_to: Option<CellNumber>, gone: Option<&str>) -> String {
    let note = match restored_to {
        Some(0) => format!("Before this cell the variables went back to the start: {reason}."),
        Some(cell) => {
            format!("Before this cell the variables went back to those after cell {cell}: {reason}.")
        }
        // The changes of the cell itself are there.
        None => {
            format!("Before this cell all variables were lost: {reason}. What it assigned itself is there.")
        }
    };
    match gone {
        Some(gone) => format!("{note} {gone}"),
        None => note,
    }
}

/// What a woken session has: as after cell `cell`, what ran again, and what is missing.
pub fn woken(
    cell: CellNumber,
    missing: &[MissingVariable],
    reopened: &[ReopenedFile],
    replays: &[CellNumber],
    left_out: &[CellNumber],
) -> String {
    let mut note = match cell {
        0 => "The session woke in a new sandbox: its variables are as at the start.".to_owned(),
        cell => format!("The session woke in a new sandbox: its variables are as after cell {cell}."),
    };
    if !replays.is_empty() {
        let _ = write!(note, " Run again, with the recorded answers of tools: {}.", cells(replays));
    }
    if !left_out.is_empty() {
        let _ = write!(
            note,
            " Not run again, because they were interrupted, or are scratch or background cells: {}.",
            cells(left_out)
        );
    }
    if !missing.is_empty() {
        let names = missing.iter().map(|missing| format!("`{}` ({})", missing.name, missing.reason));
        let _ = write!(note, " Missing: {}.", listed(names, missing.len()));
    }
    if !reopened.is_empty() {
        let files = reopened.iter().map(|file| format!("`{}` ({})", file.name, file.path));
        let _ = write!(note, " Files opened again: {}.", listed(files, reopened.len()));
    }
    note.push_str(" Threads, processes and connections of earlier cells are gone.");
    note
}

/// The note after a snapshot that could not be loaded. `before` says why there is a new sandbox.
pub fn not_woken(before: Option<&str>, reason: &str) -> String {
    let before = before.map(|before| format!("{before} ")).unwrap_or_default();
    format!("{before}The snapshot of the variables could not be loaded: {reason}.")
}

/// Adds that the replay after waking was cut short.
pub fn wake_cut(note: Option<String>) -> String {
    note.map_or_else(|| REPLAY_CUT.to_owned(), |note| format!("{note} {REPLAY_CUT}"))
}

fn cells(numbers: &[CellNumber]) -> String {
    let names = numbers.iter().map(|cell| format!("cell {cell}"));
    listed(names, numbers.len())
}

fn listed(names: impl Iterator<Item = String>, all: usize) -> String {
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if all > NAMED {
        let _ = write!(text, " and {} more", all - NAMED);
    }
    text
}
