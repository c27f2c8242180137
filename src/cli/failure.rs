//! Why a command failed: what is wrong, what to do about it, and the exit code.

use std::io;

use serde_json::{Value, json};

use crate::protocol::exit_codes as exit;
use crate::protocol::problem::{Code, Problem};

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(in crate::cli) struct Failure {
    pub message: String,
    pub hint: Option<String>,
    pub exit: u8,
    /// The answer of the daemon, if the failure came from it.
    pub problem: Option<Problem>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: exit::OWN, problem: None }
    }

    /// The command line is wrong in a way that its grammar cannot express.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: exit::USAGE, ..Self::new(message) }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error of the operating system, with a description of what failed.
    pub fn io(doing: impl std::fmt::Display, error: &io::Error) -> Self {
        Self::new(format!("{doing}: {error}"))
    }

    /// Writing to stdout or stderr failed. If the reader has closed the pipe, no message is shown.
    pub fn write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { exit: exit::BROKEN_PIPE, ..Self::new(String::new()) },
            _ => Self::io("failed to write the output", error),
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.message.is_empty()
    }

    /// For programs: in the form of the API's errors, with additional codes for failures of the command line.
    pub fn json(&self) -> Value {
        let code = match &self.problem {
            Some(problem) => json!(problem.code),
            None if self.exit == exit::USAGE => json!("usage"),
            None => json!("failed"),
        };
        let mut error_json = json!({"code": code, "message": self.message});
        if let Some(hint) = &self.hint {
            error_json["hint"] = json!(hint);
        }
        error_json
    }

    pub fn has_code(&self, code: Code) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.code == code)
    }
}

/// The message of the command line's parser, without colours and the advice to use `--help`.
impl From<&clap::Error> for Failure {
    fn from(error: &clap::Error) -> Self {
        let text = error.to_string();
        let mut parts = text.split("\n\n").map(str::trim).filter(|part| !part.is_empty());
        let message = parts.next().unwrap_or_default();
        let failure = Self::usage(message.strip_prefix("error: ").unwrap_or(message));
        let rest: Vec<&str> = parts.filter(|part| !part.starts_with("For more information")).collect();
        if rest.is_empty() { failure } else { failure.hint(rest.join("\n")) }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self { hint: problem.hint.clone(), problem: Some(problem.clone()), ..Self::new(problem.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_of_every_failure_in_one_form() {
        let problem = Problem::new(Code::NoSuchSession, "there is no session `a`");
        for (failure, expected) in [
            (
                Failure::from(problem).hint("make it"),
                json!({"code": "no_such_session", "message": "there is no session `a`", "hint": "make it"}),
            ),
            (Failure::new("it broke"), json!({"code": "failed", "message": "it broke"})),
            (
                Failure::usage("not so").hint("but so"),
                json!({"code": "usage", "message": "not so", "hint": "but so"}),
            ),
        ] {
            assert_eq!(failure.json(), expected);
        }
    }
}
