//! Connections that are hung up on: counted one by one, told in the log now and then. Whoever connects
//! again and again must not fill the disk with what is said about it.

use std::time::{Duration, Instant};

/// Between two lines in the log.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct HangUps {
    told: Option<Instant>,
    /// Since then, and not told.
    count: u64,
}

impl HangUps {
    /// One more. How many it is time to tell of, if it is.
    pub fn add(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.told.is_some_and(|told| now.duration_since(told) < PAUSE) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_once_a_second_and_none_of_it_is_forgotten() {
        let (mut hang_ups, start) = (HangUps::default(), Instant::now());
        assert_eq!(hang_ups.add(start), Some(1), "the first is told at once");
        let told: Vec<u64> =
            (1..=10_000).filter_map(|n| hang_ups.add(start + n * Duration::from_micros(500))).collect();
        assert_eq!(told, [2_000; 5]);
    }
}
