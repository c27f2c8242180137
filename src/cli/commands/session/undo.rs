//! `belljar undo`: take back the last cells of a session.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::screen::Screen;
use crate::protocol::api::{Undo as Request, Undone};

/// Go back to the variables of some cells ago; files are not rewound.
#[derive(Debug, Args)]
pub(in crate::cli) struct Undo {
    #[command(flatten)]
    session: SessionArg,
    /// How many cells to take back.
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    cells: u64,
}

impl Undo {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = self.session.path("/undo")?;
        match context.client().post(&path, &Request { cells: self.cells }).await {
            Ok(answer) => context.show(&answer, |screen, undone| show_undone(screen, &undone)),
            Err(failure) if failure.problem.is_some() => Err(failure),
            Err(failure) => {
                Err(failure
                    .hint("`belljar logs` shows whether the cells were undone; look before you repeat it"))
            }
        }
    }
}

pub(in crate::cli) fn show_undone(screen: &mut Screen, undone: &Undone) -> Result<(), Failure> {
    screen.note(&match undone.state_of {
        0 => "the variables are as at the start".to_owned(),
        cell => format!("the variables are as after cell {cell}"),
    })?;
    undone.files_changed.iter().try_for_each(|file| screen.note(&format!("not rewound: {file}")))?;
    undone.note.iter().try_for_each(|note| screen.warn(note))
}
