//! A cell that runs, and one that has ended and is not told of yet.

use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

use crate::bridge::{Delivery, FrameGuard};
use crate::controls;
use crate::sandbox::launch::CpuLimitLifted;
use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use crate::store::CellRecord;

/// What is said of a cell that the daemon of before had ended, for a reason that only that daemon knew.
const ENDED_BEFORE: &str =
    "The daemon ended the cell, because of a quota or a policy, and was then itself started anew.";

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Running {
    pub start: CellStart,
    pub since: Instant,
    /// It began before the daemon did; the kernel says how long it took.
    pub resumed: bool,
    pub reported: Option<Duration>,
    pub interrupted: bool,
    pub ended_by: Option<EndedBy>,
    /// Why the daemon of before wanted it to end, as far as the journal knows.
    pub to_end: Option<EndedBy>,
    /// The guardian says that it took too much memory.
    pub out_of_memory: bool,
    /// Names of completed tool calls.
    pub completed: Vec<String>,
    pub timers: Vec<AbortHandle>,
    /// Ends it when its time is over.
    pub deadline: Option<AbortHandle>,
    /// The kernel could not begin with it for want of a process; it is sent once more.
    pub waits_for_worker: bool,
    /// Whether the frame that brought the cell to the kernel has been sent.
    pub delivery: Delivery,
    /// Calls of it that wait for a person, and since when one does.
    pub pending_approvals: u32,
    pub asked: Option<ApprovalWait>,
    /// The kernel was told to kill it, and did not do so soon.
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

    /// The kernel ended it because it was told to. If this daemon did not tell it, the one before did, whose reason is
    /// in the journal, or is that its time was over.
    pub fn was_killed(&mut self) {
        if self.ended_by.is_some() || !self.resumed {
            return;
        }
        let is_late = self.since.elapsed() >= self.start.timeout;
        let reason = self.to_end.take().or_else(|| is_late.then_some(EndedBy::Deadline));
        self.ended_by = Some(reason.unwrap_or_else(|| EndedBy::Policy(ENDED_BEFORE.into())));
    }

    /// How long the cell has run; for one that ended while no daemon ran, what the kernel reported.
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

/// A cell that has ended, with all that its result is made of.
pub(super) struct Finishing {
    pub start: CellStart,
    pub ending: Ending,
    pub cause: Cause,
    pub record: CellRecord,
    pub elapsed: Duration,
    /// Held until the result is in the journal, so that the kernel keeps the frame until then.
    pub frame_guard: Option<FrameGuard>,
    /// Held until the kernel has ended all that the cell started.
    pub cpu_boost: Option<CpuLimitLifted>,
}

impl Finishing {
    pub(super) fn conclude(self, changes: Changes) -> crate::protocol::result::ExecutionResult {
        conclude(self.start, self.ending, self.cause, self.record, changes, self.elapsed)
    }
}

/// How long a person has been asked, and what the sandbox had computed until then.
pub(super) struct ApprovalWait {
    pub since: Instant,
    pub cpu_time: Option<Duration>,
}

impl ApprovalWait {
    /// The CPU time that the sandbox took since. Where that is not counted it is taken for none.
    pub fn computed(&self, now: Option<Duration>) -> Duration {
        match (self.cpu_time, now) {
            (Some(before), Some(now)) if controls::holds("computing_takes_time") => {
                now.saturating_sub(before)
            }
            _ => Duration::ZERO,
        }
    }
}
