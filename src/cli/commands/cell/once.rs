//! Commands that run one piece of Python in a session: code, or an expression.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value};

use crate::cli::args::{SessionFlag, code_or_stdin, json_object, seconds};
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::cell::missing_package;
use crate::cli::commands::cell::silence::MoreTime;
use crate::cli::commands::cell::stream::{End, Stops, stream};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::{show_end, show_whole};
use crate::protocol::api::{CellView, RunCell};
use crate::protocol::exit_codes::exit_code;
use crate::protocol::result::Mode;
use crate::protocol::text::quotable;
use crate::protocol::{api, exit_codes as exit};

/// Python, and the session it is for: `-s lab CODE`, or `lab CODE`.
#[derive(Debug, Args)]
struct CodeArgs {
    #[command(flatten)]
    session: SessionFlag,
    /// The code, or `-` to read it from stdin; before it the session, if `-s` does not name it.
    #[arg(value_name = "[SESSION] CODE", required = true, num_args = 1..=2, allow_negative_numbers = true)]
    words: Vec<String>,
}

impl CodeArgs {
    fn resolve(&self) -> Result<(SessionKey, String), Failure> {
        match self.words.as_slice() {
            [code] => Ok((self.session.resolve()?, code_or_stdin(code)?)),
            [session, code] if !self.session.is_given() => {
                let key = SessionKey::parse(session).map_err(|problem| {
                    Failure::usage(format!("`{}` cannot be a session: {problem}", quotable(session)))
                        .hint("put code that has spaces in quotes")
                })?;
                Ok((key, code_or_stdin(code)?))
            }
            _ => Err(Failure::usage("there is more than one piece of code")
                .hint("put code that has spaces in quotes, as in `belljar exec -s lab 'x = 1'`")),
        }
    }
}

/// Evaluate one expression in a copy of a session, so that it changes nothing.
#[derive(Debug, Args)]
pub(in crate::cli) struct Eval {
    #[command(flatten)]
    words: CodeArgs,
    /// How long it may take.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// See none of the session's variables, only `--values` and a few safe functions.
    #[arg(long)]
    isolated: bool,
    /// With `--isolated`: names to use, as a JSON object or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "isolated")]
    values: Option<Map<String, Value>>,
}

impl Eval {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let (session, expression) = self.words.resolve()?;
        let body = api::Eval {
            expression,
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

/// Run Python in a session and watch its output.
///
/// Variables are kept for the next cell. Ctrl-C interrupts the cell; a second one leaves it running.
#[derive(Debug, Args)]
pub(in crate::cli) struct Exec {
    #[command(flatten)]
    words: CodeArgs,
    /// How long it may run, for example 30s or 5min.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// `fork` runs in a copy whose changes are dropped. `scratch` has names of its own, which are dropped, and shares the
    /// objects. `background` is a thread that shares the variables of the cells
    /// after it: its number is printed at once, for `belljar wait`.
    #[arg(long, value_parser = cell_mode(), default_value = "main")]
    mode: Mode,
    /// Do not wait: print the number of the cell, for `belljar wait`.
    #[arg(long)]
    detach: bool,
}

/// Where a cell may run: a command is no cell.
fn cell_mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(["main", "fork", "scratch", "background"]).map(|word| match word.as_str() {
        "fork" => Mode::Fork,
        "scratch" => Mode::Scratch,
        "background" => Mode::Background,
        _ => Mode::Main,
    })
}

impl Exec {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let (session, code) = self.words.resolve()?;
        let cell = RunCell { code, timeout_s: self.timeout, mode: self.mode };
        let client = context.client();
        if self.detach || self.mode == Mode::Background {
            let answer = client.post(&format!("/v1/sessions/{session}/cells"), &cell).await?;
            return context.show(&answer, |screen, view: CellView| screen.line(&view.cell.to_string()));
        }
        let mut stops = Stops::new()?;
        match stream(context, &client, &session, (&cell, MoreTime::EXEC), &mut stops).await? {
            End::Left(code) => {
                context
                    .screen
                    .note(&format!("the cell runs on; follow it with `belljar logs -f -s {session}`"))?;
                Ok(code)
            }
            End::Finished(result) => {
                context.show_value(&result, |screen, result| show_end(screen, result, false))?;
                missing_package::name_image(context, &client, &result).await?;
                Ok(exit_code(&result))
            }
        }
    }
}
