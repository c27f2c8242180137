//! The shared pools of memory. A charge gives its bytes back when it is dropped.

use parking_lot::Mutex;
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

use super::pool::{MemoryPurpose, NoRoom, TakenBytes};
use crate::protocol::principal::Principal;
use crate::protocol::quota::Share;

/// The pools of all users. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    inner: Arc<Mutex<Inner>>,
    /// Notified when a charge gives bytes back, or a limit changes.
    freed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The limit for all users together, and the limit for a user without an entry in `limits`; `None` is no limit.
    machine: Option<u64>,
    everyone: Option<u64>,
    limits: HashMap<Principal, Option<u64>>,
    taken: HashMap<Principal, TakenBytes>,
    /// Users that have a charge which exceeds the limit; each user may have one such charge.
    overdrawn: HashSet<Principal>,
    /// The bytes of charges that were given back since freed memory last went back to the system.
    given_back: u64,
}

/// The pool of one user.
#[derive(Clone, Debug)]
pub struct Pool {
    memory: Memory,
    owner: Principal,
}

/// Bytes that are taken from a pool until this value is dropped.
#[derive(Debug)]
pub struct Charge {
    pool: Pool,
    what: MemoryPurpose,
    bytes: u64,
    overdraws: bool,
    /// A counted place that is given back together with the bytes.
    _counted_place: Option<Arc<dyn Any + Send + Sync>>,
}

impl Memory {
    #[must_use]
    pub fn new(everyone: Option<u64>, machine: Option<u64>) -> Self {
        let memory = Self::default();
        {
            let mut inner = memory.inner.lock();
            (inner.everyone, inner.machine) = (everyone, machine);
        }
        memory
    }

    #[must_use]
    pub fn pool(&self, owner: Principal) -> Pool {
        Pool { memory: self.clone(), owner }
    }

    /// Sets the limit of a user without a limit of its own.
    pub fn set_everyone(&self, limit: Option<u64>) {
        self.inner.lock().everyone = limit;
        self.freed.notify_waiters();
    }

    pub fn set_limit(&self, owner: Principal, limit: Option<u64>) {
        {
            let mut inner = self.inner.lock();
            if limit == inner.everyone {
                inner.limits.remove(&owner);
            } else {
                inner.limits.insert(owner, limit);
            }
        }
        self.freed.notify_waiters();
    }

    pub(super) fn given_back(&self) -> u64 {
        self.inner.lock().given_back
    }

    pub(super) fn forget_given_back(&self) {
        self.inner.lock().given_back = 0;
    }

    /// The bytes that a user has taken, and for which purposes, the largest first.
    #[must_use]
    pub fn taken(&self, owner: Principal) -> (u64, Vec<Share>) {
        let inner = self.inner.lock();
        inner.taken.get(&owner).map(|taken| (taken.sum(), taken.shares())).unwrap_or_default()
    }
}

impl Inner {
    fn fits(&self, owner: Principal, bytes: u64) -> Result<(), NoRoom> {
        let none = TakenBytes::default();
        let taken = self.taken.get(&owner).unwrap_or(&none);
        taken.fits(bytes, self.limits.get(&owner).copied().unwrap_or(self.everyone))?;
        let Some(limit) = self.machine else { return Ok(()) };
        let used = self.taken.values().map(TakenBytes::sum).fold(0, u64::saturating_add);
        if used.saturating_add(bytes) <= limit {
            return Ok(());
        }
        Err(NoRoom { wanted: bytes, own: 0, used, limit, of_all: true, by: Vec::new() })
    }

    fn add(&mut self, owner: Principal, what: MemoryPurpose, bytes: u64) {
        if bytes > 0 {
            self.taken.entry(owner).or_default().add(what, bytes);
        }
    }

    fn give_back(&mut self, owner: Principal, what: MemoryPurpose, bytes: u64) {
        self.given_back = self.given_back.saturating_add(bytes);
        let Some(taken) = self.taken.get_mut(&owner) else { return };
        taken.give_back(what, bytes);
        if taken.is_empty() {
            self.taken.remove(&owner);
        }
    }
}

impl Pool {
    /// A charge of no bytes.
    #[must_use]
    pub fn open(&self, what: MemoryPurpose) -> Charge {
        Charge { pool: self.clone(), what, bytes: 0, overdraws: false, _counted_place: None }
    }

    /// Takes the bytes at once, or fails without waiting.
    pub fn try_charge(&self, what: MemoryPurpose, bytes: u64) -> Result<Charge, NoRoom> {
        let mut charge = self.open(what);
        charge.try_grow(bytes)?;
        Ok(charge)
    }

    /// Charges bytes that are in memory already or must be, without regard to the limits.
    #[must_use]
    pub fn charge_anyway(&self, what: MemoryPurpose, bytes: u64) -> Charge {
        let mut charge = self.open(what);
        charge.grow_anyway(bytes);
        charge
    }
}

impl Charge {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps a counted place for as long as the charge. A small request takes no bytes of the pool, so the place of its
    /// connection is what bounds the number of such requests.
    #[must_use]
    pub fn keeping(mut self, counted_place: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        let Self { _counted_place: own_place, .. } = &mut self;
        *own_place = counted_place;
        self
    }

    pub fn try_grow(&mut self, more: u64) -> Result<(), NoRoom> {
        let mut inner = self.pool.memory.inner.lock();
        inner.fits(self.pool.owner, more)?;
        inner.add(self.pool.owner, self.what, more);
        drop(inner);
        self.bytes = self.bytes.saturating_add(more);
        Ok(())
    }

    pub fn grow_anyway(&mut self, more: u64) {
        self.pool.memory.inner.lock().add(self.pool.owner, self.what, more);
        self.bytes = self.bytes.saturating_add(more);
    }

