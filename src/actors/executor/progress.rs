//! Whether a snapshot comes fast enough. A copy that packs holds memory and the turn of its owner, so one that sends nothing,
//! or only a trickle, is ended. The time in which the copy stands still for cells has a bound of its own.

use std::time::Duration;

/// How long a copy stands still for cells in all: its memory is not free, and other snapshots of the owner wait.
const STOPPED: Duration = Duration::from_secs(30);
/// The longest time a copy sends nothing while it packs.
const SILENCE: Duration = Duration::from_secs(120);
/// How long a copy may take for whatever it sends: to begin, and for values that are slow to pack.
const SLACK: Duration = Duration::from_secs(120);
/// Bytes a second that a copy sends on average beyond that, at least.
const LEAST_RATE: u64 = 256 * 1024;
/// The longest time that packing takes in all.
const PACKING: Duration = Duration::from_secs(15 * 60);

/// How a copy has come along, as it is looked at again and again.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes that had come when it was looked at last.
    moved: u64,
    /// For how long nothing has come since.
    silent: Duration,
    /// For how long it has packed.
    packing: Duration,
    /// For how long it has stood still for cells.
    stopped: Duration,
}

impl Progress {
    /// The copy has stood still since the last look. Gives why it is ended, if it is.
    pub fn stand(&mut self, since: Duration) -> Option<String> {
        self.stopped = self.stopped.saturating_add(since);
        (self.stopped >= STOPPED).then(|| "the session did not rest for long enough".to_owned())
    }

    /// Takes how much has come in all, `since` after the last look. Gives why the copy is ended, if it is.
    pub fn update(&mut self, since: Duration, moved: u64) -> Option<String> {
        self.packing = self.packing.saturating_add(since);
        self.silent = if moved == self.moved { self.silent.saturating_add(since) } else { Duration::ZERO };
        self.moved = moved;
        if self.silent >= SILENCE {
            return Some(format!("nothing came of them for {} s", SILENCE.as_secs()));
        }
        if self.packing >= PACKING {
            return Some(format!("it took longer than {} s", PACKING.as_secs()));
        }
        let at_least_rate = Duration::from_secs(moved / LEAST_RATE);
        (self.packing >= SLACK.saturating_add(at_least_rate)).then(|| {
            let (kib, rate) = (moved / 1024, LEAST_RATE / 1024);
            let seconds = self.packing.as_secs();
            format!("they came too slowly: {kib} KiB in {seconds} s, and less than {rate} KiB a second")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// After how many seconds a copy is ended that has sent so much after each second, and why.
    fn ends(sent: impl Fn(u64) -> u64) -> (u64, String) {
        let mut progress = Progress::default();
        let mut looks = (1..).map(|second| (second, progress.update(SECOND, sent(second))));
        let (second, why) = looks.find(|(_, why)| why.is_some()).expect("it ends");
        (second, why.unwrap_or_default())
    }

    #[test]
    fn a_copy_that_sends_nothing_is_ended_after_a_while() {
        let (second, why) = ends(|_| 0);
        assert_eq!(second, SILENCE.as_secs());
        assert!(why.contains("nothing came"), "{why}");
        // What came before does not help.
        assert_eq!(ends(|second| second.min(100) << 30).0, 100 + SILENCE.as_secs());
    }

    #[test]
    fn a_copy_that_stands_for_cells_is_ended_after_a_while_and_not_for_its_silence() {
        let (mut progress, seconds) = (Progress::default(), STOPPED.as_secs());
        for second in 1..=seconds {
            // The time in which it packs between cells is no part of that.
            assert_eq!(progress.update(SECOND, 0), None);
            let why = progress.stand(SECOND);
            assert_eq!(why.is_some(), second == seconds, "{second}: {why:?}");
            assert!(why.is_none_or(|why| why.contains("did not rest")));
        }
    }

    #[test]
    fn a_copy_that_trickles_is_ended_after_its_slack() {
        let (second, why) = ends(|second| second);
        assert_eq!(second, SLACK.as_secs());
        assert!(why.contains("too slowly: 0 KiB in 120 s"), "{why}");
        // Half of the least rate doubles the slack.
        let (second, why) = ends(|second| second * LEAST_RATE / 2);
        assert!((2 * SLACK.as_secs() - 1..=2 * SLACK.as_secs()).contains(&second), "{second}");
        assert!(why.contains("too slowly"), "{why}");
    }

    #[test]
    fn a_copy_that_is_fast_enough_has_all_of_its_time_and_no_more() {
        let (second, why) = ends(|second| second * LEAST_RATE);
        assert_eq!(second, PACKING.as_secs());
        assert!(why.contains("took longer"), "{why}");
    }

    #[test]
    fn what_has_come_at_once_is_as_good_as_what_comes_evenly() {
        let large = 600 * LEAST_RATE;
        let (second, why) = ends(|second| large + second);
        assert_eq!(second, SLACK.as_secs() + 600, "{why}");
    }
}
