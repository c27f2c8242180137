//! Errors of the API: a stable code for programs, a sentence and a hint for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Hint for problems with the daemon's disk.
pub const FREE_SPACE: &str = "free some space where the daemon's home is";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request itself is wrong.
    BadRequest,
    /// There is no such session, or it belongs to another user, which looks the same to the caller.
    NoSuchSession,
    NoSuchCell,
    NoSuchFile,
    NoSuchAsk,
    NoSuchApproval,
    NoSuchJob,
    NoSuchBatch,
    NoSuchVolume,
    /// The caller has built no image of that name.
    NoSuchImage,
    /// The session has no snapshot of that id or name.
    NoSuchSnapshot,
    /// The files of a job are not here (any more).
    NoSuchInput,
    /// No tool call of that id waits for an answer.
    NoSuchCall,
    NoSuchRoute,
    /// The name is taken.
    SessionExists,
    VolumeExists,
    SnapshotExists,
    /// The session's queue is full, or the operation needs it to be idle.
    Busy,
    /// A limit on connections is reached.
    TooMany,
    /// A quota of the user, or of the machine, is used up.
    QuotaExceeded,
    /// Larger than a named limit.
    TooLarge,
    /// The request took longer than a named limit.
    TooSlow,
    /// The caller may not do this.
    Forbidden,
    /// The engine does not answer.
    EngineUnavailable,
    /// The image is not there and may not be pulled.
    ImageMissing,
    /// The image is not on the list of allowed ones.
    ImageForbidden,
    /// The image is for processors of another kind than this machine's.
    ImageArchitecture,
    /// An image could not be built.
    BuildFailed,
    /// The running sandbox is not as isolated as it has to be; it was killed.
    PolicyViolation,
    /// The sandbox could not be started, or ended while it was needed.
    SandboxFailed,
    /// The sandbox has no process, or no descriptors, left for what was asked.
    SandboxFull,
    /// A module that the session is to begin with cannot be imported.
    PreloadFailed,
    /// Packages could not be installed.
    InstallFailed,
    /// A version that is needed does not fit one that is there.
    PackageConflict,
    /// A variable ended, or held up, the process that was to show it.
    VariablesFailed,
    /// The variables of a session could not be packed, or not be loaded again.
    SnapshotFailed,
    /// A snapshot is not what was written to the disk; nothing of it is loaded.
    SnapshotDamaged,
    /// A snapshot was made by a Python that this sandbox does not have.
    SnapshotMismatch,
    /// An idempotency key was used for another request.
    KeyReused,
    /// The daemon ended while it handled the first request with this key.
    OutcomeUnknown,
    /// There is no checkpoint that far back.
    OutOfReach,
    /// A model is not configured, has no key, or did not answer.
    ModelFailed,
    /// Events that were asked for are no longer kept.
    EventsGone,
    /// The daemon's disk is full or fails.
    Storage,
    /// The daemon is going down.
    ShuttingDown,
    /// A bug; the message has an id to look for in the log.
    Internal,
}

impl Code {
    /// The HTTP status that a problem with this code is sent with.
    pub fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden | Self::ImageForbidden => 403,
            Self::NoSuchSession
            | Self::NoSuchCell
            | Self::NoSuchFile
            | Self::NoSuchRoute
            | Self::NoSuchAsk
            | Self::NoSuchApproval
            | Self::NoSuchJob
            | Self::NoSuchBatch
            | Self::NoSuchVolume
            | Self::NoSuchImage
            | Self::NoSuchSnapshot
            | Self::NoSuchInput
            | Self::NoSuchCall => 404,
            Self::TooSlow => 408,
            Self::SessionExists
            | Self::VolumeExists
            | Self::SnapshotExists
            | Self::Busy
            | Self::OutOfReach
            | Self::KeyReused
            | Self::OutcomeUnknown
            | Self::PackageConflict
            | Self::SnapshotMismatch => 409,
            Self::EventsGone => 410,
            Self::TooLarge => 413,
            Self::ImageMissing
            | Self::ImageArchitecture
            | Self::ModelFailed
            | Self::PreloadFailed
            | Self::InstallFailed
            | Self::BuildFailed
            | Self::VariablesFailed
            | Self::SnapshotFailed => 424,
            Self::TooMany | Self::QuotaExceeded | Self::SandboxFull => 429,
            Self::Internal | Self::PolicyViolation | Self::SandboxFailed | Self::SnapshotDamaged => 500,
            Self::EngineUnavailable | Self::ShuttingDown => 503,
            Self::Storage => 507,
        }
    }
}

/// Body of every answer that is no success (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    pub code: Code,
    /// One line: what is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The message and what to do about it, in one line.
    #[must_use]
    pub fn message_with_hint(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.clone(),
        }
    }
}
