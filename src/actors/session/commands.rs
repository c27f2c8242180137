//! The commands of a session: programs that run beside its cells.

use super::state::SessionActorState;
use crate::protocol::api::CellState;
use crate::protocol::command::{CommandList, CommandSummary};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::COMMANDS_LISTED;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::session::machine::{EndCommand, Input};

impl SessionActorState {
    pub(super) fn commands(&self) -> CommandList {
        let open = self.machine.queue().commands().into_iter().map(|(start, runs)| {
            let state = if runs { CellState::Running } else { CellState::Queued };
            CommandSummary::open(start.cell, &start.code, state)
        });
        let mut commands: Vec<CommandSummary> = self.ended_commands.iter().cloned().chain(open).collect();
        commands.sort_by_key(|summary| summary.command);
        CommandList { commands }
    }

    /// Has a command end. One that has ended already is as its caller wants it.
    pub(super) fn end_command(&mut self, cell: CellNumber, how: EndCommand) -> Result<(), Problem> {
        let has_ended = || self.ended_commands.iter().any(|summary| summary.command == cell);
        if !self.machine.is_command(cell) && !has_ended() {
            return Err(Problem::new(Code::NoSuchCell, format!("there is no command {cell}"))
                .hint("`belljar commands` lists the commands of a session"));
        }
        self.apply(Input::EndCommand { cell, how });
        Ok(())
    }

    /// Keeps a command that has ended, for the list.
    pub(super) fn note_command(&mut self, result: &ExecutionResult) {
        if result.mode == Mode::Command {
            self.ended_commands.push_back(CommandSummary::ended(result));
            if self.ended_commands.len() > COMMANDS_LISTED {
                self.ended_commands.pop_front();
            }
        }
    }
}
