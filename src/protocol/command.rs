//! Commands: programs that run in a session's sandbox beside its cells.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::api::CellState;
use super::ids::CellNumber;
use super::limits::{COMMAND_BYTES, COMMAND_STDIN_BYTES, TYPED_BYTES};
use super::problem::{Code, Problem};
use super::result::{ExecutionResult, Reason, Status};
use super::text::brief;

/// Characters of a command in a list.
const LISTED_CHARS: usize = 200;
/// The size of a terminal whose client does not tell it.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// `POST /v1/sessions/{s}/commands`. With `?wait=true` the answer is an `ExecutionResult`, with `?stream=true` an event
/// stream that ends with the command; else a `CellView`, at once. A command has a number among the session's cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewCommand {
    /// The program and its arguments; no shell reads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// A line for the image's shell, instead of `argv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The folder that it begins in; what is relative is so to the workspace, which is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables beside those of the sandbox.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Text that it can read from its standard input, which is empty otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The same for bytes, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// It has a terminal of this size, which is its input and all of its output. Without `argv` and `line` it is then an
    /// interactive shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<TerminalSize>,
    /// Seconds that it may run; the default and the maximum are those of cells. With a terminal, the default is the
    /// maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Answer at once, whatever the query says. The default time is then the maximum.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
}

/// A checked command, as it is recorded and sent to a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CommandSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdin: String,
    /// The command has a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: ROWS, columns: COLUMNS }
    }
}

impl NewCommand {
    /// Checks what a client wants to run.
    pub fn checked(self) -> Result<CommandSpec, Problem> {
        let bad = |message: &str, hint: &str| Err(Problem::new(Code::BadRequest, message).hint(hint));
        let Self { argv, line, cwd, env, stdin, stdin_base64, tty, .. } = self;
        let is_shell = tty.is_some() && argv.is_empty() && line.is_none();
        if !is_shell && argv.is_empty() == line.is_none() {
            return bad("a command is either `argv` or `line`", "give the one or the other");
        }
        if tty.is_some() && (stdin.is_some() || stdin_base64.is_some()) {
            return bad("a command with a terminal has no other input", "type into its terminal");
        }
        let stdin = match (stdin, stdin_base64) {
            (Some(_), Some(_)) => {
                return bad("`stdin` and `stdin_base64` are both given", "give one of them");
            }
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => match BASE64.decode(text) {
                Ok(bytes) => bytes,
                Err(_) => {
                    return bad("`stdin_base64` is no base64", "use the standard alphabet, with padding");
                }
            },
            (None, None) => Vec::new(),
        };
        if stdin.len() > COMMAND_STDIN_BYTES {
            let message = format!("the standard input of a command has at most {COMMAND_STDIN_BYTES} bytes");
            return Err(Problem::new(Code::TooLarge, message)
                .hint(
                    "copy it into the workspace (`belljar cp FILE NAME:FILE`, or `PUT /v1/sessions/NAME/files/FILE`), and let a line read it from there, as in `sort <FILE`",
                ));
        }
        let spec = CommandSpec { argv, line, cwd, env, stdin: BASE64.encode(stdin), terminal: tty };
        if spec.size() - spec.stdin.len() > COMMAND_BYTES {
            let message =
                format!("the words of a command and its environment have at most {COMMAND_BYTES} bytes");
            return Err(
                Problem::new(Code::TooLarge, message).hint("put a script into the workspace and run that")
            );
        }
        if spec.words().any(|word| word.contains('\0')) || spec.argv.first().is_some_and(String::is_empty) {
            return bad("a command has no NUL characters, and its program a name", "leave them out");
        }
        if spec.env.keys().any(|name| name.is_empty() || name.contains('=')) {
            return bad("a name of an environment variable is empty or has a `=`", "use other names");
        }
        Ok(spec)
    }
}

impl CommandSpec {
    fn words(&self) -> impl Iterator<Item = &String> {
        self.argv.iter().chain(&self.line).chain(&self.cwd).chain(self.env.keys()).chain(self.env.values())
    }

