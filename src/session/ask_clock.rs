//! How long an ask has worked: its time without the time in which it waits for a person. Live work counts by the
//! monotonic clock and a restart by the times of the events, both with this.

use std::time::Duration;

/// Every moment is told as the time since a beginning, which is the same for all of one clock. A new clock stands still.
/// A moment before the last one counts as the last one, because a machine's wall clock may be set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskClock {
    worked: Duration,
    runs: bool,
    /// The last moment at which it was let run or stopped.
    last: Duration,
}

impl AskClock {
    /// A clock that runs from the beginning, for an ask that has worked for some time before.
    #[must_use]
    pub fn after(worked: Duration) -> Self {
        Self { worked, runs: true, last: Duration::ZERO }
    }

    /// Lets the clock run from this moment on, or stand still.
    pub fn run(&mut self, on: bool, now: Duration) {
        self.worked = self.worked(now);
        self.runs = on;
        self.last = self.last.max(now);
    }

    #[must_use]
    pub fn worked(&self, now: Duration) -> Duration {
        let since = if self.runs { now.saturating_sub(self.last) } else { Duration::ZERO };
        self.worked + since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_was_set_back_adds_no_work() {
        let [start, wait, set_back, end] = [1_000, 1_010, 10, 1_020].map(Duration::from_secs);
        let mut clock = AskClock::default();
        clock.run(true, start);
        clock.run(false, wait);
        clock.run(true, set_back);
        assert_eq!(clock.worked(set_back), Duration::from_secs(10));
        assert_eq!(clock.worked(end), Duration::from_secs(20));
    }
}
