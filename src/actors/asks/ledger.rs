//! The tokens of a tree of asks. Every ask has an account. What it spends goes off its own and off
//! those of all asks around it, and is taken before the request is sent: asks that run at once
//! cannot spend the same tokens twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::AsksRef;
use crate::protocol::ask::AskNumber;
use crate::protocol::chat::Usage;

/// The account of one ask.
pub struct Ledger {
    left: Mutex<u64>,
    above: Option<Arc<Ledger>>,
}

/// Tokens that a request may cost. If nobody says what it cost, they count as spent.
pub struct Reserved {
    ledger: Arc<Ledger>,
    tokens: u64,
}

/// Where an ask that is part of another one accounts for what it spends.
#[derive(Clone)]
pub struct Above {
    pub ledger: Arc<Ledger>,
    pub asks: AsksRef,
    pub ask: AskNumber,
}

impl Above {
    /// For the journal of the ask above. Its account knows already.
    pub fn tell(&self, usage: Usage) {
        let _ = self.asks.cast(super::AsksMsg::Spent { ask: self.ask, usage });
    }
}

impl Ledger {
    #[must_use]
    pub fn new(tokens: u64, above: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(tokens), above })
    }

    /// What an ask within this one may still spend.
    #[must_use]
    pub fn left(&self) -> u64 {
        let own = *self.lock();
        self.above.as_ref().map_or(own, |above| own.min(above.left()))
    }

    /// None if there is not as much, here or further up.
    #[must_use]
    pub fn reserve(self: &Arc<Self>, tokens: u64) -> Option<Reserved> {
        self.take(tokens).then(|| Reserved { ledger: Arc::clone(self), tokens })
    }

    /// Accounts are locked on the way up, so that all of them change or none.
    fn take(&self, tokens: u64) -> bool {
        let mut left = self.lock();
        let Some(rest) = left.checked_sub(tokens) else { return false };
        if self.above.as_ref().is_some_and(|above| !above.take(tokens)) {
            return false;
        }
        *left = rest;
        true
    }

    fn settle(&self, reserved: u64, spent: u64) {
        let mut left = self.lock();
        *left = left.saturating_add(reserved).saturating_sub(spent);
        if let Some(above) = &self.above {
            above.settle(reserved, spent);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved {
    /// What it did cost.
    pub fn spent(self, tokens: u64) {
        self.ledger.settle(self.tokens, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn asks_side_by_side_share_what_is_left() {
        let outer = Ledger::new(100, None);
        let inner: Vec<_> = (0..3).map(|_| Ledger::new(outer.left(), Some(Arc::clone(&outer)))).collect();
        let first = inner[0].reserve(60).unwrap();
        assert!(inner[1].reserve(60).is_none());
        assert_eq!((outer.left(), inner[1].left()), (40, 40));
        first.spent(10);
        let second = inner[1].reserve(60).unwrap();
        // Nobody says what became of it.
        drop(second);
        assert_eq!(inner[2].left(), 30);
    }

    #[test]
    fn an_ask_within_may_have_less_than_the_one_around_it() {
        let outer = Ledger::new(100, None);
        let inner = Ledger::new(10, Some(Arc::clone(&outer)));
        assert!(inner.reserve(11).is_none());
        inner.reserve(10).unwrap().spent(500);
        assert_eq!((inner.left(), outer.left()), (0, 0));
    }

    proptest! {
        /// However asks nest and whatever each of them does: no account gives more than it had.
        #[test]
        fn no_account_is_overdrawn(
            accounts in prop::collection::vec((0u64..1_000, any::<prop::sample::Index>()), 1..6),
            requests in prop::collection::vec((any::<prop::sample::Index>(), 0u64..400, 0u64..400, any::<bool>()), 0..40),
        ) {
            let mut tree: Vec<(Arc<Ledger>, u64, Option<usize>)> = vec![(Ledger::new(1_000, None), 1_000, None)];
            for (tokens, place) in accounts {
                let parent = place.index(tree.len());
                let above = Arc::clone(&tree[parent].0);
                tree.push((Ledger::new(tokens, Some(above)), tokens, Some(parent)));
            }
            let mut spent = vec![0u64; tree.len()];
            let mut before: Vec<u64> = tree.iter().map(|(ledger, ..)| ledger.left()).collect();
            let chain = |tree: &[(Arc<Ledger>, u64, Option<usize>)], place: usize| {
                std::iter::successors(Some(place), |place| tree[*place].2).collect::<Vec<_>>()
            };
            for (place, wanted, used, told) in requests {
                let place = place.index(tree.len());
                let on_the_way = chain(&tree, place);
                let room = on_the_way.iter().map(|place| tree[*place].1 - spent[*place]).min().unwrap();
                let reserved = tree[place].0.reserve(wanted);
                prop_assert_eq!(reserved.is_some(), wanted <= room);
                if let Some(reserved) = reserved {
                    let cost = if told { used.min(wanted) } else { wanted };
                    if told { reserved.spent(cost) } else { drop(reserved) }
                    for place in on_the_way {
                        spent[place] += cost;
                    }
                }
                let after: Vec<u64> = tree.iter().map(|(ledger, ..)| ledger.left()).collect();
                prop_assert!(before.iter().zip(&after).all(|(before, after)| after <= before));
                prop_assert!(tree.iter().zip(&spent).all(|((_, most, _), spent)| spent <= most));
                before = after;
            }
        }
    }
}
