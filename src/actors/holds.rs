//! Holds on sessions and jobs that exist only while a client holds them, and for a short time after, so that
//! a client that lost its connection or its daemon can come back.

use std::time::Instant;

use crate::protocol::limits::UNHELD;
use crate::protocol::periods::period;

/// Notifies the actor of the held object when it is dropped.
pub struct Hold(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Hold {
    pub(super) fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(release)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Holders {
    count: usize,
    /// When a client last held the object, or could not hold it yet.
    until: Instant,
}

impl Default for Holders {
    fn default() -> Self {
        Self { count: 0, until: Instant::now() }
    }
}

impl Holders {
    pub fn add(&mut self) {
        self.count += 1;
    }

    pub fn release(&mut self) {
        self.count = self.count.saturating_sub(1);
        self.renew();
    }

    /// Counts as if a client had held the object until now.
    pub fn renew(&mut self) {
        self.until = Instant::now();
    }

    pub fn are_gone(&self) -> bool {
        self.count == 0 && self.until.elapsed() >= period("unheld", UNHELD)
    }
}
