//! What a person at a terminal sees while a cell says nothing: how long it has run, and near its deadline what could be
//! done about it.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::protocol::event::EventBody;

/// A cell that says nothing for this long is silent.
const SILENT: Duration = Duration::from_secs(2);
/// Time between two lines of a silent cell.
const EVERY: Duration = Duration::from_secs(1);
/// A deadline is near in the last third of the time, but no earlier than this before it.
const NEAR: Duration = Duration::from_secs(10);
const NEAR_SHARE: u32 = 3;

/// What the command that runs a cell offers to a user who needs more time.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct MoreTime(&'static str);

impl MoreTime {
    pub const EXEC: Self = Self("`--timeout 5min` allows more, `--detach` does not wait");
    pub const RUN: Self = Self("`--timeout 5min` allows more");
    pub const REPL: Self = Self("`:timeout 5min` allows the next cells more");
    pub const COMMAND: Self = Self("`--timeout 5min` allows more, `--background` does not wait");
}

/// The clock of a cell as its events tell it, and when the cell was last heard.
pub(in crate::cli) struct Silence {
    more_time: MoreTime,
    started: Option<Instant>,
    queued: Instant,
    /// How long the cell may run; none where that is not known, because its clock stood still for a while.
    limit: Option<Duration>,
    next: Instant,
}

impl Silence {
    pub fn new(more_time: MoreTime) -> Self {
        let now = Instant::now();
        Self { more_time, started: None, queued: now, limit: None, next: now + SILENT }
    }

    /// Takes an event of the cell, which is silent from there on.
    pub fn heard(&mut self, event: &EventBody) {
        let now = Instant::now();
        match event {
            EventBody::CellQueued { timeout_s, .. } => {
                self.limit = Duration::try_from_secs_f64(*timeout_s).ok();
            }
            EventBody::CellStarted { .. } => self.started = Some(now),
            EventBody::ApprovalWanted { .. } | EventBody::Frozen => self.limit = None,
            _ => {}
        }
        self.next = now + SILENT;
    }

    /// Waits until there is a line to show, and gives it.
    pub async fn line(&mut self) -> String {
        sleep_until(self.next).await;
        let now = Instant::now();
        self.next = now + EVERY;
        match self.started {
            Some(started) => progress(now - started, self.limit, self.more_time),
            None => format!("{}; it has not begun yet", time(now - self.queued)),
        }
    }
}

fn progress(elapsed: Duration, limit: Option<Duration>, MoreTime(advice): MoreTime) -> String {
    let near = limit.filter(|limit| elapsed + NEAR.min(*limit / NEAR_SHARE) >= *limit);
    match near {
        Some(limit) => format!("{}; ends at {}: {advice}", time(elapsed), time(limit)),
        None => time(elapsed),
    }
}

/// `42 s`, `3 min 5 s`
fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_its_deadline_a_cell_is_shown_with_what_can_be_done() {
        let line = |elapsed, limit: Option<u64>| {
            progress(Duration::from_secs(elapsed), limit.map(Duration::from_secs), MoreTime::RUN)
        };
        assert_eq!(line(3, Some(30)), "3 s");
        assert_eq!(line(20, Some(30)), "20 s; ends at 30 s: `--timeout 5min` allows more");
        assert_eq!(line(3, Some(6)), "3 s");
        assert_eq!(line(4, Some(6)), "4 s; ends at 6 s: `--timeout 5min` allows more");
        assert_eq!(line(289, Some(300)), "4 min 49 s");
        assert_eq!(line(300, None), "5 min 0 s");
        for advice in [MoreTime::EXEC, MoreTime::RUN, MoreTime::REPL, MoreTime::COMMAND] {
            let usual = progress(Duration::from_secs(29), Some(Duration::from_secs(30)), advice);
            assert!(usual.len() < 80, "it fits into a line of a terminal: {usual}");
        }
    }
}
