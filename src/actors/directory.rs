//! The map of all sessions of the daemon, by id. The supervisor writes it; requests and asks read it, so that none of
//! them waits for the supervisor's mailbox.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::actors::calls::call_promptly;
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::protocol::api::{SessionState, SessionView};
use crate::protocol::ids::{JobId, SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::security_controls;

/// How long a view waits for a session that reads its journal; most have read it by then.
const READ_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct ListedSession {
    pub owner: Principal,
    pub name: SessionName,
    /// The job that the session serves: its owner sees the job instead of the session.
    pub job: Option<JobId>,
    pub session: SessionRef,
    /// What is known of a session of an earlier daemon until it answers; none for a new session.
    pub restoring: Option<RestoringSession>,
    /// Whether the session is removed, and only what is left of it is being taken down.
    pub is_removed: bool,
}

/// What is known of a session of an earlier daemon while it reads its journal and answers nothing.
#[derive(Clone)]
pub struct RestoringSession {
    view: Arc<SessionView>,
    restored: CancellationToken,
}

impl RestoringSession {
    /// `view` is what the session's record says; `restored` is cancelled when the session answers.
    pub(super) fn new(view: SessionView, restored: CancellationToken) -> Self {
        Self { view: Arc::new(SessionView { state: SessionState::Restoring, ..view }), restored }
    }
}

impl ListedSession {
    /// Whether clients see the session.
    fn is_seen(&self) -> bool {
        self.job.is_none() && !self.is_removed
    }

    /// Waits until the session has read its journal. Until then nothing is to be sent to it, because what is sent waits
    /// in its mailbox however long the reading takes, also if the sender is gone.
    pub async fn answers(&self) {
        if let Some(restoring) =
            self.restoring.as_ref().filter(|_| security_controls::holds("senders_wait_for_sessions"))
        {
            restoring.restored.cancelled().await;
        }
    }

    /// The view of the session for a list. A session that reads its journal does not answer before it has, however long
    /// that takes; then its record has to do, which does not know of its cells.
    pub async fn view(&self) -> Result<SessionView, Problem> {
        let view = call_promptly(&self.session, |reply_to| SessionMsg::View { reply_to });
        self.answer(view).await.unwrap_or_else(|record| Ok(record.clone()))
    }

    /// What the session answers; its record if it still reads its journal after a short time.
    pub async fn answer<T>(&self, answer: impl Future<Output = T>) -> Result<T, &SessionView> {
        if let Some(reading) = &self.restoring
            && timeout(READ_WITHIN, self.answers()).await.is_err()
        {
            return Err(&reading.view);
        }
        Ok(answer.await)
    }
}

#[derive(Clone, Default)]
pub struct Directory(Arc<RwLock<BTreeMap<SessionId, ListedSession>>>);

impl Directory {
    pub(super) fn add(&self, id: SessionId, listed: ListedSession) {
        self.0.write().insert(id, listed);
    }

    pub(super) fn remove(&self, id: SessionId) {
        self.0.write().remove(&id);
    }

    /// Hides a removed session from those who look for it. It is listed until nothing is left of it.
    pub(super) fn hide(&self, id: SessionId) {
        if let Some(listed) = self.0.write().get_mut(&id) {
            listed.is_removed = true;
        }
    }

    #[must_use]
    pub fn lists(&self, id: SessionId) -> bool {
        self.0.read().contains_key(&id)
    }

    /// Finds a session of `owner` by its name or id. With `of_all`, an id also finds a session of another user.
    #[must_use]
    pub fn find(&self, owner: Principal, key: &str, of_all: bool) -> Option<ListedSession> {
        let is_meant = |id: &SessionId, listed: &ListedSession| {
            let is_own = listed.owner == owner || !security_controls::holds("sessions_have_an_owner");
            is_own && listed.name.as_str() == key || (is_own || of_all) && id.to_string() == key
        };
        let sessions = self.0.read();
        let mut seen = sessions.iter().filter(|(_, listed)| listed.is_seen());
        seen.find(|(id, listed)| is_meant(id, listed)).map(|(_, listed)| listed.clone())
    }

    /// The sessions of one user, or of all; without those that serve jobs.
    #[must_use]
    pub fn list(&self, owner: Option<Principal>) -> Vec<ListedSession> {
        let sessions = self.0.read();
        let meant = sessions
            .values()
            .filter(|listed| listed.is_seen() && owner.is_none_or(|owner| owner == listed.owner));
        meant.cloned().collect()
    }
}
