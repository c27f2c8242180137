//! `belljar show`: one session.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::commands::session::ps::state;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{age, size};
use crate::protocol::api::SessionView;

/// Show one session.
#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    #[command(flatten)]
    pub session: SessionArg,
}

impl Show {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = self.session.path("")?;
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, session| screen.facts(&facts(&session)))
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
