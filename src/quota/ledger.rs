//! The books, shared. A permit gives back what it holds when it is dropped.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

use super::books::{Amounts, Books, HoldId};
use super::refusal::Refusal;
use crate::config::{Limits, Quota};
use crate::fair_queue::{FairQueue, Full, Place};
use crate::memory::{Memory, Pool};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::{Kind, Usage};

/// Things of one user that wait for a permit. Each session has a bounded queue before this one.
const WAITING_PER_USER: usize = 1024;

#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
    /// Woken when what is spare stands in somebody's way.
    crowded: Arc<Notify>,
    /// Taken and given back far more often than the rest, and by what has no name.
    memory: Memory,
}

#[derive(Debug)]
struct Inner {
    books: Books,
    waiting: FairQueue<u32, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    by: String,
    amounts: Amounts,
    granted: oneshot::Sender<Permit>,
}

/// What somebody may have, for as long as this value lives.
#[derive(Debug)]
pub struct Permit {
    ledger: Ledger,
    uid: u32,
    id: HoldId,
}

/// Notes what a permit's holder is found to have, without holding anything itself.
#[derive(Clone, Debug)]
pub struct Gauge {
    ledger: Ledger,
    uid: u32,
    id: HoldId,
}

/// A permit, now or when others have given back enough. Who drops it does not wait any more.
#[derive(Debug)]
pub struct PermitWaiter {
    ledger: Ledger,
    place: Place,
    granted: oneshot::Receiver<Permit>,
}

impl PermitWaiter {
    /// The permit, if it is there already.
    pub fn try_take(&mut self) -> Option<Permit> {
        self.granted.try_recv().ok()
    }

    /// None only if it was taken before.
    pub async fn taken(mut self) -> Option<Permit> {
        (&mut self.granted).await.ok()
    }
}

impl Drop for PermitWaiter {
    fn drop(&mut self) {
        // Out of the way of those behind it, who may want less.
        let left = self.ledger.inner.lock().waiting.remove(self.place);
        if left.is_some() {
            self.ledger.serve();
        }
    }
}

impl Ledger {
    #[must_use]
    pub fn new(quota: &Quota) -> Self {
        let (books, waiting) = (Books::new(quota), FairQueue::new(WAITING_PER_USER));
        let memory =
            Memory::new(quota.everyone.get(Kind::DaemonMemory), quota.machine.get(Kind::DaemonMemory));
        Self { inner: Arc::new(Mutex::new(Inner { books, waiting })), crowded: Arc::default(), memory }
    }

    fn permit(&self, uid: u32, id: HoldId) -> Permit {
        Permit { ledger: self.clone(), uid, id }
    }

    /// Now or never: all of it, or a refusal.
    pub fn take(&self, uid: u32, by: &str, amounts: Amounts) -> Result<Permit, Refusal> {
        self.inner.lock().books.take(uid, by, amounts).map(|id| self.permit(uid, id))
    }

    /// Whether it could be had if nobody held anything.
    #[must_use]
    pub fn could_grant(&self, uid: u32, amounts: &Amounts) -> bool {
        self.inner.lock().books.check_alone(uid, amounts).is_ok()
    }

    /// Holds what is there already, such as a session of an earlier daemon.
    #[must_use]
    pub fn keep(&self, uid: u32, by: &str, amounts: Amounts) -> Permit {
        let id = self.inner.lock().books.keep(uid, by, amounts);
        self.permit(uid, id)
    }

    /// Waits in turn with other users. Refused is only what could never be granted, or one wait too many.
    pub fn wait(&self, uid: u32, by: &str, amounts: Amounts) -> Result<PermitWaiter, Problem> {
        let (grant, granted) = oneshot::channel();
        let place = {
            let mut inner = self.inner.lock();
            inner.books.check_alone(uid, &amounts)?;
            let waiter = Waiter { by: by.to_owned(), amounts, granted: grant };
            inner.waiting.push(uid, waiter).map_err(|Full(_)| {
                Problem::new(Code::Busy, format!("{WAITING_PER_USER} things of yours wait already"))
                    .hint("wait for one of them to end")
            })?
        };
        self.serve();
        Ok(PermitWaiter { ledger: self.clone(), place, granted })
    }

    /// Grants what can be granted, user by user.
    fn serve(&self) {
        loop {
            let mut inner = self.inner.lock();
            let Inner { books, waiting } = &mut *inner;
            let may = |uid: u32, waiter: &Waiter| books.check(uid, &waiter.amounts).is_ok();
            let Some((uid, waiter)) = waiting.pop_where(may) else { return };
            let id = books.keep(uid, &waiter.by, waiter.amounts);
            drop(inner);
            // If nobody wants it any more it comes back, and dropping it serves the next.
            drop(waiter.granted.send(self.permit(uid, id)));
        }
    }

