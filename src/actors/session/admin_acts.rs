//! What administrators do in a session. Its events are written whatever is left of quotas, and are charged to the
//! administrator, so requests that an administrator repeats are a few events and not thousands.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::state::SessionActorState;
use crate::protocol::event::EventBody;
use crate::protocol::limits::SAME_ACT_WITHIN;
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::security_controls;
use crate::store::act_bytes;

/// The most events of requests that only look or interrupt that one administrator causes within `SAME_ACT_WITHIN`.
const LOOKS_NOTED: usize = 16;
/// The name under which these bytes appear in an administrator's quota.
const NAME: &str = "records of what was done in sessions of others";

#[derive(Default)]
pub(super) struct AdminActs {
    looks: BTreeMap<Principal, Looks>,
    charges: BTreeMap<Principal, Permit>,
}

/// The latest requests of an administrator that have an event and only look or interrupt, oldest first.
#[derive(Default)]
struct Looks(VecDeque<(Instant, String)>);

impl Looks {
    fn forget_old(&mut self, now: Instant) {
        self.0.retain(|(noted, _)| now.saturating_duration_since(*noted) < SAME_ACT_WITHIN);
    }

    /// The text of the event for an act; none if it needs none.
    fn note(&mut self, act: String, now: Instant) -> Option<String> {
        if self.0.iter().any(|(_, known)| *known == act) || self.0.len() >= LOOKS_NOTED {
            return None;
        }
        self.0.push_back((now, act.clone()));
        if self.0.len() < LOOKS_NOTED {
            return Some(act);
        }
        let seconds = SAME_ACT_WITHIN.as_secs();
        Some(format!("{act} (further requests that look or interrupt are not noted for up to {seconds} s)"))
    }
}

impl AdminActs {
    /// The acts in a session that was there before, with the bytes that their events take.
    pub fn charged(ledger: &Ledger, before: &BTreeMap<Principal, u64>) -> Self {
        let mut acts = Self::default();
        for (admin, bytes) in before {
            acts.charge(ledger, *admin, *bytes);
        }
        acts
    }

    fn charge(&mut self, ledger: &Ledger, admin: Principal, bytes: u64) {
        let keep = || ledger.keep(admin, NAME, Amounts::default());
        self.charges.entry(admin).or_insert_with(keep).gauge().add(Kind::Journal, bytes);
    }

    /// The text of the event that an act gets; none if it gets none. Acts that change something always get one, because
    /// two of them are two changes.
    fn note(
        &mut self,
        admin: Principal,
        act: String,
        only_looks_or_interrupts: bool,
        now: Instant,
    ) -> Option<String> {
        if !only_looks_or_interrupts {
            return Some(act);
        }
        self.looks.values_mut().for_each(|looks| looks.forget_old(now));
        self.looks.retain(|_, looks| !looks.0.is_empty());
        self.looks.entry(admin).or_default().note(act, now)
    }
}

impl SessionActorState {
    /// Records what an administrator does, at the administrator's expense: the owner has not asked for it.
    pub(super) fn acted_on(&mut self, admin: Principal, act: String, only_looks_or_interrupts: bool) {
        let act = self.admin_acts.note(admin, act, only_looks_or_interrupts, Instant::now());
        let Some(act) = act else { return };
        let bytes = act_bytes(&act);
        let event = EventBody::AdminActed { admin, act };
        if security_controls::holds("administrators_pay_for_their_acts") {
            self.admin_acts.charge(&self.args.ledger, admin, bytes);
            self.log.append_paid_by_other(event);
        } else {
            self.log.append(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ANN: Principal = Principal::new(1000);
    const BOB: Principal = Principal::new(1001);

    fn is_new(acts: &mut AdminActs, admin: Principal, act: &str, now: Instant) -> bool {
        acts.note(admin, act.to_owned(), true, now).is_some()
    }

    #[test]
    fn an_act_is_new_once_a_minute_for_each_administrator() {
        let (mut acts, begun) = (AdminActs::default(), Instant::now());
        assert!(is_new(&mut acts, ANN, "GET /a", begun));
        assert!(is_new(&mut acts, BOB, "GET /a", begun) && is_new(&mut acts, ANN, "GET /b", begun));
        // Repetitions do not prolong the time: an administrator who never pauses is noted once a minute.
        for seconds in 0..60 {
            assert!(!is_new(&mut acts, ANN, "GET /a", begun + Duration::from_secs(seconds)), "{seconds}");
        }
        assert!(is_new(&mut acts, ANN, "GET /a", begun + SAME_ACT_WITHIN));
    }

    /// Otherwise requests for more paths than are remembered have an event each, for ever.
    #[test]
    fn however_many_paths_an_administrator_looks_at_there_are_a_few_events() {
        let (mut acts, now) = (AdminActs::default(), Instant::now());
        let mut look = |number: usize, now| acts.note(ANN, format!("GET {}", number % 65), true, now);
        let noted: Vec<String> = (0..650).filter_map(|number| look(number, now)).collect();
        assert_eq!(noted.len(), LOOKS_NOTED);
        assert!(noted.last().is_some_and(|last| last.contains("are not noted")), "{noted:?}");
        assert!(noted.iter().rev().skip(1).all(|text| !text.contains("are not noted")));
        let later = now + SAME_ACT_WITHIN;
        assert_eq!((0..650).filter_map(|number| look(number, later)).count(), LOOKS_NOTED);
        assert!(is_new(&mut acts, BOB, "GET /a", later), "others are noted beside");
    }

    #[test]
    fn each_change_is_new() {
        let (mut acts, now) = (AdminActs::default(), Instant::now());
        for act in ["POST /v1/sessions/a/cells", "PUT /v1/sessions/a/files/GET /interrupt"] {
            assert!((0..100).all(|_| acts.note(ANN, act.to_owned(), false, now).is_some()), "{act}");
        }
        assert!(acts.looks.is_empty());
    }
}
