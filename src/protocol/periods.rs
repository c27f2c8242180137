//! Periods that a test makes shorter, so that it need not wait them out.

use std::sync::OnceLock;
use std::time::Duration;

/// The length of the named period: `usual`, unless a test sets another one in seconds, as in
/// `BELLJAR_PERIODS=unheld:3,reaper:4`. Release builds ignore the variable.
pub fn period(name: &str, usual: Duration) -> Duration {
    static OTHERS: OnceLock<String> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return usual;
    }
    other(OTHERS.get_or_init(|| std::env::var("BELLJAR_PERIODS").unwrap_or_default()), name).unwrap_or(usual)
}

fn other(others: &str, name: &str) -> Option<Duration> {
    let mut pairs = others.split(',').filter_map(|pair| pair.split_once(':'));
    let (_, seconds) = pairs.find(|(named, _)| *named == name)?;
    seconds.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_names_the_periods_that_it_wants_shorter() {
        let others = "unheld:3,reaper:4,broken,worse:x";
        assert_eq!(other(others, "unheld"), Some(Duration::from_secs(3)));
        assert_eq!(other(others, "reaper"), Some(Duration::from_secs(4)));
        for name in ["", "unread", "broken", "worse"] {
            assert_eq!(other(others, name), None, "{name}");
        }
        assert_eq!(period("unread", Duration::from_secs(30)), Duration::from_secs(30));
    }
}
