//! Starting afresh, and the end of a session.

use std::sync::Arc;

use super::super::executor::ExecutorMsg;
use super::super::outcome::EndedBy;
use super::{Answer, REMOVAL_NOTED, SandboxPhase, SessionActorState, SessionMsg, SessionRef};
use crate::protocol::event::EventBody;
use crate::protocol::ids::SessionId;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::Workspace;
use crate::store::Journal;

/// A guest may have left a million files; other actors go on meanwhile.
pub(super) async fn remove_workspace(workspace: Arc<Workspace>) {
    let removed = tokio::task::spawn_blocking(move || {
        workspace.remove().inspect_err(|error| {
            let path = workspace.path.display();
            tracing::warn!(%error, %path, "a workspace is left to the reaper");
        })
    });
    let _ = removed.await;
}

/// A full disk must not hold up a removal that may free it: the note stays queued, the wait ends.
pub(super) async fn note_removal(journal: &Journal, id: SessionId) {
    let noted = tokio::time::timeout(REMOVAL_NOTED, journal.remove_session(id)).await;
    if !matches!(noted, Ok(Ok(()))) {
        tracing::warn!(session = %id, "the removal of a session is not in the journal yet");
    }
}

impl SessionActorState {
    pub(super) fn reset(&mut self, reply_to: Answer<()>) {
        self.touch();
        self.thaw();
        let cancelled = Problem::new(Code::Busy, "the session was reset");
        self.cancel_queue("The session was reset before this cell ran.", &cancelled);
        self.log.append(EventBody::Reset);
        self.note = None;
        match &self.sandbox {
            SandboxPhase::Ready { executor, .. } => drop(executor.cast(ExecutorMsg::Reset { reply_to })),
            SandboxPhase::None | SandboxPhase::Starting(_) => drop(reply_to.send(Ok(()))),
        }
    }

    pub(super) fn remove(&mut self, myself: &SessionRef, reply_to: Option<Answer<()>>) {
        self.removing = true;
        let cancelled = Problem::new(Code::NoSuchSession, "the session was removed");
        self.cancel_queue("The session was removed before this cell ran.", &cancelled);
        self.conclude_lost(Some(EndedBy::Cancel));
        if let Some(created) = self.args.created.take() {
            let _ = created.send(Err(cancelled));
        }
        let executor = match std::mem::replace(&mut self.sandbox, SandboxPhase::None) {
            SandboxPhase::None => None,
            SandboxPhase::Starting(executor) | SandboxPhase::Ready { executor, .. } => Some(executor),
        };
        let session = myself.clone();
        let (journal, id) = (self.args.journal.clone(), self.args.id);
        let making = self.making.take();
        tokio::spawn(async move {
            if let Some(making) = making {
                // A workspace that came to be after the end would be nobody's.
                let _ = making.await;
            }
            if let Some(executor) = executor {
                let _ = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
            }
            note_removal(&journal, id).await;
            let _ = session.cast(SessionMsg::Removed { reply_to });
        });
    }
}
