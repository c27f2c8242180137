//! What bytes on the disk are charged to, before they are written.
//!
//! The store does not know of users and quotas: whoever opens a log hands in an account. Beyond what the account
//! allows a session has a reserve, so that refusals, ends and its removal can always be written.

/// Bytes that one session may write beyond the quota of its owner: ends of cells, refusals, removal. When they
/// are written too, a session takes nothing but its removal.
pub const SESSION_RESERVE_BYTES: u64 = 1024 * 1024;
/// What a row costs beside its text: its other columns, its place in indices, its share of a page.
pub const ROW_BYTES: u64 = 512;

/// Who pays.
pub trait Account: Send + Sync {
    /// So many bytes are on the disk of a log that is charged to it from here on, also if it was before.
    fn open(&self, bytes: u64);
    /// So many bytes more are about to be written. An error if that is too much; then nothing is charged.
    fn charge(&self, bytes: u64) -> Result<(), Exceeded>;
    /// So many bytes more are written whatever may be had.
    fn charge_anyway(&self, bytes: u64);
    /// So many bytes are no longer on the disk, or were never written.
    fn refund(&self, bytes: u64);
}

/// More than its owner may have, as a sentence with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Exceeded(pub String);

/// Of tests of this layer, and of logs that are only read.
pub(super) struct Free;

impl Account for Free {
    fn open(&self, _: u64) {}

    fn charge(&self, _: u64) -> Result<(), Exceeded> {
        Ok(())
    }

    fn charge_anyway(&self, _: u64) {}

    fn refund(&self, _: u64) {}
}

/// Whether events are read again for which their owner has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdraft {
    Refused,
    /// Nothing goes on without them.
    Allowed,
}
