//! `belljar logs`: the events and output of a session.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::client::follow::StreamPosition;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_event;
use crate::protocol::api::{CellState, CellView};
use crate::protocol::event::{EventBody, Severity};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::result::Stream;

/// Show what happened in a session: output on stdout and stderr, everything else on stderr.
#[derive(Debug, Args)]
pub(in crate::cli) struct Logs {
    #[command(flatten)]
    session: SessionArg,
    /// Go on with what happens from now on.
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number.
    #[arg(long, value_name = "N")]
    after: Option<Seq>,
    /// Only what belongs to the cell or command of this number; with `--follow`, until it ends.
    #[arg(long, value_name = "N", conflicts_with = "after")]
    cell: Option<CellNumber>,
}

impl Logs {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        // The daemon knows where the events of a cell begin that has not ended; those of others are looked for.
        let after = match self.cell {
            None => self.after,
            Some(cell) => {
                let answer = context.client().get(&format!("/v1/sessions/{session}/cells/{cell}")).await?;
                let view: CellView = answer.parse()?;
                (view.state != CellState::Done).then_some(view.events_after)
            }
        };
        let mut path = format!("/v1/sessions/{session}/events?follow={}", self.follow);
        // Without a number, the stream begins with the oldest event that is still kept.
        if let Some(after) = after {
            path = format!("{path}&after={after}");
        }
        let mut events = context.client().events::<()>(&path, None).await?;
        let mut trail = StreamPosition::after(after.unwrap_or(0));
        let mut removed = false;
        loop {
            let event = match events.next().await {
                Ok(Some(event)) => event,
                Ok(None) if removed || !self.follow => break,
                Err(failure) if failure.problem.is_some() || !self.follow => return Err(failure),
                Ok(None) | Err(_) => {
                    // A command that only watches must not restart a daemon that was stopped on purpose.
                    let hint = "no daemon has come back; any other command starts one";
                    events = trail.resume(&context.client_of_running_daemon(), &session, hint).await?;
                    continue;
                }
            };
            trail.saw(event.seq);
            removed = matches!(event.body, EventBody::SessionRemoved);
            if self.cell.is_some() && event.body.cell() != self.cell {
                continue;
            }
            let is_last = self.cell.is_some() && matches!(event.body, EventBody::CellFinished { .. });
            if context.json {
                context.screen.json(&event)?;
                if is_last {
                    break;
                }
                continue;
            }
            // Other events may come in the middle of a line that the cell is still writing.
            if matches!(event.body, EventBody::CellFinished { .. }) {
                context.screen.end_line(Stream::Stdout)?;
            }
            match event.body.sentence() {
                Some(sentence) if sentence.severity == Severity::Warning => {
                    context.screen.warn(&sentence.to_string())?;
                }
                Some(sentence) => context.screen.note(&format!("-- {sentence}"))?,
                None => show_event(&mut context.screen, &event.body)?,
            }
            if is_last {
                break;
            }
        }
        context.screen.end_line(Stream::Stdout)?;
        context.screen.end_line(Stream::Stderr)?;
        Ok(exit::SUCCESS)
    }
}
