//! Notes on what happened to a session's variables between two cells, shown with the next cell.

use crate::protocol::ids::CellNumber;

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
