//! Turns of users: work that one user can make long is done one at a time for that user, and a few at once for all.

use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::protocol::principal::Principal;

/// A user's turn for some kind of work: after other work of the user, so that one user does not hold up another, and with
/// few of other users.
#[derive(Clone)]
pub struct UserTurn {
    of_owner: Arc<Mutex<()>>,
    of_all: Arc<Semaphore>,
}

/// The turns of all users.
pub struct UserTurns {
    of_owners: HashMap<Principal, Arc<Mutex<()>>>,
    of_all: Arc<Semaphore>,
}

impl UserTurns {
    pub fn new(of_all: Arc<Semaphore>) -> Self {
        Self { of_owners: HashMap::new(), of_all }
    }

    pub fn of(&mut self, owner: Principal) -> UserTurn {
        let of_owner = Arc::clone(self.of_owners.entry(owner).or_default());
        UserTurn { of_owner, of_all: Arc::clone(&self.of_all) }
    }
}

impl UserTurn {
    /// Waits for the turn, which ends when the value is dropped.
    pub async fn take(&self) -> (OwnedMutexGuard<()>, Option<OwnedSemaphorePermit>) {
        // Who waits for other work of the same user takes no place of other users.
        let of_owner = Arc::clone(&self.of_owner).lock_owned().await;
        // The semaphore is never closed.
        (of_owner, Arc::clone(&self.of_all).acquire_owned().await.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn work_of_one_user_takes_one_place_and_of_all_users_few_are_done() {
        let mut turns = UserTurns::new(Arc::new(Semaphore::new(2)));
        let [ann, also_ann, bob, carl] = [1, 1, 2, 3].map(|owner| turns.of(Principal::new(owner)));
        let first = ann.take().now_or_never().unwrap();
        let mut waiting = Box::pin(also_ann.take());
        assert!(waiting.as_mut().now_or_never().is_none(), "one of a user at a time");
        let second = bob.take().now_or_never().expect("the one that waits for its user takes no place");
        assert!(carl.take().now_or_never().is_none(), "no more than the places");
        drop(second);
        drop(carl.take().now_or_never().unwrap());
        drop(first);
        waiting.now_or_never().unwrap();
    }
}
