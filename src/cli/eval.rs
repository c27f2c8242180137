//! `belljar eval`: one expression, without changing anything.

use clap::Args;
use serde_json::{Map, Value};

use crate::protocol::api;
use crate::protocol::exit_codes::{self as exit, exit_code};
use crate::protocol::result::ExecutionResult;

use super::args::{SessionFlag, code_or_stdin, json_object, seconds};
use super::cell::show_end;
use super::context::Context;
use super::failure::Failure;

/// Evaluate one expression in a copy of a session, so that it changes nothing.
#[derive(Debug, Args)]
pub(super) struct Eval {
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
        let screen = &mut context.screen;
        if context.json {
            screen.line(&answer.text())?;
        }
        if self.isolated {
            let computed: api::Computed = answer.parse()?;
            return match (computed.result, computed.error) {
                (_, Some(_)) if context.json => Ok(exit::FAILURE),
                (_, Some(error)) => screen.error(&error).map(|()| exit::FAILURE),
                (Some(_), None) if context.json => Ok(exit::SUCCESS),
                (Some(result), None) => screen.guest_line(&result).map(|()| exit::SUCCESS),
                (None, None) => Err(Failure::new("the daemon answered with neither a result nor an error")),
            };
        }
        let result: ExecutionResult = answer.parse()?;
        if !context.json {
            for segment in &result.output {
                screen.guest(segment.stream, &segment.text)?;
            }
            show_end(screen, &result, false)?;
        }
        Ok(exit_code(&result))
    }
}
