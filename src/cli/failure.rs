//! Why a command did not work: what is wrong, what to do about it, and the exit code.

use std::io;

use crate::protocol::problem::{Code, Problem};

use super::exit;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Failure {
    pub message: String,
    pub hint: Option<String>,
    pub exit: u8,
    /// What the daemon answered, if it did.
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

    /// An error of the operating system, with what was being done.
    pub fn io(doing: impl std::fmt::Display, error: &io::Error) -> Self {
        Self::new(format!("{doing}: {error}"))
    }

    /// Writing to stdout or stderr failed. If nobody reads any more, there is nobody to tell.
    pub fn write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { exit: exit::BROKEN_PIPE, ..Self::new(String::new()) },
            _ => Self::io("failed to write the output", error),
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.message.is_empty()
    }

    pub fn has_code(&self, code: Code) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.code == code)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self { hint: problem.hint.clone(), problem: Some(problem.clone()), ..Self::new(problem.message) }
    }
}
