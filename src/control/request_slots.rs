//! How many connections and uploads each user may have at a time.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use crate::protocol::limits::{
    CONNECTIONS, CONNECTIONS_PER_USER, CONNECTIONS_SURE, UPLOADS, UPLOADS_PER_USER, UPLOADS_SURE,
};
use crate::protocol::principal::Principal;
use crate::security_controls;

/// Counts the slots that users hold, in total and per user.
#[derive(Clone)]
pub struct RequestSlots {
    counts: Arc<Mutex<HashMap<Principal, usize>>>,
    all: usize,
    per_user: usize,
    /// The slots that each user gets even when other users hold all the rest.
    sure: usize,
}

/// A counted slot, which is released when dropped.
pub struct RequestSlot {
    slots: RequestSlots,
    user: Principal,
}

/// The slot of a connection. What its requests leave with an actor keeps the slot, so that a client which hangs up and
/// connects again has no more requests in the daemon than it may have connections.
#[derive(Clone)]
pub struct Connection(pub Arc<RequestSlot>);

impl RequestSlots {
    pub fn of_connections() -> Self {
        Self::new(CONNECTIONS, CONNECTIONS_PER_USER, CONNECTIONS_SURE)
    }

    pub fn of_uploads() -> Self {
        Self::new(UPLOADS, UPLOADS_PER_USER, UPLOADS_SURE)
    }

    fn new(all: usize, per_user: usize, sure: usize) -> Self {
        Self { counts: Arc::default(), all, per_user, sure }
    }

    /// Takes a slot; `None` if too many are taken.
    #[must_use]
    pub fn take(&self, user: Principal) -> Option<RequestSlot> {
        let mut counts = self.counts.lock();
        let all: usize = counts.values().sum();
        let own = counts.entry(user).or_default();
        let taken = *own >= self.per_user || (all >= self.all && *own >= self.sure);
        if taken && security_controls::holds("places_are_counted") {
            return None;
        }
        *own += 1;
        Some(RequestSlot { slots: self.clone(), user })
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let mut counts = self.slots.counts.lock();
        if let Some(own) = counts.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_cannot_take_all_connections() {
        let connections = RequestSlots::of_connections();
        let taken: Vec<_> =
            (0..CONNECTIONS_PER_USER).map(|_| connections.take(Principal::ANN).unwrap()).collect();
        assert!(connections.take(Principal::ANN).is_none());
        assert!(connections.take(Principal::BOB).is_some());
        drop(taken);
        assert!(connections.take(Principal::ANN).is_some());
    }

    #[test]
    fn a_few_users_cannot_take_all_connections() {
        let connections = RequestSlots::of_connections();
        let taken: Vec<_> = (0..CONNECTIONS)
            .map(|n| {
                connections.take(Principal::new(u32::try_from(n / CONNECTIONS_PER_USER).unwrap())).unwrap()
            })
            .collect();
        let sure: Vec<_> =
            (0..CONNECTIONS_SURE).map(|_| connections.take(Principal::new(77)).unwrap()).collect();
        assert!(connections.take(Principal::new(77)).is_none());
        drop((taken, sure));
    }
}
