//! Which user a request speaks of: the caller, or a user whom an administrator names. The effective group of
//! the client process does not count: a set-gid program, or a shell that was left open, keeps a group that its user has
//! lost.

use std::sync::Arc;

use super::caller::Caller;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::user_database::{self, UserInfo, Users};

#[derive(Clone)]
pub struct UserLookup {
    users: Users,
}

impl Default for UserLookup {
    fn default() -> Self {
        Self { users: user_database::users() }
    }
}

impl UserLookup {
    /// # Errors
    /// The user database does not answer, and nothing is known of that user. Then the user is refused, because not even
    /// the user's limits are known.
    pub async fn of(&self, user: Principal) -> Result<Arc<UserInfo>, Problem> {
        let (users, uid) = (self.users.clone(), user.uid());
        if let Some(who) = users.fresh(&uid) {
            return Ok(who);
        }
        let answer = tokio::task::spawn_blocking(move || users.get(&uid)).await;
        answer.ok().and_then(Result::ok).ok_or_else(|| {
            let what = format!("the machine's lists of users say nothing of user {user}");
            let hint = "try again; `getent passwd` and `getent group` show whether they answer";
            Problem::new(Code::Forbidden, what).hint(hint)
        })
    }

    /// Resolves a user that the caller names, by number or by name. Names other than the caller's own are looked up
    /// only for administrators, because a lookup occupies a thread while the user database does not answer.
    pub async fn named(&self, user: &str, caller: &Caller) -> Option<Principal> {
        if let Ok(uid) = user.parse::<u32>() {
            // Only the canonical number is accepted: `007` would be another spelling of `7` in the record of an
            // administrator's acts.
            return (uid.to_string() == user).then_some(Principal::new(uid));
        }
        if self.of(caller.principal).await.is_ok_and(|who| who.name.as_deref() == Some(user)) {
            return Some(caller.principal);
        }
        if !caller.admin {
            return None;
        }
        let name = user.to_owned();
        let found = tokio::task::spawn_blocking(move || user_database::uid_of(name)).await;
        found.ok().flatten().map(Principal::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::user_database::Lookups;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn others_are_looked_up_for_administrators_alone() {
        let users = UserLookup::default();
        let root = Caller::new(Principal::ROOT, true);
        let user = Caller::new(Principal::ANN, false);
        assert_eq!(users.named("daemon", &root).await, Some(Principal::ANN));
        assert_eq!(users.named("daemon", &user).await, Some(Principal::ANN), "its own name");
        assert_eq!(users.named("root", &root).await, Some(Principal::ROOT));
        assert_eq!(users.named("root", &user).await, None);
        assert_eq!(users.named("61001", &user).await, Some(Principal::new(61_001)));
        for other in ["061001", "+61001", "", "-1", "4294967296", "no-such-user"] {
            assert_eq!(users.named(other, &root).await, None, "{other}");
        }
    }

    static ANSWERS: AtomicBool = AtomicBool::new(true);

    /// Otherwise the limits of a group would disappear together with the server that knows the groups.
    #[tokio::test]
    async fn lists_that_do_not_answer_take_nothing_back_and_give_nothing() {
        let users: Users = Lookups::new(|_| {
            let who =
                UserInfo { name: Some("ann".into()), groups: vec!["staff".into()], ..UserInfo::default() };
            if ANSWERS.load(Ordering::Relaxed) { Ok(Arc::new(who)) } else { Err(nix::Error::EIO) }
        });
        let lookup = UserLookup { users: users.clone() };
        let known = lookup.of(Principal::new(7)).await.unwrap();
        ANSWERS.store(false, Ordering::Relaxed);
        users.age();
        assert_eq!(lookup.of(Principal::new(7)).await.unwrap(), known);
        let refused = lookup.of(Principal::new(8)).await.unwrap_err();
        assert_eq!(refused.code, Code::Forbidden);
    }
}
