//! Who is next: users take turns, and each one's own jobs keep their order.

use std::collections::VecDeque;

/// What waits, by owner. The owner at the front is the next one.
#[derive(Debug)]
pub struct FairQueue<T> {
    owners: VecDeque<(u32, VecDeque<T>)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { owners: VecDeque::new() }
    }
}

impl<T: PartialEq> FairQueue<T> {
    pub fn push(&mut self, owner: u32, item: T) {
        match self.owners.iter_mut().find(|(of, _)| *of == owner) {
            Some((_, items)) => items.push_back(item),
            None => self.owners.push_back((owner, VecDeque::from([item]))),
        }
    }

    /// The oldest of the owner whose turn it is, who goes to the end of the line.
    pub fn pop(&mut self) -> Option<T> {
        let (owner, mut items) = self.owners.pop_front()?;
        let item = items.pop_front();
        if !items.is_empty() {
            self.owners.push_back((owner, items));
        }
        item
    }

    /// True if it was there.
    pub fn remove(&mut self, owner: u32, item: &T) -> bool {
        let Some(place) = self.owners.iter().position(|(of, _)| *of == owner) else { return false };
        let Some((_, items)) = self.owners.get_mut(place) else { return false };
        let before = items.len();
        items.retain(|other| other != item);
        let removed = items.len() < before;
        if items.is_empty() {
            self.owners.remove(place);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_user_with_one_job_does_not_wait_behind_a_hundred_of_another() {
        let mut queue = FairQueue::default();
        for number in 0..100 {
            queue.push(1, number);
        }
        queue.push(2, 1000);
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(0), Some(1000), Some(1)));
        assert!(queue.remove(1, &2) && !queue.remove(1, &2) && !queue.remove(3, &2));
        assert_eq!(queue.pop(), Some(3));
    }

    proptest! {
        #[test]
        fn while_two_wait_neither_is_passed_twice_and_nothing_is_lost(owners in prop::collection::vec(0u32..3, 0..60)) {
            let mut queue = FairQueue::default();
            for (number, owner) in owners.iter().enumerate() {
                queue.push(*owner, (*owner, number));
            }
            let mut popped = Vec::new();
            while let Some(item) = queue.pop() {
                popped.push(item);
            }
            prop_assert_eq!(popped.len(), owners.len());
            for owner in 0..3 {
                let own: Vec<_> = popped.iter().filter(|(of, _)| *of == owner).map(|(_, number)| *number).collect();
                prop_assert!(own.is_sorted());
                // Between two turns of an owner everybody else who waits has at most one.
                let turns: Vec<_> = popped.iter().enumerate().filter(|(_, (of, _))| *of == owner).map(|(at, _)| at).collect();
                for pair in turns.windows(2) {
                    for other in 0..3 {
                        let between = popped[pair[0] + 1..pair[1]].iter().filter(|(of, _)| *of == other).count();
                        prop_assert!(between <= 1);
                    }
                }
            }
        }
    }
}
