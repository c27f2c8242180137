//! The tokens and steps of a tree of asks. Every ask has a budget. A request is charged to the ask's own
//! budget and to those of all asks around it before it is sent, together with what the reply may cost, so
//! asks that run at the same time cannot spend the same tokens twice. The last step of an ask is reserved for
//! itself, so that it can still answer with the results of its inner asks.

use parking_lot::Mutex;
use std::sync::Arc;

use super::messages::AsksMsg;
use super::messages::AsksRef;
use crate::protocol::ask::AskNumber;
use crate::protocol::chat::Usage;

/// Tokens reserved for the reply of a model whose configuration does not bound it.
pub const REPLY_TOKENS: u64 = 4_096;
/// A request is not worth sending if fewer tokens than this are left for the reply.
const LEAST_REPLY_TOKENS: u64 = 64;

/// Steps that an ask keeps for itself.
const OWN_STEPS: u32 = 1;

/// The tokens and steps that one ask may spend, shared with its inner asks.
pub struct SharedBudget {
    left: Mutex<RemainingBudget>,
    /// The budgets that are charged as well: the outer ask's, and those of ended asks whose code may be the
    /// caller.
    above: Vec<Arc<SharedBudget>>,
}

/// The tokens and steps that may still be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingBudget {
    pub tokens: u64,
    /// The number of requests to a model.
    pub steps: u32,
}

impl RemainingBudget {
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { tokens: self.tokens.min(other.tokens), steps: self.steps.min(other.steps) }
    }
}

/// Whether tokens or steps are too few for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    Tokens,
    Steps,
}

/// Tokens that a request may cost. If `spent` is never called, all of them count as spent.
pub struct ReservedTokens {
    budget: Arc<SharedBudget>,
    tokens: u64,
    /// The part of these tokens that is for the reply.
    pub reply: u64,
}

/// The budgets and the asks that an inner ask is charged to.
#[derive(Clone)]
pub struct ParentBudget {
    pub budgets: Vec<Arc<SharedBudget>>,
    pub asks: AsksRef,
    pub ask: AskNumber,
    /// Ended asks of that session, which are charged as well.
    pub ended: Vec<AskNumber>,
}

impl ParentBudget {
    /// Reports the spending so that it goes into the journal of the outer asks. Their budgets are charged
    /// already.
    pub fn tell(&self, usage: Usage, steps: u32) {
        for ask in std::iter::once(self.ask).chain(self.ended.iter().copied()) {
            let _ = self.asks.cast(AsksMsg::Spent { ask, usage, steps });
        }
    }
}

impl SharedBudget {
    #[must_use]
    pub fn new(left: RemainingBudget, above: Vec<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(left), above })
    }

    /// What the ask itself may still spend.
    #[must_use]
    pub fn left(&self) -> RemainingBudget {
        let own = *self.left.lock();
        self.above.iter().map(|above| above.left_within()).fold(own, RemainingBudget::least)
    }

    /// What an inner ask may still spend.
    #[must_use]
    pub fn left_within(&self) -> RemainingBudget {
        let left = self.left();
        RemainingBudget { steps: left.steps.saturating_sub(OWN_STEPS), ..left }
    }

    /// Reserves one step, the tokens of the request, and as many of the reply's tokens as are left.
    pub fn reserve(self: &Arc<Self>, request: u64, reply: u64) -> Result<ReservedTokens, Short> {
        let least = request.saturating_add(reply.min(LEAST_REPLY_TOKENS));
        let tokens = self.take(least, request.saturating_add(reply), 0)?;
        Ok(ReservedTokens { budget: Arc::clone(self), tokens, reply: tokens.saturating_sub(request) })
    }

    /// Locks the budgets from the inner to the outer ones, so that either all of them change or none.
    fn take(&self, least: u64, most: u64, own_steps: u32) -> Result<u64, Short> {
        let mut left = self.left.lock();
        let steps = left.steps.checked_sub(1).filter(|rest| *rest >= own_steps).ok_or(Short::Steps)?;
        let possible = most.min(left.tokens);
        if possible < least {
            return Err(Short::Tokens);
        }
        let mut taken = possible;
        for (index, above) in self.above.iter().enumerate() {
            let paid = self.above.iter().take(index);
            match above.take(least, taken, OWN_STEPS) {
                Ok(less) => {
                    paid.for_each(|paid| paid.settle(taken.saturating_sub(less), 0));
                    taken = less;
                }
                Err(short) => {
                    paid.for_each(|paid| paid.give_back(taken));
                    return Err(short);
                }
            }
        }
        *left = RemainingBudget { tokens: left.tokens.saturating_sub(taken), steps };
        Ok(taken)
    }

    fn settle(&self, reserved: u64, spent: u64) {
        let mut left = self.left.lock();
        left.tokens = left.tokens.saturating_add(reserved).saturating_sub(spent);
        drop(left);
        self.above.iter().for_each(|above| above.settle(reserved, spent));
    }

    /// Returns the tokens and the step of a request that is not sent.
    fn give_back(&self, tokens: u64) {
        let mut left = self.left.lock();
        *left = RemainingBudget {
            tokens: left.tokens.saturating_add(tokens),
            steps: left.steps.saturating_add(1),
        };
        drop(left);
        self.above.iter().for_each(|above| above.give_back(tokens));
    }
}

