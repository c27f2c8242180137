//! `belljar rm`: remove sessions.

use clap::Args;
use serde_json::json;

use crate::cli::client::session_key::SessionKey;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::api::SessionList;
use crate::protocol::exit_codes as exit;

/// Remove sessions with their sandboxes and managed workspaces.
#[derive(Debug, Args)]
pub(in crate::cli) struct Rm {
    /// The sessions.
    #[arg(value_parser = SessionKey::parse, required_unless_present = "all", conflicts_with = "all")]
    names: Vec<SessionKey>,
    /// All of yours.
    #[arg(long)]
    all: bool,
}

impl Rm {
    /// Removes all sessions that it can, also if one of them fails.
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        let names = if self.all {
            let list: SessionList = client.get("/v1/sessions").await?.parse()?;
            list.sessions.into_iter().map(|session| session.name.into()).collect()
        } else {
            self.names
        };
        let mut removed = Vec::new();
        let mut first_failure = None;
        for name in names {
            match client.delete(&format!("/v1/sessions/{name}")).await {
                Ok(_) if context.json => removed.push(name),
                Ok(_) => context.screen.line(name.as_str())?,
                Err(mut failure) => {
                    // The client's own hint would be to create the session, which is no help here.
                    failure.hint = failure.problem.as_ref().and_then(|problem| problem.hint.clone());
                    if let Some(earlier) = first_failure.replace(failure) {
                        context.screen.failure(&earlier, context.json);
                    }
                }
            }
        }
        if context.json {
            context.screen.json(&json!({ "removed": removed }))?;
        }
        first_failure.map_or(Ok(exit::SUCCESS), Err)
    }
}
