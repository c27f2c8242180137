//! Commands of a session: `sh` runs one or goes on in its terminal, `commands` lists them, `kill` ends one.

mod terminal;

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use serde_json::Value;

use crate::cli::args::{SessionArg, SessionFlag, seconds, variables};
use crate::cli::commands::cell::stream::{End, Stops, stream_command};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, or_dash, word};
use crate::cli::render::screen::Screen;
use crate::protocol::api::{CellState, CellView};
use crate::protocol::command::{CommandList, CommandSummary, NewCommand};
use crate::protocol::event::phrases::what_happened;
use crate::protocol::exit_codes::script_exit_code;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::COMMAND_STDIN_BYTES;
use crate::protocol::result::ExecutionResult;

/// Run a shell command in a session's sandbox, beside its cells.
///
/// One argument is a line for the image's shell; several are a program and its arguments. It begins in
/// the workspace. The exit code is its own. Ctrl-C interrupts it;
/// a second one leaves it running. Without a command it is a shell to type into.
#[derive(Debug, Args)]
pub(in crate::cli) struct Sh {
    #[command(flatten)]
    session: SessionFlag,
    /// How long it may run, for example 30s or 5min.
    #[arg(long, value_name = "TIME", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,
    /// The folder that it begins in, from the workspace on.
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Set a variable of the environment, `NAME=VALUE`, or `NAME` with the value that it has here; can be repeated.
    /// Never a secret: commands are recorded.
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Read its input from here, to the end, before it begins; without this it has none.
    #[arg(short = 'i', long, conflicts_with = "tty")]
    stdin: bool,
    /// Give it a terminal, for a program that a person types into.
    #[arg(short, long, conflicts_with = "background")]
    tty: bool,
    /// Do not wait: print its number, for `belljar wait` and `kill`.
    #[arg(long)]
    background: bool,
    /// Go on in the terminal of the command of this number, whose client is gone.
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["words", "background", "stdin", "tty", "timeout", "cwd", "env"]
    )]
    attach: Option<CellNumber>,
    /// The line, or the program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    words: Vec<String>,
}

/// What can be read from the standard input, as base64.
fn read_input() -> Result<String, Failure> {
    let failed = |e: std::io::Error| Failure::io("failed to read stdin", &e);
    let mut bytes = Vec::new();
    // One more than may be sent, so that the daemon says what is wrong.
    std::io::stdin().lock().take(COMMAND_STDIN_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(BASE64.encode(bytes))
}

impl Sh {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        if let Some(command) = self.attach {
            if context.json || !terminal::is_there() {
                let message = "`--attach` passes your terminal on: it needs one, and does without `--json`";
                let hint = format!("`belljar logs {session} --cell {command}` shows what it wrote");
                return Err(Failure::usage(message).hint(hint));
            }
            let result = terminal::attach(&context.client(), &session, command).await?;
            show_end(&mut context.screen, &result)?;
            return Ok(script_exit_code(&result));
        }
        let mut words = self.words;
        let is_typed_into = self.tty || words.is_empty();
        if words.is_empty() && (self.background || context.json || !terminal::is_there()) {
            let message = "no command is given, and a shell to type into needs a terminal and neither `--background` nor `--json`";
            return Err(Failure::usage(message).hint("name a command: `belljar sh -s NAME 'ls -la'`"));
        }
        if self.tty && (context.json || !terminal::is_there()) {
            let message = "`-t` passes your terminal on: it needs one, and does without `--json`";
            return Err(Failure::usage(message).hint("leave `-t` out"));
        }
        let line = if words.len() == 1 { words.pop() } else { None };
        let command = NewCommand {
            argv: words,
            line,
            cwd: self.cwd,
            env: variables(&self.env, |name| std::env::var(name).ok())?,
            stdin_base64: if self.stdin { Some(read_input()?) } else { None },
            timeout_s: self.timeout,
            background: self.background,
            ..NewCommand::default()
        };
        let client = context.client();
        if is_typed_into {
            let result = terminal::type_into(&client, &session, command).await?;
            show_end(&mut context.screen, &result)?;
            return Ok(script_exit_code(&result));
        }
        if self.background {
            let answer = client.post(&format!("/v1/sessions/{session}/commands"), &command).await?;
            return context.show(&answer, |screen, view: CellView| screen.line(&view.cell.to_string()));
        }
        let mut stops = Stops::new()?;
        match stream_command(context, &client, &session, &command, &mut stops).await? {
            End::Left(code) => {
                context.screen.note(&format!("it runs on; `belljar commands -s {session}` lists it"))?;
                Ok(code)
            }
            End::Finished(result) => {
                context.show_value(&result, |screen, result| show_end(screen, result))?;
                Ok(script_exit_code(&result))
            }
        }
    }
}

/// Shows what the command itself did not say.
fn show_end(screen: &mut Screen, result: &ExecutionResult) -> Result<(), Failure> {
    if let Some(text) = what_happened(result) {
        screen.error(&text)?;
    }
    match &result.state.note {
        Some(note) => screen.warn(note),
        None => Ok(()),
    }
}

/// List the commands of a session: those that run or wait, and the last of those that have ended.
///
/// `belljar logs NAME --cell N` shows what one of them wrote, and `belljar sh --attach N` goes on in its terminal.
#[derive(Debug, Args)]
pub(in crate::cli) struct Commands {
    #[command(flatten)]
    session: SessionArg,
}

impl Commands {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let answer = context.client().get(&format!("/v1/sessions/{session}/commands")).await?;
        context.show(&answer, |screen, list: CommandList| match &list.commands[..] {
            [] => screen.note("there were no commands; `belljar sh` runs one"),
            commands => screen.table(&command_table(commands)),
        })
    }
}

fn command_table(commands: &[CommandSummary]) -> Table {
    let row = |command: &CommandSummary| {
        let state = match command.state {
            CellState::Queued => "waits".to_owned(),
            CellState::Running => "runs".to_owned(),
            CellState::Done => or_dash(command.reason.map(|reason| word(&reason))),
        };
        let exit = or_dash(command.exit_code.map(|code| code.to_string()));
        [command.command.to_string(), state, exit, command.line.clone()]
    };
    Table::new(["NUMBER", "STATE", "EXIT", "COMMAND"], commands.iter().map(row))
}

/// End a command of a session, with all that it started.
#[derive(Debug, Args)]
pub(in crate::cli) struct Kill {
    #[command(flatten)]
    session: SessionFlag,
    /// The number of the command; `belljar commands` lists them.
    command: u64,
}

impl Kill {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let path = format!("/v1/sessions/{session}/commands/{}/kill", self.command);
        let answer = context.client().post_empty(&path).await?;
        context.show(&answer, |_, _: Value| Ok(()))
    }
}
