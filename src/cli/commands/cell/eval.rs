//! `belljar eval`: one expression, without changing anything.

use clap::Args;
use serde_json::{Map, Value};

use crate::cli::args::{SessionFlag, code_or_stdin, json_object, seconds};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_whole;
use crate::protocol::api;
use crate::protocol::exit_codes::{self as exit, exit_code};

/// Evaluate one expression in a copy of a session, so that it changes nothing.
#[derive(Debug, Args)]
pub(in crate::cli) struct Eval {
    #[command(flatten)]
    session: SessionFlag,
    /// How long it may take.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// See none of the session's variables, only `--values` and a few safe functions.
    #[arg(long)]
    isolated: bool,
    /// With `--isolated`: names to use, as a JSON object or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "isolated")]
    values: Option<Map<String, Value>>,
    /// The expression, or `-` to read it from stdin.
    expression: String,
}

impl Eval {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let body = api::Eval {
            expression: code_or_stdin(&self.expression)?,
            timeout_s: self.timeout,
            isolated: self.isolated,
            values: self.values.unwrap_or_default(),
        };
        let answer = context.client().post(&format!("/v1/sessions/{session}/eval"), &body).await?;
        if !self.isolated {
            context.show(&answer, |screen, result| show_whole(screen, &result))?;
            return Ok(exit_code(&answer.parse()?));
        }
        let computed: api::Computed = answer.parse()?;
        if computed.result.is_none() && computed.error.is_none() {
            return Err(Failure::new("the daemon answered with neither a result nor an error"));
        }
        context.show(&answer, |screen, computed: api::Computed| match (computed.error, computed.result) {
            (Some(error), _) => screen.error(&error),
            (None, result) => screen.guest_line(&result.unwrap_or_default()),
        })?;
        Ok(if computed.error.is_some() { exit::FAILURE } else { exit::SUCCESS })
    }
}