impl ReservedTokens {
    /// Replaces the reservation by the real cost.
    pub fn spent(self, tokens: u64) {
        self.budget.settle(self.tokens, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STEPS: u32 = 1_000;

    fn budget(tokens: u64, above: Option<&Arc<SharedBudget>>) -> Arc<SharedBudget> {
        SharedBudget::new(RemainingBudget { tokens, steps: STEPS }, above.cloned().into_iter().collect())
    }

    #[test]
    fn asks_side_by_side_share_what_is_left() {
        let outer = budget(1_000, None);
        let inner: Vec<_> = (0..3).map(|_| budget(1_000, Some(&outer))).collect();
        let first = inner[0].reserve(600, 100).unwrap();
        assert_eq!(first.reply, 100);
        assert_eq!(inner[1].reserve(600, 100).err(), Some(Short::Tokens));
        assert_eq!((outer.left().tokens, inner[1].left().tokens), (300, 300));
        first.spent(100);
        let second = inner[1].reserve(600, 100).unwrap();
        // The cost is never reported.
        drop(second);
        assert_eq!(inner[2].left(), RemainingBudget { tokens: 200, steps: STEPS - 2 - OWN_STEPS });
    }

    #[test]
    fn a_reply_gets_what_is_there_if_that_is_worth_it() {
        let outer = budget(1_000, None);
        assert_eq!(outer.reserve(900, 4_096).unwrap().reply, 100);
        let outer = budget(1_000, None);
        assert_eq!(outer.reserve(950, 4_096).err(), Some(Short::Tokens));
        assert_eq!(outer.left(), RemainingBudget { tokens: 1_000, steps: STEPS });
    }

    #[test]
    fn an_ask_within_may_have_less_than_the_one_around_it() {
        let outer = budget(1_000, None);
        let inner = budget(100, Some(&outer));
        assert_eq!(inner.reserve(101, 0).err(), Some(Short::Tokens));
        inner.reserve(100, 0).unwrap().spent(5_000);
        assert_eq!((inner.left().tokens, outer.left().tokens), (0, 0));
    }

    #[test]
    fn steps_are_those_of_the_whole_tree_and_do_not_come_back() {
        let outer = SharedBudget::new(RemainingBudget { tokens: 1_000, steps: 4 }, Vec::new());
        outer.reserve(1, 0).unwrap().spent(1);
        let inner: Vec<_> =
            (0..2).map(|_| SharedBudget::new(outer.left_within(), vec![Arc::clone(&outer)])).collect();
        assert_eq!(inner[0].left().steps, 2);
        inner[0].reserve(1, 0).unwrap().spent(1);
        inner[1].reserve(1, 0).unwrap().spent(1);
        // One step is left, for the outer ask.
        assert_eq!((inner[0].left().steps, outer.left_within().steps, outer.left().steps), (0, 0, 1));
        assert_eq!(inner[0].reserve(1, 0).err(), Some(Short::Steps));
        outer.reserve(1, 0).unwrap().spent(1);
        assert_eq!(outer.reserve(1, 0).err(), Some(Short::Steps));
        assert_eq!(outer.left().tokens, 996);
    }

    /// Code of an ended ask may be the caller, so both asks pay, or neither.
    #[test]
    fn several_asks_pay_together() {
        let (ended, present) = (budget(300, None), budget(1_000, None));
        let inner = SharedBudget::new(
            RemainingBudget { tokens: 1_000, steps: 9 },
            vec![Arc::clone(&present), Arc::clone(&ended)],
        );
        assert_eq!(inner.left(), RemainingBudget { tokens: 300, steps: 9 });
        inner.reserve(100, 1_000).unwrap().spent(150);
        let left = |budget: &Arc<SharedBudget>| budget.left();
        assert_eq!([&inner, &present, &ended].map(left).map(|left| left.tokens), [150, 850, 150]);
        assert_eq!(inner.reserve(200, 0).err(), Some(Short::Tokens));
        assert_eq!(left(&present), RemainingBudget { tokens: 850, steps: STEPS - 1 });
        let used_up = SharedBudget::new(RemainingBudget { tokens: 900, steps: 0 }, Vec::new());
        let inner =
            SharedBudget::new(RemainingBudget { tokens: 900, steps: 9 }, vec![Arc::clone(&present), used_up]);
        assert_eq!(inner.reserve(10, 0).err(), Some(Short::Steps));
        assert_eq!(left(&present), RemainingBudget { tokens: 850, steps: STEPS - 1 });
    }

    proptest! {
        /// No budget gives more than it had, however asks nest and spend.
        #[test]
        fn no_account_is_overdrawn(
            accounts in prop::collection::vec((0u64..1_000, any::<prop::sample::Index>()), 1..6),
            requests in prop::collection::vec((any::<prop::sample::Index>(), 0u64..400, 0u64..400, any::<bool>()), 0..40),
        ) {
            let mut tree: Vec<(Arc<SharedBudget>, u64, Option<usize>)> = vec![(budget(1_000, None), 1_000, None)];
            for (tokens, place) in accounts {
                let parent = place.index(tree.len());
                let above = Arc::clone(&tree[parent].0);
                tree.push((budget(tokens, Some(&above)), tokens, Some(parent)));
            }
            let mut spent = vec![0u64; tree.len()];
            let mut before: Vec<u64> = tree.iter().map(|(budget, ..)| budget.left().tokens).collect();
            let chain = |tree: &[(Arc<SharedBudget>, u64, Option<usize>)], place: usize| {
                std::iter::successors(Some(place), |place| tree[*place].2).collect::<Vec<_>>()
            };
            for (place, request, reply, is_reported) in requests {
                let place = place.index(tree.len());
                let on_the_way = chain(&tree, place);
                let tokens_left = on_the_way.iter().map(|place| tree[*place].1 - spent[*place]).min().unwrap();
                let reserved = tree[place].0.reserve(request, reply);
                prop_assert_eq!(reserved.is_ok(), request + reply.min(LEAST_REPLY_TOKENS) <= tokens_left);
                if let Ok(reserved) = reserved {
                    prop_assert_eq!(reserved.reply, reply.min(tokens_left - request));
                    let most = request + reserved.reply;
                    let cost = if is_reported { most / 2 } else { most };
                    if is_reported { reserved.spent(cost) } else { drop(reserved) }
                    for place in on_the_way {
                        spent[place] += cost;
                    }
                }
                let after: Vec<u64> = tree.iter().map(|(budget, ..)| budget.left().tokens).collect();
                prop_assert!(before.iter().zip(&after).all(|(before, after)| after <= before));
                prop_assert!(tree.iter().zip(&spent).all(|((_, most, _), spent)| spent <= most));
                before = after;
            }
        }
    }
}
