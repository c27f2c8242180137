//! The map of all sessions of the daemon, by id. The supervisor writes it; requests and asks read it, so that none of
//! them waits for the supervisor's mailbox.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::session::messages::SessionRef;
use crate::controls;
use crate::protocol::ids::{JobId, SessionId, SessionName};

#[derive(Clone)]
pub struct Listed {
    pub owner: u32,
    pub name: SessionName,
    /// The job that the session serves: its owner sees the job instead of the session.
    pub job: Option<JobId>,
    pub session: SessionRef,
}

#[derive(Clone, Default)]
pub struct Directory(Arc<RwLock<BTreeMap<SessionId, Listed>>>);

impl Directory {
    pub(super) fn add(&self, id: SessionId, listed: Listed) {
        self.0.write().insert(id, listed);
    }

    pub(super) fn remove(&self, id: SessionId) {
        self.0.write().remove(&id);
    }

    #[must_use]
    pub fn lists(&self, id: SessionId) -> bool {
        self.0.read().contains_key(&id)
    }

    /// Finds a session of `peer` by its name or id. With `of_all`, an id also finds a session of another user.
    #[must_use]
    pub fn find(&self, peer: u32, key: &str, of_all: bool) -> Option<Listed> {
        let is_meant = |id: &SessionId, listed: &Listed| {
            let is_own = listed.owner == peer || !controls::holds("sessions_have_an_owner");
            is_own && listed.name.as_str() == key || (is_own || of_all) && id.to_string() == key
        };
        let sessions = self.0.read();
        let mut seen = sessions.iter().filter(|(_, listed)| listed.job.is_none());
        seen.find(|(id, listed)| is_meant(id, listed)).map(|(_, listed)| listed.clone())
    }

    /// The sessions of one user, or of all; without those that serve jobs.
    #[must_use]
    pub fn list(&self, peer: Option<u32>) -> Vec<SessionRef> {
        let sessions = self.0.read();
        let meant = sessions
            .values()
            .filter(|listed| listed.job.is_none() && peer.is_none_or(|peer| peer == listed.owner));
        meant.map(|listed| listed.session.clone()).collect()
    }
}
