//! The name and groups of a user id, from the machine's user database and never from a message. The effective group of
//! the client process does not count: a set-gid program, or a shell that was left open, keeps a group that its user has
//! lost.
//!
//! The user database may be on another machine and may not answer. Then the last known answer holds; a user of whom
//! nothing is known is refused, because not even the user's limits are known.

use nix::unistd::{Group, Uid, User, getgrouplist};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

use super::peer::Peer;
use super::subordinate;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};

const LOOKED_UP_WITHIN: Duration = Duration::from_secs(2);
/// How long an answer is used: after this time, new requests and running streams see a change of groups.
pub const REMEMBERED: Duration = Duration::from_secs(5);
/// The most users that are remembered.
const USERS: usize = 1024;
/// The most lookups at once, because a lookup that hangs occupies a thread.
const LOOKUPS: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    pub name: Option<String>,
    pub groups: Vec<String>,
    /// The user to whom `/etc/subuid` lends this user id.
    pub subordinate_to: Option<String>,
}

/// The user database could not be read.
#[derive(Debug)]
struct Unanswered;

/// The time and result of the last lookup, by user id.
type Known = HashMap<Principal, (Instant, Arc<Who>)>;
type LookUp = fn(Principal) -> Result<Who, Unanswered>;

#[derive(Clone)]
pub struct Identities {
    known: Arc<Mutex<Known>>,
    lookups: Arc<Semaphore>,
    look_up: LookUp,
}

impl Default for Identities {
    fn default() -> Self {
        Self { known: Arc::default(), lookups: Arc::new(Semaphore::new(LOOKUPS)), look_up }
    }
}

impl Identities {
    /// # Errors
    /// The user database does not answer, and nothing is known of that user.
    pub async fn of(&self, user: Principal) -> Result<Arc<Who>, Problem> {
        let known = || self.known.lock();
        let before = known().get(&user).cloned();
        if let Some((at, who)) = &before
            && at.elapsed() < REMEMBERED
        {
            return Ok(Arc::clone(who));
        }
        let look_up = self.look_up;
        let Ok(who) = self.ask(move || look_up(user)).await else {
            tracing::warn!(uid = user.uid(), known = before.is_some(), "the lists of users do not answer");
            return before.map(|(_, who)| who).ok_or_else(|| {
                Problem::new(
                    Code::Forbidden,
                    format!("the machine's lists of users say nothing of user {user}"),
                )
                .hint("try again; `getent passwd` and `getent group` show whether they answer")
            });
        };
        let who = Arc::new(who);
        let mut known = known();
        if known.len() >= USERS
            && let Some(oldest) = known.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| *key)
        {
            known.remove(&oldest);
        }
        known.insert(user, (Instant::now(), Arc::clone(&who)));
        Ok(who)
    }

    /// Resolves a user that the caller names, by number or by name. Names other than the caller's own are looked up
    /// only for administrators, because a lookup occupies a thread while the user database does not answer.
    pub async fn named(&self, user: &str, peer: &Peer) -> Option<Principal> {
        if let Ok(uid) = user.parse::<u32>() {
            // Only the canonical number is accepted: `007` would be another spelling of `7` in the record of an
            // administrator's acts.
            return (uid.to_string() == user).then_some(Principal::new(uid));
        }
        if self.of(peer.principal).await.is_ok_and(|who| who.name.as_deref() == Some(user)) {
            return Some(peer.principal);
        }
        if !peer.admin {
            return None;
        }
        let name = user.to_owned();
        let found = self.ask(move || User::from_name(&name).map_err(|_| Unanswered)).await.ok()?;
        found.map(|user| Principal::new(user.uid.as_raw()))
    }

    /// Queries the user database on one of the `LOOKUPS` threads, within `LOOKED_UP_WITHIN`.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> Result<T, Unanswered> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let asked = async {
            let permit = Arc::clone(&self.lookups).acquire_owned().await.map_err(|_| Unanswered)?;
            let answer = tokio::task::spawn_blocking(move || {
                let answer = question();
                drop(permit);
                answer
            });
            answer.await.map_err(|_| Unanswered)?
        };
        tokio::time::timeout(LOOKED_UP_WITHIN, asked).await.map_err(|_| Unanswered)?
    }
}

fn look_up(user: Principal) -> Result<Who, Unanswered> {
    let uid = user.uid();
    let user = User::from_uid(Uid::from_raw(uid)).map_err(|_| Unanswered)?;
    let listed = match &user {
        None => Vec::new(),
        Some(user) => {
            let name = CString::new(user.name.as_str()).map_err(|_| Unanswered)?;
            getgrouplist(&name, user.gid).map_err(|_| Unanswered)?
        }
    };
    let mut groups = Vec::new();
    for gid in listed {
        groups.extend(Group::from_gid(gid).map_err(|_| Unanswered)?.map(|group| group.name));
    }
    groups.sort();
    groups.dedup();
    Ok(Who { name: user.map(|user| user.name), groups, subordinate_to: subordinate::owner_of(uid) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn names_and_groups_come_from_the_machine() {
        let identities = Identities::default();
        let root = identities.of(Principal::ROOT).await.unwrap();
        assert_eq!(root.name.as_deref(), Some("root"));
        assert!(root.groups.contains(&"root".to_owned()), "{root:?}");
        let nobody_knows = identities.of(Principal::new(3_999_999_999)).await.unwrap();
        assert_eq!(*nobody_knows, Who::default());
    }

    #[tokio::test]
    async fn others_are_looked_up_for_administrators_alone() {
        let identities = Identities::default();
        let root = Peer::new(Principal::ROOT, true);
        let user = Peer::new(Principal::ANN, false);
        assert_eq!(identities.named("daemon", &root).await, Some(Principal::ANN));
        assert_eq!(identities.named("daemon", &user).await, Some(Principal::ANN), "its own name");
        assert_eq!(identities.named("root", &root).await, Some(Principal::ROOT));
        assert_eq!(identities.named("root", &user).await, None);
        assert_eq!(identities.named("61001", &user).await, Some(Principal::new(61_001)));
        for other in ["061001", "+61001", "", "-1", "4294967296", "no-such-user"] {
            assert_eq!(identities.named(other, &root).await, None, "{other}");
        }
    }

    static ANSWERS: AtomicBool = AtomicBool::new(true);

    fn sometimes(_: Principal) -> Result<Who, Unanswered> {
        let who = Who { name: Some("ann".into()), groups: vec!["staff".into()], subordinate_to: None };
        if ANSWERS.load(Ordering::Relaxed) { Ok(who) } else { Err(Unanswered) }
    }

    /// Otherwise the limits of a group would disappear together with the server that knows the groups.
    #[tokio::test]
    async fn lists_that_do_not_answer_take_nothing_back_and_give_nothing() {
        let identities = Identities { look_up: sometimes, ..Identities::default() };
        let known = identities.of(Principal::new(7)).await.unwrap();
        ANSWERS.store(false, Ordering::Relaxed);
        let (at, who) = identities.known.lock().get(&Principal::new(7)).cloned().unwrap();
        let Some(long_ago) = at.checked_sub(2 * REMEMBERED) else { return };
        identities.known.lock().insert(Principal::new(7), (long_ago, who));
        assert_eq!(identities.of(Principal::new(7)).await.unwrap(), known);
        let refused = identities.of(Principal::new(8)).await.unwrap_err();
        assert_eq!(refused.code, Code::Forbidden);
    }
}
