//! The limits, and the amounts that are held. This part is pure: it has no clock, no lock and no I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::{LimitOwner, Refusal};
use crate::config::{Limits, Quota};
use crate::protocol::principal::Principal;
use crate::protocol::quota::{Kind, QuotaUsage, Share};
use crate::security_controls;

/// Maximum number of names that a refusal or a view lists.
const NAMED: usize = 5;
/// The name of what accounts have spent whose user ids others have by now.
const FORMER: &str = "former accounts";

pub type HoldId = u64;

/// An amount of each of some kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<Kind, u64>);

impl Amounts {
    #[must_use]
    pub fn of<const N: usize>(amounts: [(Kind, u64); N]) -> Self {
        Self(BTreeMap::from(amounts))
    }

    #[must_use]
    pub fn get(&self, kind: Kind) -> u64 {
        self.0.get(&kind).copied().unwrap_or(0)
    }
}

/// The amounts that one session, cell or job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    by: String,
    amounts: Amounts,
    /// The daemon deletes the data behind this hold when its owner needs the room, so the owner's requests ignore it.
    spare: bool,
    /// Set when the holder is gone: the value of `next` at that time. The hold counts until a scan of all retained data
    /// that began later has seen it.
    left: Option<HoldId>,
}

/// The tokens that a user spent on one day. Only a new day resets them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SpentTokens {
    day: u64,
    by: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
pub struct Books {
    machine: Limits,
    /// The limits of a user without an entry in `limits`.
    everyone: Limits,
    limits: BTreeMap<Principal, Limits>,
    /// The holds of each user. Sums are computed when they are needed, so that they cannot drift from the holds.
    holds: BTreeMap<Principal, BTreeMap<HoldId, Hold>>,
    spent: BTreeMap<Principal, SpentTokens>,
    next: HoldId,
}

/// The amount that each user may have of a kind even if other users have taken all of the machine's. Without it, a few
/// users whose sessions rest, or whose cells are frozen or wait for a person, could keep all others out for as long as
/// they like. There is no such share of memory, CPUs and disk, which the machine may not have.
fn sure_share(kind: Kind, limit: u64) -> u64 {
    let share = match kind {
        Kind::Sessions | Kind::Cells => 2,
        Kind::Processes => 512,
        _ => return 0,
    };
    // A small limit is not used up by these shares: no user gets more than a part of it.
    (limit / 4).clamp(1, share)
}

/// Whether `of_user` is within the user's sure share. All sure shares together may take as much again as the limit.
fn is_sure(kind: Kind, of_user: u64, of_all: u64, limit: u64) -> bool {
    of_user <= sure_share(kind, limit)
        && of_all < limit.saturating_mul(2)
        && security_controls::holds("sure_share_of_the_machine")
}

impl Books {
    #[must_use]
    pub fn new(quota: &Quota) -> Self {
        Self {
            machine: quota.machine.clone(),
            everyone: quota.everyone.clone(),
            limits: BTreeMap::new(),
            holds: BTreeMap::new(),
            spent: BTreeMap::new(),
            next: 0,
        }
    }

    /// Sets the limits of users without limits of their own.
    pub fn set_everyone(&mut self, limits: Limits) {
        self.everyone = limits;
    }

    /// The users who hold something, have spent something or have limits of their own.
    #[must_use]
    pub fn users(&self) -> BTreeSet<Principal> {
        let all = self.holds.keys().chain(self.spent.keys()).chain(self.limits.keys());
        all.copied().filter(|owner| *owner != Principal::FORMER_ACCOUNTS).collect()
    }

    /// Sets the limits of one user; limits that equal those of everyone are not stored.
    pub fn set_limits(&mut self, owner: Principal, limits: Limits) {
        if limits == self.everyone {
            self.limits.remove(&owner);
        } else {
            self.limits.insert(owner, limits);
        }
    }

    fn limit(&self, owner: Principal, kind: Kind) -> Option<u64> {
        self.limits.get(&owner).unwrap_or(&self.everyone).get(kind)
    }

    #[must_use]
    pub fn used(&self, owner: Principal, kind: Kind) -> u64 {
        let holds = self.holds.get(&owner).into_iter().flat_map(BTreeMap::values);
        let amounts = holds.map(|hold| hold.amounts.get(kind));
        let spent = self.spent.get(&owner).filter(|_| kind == Kind::Tokens);
        amounts
            .chain(spent.into_iter().flat_map(|spent| spent.by.values().copied()))
            .fold(0, u64::saturating_add)
    }

