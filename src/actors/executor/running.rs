//! A running cell, and an ended cell that has not been reported yet.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::bridge::{Delivery, FrameGuard};
use crate::protocol::limits::UNDECIDED_QUESTIONS;
use crate::sandbox::launch::CpuLimitLifted;
use crate::security_controls;
use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use crate::store::CellRecord;

/// The note on a cell that the earlier daemon ended for a reason that is not in the journal.
const ENDED_BEFORE: &str =
    "The daemon ended the cell, because of a quota or a policy, and was then itself started anew.";

/// The places for questions of one cell. A question takes one, which only a decision gives back: otherwise code that gives
/// its calls up could ask people again and again, for as long as the quota of its owner lasts.
pub(super) fn places_for_questions() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(UNDECIDED_QUESTIONS))
}

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct RunningCell {
    pub start: CellStart,
    pub since: Instant,
    /// Whether the cell began under an earlier daemon; then the kernel reports how long it took.
    pub resumed: bool,
    pub reported: Option<Duration>,
    /// The guest says that the cell changed nothing but plain values.
    pub harmless: bool,
    pub interrupted: bool,
    pub ended_by: Option<EndedBy>,
    /// Why the earlier daemon wanted to end the cell, if the journal has the reason.
    pub to_end: Option<EndedBy>,
    /// Whether the guardian reports that the cell ran out of memory.
    pub out_of_memory: bool,
    /// Whether the guardian reports that its process ended on account of something else.
    pub rolled_back: bool,
    /// Whether something else ran in the sandbox meanwhile, whose processes the kernel counts together with those of the
    /// cell.
    pub had_company: bool,
    /// The names of completed tool calls.
    pub completed: Vec<String>,
    /// The names of calls that the cell gave up when it was told to end.
    pub unanswered: Vec<String>,
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
    /// One for each question to a person that the cell may still ask before others of it are decided.
    pub question_places: Arc<Semaphore>,
    /// Held while the kernel is slow to kill the cell.
    pub cpu_boost: Option<CpuLimitLifted>,
}

impl RunningCell {
    /// Keeps kills for lack of memory that were of another cell from being taken for this cell's; the kernel counted
    /// `counted` in the sandbox so far.
    pub fn leave_out_kills(&mut self, kills: u64, counted: u64) {
        let before = &mut self.start.before.oom_kills;
        *before = without_kills(*before, kills, counted);
    }

    pub fn of(start: CellStart, since: Instant) -> Self {
        Self {
            start,
            since,
            resumed: false,
            reported: None,
            harmless: false,
            interrupted: false,
            ended_by: None,
            to_end: None,
            out_of_memory: false,
            rolled_back: false,
            had_company: false,
            completed: Vec::new(),
            unanswered: Vec::new(),
            timers: Vec::new(),
            deadline: None,
            waits_for_worker: false,
            delivery: Delivery::default(),
            pending_approvals: 0,
            asked: None,
            question_places: places_for_questions(),
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
        let reason = self.to_end.take().or_else(|| self.left().is_zero().then_some(EndedBy::Deadline));
        self.ended_by = Some(reason.unwrap_or_else(|| EndedBy::Policy(ENDED_BEFORE.into())));
    }

    /// The time that is left to a cell that is neither frozen nor waits for a person.
    pub fn left(&self) -> Duration {
        self.start.timeout.saturating_sub(self.since.elapsed())
    }

    /// How long the cell has run, without the time in which it was frozen or only waited for a person: what is past of
    /// that is in `since` already, and what lasts began then. For a cell that ended while no daemon was connected, it
    /// is not more than the kernel's report.
    pub fn elapsed(&self, frozen_at: Option<Instant>) -> Duration {
        let asked = self.asked.as_ref();
        let until = asked.map(|asked| asked.since).into_iter().chain(frozen_at).min();
        let before = until.unwrap_or_else(Instant::now).saturating_duration_since(self.since);
        let elapsed = before + asked.map_or(Duration::ZERO, |asked| asked.computed);
        self.reported.filter(|_| self.resumed).map_or(elapsed, |reported| reported.min(elapsed))
    }

    pub fn stop_clocks(&mut self) {
        self.timers.drain(..).chain(self.deadline.take()).for_each(|timer| timer.abort());
    }
}

impl Drop for RunningCell {
    fn drop(&mut self) {
        self.stop_clocks();
    }
}

/// An ended cell, with everything that its result is built from.
pub struct FinishedCell {
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
    /// The guest says that the cell changed nothing but plain values.
    pub harmless: bool,
}

impl FinishedCell {
    pub(super) fn conclude(self, changes: Changes) -> crate::protocol::result::ExecutionResult {
        conclude(self.start, self.ending, self.cause, self.record, changes, self.elapsed)
    }
}

/// A wait for a person: since when, and what the cell has computed meanwhile.
pub(super) struct ApprovalWait {
    pub since: Instant,
    /// The time that the cell may have computed since.
    pub computed: Duration,
    /// The time of the last sample, and the CPU time then; none if it could not be measured.
    seen: (Instant, Option<Duration>),
}

/// A sample of the CPU time of a sandbox in which a cell waits for a person.
#[derive(Clone, Copy)]
pub(super) struct CpuSample {
    pub at: Instant,
    pub cpu_time: Option<Duration>,
    /// The CPUs that other cells may have used since the last sample; none if no other cell ran.
    pub cpus_of_others: f64,
    /// Whether nothing runs in the sandbox.
    pub is_frozen: bool,
}

impl ApprovalWait {
    pub fn new(at: Instant, cpu_time: Option<Duration>) -> Self {
        Self { since: at, computed: Duration::ZERO, seen: (at, cpu_time) }
    }

