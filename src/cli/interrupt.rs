//! `belljar interrupt`: stop the running cell of a session, or an ask.

use clap::Args;

use crate::protocol::api::Interrupted;
use crate::protocol::ask::{AskNumber, AskOutcome, AskView};
use crate::protocol::exit_codes as exit;

use super::args::SessionArg;
use super::context::Context;
use super::failure::Failure;

/// Interrupt the running cell of a session; its variables are kept.
#[derive(Debug, Args)]
pub(super) struct Interrupt {
    #[command(flatten)]
    session: SessionArg,
    /// Cancel the ask of this number, with what runs for it.
    #[arg(long, value_name = "N")]
    ask: Option<AskNumber>,
}

impl Interrupt {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        if let Some(ask) = self.ask {
            let answer =
                context.client().post_empty(&format!("/v1/sessions/{session}/asks/{ask}/cancel")).await?;
            if context.json {
                context.screen.line(&answer.text())?;
                return Ok(exit::SUCCESS);
            }
            let view: AskView = answer.parse()?;
            context.screen.note(&match view.end.map(|end| end.outcome) {
                Some(AskOutcome::Cancelled) => format!("ask {ask} is cancelled"),
                _ => format!("ask {ask} had ended already"),
            })?;
            return Ok(exit::SUCCESS);
        }
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
