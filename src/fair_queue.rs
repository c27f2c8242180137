//! A queue that takes turns between users: a user who queues a thousand things delays the next user's first one by one,
//! not by a thousand.

use std::collections::{BTreeMap, VecDeque};

/// Identifies a thing in the queue, so that it can be removed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket(u64);

/// The error that the user has as many things in the queue as allowed. It returns the thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// First in, first out for each user; round robin between them. `K` tells users apart, or their kinds of work.
#[derive(Clone, Debug)]
pub struct FairQueue<K, T> {
    per_user: usize,
    next: u64,
    /// Never holds an empty line.
    lines: BTreeMap<K, VecDeque<(QueueTicket, T)>>,
    /// The users with a line, in the order of their turns.
    turns: VecDeque<K>,
}

impl<K: Copy + Ord, T> FairQueue<K, T> {
    #[must_use]
    pub fn new(per_user: usize) -> Self {
        Self { per_user, next: 0, lines: BTreeMap::new(), turns: VecDeque::new() }
    }

    pub fn push(&mut self, key: K, item: T) -> Result<QueueTicket, Full<T>> {
        if self.waiting(key) >= self.per_user {
            return Err(Full(item));
        }
        let ticket = QueueTicket(self.next);
        self.next += 1;
        let line = self.lines.entry(key).or_default();
        if line.is_empty() {
            self.turns.push_back(key);
        }
        line.push_back((ticket, item));
        Ok(ticket)
    }

    /// Removes the first thing of the next user for whom `may` allows it. Users who are passed over keep their turn.
    pub fn pop_where(&mut self, mut may: impl FnMut(K, &T) -> bool) -> Option<(K, T)> {
        let first = |key: &K| self.lines.get(key).and_then(VecDeque::front);
        let index = self.turns.iter().position(|key| first(key).is_some_and(|(_, item)| may(*key, item)))?;
        let key = self.turns.remove(index)?;
        let line = self.lines.get_mut(&key)?;
        let (_, item) = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        Some((key, item))
    }

    /// Removes a thing that need not wait any more.
    pub fn remove(&mut self, ticket: QueueTicket) -> Option<T> {
        let (key, index) = self.lines.iter().find_map(|(key, line)| {
            line.iter().position(|(found, _)| *found == ticket).map(|index| (*key, index))
        })?;
        let line = self.lines.get_mut(&key)?;
        let (_, item) = line.remove(index)?;
        if line.is_empty() {
            self.lines.remove(&key);
            self.turns.retain(|turn| *turn != key);
        }
        Some(item)
    }

    #[must_use]
    pub fn waiting(&self, key: K) -> usize {
        self.lines.get(&key).map_or(0, VecDeque::len)
    }

    /// The users with something in the queue, in the order of their turns.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.turns.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl<K: Copy + Ord, T> FairQueue<K, T> {
        fn pop(&mut self) -> Option<(K, T)> {
            self.pop_where(|_, _| true)
        }

        fn len(&self) -> usize {
            self.lines.values().map(VecDeque::len).sum()
        }
    }

    #[test]
    fn a_late_user_with_one_thing_waits_for_one_turn_and_not_for_a_thousand() {
        let mut queue = FairQueue::new(1000);
        for number in 0..1000 {
            queue.push(1, number).unwrap();
        }
        queue.push(2, 7000).unwrap();
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some((1, 0)), Some((2, 7000)), Some((1, 1))]);
    }

    #[test]
    fn who_is_passed_over_keeps_the_turn() {
        let mut queue = FairQueue::new(8);
        for (uid, item) in [(1, "a"), (1, "b"), (2, "c"), (2, "d")] {
            queue.push(uid, item).unwrap();
        }
        assert_eq!(queue.pop_where(|uid, _| uid == 2), Some((2, "c")));
        assert_eq!(queue.pop(), Some((1, "a")));
        assert_eq!(queue.pop_where(|_, _| false), None);
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn each_user_has_a_bound_of_its_own() {
        let mut queue = FairQueue::new(1);
        queue.push(1, "a").unwrap();
        assert_eq!(queue.push(1, "b"), Err(Full("b")));
        assert!(queue.push(2, "c").is_ok());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u32),
        Pop,
        Remove(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..4_u32).prop_map(Step::Push),
            Just(Step::Pop),
            (0..64_usize).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Nothing is lost or comes twice, each user's own order holds, and no user has two turns while another user
        /// waits for one.
        #[test]
        fn turns_are_fair_and_nothing_is_lost(steps in steps()) {
            let mut queue = FairQueue::new(16);
            let mut inside: Vec<(u32, QueueTicket, usize)> = Vec::new();
            // For each user that waits, the users that had a turn since it began to wait or was last served.
            let mut since: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(uid) => match queue.push(uid, number) {
                        Ok(ticket) => {
                            inside.push((uid, ticket, number));
                            since.entry(uid).or_default();
                        }
                        Err(Full(item)) => {
                            prop_assert_eq!(item, number);
                            prop_assert_eq!(queue.waiting(uid), 16);
                        }
                    },
                    Step::Pop => match queue.pop() {
                        None => prop_assert!(inside.is_empty()),
                        Some((uid, item)) => {
                            let first = inside.iter().position(|(owner, _, _)| *owner == uid).unwrap();
                            prop_assert_eq!(inside.remove(first).2, item);
                            for (waiting, served) in &mut since {
                                if *waiting != uid {
                                    prop_assert!(!served.contains(&uid), "{uid} went twice before {waiting}");
                                    served.push(uid);
                                }
                            }
                            since.insert(uid, Vec::new());
                        }
                    },
                    Step::Remove(index) => {
                        if let Some((_, ticket, item)) = (index < inside.len()).then(|| inside.remove(index)) {
                            prop_assert_eq!(queue.remove(ticket), Some(item));
                            prop_assert_eq!(queue.remove(ticket), None);
                        }
                    }
                }
                since.retain(|uid, _| inside.iter().any(|(owner, _, _)| owner == uid));
                prop_assert_eq!(queue.len(), inside.len());
            }
        }
    }
}
