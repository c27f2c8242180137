//! The caller at the other end of a connection: the kernel reports the user id once; the name and groups are looked up
//! for each request and for as long as an answer is being sent.

use parking_lot::Mutex;
use std::sync::Arc;

use super::app::App;
use super::caller::Caller;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::user_database::{REMEMBERED, UserInfo};
use crate::security_controls;

pub(super) struct ConnectedUser {
    app: App,
    pub principal: Principal,
    /// The result of the last lookup.
    last: Mutex<Option<(Arc<UserInfo>, Caller)>>,
}

impl ConnectedUser {
    pub fn new(app: App, principal: Principal) -> Self {
        Self { app, principal, last: Mutex::default() }
    }

    fn last(&self) -> Option<(Arc<UserInfo>, Caller)> {
        self.last.lock().clone()
    }

    /// Looks up the caller, applies the user's limits and determines whether the caller is an administrator.
    pub async fn caller(&self) -> Result<Caller, Problem> {
        let last = self.last();
        if let Some((_, caller)) = &last
            && !security_controls::holds("administrators_are_looked_up_again")
        {
            return Ok(caller.clone());
        }
        let who = self.app.users.of(self.principal).await?;
        if let Some((known, caller)) = last
            && Arc::ptr_eq(&known, &who)
        {
            return Ok(caller);
        }
        let caller = recognise(&self.app, self.principal, &who).await?;
        *self.last.lock() = Some((who, caller.clone()));
        Ok(caller)
    }

    /// Waits until the caller stops being an administrator, so that streams which were started with these rights can be
    /// ended.
    pub async fn until_demoted(&self) {
        loop {
            tokio::time::sleep(REMEMBERED).await;
            let was_admin = self.last().is_some_and(|(_, caller)| caller.admin);
            if was_admin && !self.caller().await.is_ok_and(|caller| caller.admin) {
                return;
            }
        }
    }
}

async fn recognise(app: &App, principal: Principal, who: &UserInfo) -> Result<Caller, Problem> {
    if app.launcher.service.system && !principal.is_root() {
        is_a_user(app, principal, who)?;
        is_the_same_account(app, principal, who).await?;
    }
    app.ledger.set_limits(principal, app.live().quota.of(principal, who.name.as_deref(), &who.groups));
    let admin = !security_controls::holds("administrators_are_few")
        || principal.is_root()
        || who.groups.contains(&app.live().admin.group);
    Ok(Caller::new(principal, admin))
}

/// Refuses ids that a user or a guest can assume at will, because each of them would have a quota of its own.
fn is_a_user(app: &App, principal: Principal, who: &UserInfo) -> Result<(), Problem> {
    if !security_controls::holds("lent_ids_are_no_users") {
        return Ok(());
    }
    if let Some(owner) = &who.subordinate_to {
        let what = format!("user id {principal} is one of those that `/etc/subuid` lends to `{owner}`");
        return Err(
            Problem::new(Code::Forbidden, what).hint("connect as that user, outside of its namespace")
        );
    }
    let sandbox = &app.settings.sandbox;
    if (sandbox.uid_first..sandbox.uid_first.saturating_add(sandbox.uid_count)).contains(&principal.uid()) {
        let what = format!("user id {principal} is one of those that guests run as");
        return Err(Problem::new(Code::Forbidden, what).hint("connect as an ordinary user"));
    }
    Ok(())
}

/// Refuses a user id that was given to another account while sessions, jobs, volumes or images of the previous account
/// remain. All else that is kept of the previous account goes before the new one is noted.
async fn is_the_same_account(app: &App, principal: Principal, who: &UserInfo) -> Result<(), Problem> {
    if !security_controls::holds("reused_ids_inherit_nothing") {
        return Ok(());
    }
    let forget = |before| forget_account(app, principal, before);
    app.launcher.accounts.hand_over(principal, who.name.as_deref(), forget).await
}

/// Forgets what is kept of the account that had the user id before: the answers for its keys, its batches, its removed
/// sessions, and what it has used of its quotas.
async fn forget_account(app: &App, principal: Principal, before: Option<String>) -> Result<(), Problem> {
    if has_something(app, principal)? {
        return Err(app.launcher.accounts.refusal(principal, before.as_deref()));
    }
    if app.in_work.has_some(principal) {
        let what = format!("requests of the account that had user id {principal} before are in progress");
        return Err(Problem::new(Code::Busy, what).hint("try again when they have ended"));
    }
    if security_controls::holds("reused_ids_start_afresh") {
        app.journal.forget_owner(principal).await?;
        app.answer_charges.forget(principal);
        app.ledger.forget_spent(principal);
    }
    Ok(())
}

/// Whether the user has open sessions, kept jobs, volumes or images.
fn has_something(app: &App, principal: Principal) -> Result<bool, Problem> {
    let unknown = || Problem::new(Code::Internal, "nobody knows what a user has");
    let jobs = app.journal.jobs(Some(principal), 1).map_err(|_| unknown())?;
    let (volumes, images) = (&app.launcher.volumes, &app.launcher.built_images);
    let has_files = volumes.has_some(principal) || images.has_some(principal);
    Ok(!app.directory.list(Some(principal)).is_empty() || !jobs.is_empty() || has_files)
}
