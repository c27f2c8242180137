//! The ids of a user whose groups may change while a session exists: a user who leaves a group loses its rights in the
//! session, too.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::controls;
use crate::sandbox::workspace::owner::Ids;

/// How long an answer of the user database is used.
const REMEMBERED: Duration = Duration::from_secs(5);

type LookUp = fn(u32) -> nix::Result<Option<Ids>>;

/// With whose ids work is done: those of a guest, which never change, or those of a user as they are now.
#[derive(Debug)]
pub struct CurrentIds {
    /// `None` for a guest.
    look_up: Option<LookUp>,
    /// For a user without an account.
    alone: Ids,
    last: Mutex<(Instant, Arc<Ids>)>,
}

impl CurrentIds {
    #[must_use]
    pub fn of_guest(ids: Ids) -> Self {
        Self { look_up: None, alone: ids.clone(), last: Mutex::new((Instant::now(), Arc::new(ids))) }
    }

    /// The ids of the user of `alone`, who has these as long as there is no account for that user. The user database is
    /// asked at once.
    #[must_use]
    pub fn of_account(alone: Ids) -> Self {
        Self::looked_up_by(Ids::look_up, alone)
    }

    fn looked_up_by(look_up: LookUp, alone: Ids) -> Self {
        let first = look_up(alone.uid).ok().flatten().unwrap_or_else(|| alone.clone());
        Self { look_up: Some(look_up), alone, last: Mutex::new((Instant::now(), Arc::new(first))) }
    }

    /// The ids now. This may wait for the user database, so it is asked on a thread of the user whose work it is. While
    /// the database does not answer, its last answer holds.
    #[must_use]
    pub fn now(&self) -> Arc<Ids> {
        let (at, known) = self.last.lock().clone();
        let Some(look_up) = self.look_up.filter(|_| controls::holds("groups_are_current")) else {
            return known;
        };
        if at.elapsed() < REMEMBERED {
            return known;
        }
        let Ok(found) = look_up(self.alone.uid) else {
            tracing::warn!(uid = self.alone.uid, "the lists of users do not answer");
            return known;
        };
        let found = Arc::new(found.unwrap_or_else(|| self.alone.clone()));
        *self.last.lock() = (Instant::now(), Arc::clone(&found));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// 0: a member of group 27; 1: no member; 2: no account; else: no answer.
    static STAGE: AtomicU32 = AtomicU32::new(0);

    fn staged(uid: u32) -> nix::Result<Option<Ids>> {
        let ids = |groups: &[u32]| Ok(Some(Ids { uid, gid: 1000, groups: groups.to_vec() }));
        match STAGE.load(Ordering::Relaxed) {
            0 => ids(&[1000, 27]),
            1 => ids(&[1000]),
            2 => Ok(None),
            _ => Err(nix::Error::EIO),
        }
    }

    #[test]
    fn a_group_that_its_user_has_left_is_no_right_any_more() {
        let ids = CurrentIds::looked_up_by(staged, Ids::alone(1000, 65_534));
        let at_stage = |stage| {
            STAGE.store(stage, Ordering::Relaxed);
            let long_ago = Instant::now().checked_sub(2 * REMEMBERED)?;
            ids.last.lock().0 = long_ago;
            Some(ids.now().groups.clone())
        };
        assert_eq!(ids.now().groups, [1000, 27]);
        let Some(left) = at_stage(1) else { return };
        assert_eq!(left, [1000]);
        assert_eq!(at_stage(0).unwrap(), [1000, 27]);
        // Without an answer the last one holds.
        assert_eq!(at_stage(3).unwrap(), [1000, 27]);
        assert!(at_stage(2).unwrap().is_empty());
        assert_eq!(ids.now().gid, 65_534);
    }
}
