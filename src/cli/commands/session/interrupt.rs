//! `belljar interrupt`: stop the running cell of a session, or an ask.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::api::Interrupted;
use crate::protocol::ask::{AskNumber, AskOutcome, AskView};

/// Interrupt the running cell of a session; its variables are kept.
#[derive(Debug, Args)]
pub(in crate::cli) struct Interrupt {
    #[command(flatten)]
    session: SessionArg,
    /// Cancel the ask of this number, with what runs for it.
    #[arg(long, value_name = "N")]
    ask: Option<AskNumber>,
}

impl Interrupt {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let Some(ask) = self.ask else {
            let answer = context.client().post_empty(&self.session.path("/interrupt")?).await?;
            return context.show(&answer, |screen, interrupted: Interrupted| match interrupted.cell {
                Some(cell) => screen.note(&format!("interrupting cell {cell}")),
                None => screen.note("no cell is running"),
            });
        };
        let answer = context.client().post_empty(&self.session.path(&format!("/asks/{ask}/cancel"))?).await?;
        context.show(&answer, |screen, view: AskView| match view.end.map(|end| end.outcome) {
            Some(AskOutcome::Cancelled) => screen.note(&format!("ask {ask} is cancelled")),
            _ => screen.note(&format!("ask {ask} had ended already")),
        })
    }
}
