//! The account to which bytes are charged before they are written to the disk.
//!
//! The store does not know users and quotas: the caller that opens a log passes in an account. Beyond what the account
//! allows, each session has a reserve, so that refusals, ends of cells and the session's removal can always be written.

use crate::protocol::problem::{Code, Problem};

/// Bytes that one session may write beyond the quota of its owner, for ends of cells, refusals and its removal. Once
/// the reserve is used up as well, the session accepts only its removal.
pub const SESSION_RESERVE_BYTES: u64 = 1024 * 1024;
/// The part of the reserve that is left for ends: beyond it the session begins nothing, and its running cells are ended.
pub(super) const RESERVE_FOR_ENDS_BYTES: u64 = SESSION_RESERVE_BYTES / 2;
/// Bytes that a row costs in addition to its text: its other columns, its index entries, its share of a page.
pub const ROW_BYTES: u64 = 512;

/// Bytes that the record of an administrator's act takes.
#[must_use]
pub fn act_bytes(act: &str) -> u64 {
    (act.len() as u64).saturating_add(ROW_BYTES)
}

/// The account of the user who pays for the bytes of a log.
pub trait Account: Send + Sync {
    /// Takes over a log that already has `bytes` on the disk. Calling this again for the same log charges it only once.
    fn open(&self, bytes: u64);
    /// Charges `bytes` that are about to be written. If that is too much, this is an error and nothing is charged.
    fn charge(&self, bytes: u64) -> Result<(), Exceeded>;
    /// Charges `bytes` even beyond the quota.
    fn charge_anyway(&self, bytes: u64);
    /// Gives back `bytes` that are no longer on the disk or were never written.
    fn refund(&self, bytes: u64);
}

/// The owner's quota is exceeded; the text is a sentence that says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Exceeded(pub String);

impl From<Exceeded> for Problem {
    fn from(exceeded: Exceeded) -> Self {
        Self::new(Code::QuotaExceeded, exceeded.0)
    }
}

/// An account without a quota, for tests of this layer and for logs that are only read.
pub(super) struct UnlimitedAccount;

impl Account for UnlimitedAccount {
    fn open(&self, _: u64) {}

    fn charge(&self, _: u64) -> Result<(), Exceeded> {
        Ok(())
    }

    fn charge_anyway(&self, _: u64) {}

    fn refund(&self, _: u64) {}
}

/// Whether events may be read from the journal when their owner has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdraft {
    Refused,
    /// The events are read anyway, because the session cannot continue without them.
    Allowed,
}
