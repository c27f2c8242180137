//! When to send a request again: with full jitter, and not before the time that the provider asks for.

use std::time::{Duration, SystemTime};

/// The longest wait before the first retry; it doubles with each retry, up to `LONGEST_WAIT`.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// The most of `Retry-After` that is respected.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The number of doublings after which the longest wait is reached anyway.
const DOUBLINGS: u32 = 8;

/// How long to wait before the next attempt. `chance` is from 0 to 1.
pub(super) fn wait(attempts: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
    let doublings = attempts.saturating_sub(1).min(DOUBLINGS);
    let longest = FIRST_WAIT.saturating_mul(1 << doublings).min(LONGEST_WAIT);
    let jitter = longest.mul_f64(chance.clamp(0.0, 1.0));
    retry_after.map_or(jitter, |wanted| wanted.min(LONGEST_RETRY_AFTER).saturating_add(jitter / 4))
}

/// A uniformly distributed random number from 0 to 1.
pub(super) fn chance() -> f64 {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The top 32 bits of a version 4 id are all random.
    let random = u32::try_from(random >> 32).unwrap_or(u32::MAX);
    f64::from(random) / f64::from(u32::MAX)
}

/// `Retry-After`: seconds, or a date.
pub(super) fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<f64>() {
        // A number that is too large for a `Duration` counts as the longest one.
        return (seconds >= 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_and_end() {
        let longest = |attempts| wait(attempts, None, 1.0);
        assert_eq!(longest(1), Duration::from_millis(500));
        assert_eq!(longest(3), Duration::from_secs(2));
        assert_eq!(longest(u32::MAX), LONGEST_WAIT);
        assert_eq!(wait(5, None, 0.0), Duration::ZERO);
        assert_eq!(wait(1, Some(Duration::from_secs(7)), 0.0), Duration::from_secs(7));
        assert_eq!(wait(1, Some(Duration::from_secs(9_999)), 0.0), LONGEST_RETRY_AFTER);
    }

    #[test]
    fn the_provider_says_when_in_seconds_or_as_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let seconds = |header| retry_after(header, now).map(|wait| wait.as_secs_f64());
        assert_eq!(seconds(" 3 "), Some(3.0));
        assert_eq!(seconds("0.5"), Some(0.5));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30.0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0.0));
        assert_eq!(retry_after("99999999999999999999999", now), Some(Duration::MAX));
        assert_eq!(retry_after(&"9".repeat(400), now), Some(Duration::MAX));
        assert_eq!(wait(1, Some(Duration::MAX), 1.0), LONGEST_RETRY_AFTER + FIRST_WAIT / 4);
        assert_eq!(seconds("-1"), None);
        assert_eq!(seconds("NaN"), None);
        assert_eq!(seconds("soon"), None);
    }

    proptest! {
        #[test]
        fn any_header_is_answered(header in "\\PC{0,30}", attempts: u32, chance: f64) {
            let wanted = retry_after(&header, SystemTime::now());
            if !chance.is_nan() {
                prop_assert!(wait(attempts, wanted, chance) <= LONGEST_RETRY_AFTER + LONGEST_WAIT);
            }
        }
    }
}
