//! Another client of the engine may pause a sandbox. The daemon resumes it, and its cells get the time back;
//! a sandbox that is paused again and again is given up.

use std::sync::Arc;
use std::time::Instant;

use super::messages::ExecutorRef;
use super::state::ExecutorState;

/// How many checks in a row may find the sandbox paused before it is given up.
const PAUSED_CHECKS: u32 = 30;

impl ExecutorState {
    /// Notices a pause that this daemon did not make, and ends it.
    pub(super) fn end_foreign_pauses(&mut self, myself: &ExecutorRef) {
        let Some(connected) = &self.connected else { return };
        if self.freezing.at.is_some() {
            return;
        }
        let sandbox = Arc::clone(&connected.sandbox);
        if !sandbox.is_frozen() {
            (self.freezing.seen_running, self.freezing.checks) = (Instant::now(), 0);
            return;
        }
        self.freezing.checks += 1;
        if self.freezing.checks > PAUSED_CHECKS {
            self.give_up(myself, "somebody keeps it paused".into());
            return;
        }
        tracing::warn!(sandbox = %sandbox.id(), looks = self.freezing.checks, "a stranger paused a sandbox; it goes on");
        self.stop_clocks(self.freezing.seen_running);
        self.thaw(myself);
    }
}
