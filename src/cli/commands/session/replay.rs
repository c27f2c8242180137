//! `belljar replay`: rebuild the variables of a session by running its cells again.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::commands::cell::stream::Stops;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::screen::Screen;
use crate::protocol::api::{Interrupted, ReplayReport};
use crate::protocol::exit_codes as exit;

/// Run the cells that made the session's variables again, in a fresh worker.
///
/// Cells that were undone, timed out or crashed are left out; tools are not called again, their
/// recorded answers are used. Exits with 1 if something came out differently.
#[derive(Debug, Args)]
pub(in crate::cli) struct Replay {
    #[command(flatten)]
    session: SessionArg,
}

impl Replay {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let client = context.client();
        let mut stops = Stops::new()?;
        let path = format!("/v1/sessions/{session}/replay");
        let mut answer = std::pin::pin!(client.post_empty(&path));
        let mut interrupted = false;
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer?,
                code = stops.next() => {
                    if interrupted || code == exit::TERMINATED {
                        return Ok(code);
                    }
                    context.screen.note("interrupting the replay; press Ctrl-C again to leave it")?;
                    let hit = client.post_empty(&format!("/v1/sessions/{session}/interrupt")).await?;
                    // Between two cells there is nothing to interrupt, so the next Ctrl-C tries again.
                    interrupted = hit.parse::<Interrupted>()?.cell.is_some();
                }
            }
        };
        let report: ReplayReport = answer.parse()?;
        let same = is_same(&report);
        context.show(&answer, |screen, report: ReplayReport| show_replay(screen, &report))?;
        Ok(if same { exit::SUCCESS } else { exit::FAILURE })
    }
}

/// Whether all cells ran again, and came out as before.
pub(in crate::cli) fn is_same(report: &ReplayReport) -> bool {
    report.cells.iter().all(|cell| cell.differences.is_empty()) && report.not_run.is_empty()
}

pub(in crate::cli) fn show_replay(screen: &mut Screen, report: &ReplayReport) -> Result<(), Failure> {
    for cell in &report.cells {
        let how = match cell.differences.as_slice() {
            [] => "the same".to_owned(),
            differences => format!("different in {}", differences.join(", ")),
        };
        screen.line(&format!("cell {} ran again as {}: {how}", cell.cell, cell.replayed_as))?;
    }
    for cell in &report.left_out {
        screen.warn(&format!("cell {cell} was interrupted when it first ran, and is left out"))?;
    }
    let Some(first) = report.not_run.first() else { return Ok(()) };
    let left = report.not_run.len();
    screen.warn(&format!("broken off before cell {first}: {left} of the cells did not run; replay again"))
}