    #[must_use]
    pub fn used_by_all(&self, kind: Kind) -> u64 {
        let mut users: Vec<Principal> = self.holds.keys().chain(self.spent.keys()).copied().collect();
        users.sort_unstable();
        users.dedup();
        users.into_iter().map(|owner| self.used(owner, kind)).fold(0, u64::saturating_add)
    }

    /// The usage of all users without spare holds, which are given up when their room is needed.
    fn used_by_all_without_spare(&self, kind: Kind) -> u64 {
        let spare = self.holds.values().flat_map(BTreeMap::values).filter(|hold| hold.spare);
        let spare = spare.map(|hold| hold.amounts.get(kind)).fold(0, u64::saturating_add);
        self.used_by_all(kind).saturating_sub(spare)
    }

    /// The user's usage without spare holds.
    fn used_without_spare(&self, owner: Principal, kind: Kind) -> u64 {
        let holds = self.holds.get(&owner).into_iter().flat_map(BTreeMap::values);
        let spare = holds.filter(|hold| hold.spare).map(|hold| hold.amounts.get(kind));
        self.used(owner, kind).saturating_sub(spare.fold(0, u64::saturating_add))
    }

    /// How much spare holds of the user may take: what the user's other holds leave of the user's limit, and what all
    /// other holds, spare ones of other users included, leave of the machine's.
    #[must_use]
    pub fn available_for_spare(&self, owner: Principal, kind: Kind) -> u64 {
        let used = self.used_without_spare(owner, kind);
        let of_user = self.limit(owner, kind).map_or(u64::MAX, |limit| limit.saturating_sub(used));
        let Some(limit) = self.machine.get(kind) else { return of_user };
        let own_spare = self.used(owner, kind).saturating_sub(used);
        of_user.min(limit.saturating_sub(self.used_by_all(kind).saturating_sub(own_spare)))
    }

    /// How much the user can get now: what all that is not spare leaves of the user's limit and of the machine's.
    #[must_use]
    pub fn available(&self, owner: Principal, kind: Kind) -> u64 {
        let left = |limit: Option<u64>, used: u64| limit.map_or(u64::MAX, |limit| limit.saturating_sub(used));
        let of_user = left(self.limit(owner, kind), self.used_without_spare(owner, kind));
        of_user.min(left(self.machine.get(kind), self.used_by_all_without_spare(kind)))
    }

    /// Whether the user can get `wanted` more now: first within the user's limits, then within the machine's.
    pub fn check(&self, owner: Principal, wanted: &Amounts) -> Result<(), Refusal> {
        for (kind, wanted) in &wanted.0 {
            self.check_kind(owner, *kind, *wanted)?;
        }
        Ok(())
    }

    fn check_kind(&self, owner: Principal, kind: Kind, wanted: u64) -> Result<(), Refusal> {
        let of_user = self.used_without_spare(owner, kind);
        let of_all = self.machine.get(kind).map_or(0, |_| self.used_by_all_without_spare(kind));
        self.judge(owner, kind, wanted, [of_user, of_all])
    }

    /// Whether `wanted` could be granted if no hold existed.
    pub fn check_alone(&self, owner: Principal, wanted: &Amounts) -> Result<(), Refusal> {
        wanted.0.iter().try_for_each(|(kind, wanted)| self.judge(owner, *kind, *wanted, [0, 0]))
    }

    fn judge(&self, owner: Principal, kind: Kind, wanted: u64, used: [u64; 2]) -> Result<(), Refusal> {
        let [of_user, _] = used;
        let limits = [self.limit(owner, kind), self.machine.get(kind)];
        for ((used, limit), whose) in
            used.into_iter().zip(limits).zip([LimitOwner::User, LimitOwner::Machine])
        {
            let judged = match whose {
                LimitOwner::User => security_controls::holds("quotas_of_users"),
                LimitOwner::Machine => security_controls::holds("quotas_of_the_machine"),
            };
            if let Some(limit) = limit
                && judged
                && used.saturating_add(wanted) > limit
                && !(whose == LimitOwner::Machine
                    && is_sure(kind, of_user.saturating_add(wanted), used, limit))
            {
                let by = match whose {
                    LimitOwner::User => self.shares(owner, kind),
                    LimitOwner::Machine => Vec::new(),
                };
                return Err(Refusal { kind, whose, wanted, used, limit, by });
            }
        }
        Ok(())
    }

    /// Holds all of the amounts, or none if one of them is refused.
    pub fn take(&mut self, owner: Principal, by: &str, amounts: Amounts) -> Result<HoldId, Refusal> {
        self.check(owner, &amounts)?;
        Ok(self.keep(owner, by, amounts))
    }

