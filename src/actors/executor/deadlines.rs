//! What took too long: a cell beyond its deadline, one that does not end, a request without an answer.

use super::messages::{ExecutorMsg, ExecutorRef, Overdue};
use super::state::ExecutorState;
use crate::session::outcome::EndedBy;
use std::time::Duration;

/// Time until something is looked at again that was overdue while the sandbox stood still.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl ExecutorState {
    /// Something took too long; but a sandbox that stands still cannot help it. The clocks of its cells
    /// are set anew when it goes on.
    pub(super) fn overdue(&mut self, myself: &ExecutorRef, what: Overdue) {
        self.look_for_pauses(myself);
        let frozen = self.freezing.at.is_some();
        match what {
            Overdue::Request(_) if frozen => {
                myself.send_after(LOOK_AGAIN, move || ExecutorMsg::Overdue(what));
            }
            Overdue::Request(request) => self.request_overdue(myself, request),
            Overdue::Deadline(_) | Overdue::Interrupt(_) | Overdue::Kill(_) if frozen => {}
            Overdue::SlowKill(cell) => self.hurry_kill(cell),
            Overdue::SlowReset(request) => self.hurry_reset(request),
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
