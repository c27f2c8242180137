//! Why a snapshot could not be written or read.

use crate::config::show_size;
use crate::protocol::problem::{Code, FREE_SPACE, Problem};

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("there is no snapshot `{0}` of this session")]
    NoSuch(String),
    /// What is on the disk is not what was written.
    #[error("the snapshot `{id}` was changed on the disk: {why}")]
    Damaged { id: String, why: String },
    /// It is there, as far as is known, and may be read another time.
    #[error("the snapshot `{id}` cannot be read at the moment: {error}")]
    Unread { id: String, error: std::io::Error },
    /// What came is not what its sender says of it.
    #[error("the snapshot that the sandbox sent is not complete: {0}")]
    Untrue(String),
    #[error("a snapshot of this session may take {} {what}", show_size(*.limit))]
    TooLarge { what: &'static str, limit: u64 },
    #[error("a snapshot of this session has more than {0} parts")]
    TooManySections(usize),
    #[error("another snapshot of this session is being written")]
    Busy,
    #[error("the session was removed while its snapshot was written")]
    SessionGone,
    /// A quota has no room for it.
    #[error("{}", .0.message)]
    Refused(Problem),
    #[error("a snapshot cannot be stored: {0}")]
    Storage(#[from] std::io::Error),
}

impl SnapshotError {
    /// Whether the snapshot will never be read again. All other failures may be over soon, and nothing is forgotten for
    /// them.
    #[must_use]
    pub const fn is_lasting(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::NoSuch(_))
    }

    pub(super) fn damaged(id: &str, why: impl Into<String>) -> Self {
        Self::Damaged { id: id.to_owned(), why: why.into() }
    }
}

impl From<SnapshotError> for Problem {
    fn from(error: SnapshotError) -> Self {
        let of = |code| Self::new(code, error.to_string());
        match &error {
            SnapshotError::NoSuch(_) => {
                of(Code::NoSuchSnapshot).hint("`belljar snapshots -s SESSION` lists those that are kept")
            }
            SnapshotError::Damaged { .. } => of(Code::SnapshotDamaged)
                .hint("nothing of it is loaded; `belljar replay` runs the session's cells again"),
            SnapshotError::Untrue(_) => of(Code::SnapshotFailed).hint("try again"),
            SnapshotError::TooLarge { .. } => of(Code::TooLarge)
                .hint("delete what is not needed, or have the administrator raise `snapshots.max_bytes`"),
            SnapshotError::TooManySections(_) => {
                of(Code::TooLarge).hint("put many small arrays together into one")
            }
            SnapshotError::Busy => of(Code::Busy).hint("wait until it is written"),
            SnapshotError::SessionGone => of(Code::NoSuchSession),
            SnapshotError::Refused(problem) => problem.clone(),
            SnapshotError::Unread { .. } => of(Code::Storage)
                .hint("nothing of it is lost; see the disk of the daemon's home, and try again"),
            SnapshotError::Storage(_) => of(Code::Storage).hint(FREE_SPACE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_can_tell_a_damaged_snapshot_from_one_that_was_never_there() {
        let problem = |error: SnapshotError| Problem::from(error);
        let damaged = problem(SnapshotError::damaged("0123", "a chunk differs"));
        assert_eq!(damaged.code, Code::SnapshotDamaged);
        assert!(damaged.message.contains("0123") && damaged.message.contains("a chunk differs"), "{damaged}");
        assert_eq!(problem(SnapshotError::NoSuch("x".into())).code, Code::NoSuchSnapshot);
        let unread =
            SnapshotError::Unread { id: "0123".into(), error: std::io::Error::other("the disk fails") };
        assert!(!unread.is_lasting() && SnapshotError::damaged("0123", "a chunk differs").is_lasting());
        assert_eq!(problem(unread).code, Code::Storage);
        let large = problem(SnapshotError::TooLarge { what: "of variables", limit: 2 << 30 });
        assert!(large.message.contains("2 GiB of variables"), "{large}");
        let refusal = Problem::new(Code::QuotaExceeded, "no room").hint("remove something");
        assert_eq!(problem(SnapshotError::Refused(refusal.clone())), refusal);
    }
}
