//! Somebody else with the engine's keys may pause a sandbox. It is let go on, and its cells do not pay
//! for the time; only if it is paused again and again is it given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{ExecutorMsg, ExecutorRef, ExecutorState, Overdue};
use crate::session::outcome::EndedBy;

/// Looks in a row that find it paused, before it is given up.
const PAUSED_LOOKS: u32 = 30;
/// Time until something is looked at again that was overdue while the sandbox stood still.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl ExecutorState {
    /// Notices a pause that nobody asked of us, and ends it.
    pub(super) fn look_for_strangers(&mut self, myself: &ExecutorRef) {
        let Some(cage) = &self.cage else { return };
        if self.frost.at.is_some() {
            return;
        }
        let sandbox = Arc::clone(&cage.sandbox);
        if !sandbox.is_frozen() {
            (self.frost.seen_running, self.frost.looks) = (Instant::now(), 0);
            return;
        }
        self.frost.looks += 1;
        if self.frost.looks > PAUSED_LOOKS {
            self.give_up(myself, "somebody keeps it paused".into());
            return;
        }
        tracing::warn!(sandbox = %sandbox.id(), looks = self.frost.looks, "a stranger paused a sandbox; it goes on");
        self.stop_clocks(self.frost.seen_running);
        self.thaw(myself);
    }

    /// Something took too long; but a sandbox that stands still cannot help it. The clocks of its cells
    /// are set anew when it goes on.
    pub(super) fn overdue(&mut self, myself: &ExecutorRef, what: Overdue) {
        self.look_for_strangers(myself);
        let frozen = self.frost.at.is_some();
        match what {
            Overdue::Request(_) if frozen => {
                myself.send_after(LOOK_AGAIN, move || ExecutorMsg::Overdue(what));
            }
            Overdue::Request(request) => self.request_overdue(myself, request),
            Overdue::Deadline(_) | Overdue::Interrupt(_) | Overdue::Kill(_) if frozen => {}
            Overdue::Deadline(cell) => self.end_cell(myself, cell, EndedBy::Deadline),
            Overdue::Interrupt(cell) => self.end_cell(myself, cell, EndedBy::Interrupt),
            Overdue::Kill(cell) => {
                if self.running.contains_key(&cell) {
                    self.give_up(myself, "the kernel did not end a cell that it was told to kill".into());
                }
            }
        }
    }
}
