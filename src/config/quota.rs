//! What each user may have, and which users may have something else.

use std::collections::BTreeMap;

use super::agent::Named;
use crate::protocol::quota::Kind;

/// A bound for each kind that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits(BTreeMap<Kind, u64>);

impl Limits {
    #[must_use]
    pub fn get(&self, kind: Kind) -> Option<u64> {
        self.0.get(&kind).copied()
    }
}

impl FromIterator<(Kind, u64)> for Limits {
    fn from_iter<I: IntoIterator<Item = (Kind, u64)>>(limits: I) -> Self {
        Self(limits.into_iter().collect())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Of a user that nothing else is said of.
    pub everyone: Limits,
    /// Of all users together.
    pub machine: Limits,
    /// By name or number.
    pub users: Named<Limits>,
    pub groups: Named<Limits>,
}

impl Quota {
    /// What holds for one user: its own, else the largest of its groups', else everyone's.
    #[must_use]
    pub fn of(&self, uid: u32, name: Option<&str>, groups: &[String]) -> Limits {
        let number = uid.to_string();
        let own = name.and_then(|name| self.users.get(name)).or_else(|| self.users.get(&number));
        let limit = |kind: Kind| {
            let of_groups = groups.iter().filter_map(|group| self.groups.get(group)?.get(kind)).max();
            own.and_then(|own| own.get(kind)).or(of_groups).or(self.everyone.get(kind))
        };
        Kind::ALL.into_iter().filter_map(|kind| Some((kind, limit(kind)?))).collect()
    }
}
