//! The commands of a session: programs that run beside its cells.

use super::state::SessionActorState;
use crate::actors::executor::messages::{Command, ToTerminal};
use crate::protocol::api::CellState;
use crate::protocol::command::{CommandList, CommandSummary, EndCommand};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::COMMANDS_LISTED;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::session::machine::Input;
use crate::session::outcome::CellStart;

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

    /// Passes on what a person does at the terminal of a command, which counts as activity of the session.
    pub(super) fn pass_to_terminal(&mut self, cell: CellNumber, what: ToTerminal) -> Result<(), Problem> {
        let open = self.machine.queue().commands();
        let has_terminal = |(start, _): &(&CellStart, bool)| {
            start.cell == cell && start.command.as_ref().is_some_and(|command| command.terminal.is_some())
        };
        if !open.iter().any(has_terminal) {
            return Err(Problem::new(
                Code::NoSuchCell,
                format!("no command {cell} runs that has a terminal"),
            )
            .hint("a command has one if it was started with `tty`"));
        }
        self.touch();
        self.apply(Input::Thaw);
        self.command(Command::ToTerminal(cell, what));
        Ok(())
    }

    /// Has a command or a background cell end. A command that has ended already is as its caller wants it.
    pub(super) fn end_command(&mut self, cell: CellNumber, how: EndCommand) -> Result<(), Problem> {
        let has_ended = || self.ended_commands.iter().any(|summary| summary.command == cell);
        if !self.machine.goes_beside(cell) && !has_ended() {
            let what = format!("{cell} is no command, and no background cell that runs");
            return Err(Problem::new(Code::NoSuchCell, what)
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
