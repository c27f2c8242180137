//! Who uses the files of packages on the disk, and pays for them: the one whose cache keeps a set, and every user whose
//! session or sandbox has it. A copy of a set is paid once by each of them, until its last name is gone: what a cache has
//! removed still takes its room as long as a sandbox has it. What is kept and used by nobody is spare: it stands in
//! nobody's way, and goes when the room is needed.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::protocol::ids::SessionName;
use crate::protocol::packages::PackageVersion;
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit, Refusal};
use crate::security_controls;

/// How packages appear in a user's quota.
pub const HOLD: &str = "installed packages";

/// What the daemon notes beside the files of a set, and wherever it links them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetNote {
    /// The id of this copy of the files, which all hard links to them share.
    pub copy: String,
    /// What files and folders take on the disk.
    pub bytes: u64,
    /// The part of it that folders take, of which every sandbox has its own.
    pub folder_bytes: u64,
    /// The first packages of the set, for lists; notes of earlier versions name none.
    #[serde(default)]
    pub packages: Vec<PackageVersion>,
}

/// Whether a charge beyond the quota is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pay {
    IfThereIsRoom,
    /// Charges beyond the quota too, because the files are in use.
    Anyway,
}

impl Pay {
    pub fn take(self, ledger: &Ledger, owner: Principal, amounts: Amounts) -> Result<Permit, Refusal> {
        match self {
            Self::IfThereIsRoom => ledger.take(owner, HOLD, amounts),
            Self::Anyway => Ok(ledger.keep(owner, HOLD, amounts)),
        }
    }

    fn again(self, permit: &Permit) -> Result<(), Refusal> {
        match self {
            Self::IfThereIsRoom => permit.need_again(),
            Self::Anyway => {
                permit.set_spare(false);
                Ok(())
            }
        }
    }
}

/// All copies that have a name somewhere. Clones are the same.
#[derive(Clone, Default)]
pub struct Charges(Arc<Mutex<Copies>>);

#[derive(Default)]
struct Copies {
    by_id: BTreeMap<String, SetCopy>,
    /// How many sessions of a user have not said yet which copies they use; without a user: any copies.
    unread: BTreeMap<Option<Principal>, usize>,
    /// The uses of sessions whose copy was removed from its cache, by their numbers.
    waiting: BTreeMap<u64, WaitingUse>,
    /// The copies that such uses have come to, by their numbers.
    moved: BTreeMap<u64, String>,
    next_use: u64,
}

/// The use of a session that waits for its set to be installed again.
struct WaitingUse {
    /// Who pays for the cache that had the set, and the key of the set there.
    of: (Principal, String),
    user: Principal,
    session: SessionName,
}

#[derive(Default)]
struct SetCopy {
    /// Who pays for the cache that has the copy, if one has it.
    keeper: Option<Principal>,
    payments: BTreeMap<Principal, Payment>,
    /// Whether it could not be removed from its cache, so that it takes its room whether or not it is used.
    is_stuck: bool,
}

struct Payment {
    permit: Permit,
    /// The uses by their numbers.
    uses: BTreeMap<u64, UseKind>,
}

/// What uses a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UseKind {
    /// A session, which needs it in its next sandbox.
    Session(SessionName),
    /// The sandbox of a session, which has links to its files, whether or not the cache still has it.
    Sandbox(SessionName),
    /// Something that reads its files, such as the build of an image.
    Reader,
}

impl UseKind {
    /// A session's use, or a reader's if there is no session.
    pub fn of(session: Option<&SessionName>) -> Self {
        session.map_or(Self::Reader, |session| Self::Session(session.clone()))
    }
}

/// A use of a copy, which is not removed from its cache, and is paid for, until this value is dropped.
pub struct CopyUse {
    charges: Charges,
    payer: Principal,
    copy: String,
    number: u64,
}

/// A session of which it is not known yet what it uses. Nothing that it might use is removed until this value is dropped.
pub struct UnreadSession {
    charges: Charges,
    owner: Option<Principal>,
}

impl SetCopy {
    fn is_used(&self) -> bool {
        self.payments.values().any(|payment| !payment.uses.is_empty())
    }
}

