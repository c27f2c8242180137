//! `belljar reset`: discard the variables of a session.

use clap::Args;
use serde_json::Value;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;

/// Forget all variables of a session; its files remain.
#[derive(Debug, Args)]
pub(in crate::cli) struct Reset {
    #[command(flatten)]
    session: SessionArg,
}

impl Reset {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let note = format!("the variables of `{session}` are gone; its files remain");
        let answer = context.client().post_empty(&self.session.path("/reset")?).await?;
        context.show(&answer, |screen, _: Value| screen.note(&note))
    }
}