    /// Counts the CPU time that the sandbox has used since the last sample. Which cell used it is not known. While
    /// another cell ran that did not wait for a person, what that cell can have used counts as its own, whose deadline
    /// bounds it. Where the CPU time cannot be measured, all time counts: a question to a person must not be a way
    /// around a deadline.
    pub fn add_sample(&mut self, sample: CpuSample) {
        let (before, cpu_before) = std::mem::replace(&mut self.seen, (sample.at, sample.cpu_time));
        if !security_controls::holds("computing_takes_time") {
            return;
        }
        let passed = sample.at.saturating_duration_since(before);
        self.computed += match (cpu_before, sample.cpu_time) {
            (Some(before), Some(now)) => {
                let of_others = Duration::try_from_secs_f64(passed.as_secs_f64() * sample.cpus_of_others);
                now.saturating_sub(before).saturating_sub(of_others.unwrap_or_default())
            }
            _ if sample.is_frozen => Duration::ZERO,
            _ => passed,
        };
    }
}

/// The count from which on kills can be of a cell that began at `before`. Some of the others' kills may be from before
/// that, so it never gets ahead of the kernel's count.
fn without_kills(before: u64, kills: u64, counted: u64) -> u64 {
    before.saturating_add(kills).min(counted.max(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_other_cells_compute_is_not_time_of_one_that_waits_for_a_person() {
        let begun = Instant::now();
        let mut wait = ApprovalWait::new(begun, Some(SECOND));
        let sample = |after: u32, cpu_time, cpus_of_others| CpuSample {
            at: begun + after * SECOND,
            cpu_time,
            cpus_of_others,
            is_frozen: false,
        };
        wait.add_sample(sample(1, Some(3 * SECOND), 0.0));
        assert_eq!(wait.computed, 2 * SECOND);
        wait.add_sample(sample(11, Some(23 * SECOND), 2.0));
        assert_eq!(wait.computed, 2 * SECOND);
        wait.add_sample(sample(21, Some(46 * SECOND), 2.0));
        assert_eq!(wait.computed, 5 * SECOND, "what the other cell cannot have used is counted");
        wait.add_sample(sample(22, Some(47 * SECOND), 0.0));
        assert_eq!(wait.computed, 6 * SECOND);
        wait.add_sample(sample(24, None, 0.0));
        wait.add_sample(sample(27, Some(90 * SECOND), 2.0));
        assert_eq!(wait.computed, 11 * SECOND, "where nothing can be measured, all time counts");
        wait.add_sample(CpuSample { is_frozen: true, ..sample(40, None, 0.0) });
        assert_eq!(wait.computed, 11 * SECOND, "but not that of a sandbox in which nothing runs");
    }

    #[test]
    fn kills_of_one_cell_are_not_of_another_and_those_that_were_not_counted_hide_none() {
        assert_eq!(without_kills(0, 2, 2), 2);
        assert_eq!(without_kills(0, 1, 3), 1, "there may be others");
        assert_eq!(without_kills(2, 2, 2), 2, "it began after them");
        assert_eq!(without_kills(0, 0, 1), 0, "the guardian told of it, and the kernel counted nothing");
        assert_eq!(without_kills(5, 1, 0), 5, "the counters cannot be read any more");
    }
}
