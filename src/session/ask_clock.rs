//! How long an ask has worked: its time without the time in which it waits for a person. Live work counts by the
//! monotonic clock and a restart by the times of the events, both with this.

use std::time::Duration;

/// Every moment is told as the time since a beginning, which is the same for all of one clock. A new clock stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskClock {
    worked: Duration,
    /// Since when it runs.
    since: Option<Duration>,
}

impl AskClock {
    /// A clock that runs from the beginning, for an ask that has worked for some time before.
    #[must_use]
    pub fn after(worked: Duration) -> Self {
        Self { worked, since: Some(Duration::ZERO) }
    }

    /// Lets the clock run from this moment on, or stand still.
    pub fn run(&mut self, on: bool, now: Duration) {
        self.worked = self.worked(now);
        self.since = on.then_some(now);
    }

    #[must_use]
    pub fn worked(&self, now: Duration) -> Duration {
        self.worked + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}
