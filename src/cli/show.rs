//! `belljar show`: one session.

use clap::Args;

use crate::protocol::api::SessionView;
use crate::protocol::exit_codes as exit;

use super::args::SessionArg;
use super::context::Context;
use super::failure::Failure;
use super::human::{age, size};
use super::ps::state;

/// Show one session.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    pub session: SessionArg,
}

impl Show {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let answer = context.client().get(&format!("/v1/sessions/{session}")).await?;
        if context.json {
            context.screen.line(&answer.text())?;
            return Ok(exit::SUCCESS);
        }
        context.screen.facts(&facts(&answer.parse()?))?;
        Ok(exit::SUCCESS)
    }
}

fn facts(session: &SessionView) -> Vec<(&'static str, String)> {
    let none = || "none yet".to_owned();
    let limits = &session.limits;
    let mut state = state(session);
    if let Some(cell) = session.running {
        state = format!("{state}, cell {cell} runs");
    }
    vec![
        ("name", session.name.to_string()),
        ("id", session.id.to_string()),
        ("state", state),
        ("backend", session.backend.name().to_owned()),
        (
            "image",
            session.image.as_ref().map_or_else(none, |image| format!("{} ({})", image.reference, image.id)),
        ),
        ("python", session.python.clone().unwrap_or_else(none)),
        ("isolation", session.isolation.clone().unwrap_or_else(none)),
        ("memory", size(limits.memory_bytes)),
        ("cpus", limits.cpus.to_string()),
        ("processes", limits.pids.to_string()),
        ("workspace", session.workspace.clone()),
        ("cells", session.cells.to_string()),
        ("created", session.created_at.clone()),
        ("idle", format!("{} of {}", age(session.idle_for_s), age(limits.idle_s))),
    ]
}
