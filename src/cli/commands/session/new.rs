//! `belljar new`: create a session.

use clap::Args;
use serde_json::{Map, Value};
use std::time::Duration;

use crate::cli::args::{SandboxArgs, json_object, whole_seconds};
use crate::cli::client::follow::with_steps;
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::session::install::begin_with;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::screen::Screen;
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::event::EventBody;
use crate::protocol::ids::SessionName;
use crate::protocol::text::one_line;

/// If making a session takes longer than this, its progress is shown.
const SLOW: Duration = Duration::from_secs(1);

/// Make a session and print its name.
#[derive(Debug, Args)]
pub(in crate::cli) struct New {
    /// Its name; made up if absent.
    #[arg(value_parser = SessionName::parse)]
    name: Option<SessionName>,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    /// Processes and threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    pub pids: Option<u64>,
    /// How long it may be idle before it ends, for example 60min.
    #[arg(long, value_name = "TIME", value_parser = whole_seconds, allow_negative_numbers = true)]
    pub idle: Option<u64>,
    /// Variables to begin with: a JSON object, or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    seed: Option<Map<String, Value>>,
}

impl New {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let with = self.sandbox.with.clone();
        let new = NewSession {
            name: self.name,
            pids: self.pids,
            idle_s: self.idle,
            seed: self.seed.unwrap_or_default(),
            ..self.sandbox.session()?
        };
        let client = context.client();
        // The events of the session tell why it takes long, if the session can be found by its name.
        let name = new.name.clone().map(SessionKey::from);
        let is_step = |event: &EventBody| matches!(event, EventBody::ImagePulling { .. });
        let request = client.post("/v1/sessions", &new);
        let answer = with_steps(&client, name.as_ref(), SLOW, is_step, request).await?;
        let made: SessionView = answer.parse()?;
        begin_with(&client, &made.name.into(), with).await?;
        context.show(&answer, |screen, session: SessionView| {
            screen.note(&made_of(&session))?;
            note_preloaded(screen, &session)?;
            screen.line(session.name.as_str())
        })
    }
}

/// Says which modules of a family could not be imported.
pub(in crate::cli) fn note_preloaded(screen: &mut Screen, session: &SessionView) -> Result<(), Failure> {
    let Some(preloaded) = &session.preloaded else { return Ok(()) };
    let skipped: Vec<String> = preloaded.skipped.iter().map(|each| one_line(&each.import)).collect();
    let mut note = format!("preloaded: {} names", preloaded.names);
    if !skipped.is_empty() {
        note = format!("{note}; cannot be imported here: {}", skipped.join(", "));
    }
    screen.note(&note)
}

/// `docker · python:3.12 · Python 3.12.1 · no network, …`
pub(in crate::cli) fn made_of(session: &SessionView) -> String {
    let image = session.image.as_ref().map(|image| image.reference.clone());
    let python = session.python.as_ref().map(|version| format!("Python {version}"));
    let parts = [Some(session.backend.name().to_owned()), image, python, session.isolation.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}
