//! User ids of the configured range. No two sessions have the same one at the same time.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::Sandbox as Settings;
use crate::protocol::problem::{Code, Problem};

pub struct UserSlots {
    first: u32,
    /// The last user id of the range. No session gets it, because it compiles kernels.
    last: u32,
    /// The user ids in use, each with its number of holders: a restarted session takes its id again before its previous
    /// generation has released it.
    taken: Mutex<BTreeMap<u32, usize>>,
}

/// A user id of the range, given back when the session ends.
pub struct UserSlot {
    slots: Arc<UserSlots>,
    pub uid: u32,
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        match taken.get_mut(&self.uid) {
            Some(users) if *users > 1 => *users -= 1,
            _ => drop(taken.remove(&self.uid)),
        }
    }
}

impl UserSlots {
    pub fn new(settings: &Settings) -> Self {
        let last = settings.uid_first.saturating_add(settings.uid_count).saturating_sub(1);
        Self { first: settings.uid_first, last, taken: Mutex::default() }
    }

    /// Takes the user id that a session already had before the daemon restarted.
    pub fn keep(self: &Arc<Self>, uid: u32) -> UserSlot {
        *self.taken.lock().entry(uid).or_default() += 1;
        UserSlot { slots: Arc::clone(self), uid }
    }

    /// Takes a user id that no other session has.
    pub fn take(self: &Arc<Self>) -> Result<UserSlot, Problem> {
        let mut taken = self.taken.lock();
        // From a random place on, because the first free one would tell a guest how many sessions other users have.
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let count = self.last.saturating_sub(self.first).max(1);
        let start = self.first + u32::try_from(random % u64::from(count)).unwrap_or(0);
        let free_uid = (start..self.last).chain(self.first..start).find(|uid| !taken.contains_key(uid));
        let uid = free_uid.ok_or_else(|| {
            Problem::new(Code::TooMany, "all user ids for guests are in use")
                .hint("raise `sandbox.uid_count`")
        })?;
        taken.insert(uid, 1);
        Ok(UserSlot { slots: Arc::clone(self), uid })
    }

    /// The user id that compiles kernels. An error if a session still has it from before the id was reserved, or a sandbox
    /// in which a kernel was compiled could not be removed yet.
    pub fn for_compiling(self: &Arc<Self>) -> Result<UserSlot, Problem> {
        if self.taken.lock().contains_key(&self.last) {
            return Err(Problem::new(
                Code::TooMany,
                format!("user id {}, which compiles kernels, is in use", self.last),
            )
            .hint("remove sessions, or raise `sandbox.uid_count`"));
        }
        Ok(self.keep(self.last))
    }
}

#[cfg(test)]
impl UserSlots {
    pub fn is_taken(&self, uid: u32) -> bool {
        self.taken.lock().contains_key(&uid)
    }
}
