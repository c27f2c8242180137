//! `belljar reset`: begin anew in a session.

use clap::Args;

use crate::protocol::exit_codes as exit;

use super::args::SessionArg;
use super::context::Context;
use super::failure::Failure;

/// Forget all variables of a session; its files remain.
#[derive(Debug, Args)]
pub(super) struct Reset {
    #[command(flatten)]
    session: SessionArg,
}

impl Reset {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let answer = context.client().post_empty(&format!("/v1/sessions/{session}/reset")).await?;
        if context.json {
            context.screen.line(&answer.text())?;
        } else {
            context.screen.note(&format!("the variables of `{session}` are gone; its files remain"))?;
        }
        Ok(exit::SUCCESS)
    }
}
