//! The ids of a user whose groups may change while a session exists: a user who leaves a group loses its rights in the
//! session, too.

use parking_lot::Mutex;
use std::sync::Arc;

use crate::sandbox::user_database::{self, Users};
use crate::sandbox::workspace::owner::Ids;
use crate::security_controls;

/// With whose ids work is done: those of a guest, which never change, or those of a user as they are now.
#[derive(Debug)]
pub struct CurrentIds {
    /// Where the accounts of users are looked up; none for a guest, who has no account.
    users: Option<Users>,
    /// The ids that a guest has, and a user as long as there is no account for that user.
    alone: Arc<Ids>,
    last: Mutex<Arc<Ids>>,
}

impl CurrentIds {
    #[must_use]
    pub fn of_guest(ids: Ids) -> Self {
        let alone = Arc::new(ids);
        Self { users: None, last: Mutex::new(Arc::clone(&alone)), alone }
    }

    /// The ids of the user of `alone`, who has these as long as there is no account for that user. The user database is
    /// asked at once.
    #[must_use]
    pub fn of_account(alone: Ids) -> Self {
        Self::found_in(user_database::users(), alone)
    }

    fn found_in(users: Users, alone: Ids) -> Self {
        let guest = Self::of_guest(alone);
        let account = Self { users: Some(users), ..guest };
        account.look_up();
        account
    }

    /// The ids now. This may wait for the user database, so it is asked on a thread of the user whose work it is. While
    /// the database does not answer, its last answer holds.
    #[must_use]
    pub fn now(&self) -> Arc<Ids> {
        if security_controls::holds("groups_are_current") {
            self.look_up();
        }
        Arc::clone(&self.last.lock())
    }

    fn look_up(&self) {
        let Some(Ok(who)) = self.users.as_ref().map(|users| users.get(&self.alone.uid)) else { return };
        *self.last.lock() = Arc::clone(who.ids.as_ref().unwrap_or(&self.alone));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::user_database::{Lookups, UserInfo};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// 0: a member of group 27; 1: no member; 2: no account; else: no answer.
    static STAGE: AtomicU32 = AtomicU32::new(0);

    fn staged(uid: u32) -> nix::Result<Arc<UserInfo>> {
        let ids = |groups: &[u32]| {
            let ids = Ids { uid, gid: 1000, groups: groups.to_vec() };
            Ok(Arc::new(UserInfo { ids: Some(Arc::new(ids)), ..UserInfo::default() }))
        };
        match STAGE.load(Ordering::Relaxed) {
            0 => ids(&[1000, 27]),
            1 => ids(&[1000]),
            2 => Ok(Arc::default()),
            _ => Err(nix::Error::EIO),
        }
    }

    #[test]
    fn a_group_that_its_user_has_left_is_no_right_any_more() {
        let users = Lookups::new(|uid| staged(*uid));
        let ids = CurrentIds::found_in(users.clone(), Ids::alone(1000, 65_534));
        let at_stage = |stage| {
            STAGE.store(stage, Ordering::Relaxed);
            users.age();
            ids.now().groups.clone()
        };
        assert_eq!(ids.now().groups, [1000, 27]);
        assert_eq!(at_stage(1), [1000]);
        assert_eq!(at_stage(0), [1000, 27]);
        // Without an answer the last one holds.
        assert_eq!(at_stage(3), [1000, 27]);
        assert!(at_stage(2).is_empty());
        assert_eq!(ids.now().gid, 65_534);
    }
}