    /// Holds amounts that are in use already, without regard to the limits.
    pub fn keep(&mut self, owner: Principal, by: &str, amounts: Amounts) -> HoldId {
        let id = self.next;
        self.next += 1;
        let hold = Hold { by: by.to_owned(), amounts, spare: false, left: None };
        self.holds.entry(owner).or_default().insert(id, hold);
        id
    }

    fn hold(&mut self, owner: Principal, id: HoldId) -> Option<&mut Hold> {
        self.holds.get_mut(&owner)?.get_mut(&id)
    }

    /// Marks a hold as spare, or as needed.
    pub fn set_spare(&mut self, owner: Principal, id: HoldId, spare: bool) {
        if let Some(hold) = self.hold(owner, id) {
            hold.spare = spare;
        }
    }

    /// Marks a spare hold as needed, if its owner has the room for it; otherwise it stays spare.
    pub fn need_again(&mut self, owner: Principal, id: HoldId) -> Result<(), Refusal> {
        let spare = self.hold(owner, id).filter(|hold| hold.spare).map(|hold| hold.amounts.clone());
        if let Some(amounts) = spare {
            self.check(owner, &amounts)?;
            self.set_spare(owner, id, false);
        }
        Ok(())
    }

    /// Keeps only the amount of `kind`, which is still in use although its holder is gone, and marks it as spare.
    pub fn leave(&mut self, owner: Principal, id: HoldId, by: &str, kind: Kind) {
        let number = self.next;
        self.next += 1;
        if let Some(hold) = self.hold(owner, id) {
            let amounts = Amounts::of([(kind, hold.amounts.get(kind))]);
            *hold = Hold { by: by.to_owned(), amounts, spare: true, left: Some(number) };
        }
    }

    /// Removes the holds that were left before `until` was read from `next_id`: the scan that read it counts them now.
    pub fn drop_left(&mut self, until: HoldId) {
        self.holds.retain(|_, holds| {
            holds.retain(|_, hold| hold.left.is_none_or(|left| left >= until));
            !holds.is_empty()
        });
    }

    #[must_use]
    pub fn next_id(&self) -> HoldId {
        self.next
    }

    /// Adds `more` to a hold, or is refused and changes nothing.
    pub fn grow(&mut self, owner: Principal, id: HoldId, kind: Kind, more: u64) -> Result<(), Refusal> {
        self.check_kind(owner, kind, more)?;
        self.add(owner, id, kind, more);
        Ok(())
    }

    /// Adds `more` to a hold, without regard to the limits.
    pub fn add(&mut self, owner: Principal, id: HoldId, kind: Kind, more: u64) {
        if let Some(hold) = self.hold(owner, id) {
            let amount = hold.amounts.0.entry(kind).or_default();
            *amount = amount.saturating_add(more);
        }
    }

    /// Subtracts `less` from a hold.
    pub fn shrink(&mut self, owner: Principal, id: HoldId, kind: Kind, less: u64) {
        if let Some(hold) = self.hold(owner, id) {
            let amount = hold.amounts.0.entry(kind).or_default();
            *amount = amount.saturating_sub(less);
        }
    }

    /// Records an amount that is measured, not asked for: always, and with an error if it is too much.
    pub fn measure(&mut self, owner: Principal, id: HoldId, kind: Kind, amount: u64) -> Result<(), Refusal> {
        // A measurement may end after its holder has left, and must not bring back kinds that were released.
        let is_counted = |hold: &&mut Hold| hold.left.is_none() || hold.amounts.0.contains_key(&kind);
        if let Some(hold) = self.hold(owner, id).filter(is_counted) {
            hold.amounts.0.insert(kind, amount);
        }
        match self.check_kind(owner, kind, 0) {
            // Only the user with the most has to stop when users fill the machine: others would pay for its bytes.
            Err(refusal)
                if refusal.whose == LimitOwner::Machine
                    && refusal.used <= refusal.limit.saturating_mul(2)
                    && !self.has_most(owner, kind) =>
            {
                Ok(())
            }
            checked => checked,
        }
    }

    fn has_most(&self, owner: Principal, kind: Kind) -> bool {
        let own = self.used_without_spare(owner, kind);
        self.holds.keys().all(|other| self.used_without_spare(*other, kind) <= own)
    }

    /// An error if the user has more than `times` times the limit: measured usage can exceed the limit.
    pub fn tolerates(&self, owner: Principal, kind: Kind, times: u64) -> Result<(), Refusal> {
        self.tolerates_amount(owner, kind, times, self.used(owner, kind))
    }

