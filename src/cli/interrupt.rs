//! `belljar interrupt`: stop the running cell of a session.

use clap::Args;

use crate::protocol::api::Interrupted;

use super::args::SessionArg;
use super::context::Context;
use super::exit;
use super::failure::Failure;

/// Interrupt the running cell of a session; its variables are kept.
#[derive(Debug, Args)]
pub(super) struct Interrupt {
    #[command(flatten)]
    session: SessionArg,
}

impl Interrupt {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let answer = context.client().post_empty(&format!("/v1/sessions/{session}/interrupt")).await?;
        if context.json {
            context.screen.line(&answer.text())?;
            return Ok(exit::SUCCESS);
        }
        let interrupted: Interrupted = answer.parse()?;
        context.screen.note(&match interrupted.cell {
            Some(cell) => format!("interrupting cell {cell}"),
            None => "no cell is running".to_owned(),
        })?;
        Ok(exit::SUCCESS)
    }
}
