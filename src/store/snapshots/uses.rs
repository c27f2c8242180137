//! Who works with the chunks of a session at the moment. Chunks that are being read or referred to stay, whatever is
//! removed meanwhile.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::chunks::ContentDigest;

/// What goes on in the folder of one session. Its lock is held while a reference to a chunk is added and while chunks are removed.
#[derive(Debug, Default)]
pub(super) struct SessionUse {
    /// The folder is gone.
    pub is_removed: bool,
    /// A snapshot is being written.
    pub is_written: bool,
    /// The chunks that this snapshot has brought. Its writer answers for what was charged for them until it is finished.
    pub brought: HashSet<ContentDigest>,
    /// What the owner is charged for all that is finished. Nothing is known before the files were counted once.
    pub charged: Option<u64>,
    pins: HashMap<ContentDigest, usize>,
}

impl SessionUse {
    pub fn is_pinned(&self, digest: ContentDigest) -> bool {
        self.pins.contains_key(&digest)
    }

    /// Charges a snapshot that is finished now.
    pub fn keep_charged(&mut self, bytes: u64) {
        self.charged = Some(self.charged.unwrap_or(0).saturating_add(bytes));
    }

    /// Takes what is left for all that is charged; returns what the owner gets back. That is never more than was charged,
    /// whatever became of the files on the disk.
    pub fn charge_only(&mut self, left: u64) -> u64 {
        let charged = self.charged.unwrap_or(0);
        let freed = charged.saturating_sub(left);
        self.charged = Some(charged - freed);
        freed
    }
}

pub(super) type SharedUse = Arc<Mutex<SessionUse>>;

/// Chunks that stay as long as this value.
pub(super) struct Pins {
    using: SharedUse,
    digests: Vec<ContentDigest>,
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pins").field("chunks", &self.digests.len()).finish_non_exhaustive()
    }
}

impl Pins {
    pub fn none(using: SharedUse) -> Self {
        Self { using, digests: Vec::new() }
    }

    /// Adds a chunk. The caller holds the lock of the session, and hands on what it protects.
    pub fn add(&mut self, using: &mut SessionUse, digest: ContentDigest) {
        *using.pins.entry(digest).or_default() += 1;
        self.digests.push(digest);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut using = self.using.lock();
        for digest in &self.digests {
            if let Some(count) = using.pins.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    using.pins.remove(digest);
                }
            }
        }
    }
}
