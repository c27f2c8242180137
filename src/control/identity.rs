//! Who a user is beyond its number: a name and groups, from the machine's own lists, never from a
//! message. The kernel says the number and the group that a process runs with.

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The lists may lie on another machine; who cannot be looked up has no name and no groups.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(2);
/// A change of groups is seen after this time.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Users that are remembered.
const USERS: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    pub name: Option<String>,
    pub groups: Vec<String>,
}

/// By user and the group that its process runs with.
type Known = HashMap<(u32, Option<u32>), (Instant, Arc<Who>)>;

#[derive(Clone, Default)]
pub struct Identities(Arc<Mutex<Known>>);

impl Identities {
    pub async fn of(&self, uid: u32, gid: Option<u32>) -> Arc<Who> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, who)) = known().get(&(uid, gid))
            && at.elapsed() < REMEMBERED
        {
            return Arc::clone(who);
        }
        let looked_up = tokio::task::spawn_blocking(move || look_up(uid, gid));
        let looked_up = tokio::time::timeout(LOOKED_UP_WITHIN, looked_up).await;
        let who = Arc::new(looked_up.unwrap_or(Ok(Who::default())).unwrap_or_default());
        let mut known = known();
        if known.len() >= USERS {
            known.clear();
        }
        known.insert((uid, gid), (Instant::now(), Arc::clone(&who)));
        who
    }
}

fn look_up(uid: u32, gid: Option<u32>) -> Who {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let listed = user.as_ref().and_then(|user| {
        let name = CString::new(user.name.as_str()).ok()?;
        getgrouplist(&name, user.gid).ok()
    });
    let running = gid.map(Gid::from_raw);
    let mut groups: Vec<String> = listed
        .into_iter()
        .flatten()
        .chain(running)
        .filter_map(|gid| Some(Group::from_gid(gid).ok()??.name))
        .collect();
    groups.sort();
    groups.dedup();
    Who { name: user.map(|user| user.name), groups }
}

/// A user as people write it: a name, or a number.
pub async fn number_of(user: &str) -> Option<u32> {
    if let Ok(uid) = user.parse() {
        return Some(uid);
    }
    let name = user.to_owned();
    let found = tokio::task::spawn_blocking(move || User::from_name(&name).ok().flatten());
    let found = tokio::time::timeout(LOOKED_UP_WITHIN, found).await.ok()?.ok()?;
    found.map(|user| user.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_and_groups_come_from_the_machine() {
        let identities = Identities::default();
        let root = identities.of(0, Some(1)).await;
        assert_eq!(root.name.as_deref(), Some("root"));
        assert!(
            ["root", "daemon"].iter().all(|group| root.groups.contains(&(*group).to_owned())),
            "{root:?}"
        );
        let nobody_knows = identities.of(3_999_999_999, None).await;
        assert_eq!(*nobody_knows, Who::default());
        assert_eq!(number_of("root").await, Some(0));
        assert_eq!(number_of("61001").await, Some(61001));
        assert_eq!(number_of("no-such-user").await, None);
    }
}
