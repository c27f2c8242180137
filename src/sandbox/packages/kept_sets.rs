//! The lists of what caches keep, and removing what nothing uses of it because somebody asks for it.

use std::sync::Arc;

use super::cache::UserCache;
use super::make_room::Missing;
use crate::protocol::clock;
use crate::protocol::packages::{ClearedPackages, KeptPackages};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};

impl Launcher {
    /// The sets that a user's cache keeps, and those of others that the user's sessions use; without a user, all. The work
    /// is charged to `caller`.
    pub async fn kept_packages(
        self: &Arc<Self>,
        caller: Principal,
        owner: Option<Principal>,
    ) -> Result<Vec<KeptPackages>, Problem> {
        let launcher = Arc::clone(self);
        let list = move || {
            let mut caches = launcher.packages.caches();
            // No session uses a private cache of another user, so that those of others are not looked through.
            if launcher.packages.is_private() {
                caches.retain(|cache| owner.is_none_or(|owner| owner == cache.payer()));
            }
            let mut all: Vec<_> = caches.iter().flat_map(|cache| launcher.kept_in(cache, owner)).collect();
            // The newest last, as in other lists; of equal ones always the same.
            all.sort_by(|a, b| (a.owner, &a.last_used, &a.set).cmp(&(b.owner, &b.last_used, &b.set)));
            all
        };
        folders::run(caller, WorkKind::Look, None, list).await
    }

    fn kept_in(&self, cache: &UserCache, owner: Option<Principal>) -> Vec<KeptPackages> {
        let mut kept = Vec::new();
        for (key, set) in cache.sets() {
            let users = self.packages.charges.users(&set.note.copy);
            let is_seen = |owner| cache.payer() == owner || users.contains_key(&owner);
            if !owner.is_none_or(is_seen) {
                continue;
            }
            let is_named = |user: &Principal| owner.is_none_or(|owner| owner == *user);
            let named = users.iter().filter(|(user, _)| is_named(user));
            kept.push(KeptPackages {
                owner: cache.payer(),
                set: key,
                packages: set.note.packages,
                bytes: set.note.bytes,
                used_by: named.flat_map(|(_, sessions)| sessions.iter().cloned()).collect(),
                in_use: !self.packages.charges.is_unused(&set.note.copy),
                last_used: clock::of(set.used),
            });
        }
        kept
    }

    /// Removes the sets of a user's cache that nothing uses, and the answers that led to them; without a user, of all
    /// caches.
    pub async fn clear_packages(
        self: &Arc<Self>,
        caller: Principal,
        owner: Option<Principal>,
        ledger: &Ledger,
    ) -> Result<ClearedPackages, Problem> {
        let (launcher, books) = (Arc::clone(self), ledger.clone());
        let clear = move || {
            let packages = &launcher.packages;
            let mut caches = packages.caches();
            caches.retain(|cache| owner.is_none_or(|owner| owner == cache.payer()));
            let unused = caches.iter().flat_map(|cache| packages.unused_in(cache)).collect();
            let all = Missing { of_all: u64::MAX, ..Missing::default() };
            let (sets, bytes) = packages.make_room(&caches, unused, &all);
            for cache in &caches {
                packages.forget_answers(cache, &books);
            }
            let left: usize = caches.iter().map(|cache| cache.sets().len()).sum();
            ClearedPackages { sets, bytes, in_use: left as u64 }
        };
        folders::run(caller, WorkKind::Removal, None, clear).await
    }
}
