//! Waiting for room: a user may have only so many jobs at once, and others than ours may be among them.

use std::time::{Duration, Instant};

/// Between two tries: the first pause, and the longest that it grows to.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long jobs of others are waited for while none of our own is there.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Whether the next job may be sent.
#[derive(Debug, Default)]
pub(in crate::cli) struct Admission {
    full: Option<Full>,
    /// It was waited for in vain: what does not get in now is refused.
    given_up: bool,
}

#[derive(Debug)]
struct Full {
    again: Instant,
    pause: Duration,
    /// Since when it is others alone who have the room.
    taken_since: Option<Instant>,
}

impl Admission {
    /// When to try again; none if there is nothing to wait for.
    pub fn again(&self) -> Option<Instant> {
        self.full.as_ref().map(|full| full.again)
    }

    pub fn may_try(&self, now: Instant) -> bool {
        self.full.as_ref().is_none_or(|full| full.again <= now)
    }

    /// A job was taken.
    pub fn granted(&mut self) {
        *self = Self::default();
    }

    /// One of our own has ended, and may have left room.
    pub fn freed(&mut self) {
        self.full = None;
    }

    pub fn give_up(&mut self) {
        *self = Self { full: None, given_up: true };
    }

    /// A job was not taken while `own` others of ours were there. Whether to wait and try it again.
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
        self.full = Some(Full { again: now + pause, pause, taken_since });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_waited_for_longer_and_longer_but_not_for_ever() {
        let (mut room, start) = (Admission::default(), Instant::now());
        let mut now = start;
        assert!(room.may_try(now) && room.again().is_none());
        let mut tries = 0;
        while room.refused(now, 0) {
            let again = room.again().unwrap();
            assert!(!room.may_try(now) && room.may_try(again));
            assert!(again - now <= LONGEST_PAUSE);
            (now, tries) = (again, tries + 1);
        }
        assert!(now - start >= PATIENCE && now - start <= PATIENCE + LONGEST_PAUSE);
        assert!((100..1000).contains(&tries), "{tries}");
        // The others do not wait as long again, unless one gets in after all.
        assert!(room.may_try(now) && !room.refused(now, 0));
        room.granted();
        assert!(room.refused(now, 0));
    }

    #[test]
    fn as_long_as_own_jobs_are_there_their_ends_are_waited_for() {
        let (mut room, start) = (Admission::default(), Instant::now());
        assert!(room.refused(start, 1) && room.refused(start + 2 * PATIENCE, 1));
        room.freed();
        assert!(room.may_try(start + 2 * PATIENCE));
        // From now on the room is others' alone.
        assert!(room.refused(start + 2 * PATIENCE, 0));
        assert!(!room.refused(start + 3 * PATIENCE, 0));
    }
}
