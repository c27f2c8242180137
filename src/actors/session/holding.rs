//! Ephemeral sessions: they live as long as somebody holds them, and a little longer, so that whoever
//! lost its connection, or its daemon, can come back.

use std::time::Instant;

use super::{SessionActorState, SessionMsg, SessionRef};
use crate::protocol::limits::UNHELD;

/// Tells the session when it is dropped.
pub struct Hold(SessionRef);

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.0.cast(SessionMsg::Released);
    }
}

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
    pub fn release(&mut self) {
        self.count = self.count.saturating_sub(1);
        self.until = Instant::now();
    }

    fn are_gone(&self) -> bool {
        self.count == 0 && self.until.elapsed() >= UNHELD
    }
}

impl SessionActorState {
    pub(super) fn hold(&mut self, myself: &SessionRef) -> Hold {
        self.holders.count += 1;
        Hold(myself.clone())
    }

    /// Whether it is time for it to go. While it is being made nobody can hold it.
    pub(super) fn is_forsaken(&mut self) -> bool {
        if self.args.created.is_some() {
            self.holders.until = Instant::now();
        }
        self.args.ephemeral && !self.removing && self.holders.are_gone()
    }
}
