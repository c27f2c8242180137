//! The quotas of every user, and the exceptions for single users and groups.

use std::collections::BTreeMap;

use super::agent::Named;
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;

/// The limit of each kind that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits(BTreeMap<Kind, u64>);

impl Limits {
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
    /// The limits of a user for whom neither `users` nor `groups` has a limit.
    pub everyone: Limits,
    /// The limits of all users together.
    pub machine: Limits,
    /// The limits of single users, by name or uid.
    pub users: Named<Limits>,
    pub groups: Named<Limits>,
}

impl Quota {
    /// The limits of one user; for each kind the user's own limit, else the largest of the user's groups, else
    /// everyone's.
    pub fn of(&self, user: Principal, name: Option<&str>, groups: &[String]) -> Limits {
        let number = user.to_string();
        let own = name.and_then(|name| self.users.get(name)).or_else(|| self.users.get(&number));
        let limit = |kind: Kind| {
            let of_groups = groups.iter().filter_map(|group| self.groups.get(group)?.get(kind)).max();
            own.and_then(|own| own.get(kind)).or(of_groups).or(self.everyone.get(kind))
        };
        Kind::ALL.into_iter().filter_map(|kind| Some((kind, limit(kind)?))).collect()
    }
}
