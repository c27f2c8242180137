//! Checks for troubles that keep sandboxes from being made, for clients that ask for the daemon's health.

use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long a check that found no trouble is valid, so that clients that ask again and again cost the engine little.
const VALID_FOR: Duration = Duration::from_secs(2);

/// Runs one check at a time. Clients that ask meanwhile get its outcome, so that an engine that hangs is not asked once
/// for each client.
pub(super) struct HealthChecks {
    valid_for: Duration,
    last: Mutex<Option<HealthCheck>>,
}

struct HealthCheck {
    ended: Instant,
    troubles: Vec<String>,
}

impl Default for HealthChecks {
    fn default() -> Self {
        Self { valid_for: VALID_FOR, last: Mutex::default() }
    }
}

impl HealthChecks {
    /// The troubles that `check` finds. The last check counts instead if it ended after this call began, or if it found
    /// no trouble and is still valid. A trouble is never remembered, so its end is seen at once.
    pub async fn troubles(&self, check: impl Future<Output = Vec<String>>) -> Vec<String> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        let counts = |last: &&HealthCheck| {
            last.ended >= asked || last.troubles.is_empty() && last.ended.elapsed() < self.valid_for
        };
        if let Some(last) = last.as_ref().filter(counts) {
            return last.troubles.clone();
        }
        let troubles = check.await;
        *last = Some(HealthCheck { ended: Instant::now(), troubles: troubles.clone() });
        troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn looks_are_shared_and_only_good_ones_are_kept() {
        let checks_made = AtomicUsize::new(0);
        let check = |troubles: &[&str]| {
            let troubles: Vec<String> = troubles.iter().map(|trouble| (*trouble).to_owned()).collect();
            checks_made.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::task::yield_now().await;
                troubles
            }
        };
        let health_checks = HealthChecks { valid_for: LONG, last: Mutex::default() };
        // The second call comes while the check of the first one runs, and its own check is never begun.
        let never = std::future::pending();
        let both =
            futures_util::join!(health_checks.troubles(check(&["away"])), health_checks.troubles(never));
        assert_eq!(both, (vec!["away".to_owned()], vec!["away".to_owned()]));
        assert_eq!(health_checks.troubles(check(&[])).await, Vec::<String>::new(), "a trouble is not kept");
        let never = std::future::pending();
        assert_eq!(health_checks.troubles(never).await, Vec::<String>::new(), "that there is none is kept");
        assert_eq!(checks_made.load(Ordering::Relaxed), 2);
        let health_checks = HealthChecks { valid_for: Duration::ZERO, last: Mutex::default() };
        assert_eq!(health_checks.troubles(check(&[])).await, Vec::<String>::new());
        assert_eq!(health_checks.troubles(check(&["away"])).await, ["away"], "but not for long");
    }
}
