//! What a session uses of its user's cache, whether or not it has a sandbox.

use parking_lot::Mutex;
use std::sync::Arc;

use super::charges::{CopyUse, UnreadSession};
use crate::protocol::ids::SessionName;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::quota::Ledger;
use crate::sandbox::folder::storage_problem;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};

/// The packages that a session uses, until it ends. Clones are the same.
#[derive(Clone)]
pub struct SessionUse {
    pub session: SessionName,
    state: Arc<Mutex<UseState>>,
}

#[derive(Default)]
struct UseState {
    /// Set until the daemon knows which packages the session uses.
    unread: Option<UnreadSession>,
    /// The key of the set that the session has, if it is known.
    key: Option<String>,
    /// None if the session uses nothing, or a set that the cache does not have.
    _used: Option<Arc<CopyUse>>,
}

impl UseState {
    fn of(key: Option<&str>, used: Option<Arc<CopyUse>>) -> Self {
        Self { unread: None, key: key.map(str::to_owned), _used: used }
    }
}

impl SessionUse {
    /// A new session, which uses no packages.
    pub fn none(session: SessionName) -> Self {
        Self { session, state: Arc::default() }
    }

    /// A session of an earlier daemon whose journal has not been read.
    pub fn unread(session: SessionName, unread: UnreadSession) -> Self {
        let state = UseState { unread: Some(unread), ..UseState::default() };
        Self { session, state: Arc::new(Mutex::new(state)) }
    }

    pub fn is_unread(&self) -> bool {
        self.state.lock().unread.is_some()
    }

    /// From now on the session has this set, and uses nothing that it used before.
    pub fn hold(&self, key: &str, used: Option<Arc<CopyUse>>) {
        *self.state.lock() = UseState::of(Some(key), used);
    }

    /// The same for a set that has appeared in a sandbox, unless the session has come to have another one meanwhile.
    pub fn hold_shown(&self, key: &str, used: Option<Arc<CopyUse>>) {
        let mut state = self.state.lock();
        if state.key.as_deref().is_none_or(|has| has == key) {
            *state = UseState::of(Some(key), used);
        }
    }

    /// The same for what a session of an earlier daemon has, if anything, unless it has come to use something meanwhile.
    fn hold_if_unread(&self, key: Option<&str>, used: Option<CopyUse>) {
        let mut state = self.state.lock();
        if state.unread.is_some() {
            *state = UseState::of(key, used.map(Arc::new));
        }
    }
}

impl Launcher {
    /// Uses the packages again that a session of an earlier daemon has. If it cannot be seen whether the cache has them,
    /// nothing of the user is removed until the session has a sandbox with them, or has ended.
    pub async fn use_packages_again(
        self: &Arc<Self>,
        owner: Principal,
        set: Option<&PackageSet>,
        ledger: &Ledger,
        used: &SessionUse,
    ) -> Result<(), Problem> {
        let Some(set) = set else {
            used.hold_if_unread(None, None);
            return Ok(());
        };
        let (launcher, books, used) = (Arc::clone(self), ledger.clone(), used.clone());
        let (key, built) = (set.key.clone(), set.sources);
        let use_again = move || {
            let cache = launcher.packages.of(owner, built)?;
            let found = launcher.packages.use_again(&cache, &books, &key, &used.session)?;
            used.hold_if_unread(Some(&key), found);
            Ok::<(), std::io::Error>(())
        };
        // Sessions wait for this kind of work only for a short time, so it waits for no transfer of the user.
        let looked = folders::run(owner, WorkKind::Look, None, use_again).await?;
        looked.map_err(|error| storage_problem(&self.paths.packages_dir(), &error))
    }
}
