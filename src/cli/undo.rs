//! `belljar undo`: take back the last cells of a session.

use clap::Args;

use crate::protocol::api::{Undo as Request, Undone};

use super::args::SessionArg;
use super::context::Context;
use super::exit;
use super::failure::Failure;

/// Go back to the variables of some cells ago; files are not rewound.
#[derive(Debug, Args)]
pub(super) struct Undo {
    #[command(flatten)]
    session: SessionArg,
    /// How many cells to take back.
    #[arg(short = 'n', long, default_value_t = 1)]
    cells: u64,
}

impl Undo {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let path = format!("/v1/sessions/{session}/undo");
        let answer = context.client().post(&path, &Request { cells: self.cells }).await?;
        if context.json {
            context.screen.line(&answer.text())?;
            return Ok(exit::SUCCESS);
        }
        let undone: Undone = answer.parse()?;
        context.screen.note(&match undone.state_of {
            0 => "the variables are as at the start".to_owned(),
            cell => format!("the variables are as after cell {cell}"),
        })?;
        for file in &undone.files_changed {
            context.screen.note(&format!("not rewound: {file}"))?;
        }
        Ok(exit::SUCCESS)
    }
}
