//! A permit that several holders have, such as a sandbox and the actor that runs it.

use parking_lot::Mutex;
use std::sync::Arc;

use super::ledger::Permit;

/// A permit that is given back when its last holder drops it, or when one of them gives it back for all.
#[derive(Clone, Debug)]
pub struct SharedPermit(Arc<Mutex<Option<Permit>>>);

impl SharedPermit {
    #[must_use]
    pub fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// Gives the permit back although others still hold it.
    pub fn give_back(&self) {
        let permit = self.0.lock().take();
        drop(permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quota;
    use crate::protocol::principal::Principal;
    use crate::protocol::quota::Kind;
    use crate::quota::{Amounts, Ledger};

    const OWNER: Principal = Principal::new(1);

    #[test]
    fn what_a_shared_permit_holds_is_free_with_its_last_holder_or_when_it_is_given_back() {
        let ledger = Ledger::new(&Quota::default());
        let used = || ledger.used(OWNER, Kind::Memory);
        let take = || SharedPermit::new(ledger.keep(OWNER, "a", Amounts::of([(Kind::Memory, 7)])));
        let first = take();
        let second = first.clone();
        drop(first);
        assert_eq!(used(), 7);
        drop(second);
        assert_eq!(used(), 0);
        let (first, second) = (take(), take());
        let of_first = first.clone();
        first.give_back();
        assert_eq!(used(), 7);
        drop((of_first, second));
        assert_eq!(used(), 0);
    }
}
