//! `belljar wait`: wait for a cell and show how it ended.

use clap::Args;

use crate::protocol::api::{CellView, SessionView};

use super::args::SessionFlag;
use super::cell::show_end;
use super::context::Context;
use super::exit::{self, exit_code};
use super::failure::Failure;

/// Wait for a cell to end, show its output and exit as `exec` would have.
#[derive(Debug, Args)]
pub(super) struct Wait {
    #[command(flatten)]
    session: SessionFlag,
    /// The number of the cell; the newest if it is not given.
    cell: Option<u64>,
}

impl Wait {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let client = context.client();
        let cell = match self.cell {
            Some(cell) => cell,
            None => client.get(&format!("/v1/sessions/{session}")).await?.parse::<SessionView>()?.cells,
        };
        let answer = client.get(&format!("/v1/sessions/{session}/cells/{cell}?wait=true")).await?;
        let view: CellView = answer.parse()?;
        let Some(result) = view.result else { return Ok(exit::SUCCESS) };
        if context.json {
            context.screen.json(&result)?;
        } else {
            for segment in &result.output {
                context.screen.guest(segment.stream, &segment.text)?;
            }
            show_end(&mut context.screen, &result, false)?;
        }
        Ok(exit_code(&result))
    }
}
