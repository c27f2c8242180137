//! The shared books. A permit gives back what it holds when it is dropped.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

use super::books::{Amounts, Books, HoldId};
use super::refusal::Refusal;
use crate::config::{Limits, Quota};
use crate::fair_queue::{FairQueue, Full, QueueTicket};
use crate::memory::{Memory, Pool, keep_small};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::{Kind, QuotaUsage};

/// Limit of waiters that one user may have for permits. Each session has a bounded queue before this one.
const WAITING_PER_USER: usize = 1024;

#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
    crowded: Arc<CrowdedNotify>,
    /// Memory is not in the books: it is taken and given back far more often, and by work without a name.
    memory: Memory,
}

/// Notified when spare holds take a user, or the machine, above its limit. Each kind has one task that gives up what is
/// spare of it.
#[derive(Debug, Default)]
struct CrowdedNotify {
    /// Wakes the task that deletes journals of removed sessions.
    journal: Notify,
    /// Wakes the task that deletes unused packages.
    workspace: Notify,
}

impl CrowdedNotify {
    fn of(&self, kind: Kind) -> Option<&Notify> {
        match kind {
            Kind::Journal => Some(&self.journal),
            Kind::Workspace => Some(&self.workspace),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Inner {
    books: Books,
    waiting: FairQueue<Principal, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    by: String,
    amounts: Amounts,
    granted: oneshot::Sender<Permit>,
}

/// The right to an amount of some kinds, for as long as this value exists.
#[derive(Debug)]
pub struct Permit {
    ledger: Ledger,
    owner: Principal,
    id: HoldId,
}

/// Records what the holder of a permit is measured to use, without holding anything itself.
#[derive(Clone, Debug)]
pub struct Gauge {
    ledger: Ledger,
    owner: Principal,
    id: HoldId,
}

/// A permit that is granted now, or when other holders have given back enough. Dropping the waiter ends the wait.
#[derive(Debug)]
pub struct PermitWaiter {
    ledger: Ledger,
    ticket: QueueTicket,
    granted: oneshot::Receiver<Permit>,
}

impl PermitWaiter {
    /// The permit, if it is granted already.
    pub fn try_take(&mut self) -> Option<Permit> {
        self.granted.try_recv().ok()
    }

    /// `None` only if the permit was taken before.
    pub async fn taken(mut self) -> Option<Permit> {
        (&mut self.granted).await.ok()
    }
}

impl Drop for PermitWaiter {
    fn drop(&mut self) {
        // A waiter that leaves may stop blocking those behind it, which may want less.
        let left = self.ledger.inner.lock().waiting.remove(self.ticket);
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

    fn permit(&self, owner: Principal, id: HoldId) -> Permit {
        Permit { ledger: self.clone(), owner, id }
    }

    /// Takes all amounts at once, or is refused without waiting.
    pub fn take(&self, owner: Principal, by: &str, amounts: Amounts) -> Result<Permit, Refusal> {
        let takes_disk = amounts.get(Kind::Workspace) > 0;
        let id = self.inner.lock().books.take(owner, by, amounts)?;
        if takes_disk {
            self.tell_crowded(owner, Kind::Workspace);
        }
        Ok(self.permit(owner, id))
    }

    /// Whether the amounts could be granted if no other hold existed.
    #[must_use]
    pub fn could_grant(&self, owner: Principal, amounts: &Amounts) -> bool {
        self.inner.lock().books.check_alone(owner, amounts).is_ok()
    }

    /// Holds amounts that are in use already, such as those of a session of an earlier daemon.
    #[must_use]
    pub fn keep(&self, owner: Principal, by: &str, amounts: Amounts) -> Permit {
        let takes_disk = amounts.get(Kind::Workspace) > 0;
        let id = self.inner.lock().books.keep(owner, by, amounts);
        if takes_disk {
            self.tell_crowded(owner, Kind::Workspace);
        }
        self.permit(owner, id)
    }

    /// Waits in turn with other users. Only amounts above the limits, or one waiter too many, are refused.
    pub fn wait(&self, owner: Principal, by: &str, amounts: Amounts) -> Result<PermitWaiter, Problem> {
        let (grant, granted) = oneshot::channel();
        let ticket = {
            let mut inner = self.inner.lock();
            inner.books.check_alone(owner, &amounts)?;
            let waiter = Waiter { by: by.to_owned(), amounts, granted: grant };
            inner.waiting.push(owner, waiter).map_err(|Full(_)| {
                Problem::new(Code::Busy, format!("{WAITING_PER_USER} things of yours wait already"))
                    .hint("wait for one of them to end")
            })?
        };
        self.serve();
        Ok(PermitWaiter { ledger: self.clone(), ticket, granted })
    }

    /// Grants all permits that can be granted, user by user.
    fn serve(&self) {
        loop {
            let mut inner = self.inner.lock();
            let Inner { books, waiting } = &mut *inner;
            let may = |owner: Principal, waiter: &Waiter| books.check(owner, &waiter.amounts).is_ok();
            let Some((owner, waiter)) = waiting.pop_where(may) else { return };
            let id = books.keep(owner, &waiter.by, waiter.amounts);
            drop(inner);
            // If the waiter is gone, `send` returns the permit, and dropping the permit serves the next waiter.
            drop(waiter.granted.send(self.permit(owner, id)));
        }
    }

    /// Gives memory that users do not take any more back to the system, again and again.
    pub fn keep_memory_small(&self) -> impl Future<Output = ()> + Send + 'static {
        keep_small(self.memory.clone())
    }

    /// The user's part of the daemon's memory.
    #[must_use]
    pub fn memory(&self, owner: Principal) -> Pool {
        self.memory.pool(owner)
    }

    pub fn set_limits(&self, owner: Principal, limits: Limits) {
        self.memory.set_limit(owner, limits.get(Kind::DaemonMemory));
        self.inner.lock().books.set_limits(owner, limits);
        self.serve();
    }

    /// Sets the limits of users without limits of their own; those of `users` are to be set anew afterwards.
    pub fn set_everyone(&self, limits: Limits) {
        self.memory.set_everyone(limits.get(Kind::DaemonMemory));
        self.inner.lock().books.set_everyone(limits);
        self.serve();
    }

    /// The users who hold something, have spent something or have limits of their own.
    #[must_use]
    pub fn users(&self) -> BTreeSet<Principal> {
        self.inner.lock().books.users()
    }

    /// Waits until spare holds of a kind take a user, or the machine, above its limit. Only one task waits for a kind.
    pub async fn wait_until_crowded(&self, kind: Kind) {
        match self.crowded.of(kind) {
            Some(notify) => notify.notified().await,
            None => std::future::pending().await,
        }
    }

    fn tell_crowded(&self, owner: Principal, kind: Kind) {
        if let Some(notify) = self.crowded.of(kind)
            && self.inner.lock().books.is_crowded(owner, kind)
        {
            notify.notify_one();
        }
    }

    /// By how much the user, spare holds included, is above its limit.
    #[must_use]
    pub fn excess(&self, owner: Principal, kind: Kind) -> u64 {
        self.inner.lock().books.excess(owner, kind)
    }

    /// By how much all users together are above the machine's limit.
    #[must_use]
    pub fn excess_of_all(&self, kind: Kind) -> u64 {
        self.inner.lock().books.excess_of_all(kind)
    }

    /// An error if the user has more than `times` times the limit.
    pub fn tolerates(&self, owner: Principal, kind: Kind, times: u64) -> Result<(), Refusal> {
        self.inner.lock().books.tolerates(owner, kind, times)
    }

    /// A mark for a scan of the disk that begins now: it does not cover holds that are left behind after the mark.
    #[must_use]
    pub fn left_until_now(&self) -> HoldId {
        self.inner.lock().books.next_id()
    }

    /// Ends the holds that were left behind before the mark, because the scan now counts their bytes itself.
    pub fn drop_left(&self, before: HoldId) {
        self.inner.lock().books.drop_left(before);
    }

    pub fn spend(&self, owner: Principal, day: u64, by: &str, tokens: u64) {
        self.inner.lock().books.spend(owner, day, by, tokens);
    }

    pub fn forget_spent(&self, owner: Principal) {
        self.inner.lock().books.forget_spent(owner);
    }

    pub fn may_spend(&self, owner: Principal, day: u64) -> Result<(), Refusal> {
        self.inner.lock().books.may_spend(owner, day)
    }

    #[must_use]
    pub fn usage(&self, owner: Principal) -> Vec<QuotaUsage> {
        let mut usage = self.inner.lock().books.usage(owner);
        for of in usage.iter_mut().filter(|of| of.kind == Kind::DaemonMemory) {
            (of.used, of.by) = self.memory.taken(owner);
        }
        usage
    }

    /// How much the user can get now.
    #[must_use]
    pub fn available(&self, owner: Principal, kind: Kind) -> u64 {
        self.inner.lock().books.available(owner, kind)
    }

    #[must_use]
    pub fn available_for_spare(&self, owner: Principal, kind: Kind) -> u64 {
        self.inner.lock().books.available_for_spare(owner, kind)
    }

    #[must_use]
    pub fn used_by_all(&self, kind: Kind) -> u64 {
        self.inner.lock().books.used_by_all(kind)
    }

    #[cfg(test)]
    pub fn used(&self, owner: Principal, kind: Kind) -> u64 {
        self.inner.lock().books.used(owner, kind)
    }
}

impl Permit {
    /// Marks the hold as spare: the daemon deletes the data behind it when the owner needs the room.
    #[must_use]
    pub fn spare(self) -> Self {
        self.ledger.inner.lock().books.set_spare(self.owner, self.id, true);
        self
    }

    /// Marks the hold as spare, or as needed without regard to the limits.
    pub fn set_spare(&self, spare: bool) {
        self.ledger.inner.lock().books.set_spare(self.owner, self.id, spare);
        if spare {
            self.ledger.serve();
        }
        self.ledger.tell_crowded(self.owner, Kind::Workspace);
    }

    /// Marks a spare hold as needed, or is refused and leaves it spare.
    pub fn need_again(&self) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.need_again(self.owner, self.id)?;
        self.ledger.tell_crowded(self.owner, Kind::Workspace);
        Ok(())
    }

    /// Releases all amounts but the one of `kind`, which is still on the disk after the work is done. That amount
    /// counts until the next scan of all retained data has seen it.
    pub fn leave(self, by: &str, kind: Kind) {
        self.ledger.inner.lock().books.leave(self.owner, self.id, by, kind);
        self.ledger.serve();
        self.ledger.tell_crowded(self.owner, kind);
        // The hold outlives the permit.
        std::mem::forget(self);
    }

    #[must_use]
    pub fn gauge(&self) -> Gauge {
        Gauge { ledger: self.ledger.clone(), owner: self.owner, id: self.id }
    }
}

impl Gauge {
    /// The amount of `kind` that the hold has.
    #[must_use]
    pub fn own(&self, kind: Kind) -> u64 {
        self.ledger.inner.lock().books.amount_of(self.owner, self.id, kind)
    }

    /// An error if the user needs more than `times` times the limit. Spare holds do not count.
    pub fn tolerates(&self, kind: Kind, times: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.tolerates_needed(self.owner, kind, times)
    }

    /// A refusal if the user could not get `more` now.
    pub fn fits(&self, kind: Kind, more: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.check(self.owner, &Amounts::of([(kind, more)]))
    }

    /// Adds `more` to the hold, or is refused.
    pub fn grow(&self, kind: Kind, more: u64) -> Result<(), Refusal> {
        self.ledger.inner.lock().books.grow(self.owner, self.id, kind, more)?;
        self.ledger.tell_crowded(self.owner, kind);
        Ok(())
    }

    /// Adds `more` to the hold, without regard to the limits.
    pub fn add(&self, kind: Kind, more: u64) {
        self.ledger.inner.lock().books.add(self.owner, self.id, kind, more);
        if kind == Kind::Workspace {
            self.ledger.tell_crowded(self.owner, kind);
        }
    }

    /// Subtracts `less` from the hold.
    pub fn shrink(&self, kind: Kind, less: u64) {
        self.ledger.inner.lock().books.shrink(self.owner, self.id, kind, less);
        self.ledger.serve();
    }

    /// Records the measured amount; an error if the user has too much now. Nothing is recorded once the permit is gone.
    pub fn measure(&self, kind: Kind, amount: u64) -> Result<(), Refusal> {
        let measured = self.ledger.inner.lock().books.measure(self.owner, self.id, kind, amount);
        // Journals are measured by the task that would be told.
        if kind == Kind::Workspace {
            self.ledger.tell_crowded(self.owner, kind);
        }
        measured
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.ledger.inner.lock().books.release(self.owner, self.id);
        self.ledger.serve();
    }
}

#[cfg(test)]
mod tests;
