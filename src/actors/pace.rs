//! A look that is taken at regular intervals, and less often while there is nothing to see.
//!
//! Each look of an idle session wakes a thread, finds cold caches and goes back to sleep: with a hundred idle sessions that is
//! most of what the daemon does. So the one who takes the look says whether all is calm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a look is taken.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    pub usual: Duration,
    /// While all is calm.
    pub calm: Duration,
}

/// Whether all is calm, as both sides of the interval know it.
#[derive(Clone, Default)]
pub struct Pace {
    is_calm: Arc<AtomicBool>,
}

impl Pace {
    /// What the last look found.
    pub fn set_calm(&self, is_calm: bool) {
        self.is_calm.store(is_calm, Ordering::Relaxed);
    }

    /// Has looks taken until one says that it was the last.
    pub async fn keep(self, intervals: Intervals, look: impl Fn() -> bool) {
        loop {
            let is_calm = self.is_calm.load(Ordering::Relaxed);
            tokio::time::sleep(if is_calm { intervals.calm } else { intervals.usual }).await;
            if !look() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_millis(500);

    #[tokio::test]
    async fn looks_are_rare_while_all_is_calm_and_end_with_the_last() {
        let (pace, looks, began) = (Pace::default(), AtomicU32::new(0), Instant::now());
        let look = || {
            let number = looks.fetch_add(1, Ordering::Relaxed);
            pace.set_calm(number == 1);
            number < 2
        };
        pace.clone().keep(Intervals { usual: SHORT, calm: LONG }, look).await;
        assert_eq!(looks.load(Ordering::Relaxed), 3);
        assert!(began.elapsed() >= 2 * SHORT + LONG);
    }
}
