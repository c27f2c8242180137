//! The latest acts of administrators in a session. Their events are written whatever is left of the owner's quota, and
//! count against it, so a request that an administrator repeats is one event and not thousands.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::protocol::principal::Principal;

/// The time after an event in which the same administrator's same request gets no other one.
const REPEATED_WITHIN: Duration = Duration::from_secs(60);
/// The most acts that are remembered. The oldest is forgotten for the next one.
const REMEMBERED_ACTS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct AdminActs {
    /// The acts that have an event, oldest first.
    recent: VecDeque<(Instant, Principal, String)>,
}

impl AdminActs {
    /// Whether an act needs an event of its own. Those that only look or interrupt are remembered then, and others
    /// always get one, because two of them are two changes.
    pub fn is_new(&mut self, admin: Principal, act: &str, now: Instant) -> bool {
        if !act.starts_with("GET ") && !act.ends_with("/interrupt") {
            return true;
        }
        self.recent.retain(|(noted, ..)| now.saturating_duration_since(*noted) < REPEATED_WITHIN);
        if self.recent.iter().any(|(_, known, what)| *known == admin && what == act) {
            return false;
        }
        if self.recent.len() >= REMEMBERED_ACTS {
            self.recent.pop_front();
        }
        self.recent.push_back((now, admin, act.to_owned()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: Principal = Principal::new(1000);
    const BOB: Principal = Principal::new(1001);

    #[test]
    fn an_act_is_new_once_a_minute_for_each_administrator() {
        let (mut acts, begun) = (AdminActs::default(), Instant::now());
        assert!(acts.is_new(ANN, "GET /a", begun));
        assert!(acts.is_new(BOB, "GET /a", begun) && acts.is_new(ANN, "GET /b", begun));
        // Repetitions do not prolong the time: an administrator who never pauses is noted once a minute.
        for seconds in 0..60 {
            assert!(!acts.is_new(ANN, "GET /a", begun + Duration::from_secs(seconds)), "{seconds}");
        }
        assert!(acts.is_new(ANN, "GET /a", begun + REPEATED_WITHIN));
    }

    #[test]
    fn only_some_acts_are_remembered() {
        let (mut acts, now) = (AdminActs::default(), Instant::now());
        for number in 0..2 * REMEMBERED_ACTS {
            assert!(acts.is_new(ANN, &format!("GET {number}"), now));
        }
        assert_eq!(acts.recent.len(), REMEMBERED_ACTS);
        assert!(acts.is_new(ANN, "GET 0", now));
    }

    #[test]
    fn each_change_is_new() {
        let (mut acts, now) = (AdminActs::default(), Instant::now());
        assert!((0..2).all(|_| acts.is_new(ANN, "POST /v1/sessions/a/cells", now)));
        assert!(acts.recent.is_empty());
    }
}
