//! Somebody else with the engine's keys may pause a sandbox. It is let go on, and its cells do not pay
//! for the time; only if it is paused again and again is it given up.

use std::sync::Arc;
use std::time::Instant;

use super::messages::ExecutorRef;
use super::state::ExecutorState;

/// Looks in a row that find it paused, before it is given up.
const PAUSED_LOOKS: u32 = 30;

impl ExecutorState {
    /// Notices a pause that this daemon did not make, and ends it.
    pub(super) fn look_for_pauses(&mut self, myself: &ExecutorRef) {
        let Some(connected) = &self.connected else { return };
        if self.freezing.at.is_some() {
            return;
        }
        let sandbox = Arc::clone(&connected.sandbox);
        if !sandbox.is_frozen() {
            (self.freezing.seen_running, self.freezing.looks) = (Instant::now(), 0);
            return;
        }
        self.freezing.looks += 1;
        if self.freezing.looks > PAUSED_LOOKS {
            self.give_up(myself, "somebody keeps it paused".into());
            return;
        }
        tracing::warn!(sandbox = %sandbox.id(), looks = self.freezing.looks, "a stranger paused a sandbox; it goes on");
        self.stop_clocks(self.freezing.seen_running);
        self.thaw(myself);
    }
}
