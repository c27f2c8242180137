//! Errors of the journal.

use crate::memory::NoRoom;
use crate::protocol::ids::Seq;
use crate::protocol::problem::{Code, FREE_SPACE, Problem};

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("the journal is closed")]
    Closed,
    #[error("the journal's writer died too often, and the daemon ends")]
    Failed,
    #[error("there is a living session of this name already")]
    NameTaken,
    #[error("the journal cannot be written at the moment: {0}")]
    Refused(String),
    #[error("the journal cannot be read: {0}")]
    Unreadable(#[from] rusqlite::Error),
    /// One event cannot be read. A session that is restored from its events must not skip it.
    #[error("event {seq} cannot be read: {reason}")]
    EventUnreadable { seq: Seq, reason: String },
    #[error("{}", .0.sentence())]
    NoRoom(NoRoom),
}

/// Why nothing can be written.
#[derive(Clone)]
pub(super) enum WriteTrouble {
    /// The disk refuses, which may pass.
    Refused(String),
    Closed,
    /// The writer panicked too often.
    Failed,
}

impl JournalError {
    /// The error of a part of what has taken `own` bytes of memory besides.
    #[must_use]
    pub fn beside(self, own: u64) -> Self {
        match self {
            Self::NoRoom(no_room) => Self::NoRoom(no_room.beside(own)),
            other => other,
        }
    }
}

impl From<WriteTrouble> for JournalError {
    fn from(trouble: WriteTrouble) -> Self {
        match trouble {
            WriteTrouble::Refused(reason) => Self::Refused(reason),
            WriteTrouble::Closed => Self::Closed,
            WriteTrouble::Failed => Self::Failed,
        }
    }
}

impl From<JournalError> for Problem {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::NameTaken => Self::new(Code::SessionExists, error.to_string()),
            JournalError::Closed => Self::new(Code::ShuttingDown, error.to_string()),
            JournalError::Failed => Self::new(Code::ShuttingDown, error.to_string())
                .hint("the daemon's log says why it died; ask again when the next daemon runs"),
            JournalError::NoRoom(no_room) => no_room.into(),
            JournalError::EventUnreadable { .. } => Self::new(Code::Storage, error.to_string())
                .hint("look after the disk of the daemon's home, then ask again"),
            JournalError::Refused(_) | JournalError::Unreadable(_) => {
                Self::new(Code::Storage, error.to_string()).hint(FREE_SPACE)
            }
        }
    }
}
