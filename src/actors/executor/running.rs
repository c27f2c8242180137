//! A running cell, and an ended cell that has not been reported yet.

use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

use crate::bridge::{Delivery, FrameGuard};
use crate::controls;
use crate::sandbox::launch::CpuLimitLifted;
use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use crate::store::CellRecord;

/// The note on a cell that the earlier daemon ended for a reason that is not in the journal.
const ENDED_BEFORE: &str =
    "The daemon ended the cell, because of a quota or a policy, and was then itself started anew.";

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Running {
    pub start: CellStart,
    pub since: Instant,
    /// Whether the cell began under an earlier daemon; then the kernel reports how long it took.
    pub resumed: bool,
    pub reported: Option<Duration>,
    pub interrupted: bool,
    pub ended_by: Option<EndedBy>,
    /// Why the earlier daemon wanted to end the cell, if the journal has the reason.
    pub to_end: Option<EndedBy>,
    /// Whether the guardian reports that the cell ran out of memory.
    pub out_of_memory: bool,
    /// The names of completed tool calls.
    pub completed: Vec<String>,
    pub timers: Vec<AbortHandle>,
    /// Ends the cell when its time is over.
    pub deadline: Option<AbortHandle>,
    /// Whether the kernel had no process or worker for the cell, so that it is sent again.
    pub waits_for_worker: bool,
    /// Whether the frame that brought the cell to the kernel has been sent.
    pub delivery: Delivery,
    /// The number of the cell's calls that wait for a person, and since when.
    pub pending_approvals: u32,
    pub asked: Option<ApprovalWait>,
    /// Held while the kernel is slow to kill the cell.
    pub cpu_boost: Option<CpuLimitLifted>,
}

impl Running {
    pub fn of(start: CellStart, since: Instant) -> Self {
        Self {
            start,
            since,
            resumed: false,
            reported: None,
            interrupted: false,
            ended_by: None,
            to_end: None,
            out_of_memory: false,
            completed: Vec::new(),
            timers: Vec::new(),
            deadline: None,
            waits_for_worker: false,
            delivery: Delivery::default(),
            pending_approvals: 0,
            asked: None,
            cpu_boost: None,
        }
    }

    pub fn resumed(
        start: CellStart,
        since: Instant,
        completed: Vec<String>,
        to_end: Option<EndedBy>,
    ) -> Self {
        let mut running = Self::of(start, since);
        (running.resumed, running.completed, running.to_end) = (true, completed, to_end);
        running
    }

    /// Records why the kernel killed a resumed cell on command. If this daemon gave no command, the earlier
    /// one did: its reason is in the journal, or else the cell's time was over.
    pub fn was_killed(&mut self) {
        if self.ended_by.is_some() || !self.resumed {
            return;
        }
        let is_late = self.since.elapsed() >= self.start.timeout;
        let reason = self.to_end.take().or_else(|| is_late.then_some(EndedBy::Deadline));
        self.ended_by = Some(reason.unwrap_or_else(|| EndedBy::Policy(ENDED_BEFORE.into())));
    }

    /// How long the cell has run; for one that ended while no daemon was connected, the kernel's report.
    pub fn elapsed(&self) -> Duration {
        let elapsed = self.since.elapsed();
        self.reported.filter(|_| self.resumed).map_or(elapsed, |reported| reported.min(elapsed))
    }

    pub fn stop_clocks(&mut self) {
        self.timers.drain(..).chain(self.deadline.take()).for_each(|timer| timer.abort());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_clocks();
    }
}

/// An ended cell, with everything that its result is built from.
pub(super) struct Finishing {
    pub start: CellStart,
    pub ending: Ending,
    pub cause: Cause,
    pub record: CellRecord,
    pub elapsed: Duration,
    /// Held until the session has appended the result to the journal, so that the frame is not acknowledged
    /// before.
    pub frame_guard: Option<FrameGuard>,
    /// Held until the kernel has ended all that the cell started.
    pub cpu_boost: Option<CpuLimitLifted>,
}

impl Finishing {
    pub(super) fn conclude(self, changes: Changes) -> crate::protocol::result::ExecutionResult {
        conclude(self.start, self.ending, self.cause, self.record, changes, self.elapsed)
    }
}

/// Since when a person has been asked, and the sandbox's CPU time at that moment.
pub(super) struct ApprovalWait {
    pub since: Instant,
    pub cpu_time: Option<Duration>,
}

impl ApprovalWait {
    /// The CPU time that the sandbox has used since; zero if it cannot be measured.
    pub fn computed(&self, now: Option<Duration>) -> Duration {
        match (self.cpu_time, now) {
            (Some(before), Some(now)) if controls::holds("computing_takes_time") => {
                now.saturating_sub(before)
            }
            _ => Duration::ZERO,
        }
    }
}
