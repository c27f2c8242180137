//! What became of a session's variables between two cells, in the words that the next one tells.

use crate::protocol::ids::CellNumber;

/// Only a part of the variables is there.
pub const REPLAY_CUT: &str =
    "A replay was broken off, so only a part of the variables is there; replay again.";

pub fn new_sandbox(reason: &str) -> String {
    format!(
        "The sandbox is a new one, because the old one is gone: {reason}. Variables of earlier cells are gone; a replay rebuilds them."
    )
}

/// `restored_to` is the cell whose state is there again, 0 for the start; none if nothing is. `gone` says what else is.
pub fn worker_replaced(reason: &str, restored_to: Option<CellNumber>, gone: Option<&str>) -> String {
    let note = match restored_to {
        Some(0) => format!("Before this cell the variables went back to the start: {reason}."),
        Some(cell) => {
            format!("Before this cell the variables went back to those after cell {cell}: {reason}.")
        }
        // Its own changes are there.
        None => {
            format!("Before this cell all variables were lost: {reason}. What it assigned itself is there.")
        }
    };
    match gone {
        Some(gone) => format!("{note} {gone}"),
        None => note,
    }
}
