//! Bounds of a snapshot, and who pays for it.

use crate::protocol::problem::Problem;

/// The file that lists the chunks of a snapshot, with what a kernel says of it.
pub(super) const MANIFEST_BYTES: u64 = 32 * 1024 * 1024;
/// The pickle of a snapshot, and the large values beside it.
pub(super) const SECTIONS: usize = 256 * 1024;
/// File systems give files whole blocks.
const BLOCK: u64 = 4096;

/// What one snapshot may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// The bytes that its kernel may send.
    pub bytes: u64,
    /// The bytes that it may add to the disk, compressed and without what other snapshots of the session have.
    pub stored_bytes: u64,
}

/// The books of the owner of a session, for its snapshots.
pub trait SnapshotCharge: Send + Sync {
    /// Called before bytes are written.
    ///
    /// # Errors
    /// The owner may not have that many more; then they are not written.
    fn take(&self, bytes: u64) -> Result<(), Problem>;

    /// Called when bytes that were taken are on the disk no more, or never came there.
    fn give(&self, bytes: u64);
}

/// What a file of this length takes on the disk, and its owner is charged.
pub(super) fn on_disk(length: u64) -> u64 {
    length.div_ceil(BLOCK).saturating_mul(BLOCK)
}
