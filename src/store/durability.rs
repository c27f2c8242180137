//! What a write survives, and what it does while the disk refuses.

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The commit survives any death of the daemon.
    Normal,
    /// The commit also survives a loss of power.
    Full,
}

/// What a request does while the disk refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    /// The request fails with an error to its caller.
    Fail,
    /// The request keeps its place in the queue until it is written.
    Wait,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("{0}")]
    Database(#[from] rusqlite::Error),
    #[error("{0}")]
    File(#[from] std::io::Error),
}
