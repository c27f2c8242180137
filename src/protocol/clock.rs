//! Wall-clock time, for display and for ages counted in days. Every deadline uses the monotonic clock instead.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The time of the system clock, which may jump. A test makes it jump with `BELLJAR_CLOCK`, which names a file with the
/// seconds to add. Release builds ignore the variable.
pub fn wall() -> SystemTime {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let now = SystemTime::now();
    if !cfg!(debug_assertions) {
        return now;
    }
    let file = FILE.get_or_init(|| std::env::var_os("BELLJAR_CLOCK").map(PathBuf::from)).as_ref();
    let wrong =
        file.and_then(|file| std::fs::read_to_string(file).ok()?.trim().parse::<i64>().ok()).unwrap_or(0);
    let by = Duration::from_secs(wrong.unsigned_abs());
    if wrong < 0 { now.checked_sub(by) } else { now.checked_add(by) }.unwrap_or(now)
}

/// Time since the epoch.
pub fn wall_since_epoch() -> Duration {
    wall().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A moment by both clocks: pure code is given one instead of reading a clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub instant: Instant,
    pub since_epoch: Duration,
}

impl Moment {
    pub fn now() -> Self {
        Self { instant: Instant::now(), since_epoch: wall_since_epoch() }
    }

    /// The moment as a timestamp: RFC 3339 in UTC with milliseconds.
    pub fn timestamp(&self) -> String {
        rfc3339(self.since_epoch.as_secs(), self.since_epoch.subsec_millis())
    }

    /// Time since `at`, a timestamp from [`now`]; zero if it is in the future or malformed.
    pub fn since(&self, at: &str) -> Duration {
        since_epoch(at).map_or(Duration::ZERO, |at| self.since_epoch.saturating_sub(at))
    }
}

/// The timestamp of this moment.
pub fn now() -> String {
    Moment::now().timestamp()
}

/// The timestamp of a time, such as that of a file.
pub fn of(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.as_secs(), since.subsec_millis())
}

/// Days since 1970 in UTC, for what is counted per day.
pub fn today() -> u64 {
    wall_since_epoch().as_secs() / 86_400
}

/// Time from `at` until now, as [`Moment::since`] counts it.
pub fn since(at: &str) -> Duration {
    Moment::now().since(at)
}

/// Time between two timestamps from [`now`]; zero if they are in the wrong order or one is malformed.
pub fn between(from: &str, to: &str) -> Duration {
    since_epoch(from).zip(since_epoch(to)).map_or(Duration::ZERO, |(from, to)| to.saturating_sub(from))
}

/// The time between the epoch and a timestamp from [`now`]; none if it is malformed.
pub fn since_epoch(at: &str) -> Option<Duration> {
    let at = OffsetDateTime::parse(at, &Rfc3339).ok()?;
    (at - OffsetDateTime::UNIX_EPOCH).try_into().ok()
}

fn rfc3339(seconds: u64, millis: u32) -> String {
    let since = Duration::new(seconds, millis.saturating_mul(1_000_000));
    let at = OffsetDateTime::UNIX_EPOCH.saturating_add(since.try_into().unwrap_or(time::Duration::MAX));
    let (date, (hour, minute, second, millis)) = (at.date(), at.to_hms_milli());
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400, 5), "2000-02-29T00:00:00.005Z");
        assert_eq!(rfc3339(1_709_251_199, 999), "2024-02-29T23:59:59.999Z");
        assert_eq!(rfc3339(1_709_251_200, 0), "2024-03-01T00:00:00.000Z");
        assert_eq!(rfc3339(4_102_444_800, 0), "2100-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_moment_is_read_back() {
        for (seconds, millis) in [(0, 0), (951_782_400, 5), (1_709_251_199, 999), (4_102_444_800, 1)] {
            let expected = Duration::from_secs(seconds) + Duration::from_millis(u64::from(millis));
            assert_eq!(since_epoch(&rfc3339(seconds, millis)), Some(expected));
        }
        assert_eq!(since_epoch("yesterday"), None);
        let (early, late) = ("2024-02-28T23:59:59.500Z", "2024-03-01T00:00:00.000Z");
        assert_eq!(between(early, late), Duration::from_millis(86_400_500));
        assert_eq!((between(late, early), between("", late)), (Duration::ZERO, Duration::ZERO));
    }
}
