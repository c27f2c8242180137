//! How long a job lacks room that the queue does not look at, such as the machine's memory.

use std::time::{Duration, Instant};

/// The least time between two attempts of a job, however often the queue is looked at.
const ATTEMPTS_APART: Duration = Duration::from_secs(1);
/// A job whose session is refused room after so long ends with that refusal: while no job at all gets a sandbox, what it
/// lacks does not come back soon, and its user has to know.
const LASTING: Duration = Duration::from_secs(60);
/// The same where other jobs get the room again and again.
const LONGEST: Duration = Duration::from_secs(60 * 60);

#[derive(Clone, Copy, Debug)]
pub(super) struct LackOfRoom {
    since: Instant,
    refused_at: Instant,
}

impl LackOfRoom {
    /// The lack of a job that was refused room now, and maybe `before`.
    pub fn refused(before: Option<Self>, now: Instant) -> Self {
        Self { since: before.map_or(now, |before| before.since), refused_at: now }
    }

    /// Whether the job may be tried again.
    pub fn may_try(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.refused_at) >= ATTEMPTS_APART
    }

    /// Whether the job need not be tried again. `last_start`: when a job got a sandbox for the last time.
    pub fn lasts(&self, last_start: Option<Instant>, now: Instant) -> bool {
        let since = last_start.map_or(self.since, |start| start.max(self.since));
        now.saturating_duration_since(since) >= LASTING
            || now.saturating_duration_since(self.since) >= LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_is_measured_by_its_time_and_not_by_the_number_of_attempts() {
        let begin = Instant::now();
        let mut lack = LackOfRoom::refused(None, begin);
        for second in 1..60 {
            lack = LackOfRoom::refused(Some(lack), begin + Duration::from_secs(second) / 10);
        }
        assert!(!lack.lasts(None, begin + LASTING / 2));
        let late = LackOfRoom::refused(Some(lack), begin + LASTING);
        assert!(late.lasts(None, begin + LASTING));
    }

    #[test]
    fn a_job_is_not_tried_again_at_once() {
        let begin = Instant::now();
        let lack = LackOfRoom::refused(None, begin);
        assert!(!lack.may_try(begin) && !lack.may_try(begin + ATTEMPTS_APART / 2));
        assert!(lack.may_try(begin + ATTEMPTS_APART));
    }

    #[test]
    fn while_other_jobs_get_room_a_job_waits_longer_and_not_for_ever() {
        let begin = Instant::now();
        let lack = LackOfRoom::refused(None, begin);
        let just_before = |now: Instant| now.checked_sub(Duration::from_secs(1));
        let long = begin + 2 * LASTING;
        assert!(lack.lasts(None, long) && !lack.lasts(just_before(long), long));
        // A start before the lack says nothing about it.
        assert!(lack.lasts(just_before(begin), long));
        assert!(lack.lasts(just_before(begin + LONGEST), begin + LONGEST));
    }
}
