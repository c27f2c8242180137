//! `belljar run`: run a script in a session of its own that ends with it.

use std::path::PathBuf;

use clap::Args;

use crate::protocol::api::{NewSession, RunCell, SessionView};
use crate::protocol::receipt::Backend;
use crate::protocol::result::{Change, Mode};

use super::args::{SandboxArgs, seconds};
use super::cell::{End, Stops, show_end, stream};
use super::client::{Client, Events};
use super::context::Context;
use super::exit::script_exit_code;
use super::failure::Failure;
use super::new::made_of;
use super::session_key::SessionKey;

/// Run a script in a sandbox of its own, which is removed afterwards.
///
/// The exit code is the script's own.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// How long it may run, for example 30s or 5min.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// The script, or `-` to read it from stdin.
    file: PathBuf,
}

impl Run {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let cell = RunCell { code: self.code()?, timeout_s: self.timeout, mode: Mode::Main };
        let client = context.client();
        // From here on no signal may end us before the session is removed again.
        let mut stops = Stops::new()?;
        let keeps_files = self.sandbox.workspace.is_some();
        let session = ThrowAway::make(&client, self.sandbox).await?;
        session.tell_backend(context)?;
        let end = stream(context, &client, &session.name, &cell, &mut stops).await;
        let (name, removed) = session.remove(&client).await;
        let code = match end? {
            End::Left(code) => code,
            End::Finished(result) => {
                if context.json {
                    context.screen.json(&result)?;
                } else {
                    show_end(&mut context.screen, &result, true)?;
                    let left = result.artifacts.iter().any(|artifact| artifact.change != Change::Removed);
                    if left && !keeps_files {
                        context
                            .screen
                            .note("files are gone with the session; `--workspace DIR` keeps them")?;
                    }
                }
                script_exit_code(&result)
            }
        };
        if let Err(failure) = removed {
            context.screen.warn(&format!("the session `{name}` was not removed: {failure}"))?;
        }
        Ok(code)
    }

    fn code(&self) -> Result<String, Failure> {
        let read = if self.file.as_os_str() == "-" {
            std::io::read_to_string(std::io::stdin())
        } else {
            std::fs::read_to_string(&self.file)
        };
        // Editors of other systems put a mark before the text, which Python does not take for code.
        read.map(|code| code.strip_prefix('\u{feff}').map(ToOwned::to_owned).unwrap_or(code)).map_err(|e| {
            Failure::io(format_args!("failed to read `{}`", self.file.display()), &e)
                .hint("name a script in UTF-8, or `-` to read it from stdin")
        })
    }
}

/// A session that goes with us, however we go.
pub(super) struct ThrowAway {
    pub name: SessionKey,
    /// What holds it, if that is not the usual container.
    unusual: Option<String>,
    /// If we are killed, this connection goes with us, and the session after it.
    _held: Events,
}

impl ThrowAway {
    pub async fn make(client: &Client, sandbox: SandboxArgs) -> Result<Self, Failure> {
        let new = NewSession { ephemeral: true, ..sandbox.session()? };
        let session: SessionView = client.post("/v1/sessions", &new).await?.parse()?;
        match client.events::<()>(&format!("/v1/sessions/{}/hold", session.id), None).await {
            Ok(held) => {
                let unusual = (session.backend != Backend::Docker).then(|| made_of(&session));
                Ok(Self { name: session.name.into(), unusual, _held: held })
            }
            Err(failure) => {
                let _ = client.delete(&format!("/v1/sessions/{}", session.id)).await;
                Err(Failure::new(format!("the session cannot be held: {failure}")))
            }
        }
    }

    /// Isolation is never lowered in silence.
    pub fn tell_backend(&self, context: &mut Context) -> Result<(), Failure> {
        match &self.unusual {
            Some(what) if !context.json => context.screen.note(what),
            _ => Ok(()),
        }
    }

    /// Also says what it was called.
    pub async fn remove(self, client: &Client) -> (SessionKey, Result<(), Failure>) {
        let removed = client.delete(&format!("/v1/sessions/{}", self.name)).await.map(|_| ());
        (self.name, removed)
    }
}
