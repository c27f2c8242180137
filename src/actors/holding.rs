//! What lives as long as somebody holds it, and a little longer, so that whoever lost its connection,
//! or its daemon, can come back.

use std::time::Instant;

use crate::protocol::limits::UNHELD;
use crate::protocol::periods::period;

/// Tells the actor of what it holds when it is dropped.
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
    /// When somebody last held it, or could not yet.
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

    /// As if somebody had held it until now.
    pub fn renew(&mut self) {
        self.until = Instant::now();
    }

    pub fn are_gone(&self) -> bool {
        self.count == 0 && self.until.elapsed() >= period("unheld", UNHELD)
    }
}
