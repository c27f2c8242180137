//! The ids of a user by which Linux decides about access to files.

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
}
