//! Removes packages that nothing uses where their room is needed: for what their user wants to have on the disk, for
//! what all users have, for other packages of a cache that is full, or because somebody asks for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::SystemTime;

use super::cache::{CachedSet, PackageCache, UserCache};
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::Ledger;
use crate::sandbox::workspace::remove_tree;

/// A set of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSet {
    /// The folder of the cache.
    pub cache: PathBuf,
    /// Who pays for the cache.
    pub payer: Principal,
    pub key: String,
    pub copy: String,
    pub bytes: u64,
    /// Whether a session, a sandbox or somebody else uses it, or might.
    pub is_used: bool,
    pub last_used: SystemTime,
}

/// The bytes that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub of_payers: BTreeMap<Principal, u64>,
    /// The bytes that anybody may give.
    pub of_all: u64,
}

impl Missing {
    pub fn is_nothing(&self) -> bool {
        self.of_all == 0 && self.of_payers.values().all(|bytes| *bytes == 0)
    }

    /// What users of unused packages, and all users, have above their limits.
    pub fn in_quotas(ledger: &Ledger, payers: impl IntoIterator<Item = Principal>) -> Self {
        let excess = |payer| (payer, ledger.excess(payer, Kind::Workspace));
        let of_payers = payers.into_iter().map(excess).collect();
        Self { of_payers, of_all: ledger.excess_of_all(Kind::Workspace) }
    }
}

/// Removes sets until nothing is missing any more; `remove` says whether one is gone, and for one that is not the next one
/// goes. Of each user those that nothing uses go first, of them the least recently used; what anybody may give is taken
/// from the user with the most bytes of such sets.
fn remove_sets(mut sets: Vec<KeptSet>, missing: &Missing, mut remove: impl FnMut(&KeptSet) -> bool) {
    sets.sort_by(|a, b| (a.is_used, a.last_used, &a.key).cmp(&(b.is_used, b.last_used, &b.key)));
    let mut of_payers: BTreeMap<Principal, VecDeque<KeptSet>> = BTreeMap::new();
    for set in sets {
        of_payers.entry(set.payer).or_default().push_back(set);
    }
    let mut freed: u64 = 0;
    for (payer, sets) in &mut of_payers {
        let mut missing = missing.of_payers.get(payer).copied().unwrap_or(0);
        while missing > 0
            && let Some(set) = sets.pop_front()
        {
            if remove(&set) {
                missing = missing.saturating_sub(set.bytes);
                freed = freed.saturating_add(set.bytes);
            }
        }
    }
    let bytes = |sets: &VecDeque<KeptSet>| sets.iter().map(|set| set.bytes).sum::<u64>();
    while freed < missing.of_all {
        let largest = of_payers.iter_mut().min_by_key(|(_, sets)| (sets.is_empty(), Reverse(bytes(sets))));
        let Some(set) = largest.and_then(|(_, sets)| sets.pop_front()) else { break };
        if remove(&set) {
            freed = freed.saturating_add(set.bytes);
        }
    }
}