    /// The same without spare holds, which the daemon gives up by itself.
    pub fn tolerates_needed(&self, owner: Principal, kind: Kind, times: u64) -> Result<(), Refusal> {
        self.tolerates_amount(owner, kind, times, self.used_without_spare(owner, kind))
    }

    fn tolerates_amount(&self, owner: Principal, kind: Kind, times: u64, used: u64) -> Result<(), Refusal> {
        match self.limit(owner, kind) {
            Some(limit) if used > limit.saturating_mul(times) => {
                let by = self.shares(owner, kind);
                Err(Refusal { kind, whose: LimitOwner::User, wanted: 0, used, limit, by })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether spare holds have to go: more is used than the limit of the user or of the machine.
    #[must_use]
    pub fn is_crowded(&self, owner: Principal, kind: Kind) -> bool {
        let limit = self.machine.get(kind);
        self.tolerates(owner, kind, 1).is_err() || limit.is_some_and(|limit| self.used_by_all(kind) > limit)
    }

    /// By how much the user, spare holds included, is above its limit.
    #[must_use]
    pub fn excess(&self, owner: Principal, kind: Kind) -> u64 {
        self.limit(owner, kind).map_or(0, |limit| self.used(owner, kind).saturating_sub(limit))
    }

    /// By how much all users together are above the machine's limit.
    #[must_use]
    pub fn excess_of_all(&self, kind: Kind) -> u64 {
        self.machine.get(kind).map_or(0, |limit| self.used_by_all(kind).saturating_sub(limit))
    }

    #[must_use]
    pub fn amount_of(&self, owner: Principal, id: HoldId, kind: Kind) -> u64 {
        self.holds.get(&owner).and_then(|holds| holds.get(&id)).map_or(0, |hold| hold.amounts.get(kind))
    }

    pub fn release(&mut self, owner: Principal, id: HoldId) {
        let Some(holds) = self.holds.get_mut(&owner) else { return };
        holds.remove(&id);
        if holds.is_empty() {
            self.holds.remove(&owner);
        }
    }

    /// Records tokens that are spent already, so it never refuses. `day` counts from any fixed day.
    pub fn spend(&mut self, owner: Principal, day: u64, by: &str, tokens: u64) {
        let spent = self.on(owner, day);
        let sum = spent.by.entry(by.to_owned()).or_default();
        *sum = sum.saturating_add(tokens);
    }

    /// Takes what was spent from a user id that another account has by now. The machine's quota still counts it.
    pub fn forget_spent(&mut self, owner: Principal) {
        let Some(SpentTokens { day, by }) = self.spent.remove(&owner) else { return };
        let sum = by.into_values().fold(0, u64::saturating_add);
        self.spend(Principal::FORMER_ACCOUNTS, day, FORMER, sum);
    }

    /// A refusal if the user has no tokens left on `day`.
    pub fn may_spend(&mut self, owner: Principal, day: u64) -> Result<(), Refusal> {
        self.on(owner, day);
        if security_controls::holds("token_quota") { self.check_kind(owner, Kind::Tokens, 1) } else { Ok(()) }
    }

    fn on(&mut self, owner: Principal, day: u64) -> &mut SpentTokens {
        self.spent.retain(|_, spent| spent.day >= day);
        self.spent.entry(owner).or_insert_with(|| SpentTokens { day, by: BTreeMap::new() })
    }

    /// The user's largest holders, the largest first.
    fn shares(&self, owner: Principal, kind: Kind) -> Vec<Share> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        let holds = self.holds.get(&owner).into_iter().flat_map(BTreeMap::values);
        let amounts = holds.map(|hold| (hold.by.as_str(), hold.amounts.get(kind)));
        let spent = self.spent.get(&owner).filter(|_| kind == Kind::Tokens);
        let spent = spent.into_iter().flat_map(|spent| spent.by.iter()).map(|(by, sum)| (by.as_str(), *sum));
        for (by, amount) in amounts.chain(spent).filter(|(_, amount)| *amount > 0) {
            let sum = sums.entry(by).or_default();
            *sum = sum.saturating_add(amount);
        }
        let mut shares: Vec<Share> =
            sums.into_iter().map(|(by, amount)| Share { by: by.to_owned(), amount }).collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.amount));
        shares.truncate(NAMED);
        shares
    }

    #[must_use]
    pub fn usage(&self, owner: Principal) -> Vec<QuotaUsage> {
        let usage = |kind: Kind| QuotaUsage {
            kind,
            unit: kind.unit(),
            used: self.used(owner, kind),
            limit: self.limit(owner, kind),
            by: self.shares(owner, kind),
        };
        Kind::ALL.map(usage).to_vec()
    }
}

#[cfg(test)]
mod tests;
