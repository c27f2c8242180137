//! The results of the doctor: one line per check.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Ok,
    Warning,
    Failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub status: Severity,
    pub message: String,
    /// A command, or an instruction where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    pub fn ok(message: impl Into<String>) -> Self {
        Self { check: "", status: Severity::Ok, message: message.into(), fix: None }
    }

    pub fn warning(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: Severity::Warning, fix: Some(fix.into()), ..Self::ok(message) }
    }

    pub fn failure(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: Severity::Failure, ..Self::warning(message, fix) }
    }

    /// Names the check that the finding is of.
    pub fn of(self, check: &'static str) -> Self {
        Self { check, ..self }
    }
}
