//! Which sessions a caller reaches, what an administrator may have done in them, and the record of it.

use super::app::App;
use super::caller::Caller;
use super::problems::ApiResult;
use crate::actors::session::messages::SessionRef;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;
use crate::security_controls;

impl App {
    /// Whether the caller is the daemon's own user or an administrator.
    pub fn is_run_by(&self, caller: &Caller) -> bool {
        caller.admin || caller.principal == self.launcher.service.principal()
    }

    /// The caller's session of that name or id. Administrators also reach sessions of other users, as `NAME@USER` or by
    /// id; each such access is recorded in the session's events.
    pub async fn session(&self, caller: &Caller, key: &str) -> ApiResult<SessionRef> {
        let none = || no_such_session(key);
        let (owner, name, of_all) = match key.split_once('@') {
            None => (caller.principal, key, caller.admin),
            Some((name, user)) => {
                let owner = self.users.named(user, caller).await.filter(|owner| caller.reaches(*owner));
                (owner.ok_or_else(none)?, name, false)
            }
        };
        let found = self.directory.find(owner, name, of_all).ok_or_else(none)?;
        let roots = found.owner.is_root() && !caller.principal.is_root();
        if roots
            && !caller.only_reads_or_stops
            && security_controls::holds("only_root_acts_in_sessions_of_root")
        {
            return Err(Problem::new(Code::Forbidden, "only root has something done in a session of root")
                .hint("look at it, interrupt it, freeze it, reset it or remove it; or make a session of your own")
                .into());
        }
        found.answers().await;
        if found.owner != caller.principal {
            // The session records this before it handles the request itself, because messages of one sender keep their
            // order.
            let _ = found.session.cast(caller.acts());
        }
        Ok(found.session)
    }
}

fn no_such_session(key: &str) -> Problem {
    let printable_key = quotable(key);
    let hint = match printable_key.split_once('@') {
        Some(_) => "list all with `belljar ps --all`, if you are an administrator".to_owned(),
        None => format!("make it with `belljar new {printable_key}`, or list yours with `belljar ps`"),
    };
    Problem::new(Code::NoSuchSession, format!("there is no session `{printable_key}`")).hint(hint)
}
