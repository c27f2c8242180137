//! Waits for room: a user may have only so many jobs at once, and other commands of the user may have some of them.

use std::time::{Duration, Instant};

/// The first pause between two tries, and the longest that it grows to.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the command waits for jobs that are not its own, while it has none itself.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Decides whether the next job may be sent.
#[derive(Debug, Default)]
pub(in crate::cli) struct Admission {
    full: Option<FullSince>,
    /// The command waited in vain: a job that the daemon does not take now is refused for good.
    given_up: bool,
}

#[derive(Debug)]
struct FullSince {
    again: Instant,
    pause: Duration,
    /// When the room began to be taken by jobs of other commands alone; none if it is not.
    taken_since: Option<Instant>,
}

impl Admission {
    /// When to try again; none if there is no need to wait.
    pub fn again(&self) -> Option<Instant> {
        self.full.as_ref().map(|full| full.again)
    }

    pub fn may_try(&self, now: Instant) -> bool {
        self.full.as_ref().is_none_or(|full| full.again <= now)
    }

    /// The daemon took a job.
    pub fn granted(&mut self) {
        *self = Self::default();
    }

    /// A job of this command has ended and may have left room.
    pub fn freed(&mut self) {
        self.full = None;
    }

    pub fn give_up(&mut self) {
        *self = Self { full: None, given_up: true };
    }

    /// The daemon did not take a job while this command had `own` others. Returns whether to wait and try again.
    pub fn refused(&mut self, now: Instant, own: usize) -> bool {
        let (pause, taken_since) = match &self.full {
            Some(full) => ((full.pause * 2).min(LONGEST_PAUSE), full.taken_since),
            None => (FIRST_PAUSE, None),
        };
        let taken_since = (own == 0).then(|| taken_since.unwrap_or(now));
        let patient = taken_since.is_none_or(|since| now.duration_since(since) < PATIENCE);
        if self.given_up || !patient {
            self.give_up();
            return false;
        }
        self.full = Some(FullSince { again: now + pause, pause, taken_since });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_waited_for_longer_and_longer_but_not_for_ever() {
        let (mut admission, start) = (Admission::default(), Instant::now());
        let mut now = start;
        assert!(admission.may_try(now) && admission.again().is_none());
        let mut tries = 0;
        while admission.refused(now, 0) {
            let again = admission.again().unwrap();
            assert!(!admission.may_try(now) && admission.may_try(again));
            assert!(again - now <= LONGEST_PAUSE);
            (now, tries) = (again, tries + 1);
        }
        assert!(now - start >= PATIENCE && now - start <= PATIENCE + LONGEST_PAUSE);
        assert!((100..1000).contains(&tries), "{tries}");
        // The remaining jobs do not wait as long again, unless one is taken after all.
        assert!(admission.may_try(now) && !admission.refused(now, 0));
        admission.granted();
        assert!(admission.refused(now, 0));
    }

    #[test]
    fn as_long_as_own_jobs_are_there_their_ends_are_waited_for() {
        let (mut admission, start) = (Admission::default(), Instant::now());
        assert!(admission.refused(start, 1) && admission.refused(start + 2 * PATIENCE, 1));
        admission.freed();
        assert!(admission.may_try(start + 2 * PATIENCE));
        // From now on only jobs of other commands take the room.
        assert!(admission.refused(start + 2 * PATIENCE, 0));
        assert!(!admission.refused(start + 3 * PATIENCE, 0));
    }
}