    /// Waits for room for at most `patience`. More bytes than the limit allows are refused at once.
    pub async fn grow(&mut self, more: u64, patience: Duration) -> Result<(), NoRoom> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let memory = self.pool.memory.clone();
            let freed = memory.freed.notified();
            tokio::pin!(freed);
            // The waiter is enabled before the check, so that no notification in between is missed.
            freed.as_mut().enable();
            match self.try_grow(more) {
                Ok(()) => return Ok(()),
                Err(no_room) if no_room.is_for_ever() => return Err(no_room),
                Err(no_room) => {
                    if tokio::time::timeout_at(deadline, freed).await.is_err() {
                        return Err(no_room);
                    }
                }
            }
        }
    }

    /// Waits for room. After `after` the charge exceeds the limit, if no other charge of the user does. So work that
    /// must go on gets through, one charge after the other, however full the pool is.
    pub async fn grow_or_overdraw(&mut self, more: u64, after: Duration) {
        if self.overdraws {
            self.grow_anyway(more);
            return;
        }
        let mut patience = after;
        while self.grow(more, patience).await.is_err() {
            if self.pool.memory.inner.lock().overdrawn.insert(self.pool.owner) {
                self.overdraws = true;
                self.grow_anyway(more);
                return;
            }
            let memory = self.pool.memory.clone();
            let freed = memory.freed.notified();
            // The pause is bounded, in case the overdraft was given back just before.
            let _ = tokio::time::timeout(after, freed).await;
            patience = Duration::ZERO;
        }
    }

    /// Gives back all bytes above `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.give_back(less);
    }

    fn give_back(&mut self, less: u64) {
        if less == 0 && !self.overdraws {
            return;
        }
        self.bytes -= less;
        {
            let mut inner = self.pool.memory.inner.lock();
            inner.give_back(self.pool.owner, self.what, less);
            if self.overdraws && self.bytes == 0 {
                inner.overdrawn.remove(&self.pool.owner);
                self.overdraws = false;
            }
        }
        self.pool.memory.freed.notify_waiters();
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENT: Duration = Duration::from_secs(20);
    const HASTY: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn who_has_filled_a_pool_waits_until_something_is_given_back_and_nobody_else_does() {
        let memory = Memory::new(Some(100), None);
        let (own, other) = (memory.pool(Principal::ANN), memory.pool(Principal::BOB));
        let mut first = own.try_charge(MemoryPurpose::Requests, 90).unwrap();
        let mut second = own.open(MemoryPurpose::Calls);
        assert_eq!(second.grow(20, HASTY).await.unwrap_err().used, 90);
        other.try_charge(MemoryPurpose::Requests, 100).unwrap();
        let waiting = tokio::spawn(async move {
            second.grow(20, PATIENT).await.unwrap();
            second
        });
        tokio::task::yield_now().await;
        first.shrink_to(70);
        let second = waiting.await.unwrap();
        assert_eq!(memory.taken(Principal::ANN).0, 90);
        drop((first, second));
        assert_eq!(memory.taken(Principal::ANN), (0, Vec::new()));
        assert!(memory.inner.lock().taken.is_empty(), "nothing is kept of who has nothing");
    }

    #[tokio::test]
    async fn what_can_never_be_had_is_refused_at_once() {
        let memory = Memory::new(Some(100), None);
        let no_room =
            memory.pool(Principal::ANN).open(MemoryPurpose::Requests).grow(101, PATIENT).await.unwrap_err();
        assert!(no_room.is_for_ever());
        memory.set_limit(Principal::ANN, Some(101));
        memory.pool(Principal::ANN).open(MemoryPurpose::Requests).grow(101, HASTY).await.unwrap();
    }

    #[tokio::test]
    async fn all_users_together_have_a_bound_too_and_do_not_hear_of_each_other() {
        let memory = Memory::new(Some(100), Some(150));
        let charge = memory.pool(Principal::ANN).try_charge(MemoryPurpose::Streams, 100).unwrap();
        let no_room = memory.pool(Principal::BOB).try_charge(MemoryPurpose::Streams, 60).unwrap_err();
        assert_eq!((no_room.used, no_room.limit, &no_room.by), (100, 150, &vec![]));
        let (sentence, hint) = (no_room.sentence(), no_room.hint());
        assert!(!sentence.contains("your part") && !sentence.contains("100"), "{sentence}");
        assert!(
            sentence.starts_with("all that this daemon has of memory for its users is used up"),
            "{sentence}"
        );
        assert!(hint.starts_with("try again later") && hint.contains("`machine.daemon_memory`"), "{hint}");
        drop(charge);
        memory.pool(Principal::BOB).try_charge(MemoryPurpose::Streams, 60).unwrap();
    }

    #[tokio::test]
    async fn of_those_who_have_to_go_on_one_at_a_time_does() {
        let memory = Memory::new(Some(100), None);
        let pool = memory.pool(Principal::ANN);
        let full = pool.charge_anyway(MemoryPurpose::Calls, 120);
        let mut first = pool.open(MemoryPurpose::Frames);
        first.grow_or_overdraw(50, HASTY).await;
        first.grow_or_overdraw(50, HASTY).await;
        assert!(first.overdraws);
        let mut second = pool.open(MemoryPurpose::Frames);
        let waits = tokio::time::timeout(HASTY * 5, second.grow_or_overdraw(50, HASTY)).await;
        assert!(waits.is_err(), "one is enough");
        drop(first);
        tokio::time::timeout(PATIENT, second.grow_or_overdraw(50, HASTY)).await.expect("its turn");
        drop((full, second));
        assert_eq!(memory.taken(Principal::ANN).0, 0);
        pool.open(MemoryPurpose::Frames).grow_or_overdraw(100, HASTY).await;
    }
}
