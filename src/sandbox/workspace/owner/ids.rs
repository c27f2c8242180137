//! The ids of a user for the kernel's checks on files.

use nix::unistd::{Uid, User, getgrouplist};
use std::ffi::CString;

/// The group that is meant to have no members, for users without an account.
pub const NO_GROUP: u32 = 65_534;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Ids {
    /// A user and a group without other groups, such as a guest.
    pub fn alone(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new() }
    }

    /// The ids of a user by the machine's user database; `None` for a user without an account, and an error where the
    /// database does not answer. The database may lie on another machine and be slow, so the lookup runs on a thread
    /// that no other work needs.
    pub fn look_up(uid: u32) -> nix::Result<Option<Self>> {
        let Some(user) = User::from_uid(Uid::from_raw(uid))? else { return Ok(None) };
        let name = CString::new(user.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
        let groups = getgrouplist(&name, user.gid)?.into_iter().map(nix::unistd::Gid::as_raw).collect();
        Ok(Some(Self { uid, gid: user.gid.as_raw(), groups }))
    }

    /// The same, for callers to whom an error is the same as a missing account.
    pub fn of_account(uid: u32) -> Option<Self> {
        Self::look_up(uid).ok().flatten()
    }

    /// The same, but a user without an account gets `NO_GROUP` and no other groups.
    pub fn of_user(uid: u32) -> Self {
        Self::of_account(uid).unwrap_or_else(|| Self::alone(uid, NO_GROUP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_the_machine() {
        assert_eq!(Ids::of_account(0).unwrap().gid, 0);
        assert_eq!(Ids::of_user(3_999_999_999), Ids::alone(3_999_999_999, NO_GROUP));
    }
}
