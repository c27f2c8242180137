//! The group of a guest. A group is a right, so a guest has no group that its owner lacks: the owner of a folder need
//! not be a member of the folder's group.

use crate::sandbox::user_database::{is_nameless_group, users};
use crate::sandbox::workspace::owner::{Ids, NO_GROUP};
use crate::security_controls;

/// The group of a guest that works as a user in a folder of that user: the folder's group, if the user is a member.
pub(super) fn for_guest(uid: u32, folder_gid: u32) -> u32 {
    if !security_controls::holds("guest_groups") {
        return folder_gid;
    }
    let Ok(who) = users().get(&uid) else { return NO_GROUP };
    choose(who.ids.as_deref(), uid, folder_gid, is_nameless_group)
}

/// The group of a user who has no account.
#[must_use]
pub(super) fn without_account(uid: u32) -> u32 {
    choose(None, uid, NO_GROUP, is_nameless_group)
}

/// Root's group is never chosen. A user without an account gets the group with the number of its own id, unless that
/// number belongs to a group with a name.
fn choose(account: Option<&Ids>, uid: u32, folder_gid: u32, is_nameless: impl Fn(u32) -> bool) -> u32 {
    let chosen = match account {
        Some(account) if account.groups.contains(&folder_gid) && folder_gid != 0 => folder_gid,
        Some(account) => account.gid,
        None if is_nameless(uid) => uid,
        None => NO_GROUP,
    };
    if chosen == 0 { NO_GROUP } else { chosen }
}

/// The groups that a guest of this daemon may keep: those of the user who runs the daemon. A guest of root's daemon
/// keeps none.
pub(in crate::sandbox) fn of_an_owner() -> Vec<u32> {
    if rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    rustix::process::getgroups().unwrap_or_default().iter().map(|gid| gid.as_raw()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_foreign_group_does_not_give_that_group() {
        let ann = Ids { uid: 1000, gid: 1000, groups: vec![1000, 27, 0] };
        let nameless = |gid| gid > 1000;
        let chosen = |gid| choose(Some(&ann), 1000, gid, nameless);
        assert_eq!([1000, 27, 42, 0].map(chosen), [1000, 27, 1000, 1000]);
        let of_root = Ids { uid: 1000, gid: 0, groups: vec![0] };
        assert_eq!(choose(Some(&of_root), 1000, 0, nameless), NO_GROUP);
    }

    #[test]
    fn a_user_without_an_account_is_in_no_group_that_has_a_name() {
        let nameless = |gid| gid > 1000;
        let chosen = |uid, gid| choose(None, uid, gid, nameless);
        assert_eq!([chosen(61_001, 61_001), chosen(61_001, 42), chosen(42, 42)], [61_001, 61_001, NO_GROUP]);
        assert_eq!(for_guest(3_999_999_999, 42), 3_999_999_999);
    }
}
