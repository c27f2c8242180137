//! Commands and background cells, as far as the machine of a session decides on them: they run beside its other cells.

use super::{Effect, SessionMachine};
use crate::protocol::command::EndCommand;
use crate::protocol::ids::CellNumber;

impl<W> SessionMachine<W> {
    /// Whether a command of this number waits or runs.
    pub fn is_command(&self, cell: CellNumber) -> bool {
        self.queue.commands().iter().any(|(start, _)| start.cell == cell)
    }

    /// Whether a command or a background cell of this number waits or runs.
    pub fn goes_beside(&self, cell: CellNumber) -> bool {
        self.is_command(cell) || self.queue.is_background(cell)
    }

    /// Ends what runs beside the cells: what was not sent to the sandbox is not run.
    pub(super) fn end_command(&mut self, cell: CellNumber, how: EndCommand, out: &mut Vec<Effect<W>>) {
        if !self.goes_beside(cell) {
            return;
        }
        if !self.runs(cell) {
            let what = if self.is_command(cell) { "command" } else { "cell" };
            self.give_up(cell, &format!("The {what} was ended before it ran."), out);
            return;
        }
        if self.attaching {
            // The sandbox of the command is not attached yet: the command is interrupted as soon as it is, and killed if
            // it does not end.
            self.cancelled.insert(cell);
            return;
        }
        if !self.is_ready() {
            return; // its sandbox is gone, and its end with it is about to be told
        }
        // A frozen process does not hear of it.
        self.thaw(out);
        out.push(match how {
            EndCommand::Interrupt => Effect::Interrupt(cell),
            EndCommand::Kill => Effect::Kill(cell),
        });
    }
}