impl Copies {
    /// Notes a use of a copy by a user, who pays for it from now on, if not already.
    fn note_use(
        &mut self,
        number: u64,
        (user, kind): (Principal, UseKind),
        note: &SetNote,
        ledger: &Ledger,
        pay: Pay,
    ) -> Result<(), Refusal> {
        let paid = self.by_id.get(&note.copy).and_then(|copy| copy.payments.get(&user));
        let new = match paid {
            Some(payment) => {
                pay.again(&payment.permit)?;
                None
            }
            None => Some(pay.take(ledger, user, disk(note.bytes))?),
        };
        let payments = &mut self.by_id.entry(note.copy.clone()).or_default().payments;
        if let Some(permit) = new {
            payments.insert(user, Payment { permit, uses: BTreeMap::new() });
        }
        if let Some(payment) = payments.get_mut(&user) {
            payment.uses.insert(number, kind);
        }
        Ok(())
    }

    /// Lets sessions use a set again that a cache has again. Who cannot pay for it goes on waiting.
    fn use_again(&mut self, of: (Principal, &str), note: &SetNote, ledger: &Ledger) {
        let is_of = |waiting: &WaitingUse| (waiting.of.0, &*waiting.of.1) == of;
        let found: Vec<u64> =
            self.waiting.iter().filter(|(_, waiting)| is_of(waiting)).map(|(number, _)| *number).collect();
        for number in found {
            let Some(WaitingUse { user, session, .. }) = self.waiting.get(&number) else { continue };
            let by = (*user, UseKind::Session(session.clone()));
            if self.note_use(number, by, note, ledger, Pay::IfThereIsRoom).is_ok() {
                self.waiting.remove(&number);
                self.moved.insert(number, note.copy.clone());
            }
        }
    }

    /// Whether the copy is in a cache and could be removed from it.
    fn is_unused(&self, copy: &SetCopy) -> bool {
        let is_unread = |owner: Option<Principal>| self.unread.contains_key(&owner);
        let is_free = |keeper: Principal| !is_unread(None) && !is_unread(Some(keeper));
        copy.keeper.is_some_and(is_free) && !copy.is_used() && !copy.is_stuck
    }

    /// Ends the payments of those who have the copy no more, and lets what is not used be spare.
    fn settle(&mut self, id: &str) {
        let Some(copy) = self.by_id.get_mut(id) else { return };
        let keeper = copy.keeper;
        copy.payments.retain(|payer, payment| !payment.uses.is_empty() || keeper == Some(*payer));
        if copy.payments.is_empty() {
            self.by_id.remove(id);
        }
        let Some(copy) = self.by_id.get(id) else { return };
        if let Some(payment) = keeper.and_then(|keeper| copy.payments.get(&keeper)) {
            payment.permit.set_spare(self.is_unused(copy));
        }
    }
}

impl Charges {
    /// Uses a copy for a user, who pays for it from now on, if not already.
    pub fn use_copy(
        &self,
        owner: Principal,
        note: &SetNote,
        ledger: &Ledger,
        pay: Pay,
        kind: UseKind,
    ) -> Result<CopyUse, Refusal> {
        let mut copies = self.0.lock();
        let number = copies.next_use;
        copies.next_use += 1;
        copies.note_use(number, (owner, kind), note, ledger, pay)?;
        copies.settle(&note.copy);
        Ok(CopyUse { charges: self.clone(), payer: owner, copy: note.copy.clone(), number })
    }

    /// Records that a cache has the copy under this key, and charges who pays for the cache. Sessions that have had the set
    /// before use it again.
    pub fn keep(&self, payer: Principal, key: &str, note: &SetNote, ledger: &Ledger) {
        let mut copies = self.0.lock();
        let copy = copies.by_id.entry(note.copy.clone()).or_default();
        copy.keeper = Some(payer);
        copy.payments.entry(payer).or_insert_with(|| {
            let permit = ledger.keep(payer, HOLD, disk(note.bytes));
            Payment { permit, uses: BTreeMap::new() }
        });
        copies.use_again((payer, key), note, ledger);
        copies.settle(&note.copy);
    }