impl PackageCache {
    /// Removes some of these sets, of these caches, until nothing is missing any more, and gives the number and the bytes
    /// of those that are gone. This never waits for somebody who looks at a cache: such a cache is left as it is.
    pub fn make_room(&self, caches: &[UserCache], sets: Vec<KeptSet>, missing: &Missing) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        remove_sets(sets, missing, |set| {
            let of_set = caches.iter().find(|cache| cache.folder() == set.cache);
            let is_removed = of_set.is_some_and(|cache| self.remove(cache, set));
            if is_removed {
                tracing::info!(
                    set = set.key,
                    payer = set.payer.uid(),
                    bytes = set.bytes,
                    "cached packages were removed"
                );
                (count, bytes) = (count + 1, bytes + set.bytes);
            }
            is_removed
        });
        (count, bytes)
    }

    /// Removes a set, unless it has come to be used since, is being read, or the cache is being looked at.
    pub fn remove(&self, cache: &UserCache, set: &KeptSet) -> bool {
        let Some(alone) = cache.uses.try_write() else { return false };
        let may_go =
            if set.is_used { !self.charges.is_read(&set.copy) } else { self.charges.is_unused(&set.copy) };
        if !may_go {
            return false;
        }
        let moved = match cache.take_name(&set.key, &set.copy) {
            Ok(Some(moved)) => moved,
            // Somebody else has removed it, and the set may have been installed again since.
            Ok(None) => return false,
            Err(error) => {
                // It has its name still, so that it can be used, and be removed later.
                tracing::warn!(%error, set = set.key, "the name of cached packages cannot be taken away");
                return false;
            }
        };
        drop(alone);
        if let Err(error) = remove_tree(&moved) {
            tracing::warn!(%error, set = set.key, "cached packages cannot be removed");
            self.charges.is_stuck(&set.copy);
            return false;
        }
        self.charges.is_removed(&set.copy, &set.key);
        true
    }

    /// The sets of a cache.
    pub fn sets_in(&self, cache: &UserCache) -> Vec<KeptSet> {
        let kept = |(key, set): (String, CachedSet)| KeptSet {
            cache: cache.folder().to_owned(),
            payer: cache.payer(),
            key,
            is_used: !self.charges.is_unused(&set.note.copy),
            copy: set.note.copy,
            bytes: set.note.bytes,
            last_used: set.used,
        };
        cache.sets().into_iter().map(kept).collect()
    }

    /// The sets of a cache that nothing uses.
    pub fn unused_in(&self, cache: &UserCache) -> Vec<KeptSet> {
        self.sets_in(cache).into_iter().filter(|set| !set.is_used).collect()
    }

    /// Removes unused sets of users who have more on the disk than they may, or of all if they together have.
    pub fn make_room_in_quotas(&self, ledger: &Ledger) {
        let payers = self.charges.payers_of_unused();
        let mut caches = self.caches();
        caches.retain(|cache| payers.contains(&cache.payer()));
        let unused = caches.iter().flat_map(|cache| self.unused_in(cache)).collect();
        // What is missing is looked at last, because others may have given room meanwhile.
        self.make_room(&caches, unused, &Missing::in_quotas(ledger, payers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn set(payer: Principal, key: &str, age: u64, bytes: u64, is_used: bool) -> KeptSet {
        let last_used = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age);
        KeptSet { cache: PathBuf::new(), payer, key: key.into(), copy: key.into(), bytes, is_used, last_used }
    }

    /// The keys of the sets that go, of which some cannot be removed.
    fn removed(sets: Vec<KeptSet>, missing: &Missing, stays: &[&str]) -> Vec<String> {
        let mut keys = Vec::new();
        remove_sets(sets, missing, |set| {
            let goes = !stays.contains(&set.key.as_str());
            keys.extend(goes.then(|| set.key.clone()));
            goes
        });
        keys
    }

    fn chosen(of_ann: u64, of_all: u64) -> Vec<String> {
        let unused = vec![
            set(Principal::ANN, "new", 1, 10, false),
            set(Principal::BOB, "bobs-new", 2, 40, false),
            set(Principal::ANN, "old", 9, 10, false),
            set(Principal::BOB, "bobs-old", 20, 40, false),
            set(Principal::ANN, "older", 10, 10, false),
        ];
        let of_payers = BTreeMap::from([(Principal::ANN, of_ann)]);
        removed(unused, &Missing { of_payers, of_all }, &[])
    }

    #[test]
    fn the_least_recently_used_of_the_user_who_needs_room_goes_first() {
        assert_eq!(chosen(0, 0), Vec::<String>::new());
        assert_eq!(chosen(1, 0), ["older"]);
        assert_eq!(chosen(11, 0), ["older", "old"]);
        // There is no more to give, and nobody else gives for her.
        assert_eq!(chosen(1000, 0), ["older", "old", "new"]);
    }

    #[test]
    fn what_is_used_goes_last_however_old_it_is() {
        let of_ann = |key, age, is_used| set(Principal::ANN, key, age, 10, is_used);
        let sets = vec![of_ann("used", 900, true), of_ann("unused", 1, false), of_ann("used-too", 5, true)];
        let missing = Missing { of_payers: BTreeMap::from([(Principal::ANN, 15)]), of_all: 0 };
        assert_eq!(removed(sets, &missing, &[]), ["unused", "used"]);
    }

    #[test]
    fn for_what_cannot_be_removed_the_next_one_goes() {
        let sets = || {
            let of = |payer, key, age| set(payer, key, age, 10, false);
            vec![of(Principal::ANN, "old", 9), of(Principal::ANN, "new", 1), of(Principal::BOB, "bobs", 5)]
        };
        let of_ann = Missing { of_payers: BTreeMap::from([(Principal::ANN, 5)]), of_all: 0 };
        assert_eq!(removed(sets(), &of_ann, &["old"]), ["new"]);
        let of_all = Missing { of_all: 15, ..Missing::default() };
        assert_eq!(removed(sets(), &of_all, &["old"]).len(), 2);
        assert_eq!(removed(sets(), &of_all, &["old", "new", "bobs"]), Vec::<String>::new());
    }

    #[test]
    fn for_all_users_the_one_with_the_most_unused_bytes_gives_first() {
        assert_eq!(chosen(0, 1), ["bobs-old"]);
        assert_eq!(chosen(0, 50), ["bobs-old", "bobs-new"]);
        assert_eq!(chosen(0, 81), ["bobs-old", "bobs-new", "older"]);
        assert_eq!(chosen(0, u64::MAX).len(), 5);
        // What a user gives for itself is given for all.
        assert_eq!(chosen(5, 10), ["older"]);
        assert_eq!(chosen(5, 11), ["older", "bobs-old"]);
    }
}
