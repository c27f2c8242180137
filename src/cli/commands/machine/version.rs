//! `belljar version`: the version of the client, and of the daemon if it runs.

use clap::Args;
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::api;

/// Show the version of Belljar, and of the daemon if it runs.
#[derive(Debug, Args)]
pub(in crate::cli) struct Version {}

impl Version {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = env!("CARGO_PKG_VERSION");
        let daemon = match context.client_of_running_daemon().get("/v1/version").await {
            Ok(answer) => Some(answer.parse::<api::Version>()?),
            // The daemon does not run, which is fine here, or does not answer, which `daemon status` reports.
            Err(_) => None,
        };
        context.show_value(&json!({ "version": client, "daemon": daemon }), |screen, _| {
            screen.line(&format!("belljar {client}"))?;
            screen.line(&match &daemon {
                Some(daemon) => format!(
                    "daemon {} (bridge {}, engine {})",
                    daemon.version,
                    daemon.bridge,
                    daemon.engine.as_deref().unwrap_or("not there")
                ),
                None => "daemon not running".to_owned(),
            })
        })
    }
}