    /// Records that the cache has the copy no more, which it had under this key. Sandboxes that have its files pay on;
    /// there is nothing left that a session without one could use, before the set is installed again.
    pub fn is_removed(&self, copy: &str, key: &str) {
        let mut copies = self.0.lock();
        let Some(removed) = copies.by_id.get_mut(copy) else { return };
        let keeper = removed.keeper.take();
        let mut waiting = Vec::new();
        for (user, payment) in &mut removed.payments {
            let uses = std::mem::take(&mut payment.uses);
            for (number, kind) in uses {
                match (kind, keeper) {
                    (UseKind::Session(session), Some(keeper)) => {
                        let of = (keeper, key.to_owned());
                        waiting.push((number, WaitingUse { of, user: *user, session }));
                    }
                    (kind @ UseKind::Sandbox(_), _) => drop(payment.uses.insert(number, kind)),
                    (UseKind::Session(_) | UseKind::Reader, _) => {}
                }
            }
        }
        for (number, _) in &waiting {
            copies.moved.remove(number);
        }
        copies.waiting.extend(waiting);
        copies.settle(copy);
    }

    /// Records that the copy could not be removed, and so counts again.
    pub fn is_stuck(&self, copy: &str) {
        let mut copies = self.0.lock();
        if let Some(stuck) = copies.by_id.get_mut(copy) {
            stuck.is_stuck = true;
        }
        copies.settle(copy);
    }

    /// Whether nobody uses the copy, and every session that might has been read.
    pub fn is_unused(&self, copy: &str) -> bool {
        let copies = self.0.lock();
        copies.by_id.get(copy).is_some_and(|copy| copies.is_unused(copy))
    }

    /// Whether something reads the files in the cache, so that they cannot even be removed to be installed again.
    pub fn is_read(&self, copy: &str) -> bool {
        let copies = self.0.lock();
        let payments = copies.by_id.get(copy).into_iter().flat_map(|copy| copy.payments.values());
        payments.flat_map(|payment| payment.uses.values()).any(|kind| *kind == UseKind::Reader)
    }

    /// Who pays for copies that nobody uses.
    pub fn payers_of_unused(&self) -> BTreeSet<Principal> {
        let copies = self.0.lock();
        let unused = copies.by_id.values().filter(|copy| copies.is_unused(copy));
        unused.filter_map(|copy| copy.keeper).collect()
    }

    /// The users of a copy, with the names of the sessions for which they use it.
    pub fn users(&self, copy: &str) -> BTreeMap<Principal, BTreeSet<SessionName>> {
        let copies = self.0.lock();
        let payments = copies.by_id.get(copy).into_iter().flat_map(|copy| &copy.payments);
        let used = payments.filter(|(_, payment)| !payment.uses.is_empty());
        let session = |kind: &UseKind| match kind {
            UseKind::Session(name) | UseKind::Sandbox(name) => Some(name.clone()),
            UseKind::Reader => None,
        };
        used.map(|(user, payment)| (*user, payment.uses.values().filter_map(session).collect())).collect()
    }

    /// Keeps the copies of a user, or of all, until it is known what a session uses.
    pub fn unread(&self, owner: Option<Principal>) -> UnreadSession {
        *self.0.lock().unread.entry(owner).or_default() += 1;
        UnreadSession { charges: self.clone(), owner }
    }
}

impl Drop for CopyUse {
    fn drop(&mut self) {
        let mut copies = self.charges.0.lock();
        copies.waiting.remove(&self.number);
        let id = copies.moved.remove(&self.number).unwrap_or_else(|| self.copy.clone());
        let copy = copies.by_id.get_mut(&id);
        if let Some(payment) = copy.and_then(|copy| copy.payments.get_mut(&self.payer)) {
            payment.uses.remove(&self.number);
        }
        copies.settle(&id);
    }
}

impl Drop for UnreadSession {
    fn drop(&mut self) {
        let mut copies = self.charges.0.lock();
        if let Some(count) = copies.unread.get_mut(&self.owner) {
            *count -= 1;
            if *count > 0 {
                return;
            }
        }
        copies.unread.remove(&self.owner);
        let ids: Vec<String> = copies.by_id.keys().cloned().collect();
        for id in &ids {
            copies.settle(id);
        }
    }
}

impl std::fmt::Debug for CopyUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyUse")
            .field("payer", &self.payer)
            .field("copy", &self.copy)
            .finish_non_exhaustive()
    }
}

/// An amount of disk.
pub fn disk(bytes: u64) -> Amounts {
    Amounts::of([(Kind::Workspace, if security_controls::holds("packages_are_charged") { bytes } else { 0 })])
}

#[cfg(test)]
mod tests;
