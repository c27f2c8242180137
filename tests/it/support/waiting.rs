//! Waiting for what should happen soon.

use std::time::{Duration, Instant};

/// Longest wait for something that should happen soon.
pub const SOON: Duration = Duration::from_secs(30);

/// Polls until `check` gives something.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