    /// The user's part of the daemon's memory.
    #[must_use]
    pub fn memory(&self, uid: u32) -> Pool {
        self.memory.pool(uid)
    }

    pub fn set_limits(&self, uid: u32, limits: Limits) {
        self.memory.set_limit(uid, limits.get(Kind::DaemonMemory));
        self.inner.lock().books.set_limits(uid, limits);
        self.serve();
    }

    /// Waits until what is spare stands in somebody's way.
    pub async fn crowded(&self) {
        self.crowded.notified().await;
    }

    fn tell_crowded(&self, uid: u32, kind: Kind) {
        if self.inner.lock().books.tolerates(uid, kind, 1).is_err() {
            self.crowded.notify_one();
        }
    }

    /// An error if the user has more than so many times the limit.
    pub fn tolerates(&self, uid: u32, kind: Kind, times: u64) -> Result<(), Refusal> {
        self.inner.lock().books.tolerates(uid, kind, times)
    }

    /// A mark for whoever now looks through what is on the disk: what is left behind after it is not covered by that look.
    #[must_use]
    pub fn left_until_now(&self) -> HoldId {
        self.inner.lock().books.next_id()
    }

    /// What was left behind before that is counted by somebody else from here on.
    pub fn drop_left(&self, before: HoldId) {
        self.inner.lock().books.drop_left(before);
    }

    pub fn spend(&self, uid: u32, day: u64, by: &str, tokens: u64) {
        self.inner.lock().books.spend(uid, day, by, tokens);
    }

    pub fn may_spend(&self, uid: u32, day: u64) -> Result<(), Refusal> {
        self.inner.lock().books.may_spend(uid, day)
    }

    #[must_use]
    pub fn usage(&self, uid: u32) -> Vec<Usage> {
        let mut usage = self.inner.lock().books.usage(uid);
        for of in usage.iter_mut().filter(|of| of.kind == Kind::DaemonMemory) {
            (of.used, of.by) = self.memory.taken(uid);
        }
        usage
    }

    #[must_use]
    pub fn room(&self, uid: u32, kind: Kind) -> u64 {
        self.inner.lock().books.room(uid, kind)
    }

    #[must_use]
    pub fn used(&self, uid: u32, kind: Kind) -> u64 {
        self.inner.lock().books.used(uid, kind)
    }
}

impl Permit {
    /// What it holds goes where others need the room.
    #[must_use]
    pub fn spare(self) -> Self {
        self.ledger.inner.lock().books.spare(self.uid, self.id);
        self
    }

    /// The work is done and gives back all it held, but so much of one kind still lies on the disk. It goes on
    /// counting until whoever looks at all that is kept has seen it.
    pub fn leave(self, by: &str, kind: Kind) {
        self.ledger.inner.lock().books.leave(self.uid, self.id, by, kind);
        self.ledger.serve();
        self.ledger.tell_crowded(self.uid, kind);
        // The hold outlives the permit.
        std::mem::forget(self);
    }

    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge { ledger: self.ledger.clone(), uid: self.uid, id: self.id }
    }
}

impl Gauge {
    /// What was measured last.
    #[must_use]
    pub fn own(&self, kind: Kind) -> u64 {
        self.ledger.inner.lock().books.held(self.uid, self.id, kind)
    }

    /// An error if the user has more than so many times the limit.
    pub fn tolerates(&self, kind: Kind, times: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.tolerates(self.uid, kind, times)
    }

    /// A refusal if so much more could not be had now.
    pub fn fits(&self, kind: Kind, more: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.check(self.uid, &Amounts::of([(kind, more)]))
    }

    /// So much more, or a refusal.
    pub fn grow(&self, kind: Kind, more: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.grow(self.uid, self.id, kind, more)?;
        self.ledger.tell_crowded(self.uid, kind);
        Ok(())
    }

    /// So much more, whatever the limits say.
    pub fn add(&self, kind: Kind, more: u64) {
        self.ledger.inner.lock().books.add(self.uid, self.id, kind, more);
    }

    /// So much less.
    pub fn shrink(&self, kind: Kind, less: u64) {
        self.ledger.inner.lock().books.shrink(self.uid, self.id, kind, less);
        self.ledger.serve();
    }

    /// An error if the user has too much now. Nothing is noted once the permit is gone.
    pub fn measure(&self, kind: Kind, amount: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.measure(self.uid, self.id, kind, amount)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.ledger.inner.lock().books.release(self.uid, self.id);
        self.ledger.serve();
    }
}

#[cfg(test)]
mod tests;