    /// Bytes of the words, the environment and the input.
    #[must_use]
    pub fn size(&self) -> usize {
        self.words().map(|word| word.len() + 1).sum::<usize>() + self.stdin.len()
    }

    /// The command as a person would type it.
    pub fn command_line(&self) -> String {
        match &self.line {
            Some(line) => line.clone(),
            None if self.argv.is_empty() => "(a shell)".to_owned(),
            None => self.argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        }
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// `POST /v1/sessions/{s}/commands/{c}/type`: what a person typed into its terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Typed {
    pub data_base64: String,
}

impl Typed {
    /// The bytes again as base64, if they are some and not too many.
    pub fn checked(self) -> Result<String, Problem> {
        let bytes = BASE64.decode(&self.data_base64);
        match bytes {
            Ok(bytes) if bytes.len() <= TYPED_BYTES => Ok(self.data_base64),
            Ok(_) => Err(Problem::new(Code::TooLarge, format!("more than {TYPED_BYTES} bytes at once"))
                .hint("send them in several requests")),
            Err(_) => Err(Problem::new(Code::BadRequest, "`data_base64` is no base64")
                .hint("use the standard alphabet, with padding")),
        }
    }
}

/// How a command is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCommand {
    /// The command is asked to end, and killed if it does not.
    Interrupt,
    Kill,
}

/// A command in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandSummary {
    pub command: CellNumber,
    /// As a person would type it, cut if it is long.
    pub line: String,
    pub state: CellState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// `GET /v1/sessions/{s}/commands`: those that have not ended, and the last of those that have; oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandList {
    pub commands: Vec<CommandSummary>,
}

impl CommandSummary {
    pub fn open(command: CellNumber, line: &str, state: CellState) -> Self {
        let line = brief(line, LISTED_CHARS);
        Self { command, line, state, status: None, reason: None, exit_code: None }
    }

    pub fn ended(result: &ExecutionResult) -> Self {
        Self {
            status: Some(result.status),
            reason: Some(result.reason),
            exit_code: result.exit_code,
            ..Self::open(result.cell, &result.code, CellState::Done)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: &str) -> NewCommand {
        NewCommand { line: Some(line.into()), ..NewCommand::default() }
    }

    #[test]
    fn a_command_is_one_program_within_the_bounds() {
        assert_eq!(line("ls | wc").checked().unwrap().command_line(), "ls | wc");
        let argv =
            NewCommand { argv: vec!["a b".into(), "it's".into(), String::new()], ..NewCommand::default() };
        assert_eq!(argv.clone().checked().unwrap().command_line(), r"'a b' 'it'\''s' ''");
        let env = |name: &str| NewCommand { env: [(name.to_owned(), String::new())].into(), ..line("x") };
        let stdin = |size| NewCommand { stdin: Some("x".repeat(size)), ..line("x") };
        let tty = Some(TerminalSize::default());
        assert_eq!(
            NewCommand { tty, ..NewCommand::default() }.checked().unwrap().command_line(),
            "(a shell)"
        );
        assert!(NewCommand { tty, ..stdin(1) }.checked().is_err());
        assert!(env("A").checked().is_ok() && stdin(COMMAND_STDIN_BYTES).checked().is_ok());
        let wrong = [
            NewCommand::default(),
            NewCommand { line: Some("x".into()), ..argv },
            NewCommand { argv: vec![String::new()], ..NewCommand::default() },
            line("a\0b"),
            line(&"x".repeat(COMMAND_BYTES)),
            env(""),
            env("A=B"),
            stdin(COMMAND_STDIN_BYTES + 1),
            NewCommand { stdin_base64: Some("?".into()), ..line("x") },
            NewCommand { stdin_base64: Some("eA==".into()), ..stdin(1) },
        ];
        for wrong in wrong {
            assert!(wrong.clone().checked().is_err(), "{wrong:?}");
        }
    }
}
