//! Counts refused connections and limits how often the log mentions them, so that a client that connects again and
//! again cannot fill the disk with log lines.

use std::time::{Duration, Instant};

/// The shortest time between two lines in the log.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct RefusedConnections {
    last_logged: Option<Instant>,
    /// Refusals since the last line.
    count: u64,
}

impl RefusedConnections {
    /// Counts one refusal; returns the number of refusals to log, if a line is due.
    pub fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.last_logged.is_some_and(|last_logged| now.duration_since(last_logged) < PAUSE) {
            return None;
        }
        self.last_logged = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_once_a_second_and_none_of_it_is_forgotten() {
        let (mut hang_ups, start) = (RefusedConnections::default(), Instant::now());
        assert_eq!(hang_ups.add(start), Some(1), "the first is last_logged at once");
        let last_logged: Vec<u64> =
            (1..=10_000).filter_map(|n| hang_ups.add(start + n * Duration::from_micros(500))).collect();
        assert_eq!(last_logged, [2_000; 5]);
    }
}
