//! `belljar wait`: wait for a cell or an ask and show how it ended.

use clap::Args;

use crate::cli::args::SessionFlag;
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::ask::submit;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_whole;
use crate::protocol::api::{CellView, SessionState, SessionView};
use crate::protocol::ask::{AskNumber, AskView};
use crate::protocol::exit_codes::{self as exit, ask_exit_code, exit_code, script_exit_code};
use crate::protocol::result::Mode;

/// Wait for a cell, a command or an ask to end, show what came of it and exit as `exec`, `sh` or `ask` would have.
#[derive(Debug, Args)]
pub(in crate::cli) struct Wait {
    #[command(flatten)]
    session: SessionFlag,
    /// The number of the cell or command, the newest if it is not given; before it the session, if `-s` does not name it.
    #[arg(value_name = "[SESSION] CELL", num_args = 0..=2)]
    words: Vec<String>,
    /// The number of an ask, instead of a cell.
    #[arg(long, value_name = "N", conflicts_with = "words")]
    ask: Option<AskNumber>,
}

impl Wait {
    /// The session, and the number of the cell if it is given.
    fn target(&self) -> Result<(SessionKey, Option<u64>), Failure> {
        let number = |word: &String| word.parse::<u64>().ok();
        let is_free = !self.session.is_given();
        let key = |word: &String| SessionKey::parse(word).map_err(Failure::usage);
        match self.words.as_slice() {
            [] => Ok((self.session.resolve()?, None)),
            [word] if number(word).is_some() => Ok((self.session.resolve()?, number(word))),
            [session] if is_free => Ok((key(session)?, None)),
            [session, cell] if is_free && number(cell).is_some() => Ok((key(session)?, number(cell))),
            _ => Err(Failure::usage("a cell is named by its number").hint("as in `belljar wait -s lab 3`")),
        }
    }

    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let (session, cell) = self.target()?;
        let client = context.client();
        if let Some(ask) = self.ask {
            let answer =
                client.get_in_the_end(&format!("/v1/sessions/{session}/asks/{ask}?wait=true")).await?;
            let view: AskView = answer.parse()?;
            let Some(end) = view.end else { return Ok(exit::SUCCESS) };
            context.show_value(&end, |screen, end| submit::show_end(screen, end, false))?;
            return Ok(ask_exit_code(end.outcome));
        }
        let view = client.get(&format!("/v1/sessions/{session}")).await?.parse::<SessionView>()?;
        if view.state == SessionState::Frozen {
            context.screen.warn(&format!(
                "the session is frozen: what runs in it goes on after `belljar thaw {session}`"
            ))?;
        }
        let cell = cell.unwrap_or(view.cells);
        let answer = client.get_in_the_end(&format!("/v1/sessions/{session}/cells/{cell}?wait=true")).await?;
        let view: CellView = answer.parse()?;
        let Some(result) = view.result else { return Ok(exit::SUCCESS) };
        context.show_value(&result, show_whole)?;
        Ok(if result.mode == Mode::Command { script_exit_code(&result) } else { exit_code(&result) })
    }
}
