//! Notes on what happened to a session's variables between two cells, shown with the next cell.

use std::fmt::Write as _;

use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::protocol::saved_state::BaseSource;
use crate::protocol::snapshot::{MissingVariable, ReopenedFile};
use crate::protocol::text::quotable;

/// Missing variables and reopened files that a note names; the event names all.
const NAMED: usize = 10;

/// The note after an incomplete replay.
pub const REPLAY_CUT: &str =
    "A replay was broken off, so only a part of the variables is there; replay again.";

/// The note after the end of a sandbox. `had_variables`: earlier cells can have made some, which went with it.
pub fn new_sandbox(reason: &str, had_variables: bool) -> String {
    let new = format!("The sandbox is a new one, because the old one is gone: {reason}.");
    if had_variables {
        format!("{new} Variables of earlier cells are gone; a replay rebuilds them.")
    } else {
        new
    }
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

/// Where the variables come from that a new sandbox has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WokenFrom<'a> {
    /// A snapshot of the session, as after this cell.
    Cell(CellNumber),
    /// What the session began with. `is_first`: no cell of its own has run yet.
    Base { source: &'a BaseSource, is_first: bool },
    /// Nothing was saved: cells run again from the start.
    Nothing,
}

/// What a woken session has: where it comes from, what ran again, and what is missing.
pub fn woken(
    from: WokenFrom<'_>,
    missing: &[MissingVariable],
    reopened: &[ReopenedFile],
    replays: &[CellNumber],
    left_out: &[CellNumber],
) -> String {
    const WOKE: &str = "The session woke in a new sandbox: its variables are";
    let is_first = matches!(from, WokenFrom::Base { is_first: true, .. });
    let mut note = match from {
        WokenFrom::Cell(0) => format!("{WOKE} as at the start."),
        WokenFrom::Cell(cell) => format!("{WOKE} as after cell {cell}."),
        WokenFrom::Base { source, is_first: true } => {
            format!("The variables of this session come from {}.", origin(source))
        }
        WokenFrom::Base { source, is_first: false } => {
            format!("{WOKE} those that it began with, from {}.", origin(source))
        }
        WokenFrom::Nothing => {
            "The sandbox is a new one, because the old one is gone, and its variables were not saved yet."
                .to_owned()
        }
    };
    if !replays.is_empty() {
        let _ = write!(note, " Run again, with the recorded answers of tools: {}.", cells(replays));
    }
    if !left_out.is_empty() {
        let _ = write!(
            note,
            " Not run again, because they were interrupted, are scratch or background cells, cannot be repeated, or because \
             sandboxes ended again and again while they ran: {}.",
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
    note.push_str(if is_first {
        " Threads, processes and connections did not come with them."
    } else {
        " Threads, processes and connections of earlier cells are gone."
    });
    note
}

fn origin(source: &BaseSource) -> String {
    match source {
        BaseSource::Archive { name, cell } => {
            format!("the archive of session `{}`, where they were as after cell {cell}", quotable(name))
        }
        BaseSource::Session { name, cell, .. } => {
            format!("session `{name}`, where they were as after cell {cell}")
        }
    }
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

/// Adds that cells did not run again after waking, because they cannot.
pub fn not_run_again(note: Option<&str>, numbers: &[CellNumber], problem: &Problem) -> String {
    let note = note.map(|note| format!("{note} ")).unwrap_or_default();
    let way_out = problem.hint.as_ref().map(|hint| format!(" ({hint}, then replay)")).unwrap_or_default();
    let cells = cells(numbers);
    format!(
        "{note}These could not run again, so what they made is missing: {cells}; {}{way_out}.",
        problem.message
    )
}

/// Adds that cells which ran again after waking ended otherwise than before.
pub fn ended_otherwise(note: Option<String>, numbers: &[CellNumber]) -> Option<String> {
    if numbers.is_empty() {
        return note;
    }
    let note = note.map_or_else(String::new, |note| format!("{note} "));
    let cells = cells(numbers);
    Some(format!(
        "{note}Of the cells that ran again, these ended otherwise than before, so variables may differ: {cells}."
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_begins_with_an_archive_says_so_and_not_that_it_woke() {
        let source = BaseSource::Archive { name: "lab\u{1b}".into(), cell: 7 };
        let note = |is_first| woken(WokenFrom::Base { source: &source, is_first }, &[], &[], &[], &[]);
        assert_eq!(
            note(true),
            "The variables of this session come from the archive of session `lab\\u{1b}`, where they were as after \
             cell 7. Threads, processes and connections did not come with them."
        );
        assert!(note(false).starts_with("The session woke in a new sandbox: its variables are those that"));
    }

    #[test]
    fn cells_that_run_again_from_nothing_are_named() {
        let note = woken(WokenFrom::Nothing, &[], &[], &[1, 2], &[3]);
        assert!(note.starts_with("The sandbox is a new one, because"), "{note}");
        for part in ["answers of tools: cell 1, cell 2.", "again while they ran: cell 3."] {
            assert!(note.contains(part), "{note}");
        }
    }
}
