//! `belljar new`: make a session.

use clap::Args;
use serde_json::{Map, Value};

use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::ids::SessionName;

use super::args::{SandboxArgs, json_object, session_name, whole_seconds};
use super::context::Context;
use super::exit;
use super::failure::Failure;

/// Make a session and print its name.
#[derive(Debug, Args)]
pub(super) struct New {
    /// Its name; made up if absent.
    #[arg(value_parser = session_name)]
    name: Option<SessionName>,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// Processes and threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub pids: Option<u64>,
    /// How long it may be idle before it ends, for example 60min.
    #[arg(long, value_name = "TIME", value_parser = whole_seconds)]
    pub idle: Option<u64>,
    /// Variables to begin with: a JSON object, or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    seed: Option<Map<String, Value>>,
}

impl New {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let new = NewSession {
            workspace: self.sandbox.workspace()?,
            name: self.name,
            backend: self.sandbox.backend,
            image: self.sandbox.image,
            memory_bytes: self.sandbox.memory,
            cpus: self.sandbox.cpus,
            pids: self.pids,
            idle_s: self.idle,
            seed: self.seed.unwrap_or_default(),
        };
        let answer = context.client().post("/v1/sessions", &new).await?;
        if context.json {
            context.screen.line(&answer.text())?;
            return Ok(exit::SUCCESS);
        }
        let session: SessionView = answer.parse()?;
        context.screen.note(&made_of(&session))?;
        context.screen.line(session.name.as_str())?;
        Ok(exit::SUCCESS)
    }
}

/// `docker · python:3.12 · Python 3.12.1 · no network, …`
fn made_of(session: &SessionView) -> String {
    let image = session.image.as_ref().map(|image| image.reference.clone());
    let python = session.python.as_ref().map(|version| format!("Python {version}"));
    let parts = [Some(session.backend.name().to_owned()), image, python, session.isolation.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}
