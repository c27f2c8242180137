//! Starting afresh, and the end of a session.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

use super::super::executor::ExecutorMsg;
use super::super::supervisor::SupervisorMsg;
use super::{Answer, OwnSession, SessionActorState, SessionMsg};
use crate::controls;
use crate::protocol::event::EventBody;
use crate::protocol::ids::{CellNumber, SessionId};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::Workspace;
use crate::session::machine::Input;
use crate::store::Journal;

/// A guest may have left a million files; other actors go on meanwhile.
pub(super) async fn remove_workspace(workspace: Arc<Workspace>) {
    if let Err(error) = workspace.remove().await {
        let path = workspace.path.display();
        tracing::warn!(%error, %path, "a workspace is left to the reaper");
    }
}

/// Time for a removal to get into the journal before it goes on without.
const REMOVAL_NOTED: Duration = Duration::from_secs(2);

/// A removal on its way into the journal. A full disk must not hold up a removal that may free it: the
/// note stays queued, and waiting for it ends.
pub struct Noted(watch::Receiver<bool>);

impl Noted {
    pub fn begin(journal: &Journal, id: SessionId) -> Self {
        let (sender, receiver) = watch::channel(false);
        let journal = journal.clone();
        tokio::spawn(async move {
            match journal.remove_session(id).await {
                Ok(()) => drop(sender.send(true)),
                Err(error) => tracing::warn!(%error, session = %id, "a removal is not in the journal"),
            }
        });
        Self(receiver)
    }

    /// Whether the journal has it by now, or within a short time.
    pub async fn is_written(&mut self) -> bool {
        let written = self.0.wait_for(|written| *written);
        matches!(tokio::time::timeout(REMOVAL_NOTED, written).await, Ok(Ok(_)))
    }
}

/// Takes all that is kept of a session that was never made, its seed among it.
pub fn forget(journal: &Journal, id: SessionId) {
    if !controls::holds("failed_creations_forgotten") {
        return;
    }
    let journal = journal.clone();
    tokio::spawn(async move {
        if let Err(error) = journal.forget(id).await {
            tracing::warn!(%error, session = %id, "the record of a session that was not made is left");
        }
    });
}

impl SessionActorState {
    pub(super) async fn reset(
        &mut self,
        myself: &OwnSession,
        replay: Option<Vec<CellNumber>>,
        reply_to: Answer<()>,
    ) {
        self.touch();
        let may = self.machine.may_reset(replay.is_some()).and_then(|()| self.can_write());
        if let Err(problem) = may {
            let _ = reply_to.send(Err(problem));
            return;
        }
        self.apply(Input::Reset { replay: replay.is_some() }).await;
        let event = match replay {
            Some(cells) => EventBody::ReplayStarted { cells },
            None => EventBody::Reset,
        };
        let session = myself.any_life().clone();
        self.append_and(event, move |_| drop(session.cast(SessionMsg::ResetNoted { reply_to })));
    }

    pub(super) async fn reset_noted(&mut self, reply_to: Answer<()>) {
        if let Some(executor) = self.ready() {
            // Before any cell that has waited for it.
            let (done, is_done) = oneshot::channel();
            let _ = executor.cast(ExecutorMsg::Reset { reply_to: done.into() });
            tokio::spawn(async move {
                // If the sandbox ended meanwhile, the next one is as fresh as can be.
                let _ = reply_to.send(is_done.await.unwrap_or(Ok(())));
            });
        } else {
            let _ = reply_to.send(Ok(()));
        }
        self.apply(Input::ResetNoted).await;
    }

    pub(super) async fn remove(&mut self, myself: &OwnSession, reply_to: Option<Answer<()>>) {
        self.apply(Input::Remove).await;
        if let Some(created) = self.args.created.take() {
            let _ = created.send(Err(Problem::new(Code::NoSuchSession, "the session was removed")));
        }
        let executor = self.executor.take();
        let session = myself.any_life().clone();
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
            let mut noted = Noted::begin(&journal, id);
            noted.is_written().await;
            let _ = session.cast(SessionMsg::Removed { reply_to, noted });
        });
    }

    /// The last of it goes, and whoever asked is told, but not before the journal knows.
    pub(super) async fn removed(&mut self, reply_to: Option<Answer<()>>, mut noted: Noted) {
        self.log.append(EventBody::SessionRemoved);
        self.log.close();
        self.forgo_sandbox();
        if let Some(workspace) = self.workspace.clone() {
            remove_workspace(workspace).await;
        }
        let mut reply_to = reply_to;
        if !noted.is_written().await
            && let Some(reply_to) = reply_to.take()
        {
            let problem = self.unwritable("the session was removed, but may come back with the next daemon");
            let _ = reply_to.send(Err(problem));
        }
        if self.args.before.is_none() && self.receipt.is_none() {
            // It was never made, so nobody can ask what became of it.
            forget(&self.args.journal, self.args.id);
        }
        let _ = self.args.supervisor.cast(SupervisorMsg::Ended { id: self.args.id, reply_to });
    }
}
