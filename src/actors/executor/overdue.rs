//! Handles what took too long: a cell past its deadline, a cell that does not end, a request without an
//! answer.

use super::messages::{ExecutorMsg, ExecutorRef, Overdue};
use super::state::ExecutorState;
use crate::session::outcome::EndedBy;
use std::time::Duration;

/// The pause until a deadline that passed while the sandbox was frozen is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl ExecutorState {
    /// Handles a passed deadline, unless the sandbox is frozen: then it could not meet the deadline. The
    /// timers of its cells are set again when it is thawed.
    pub(super) fn overdue(&mut self, myself: &ExecutorRef, what: Overdue) {
        self.end_foreign_pauses(myself);
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
