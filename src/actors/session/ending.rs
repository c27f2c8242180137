//! Starting afresh, and the end of a session.

use std::io::ErrorKind;
use std::sync::Arc;

use super::journalled::{RemovalRecord, forget};
use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::ExecutorMsg;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::panics::spawn_reporting;
use crate::protocol::event::EventBody;
use crate::protocol::ids::{CellNumber, SessionId};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::{Workspace, remove_tree};
use crate::session::machine::Input;

/// A guest may have left a million files; other actors go on meanwhile.
pub(super) async fn remove_workspace(workspace: Arc<Workspace>) {
    if let Err(error) = workspace.remove().await {
        let path = workspace.path.display();
        tracing::warn!(%error, %path, "a workspace is left to the reaper");
    }
}

/// The managed folder of a session that has not begun, so that it has no workspace to remove.
pub(super) async fn remove_folder(launcher: &Launcher, id: SessionId) {
    let path = launcher.paths.workspaces_dir().join(id.to_string());
    let removed = tokio::task::spawn_blocking(move || remove_tree(&path)).await;
    if let Ok(Err(error)) = removed
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(%error, session = %id, "a workspace is left to the reaper");
    }
}

impl SessionActorState {
    /// Before anything is read for it, and so that nobody else's is read for meanwhile.
    pub(super) async fn prepare_replay(&mut self, reply_to: Reply<()>) {
        self.touch();
        let may = self.machine.may_replay().and_then(|()| self.can_write());
        if may.is_ok() {
            self.apply(Input::ReplayWanted).await;
        }
        let _ = reply_to.send(may);
    }

    pub(super) async fn reset(
        &mut self,
        myself: &OwnSession,
        replay: Option<Vec<CellNumber>>,
        reply_to: Reply<()>,
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
        let session = myself.any_generation().clone();
        self.append_and(event, move |_| drop(session.cast(SessionMsg::ResetNoted { reply_to })));
    }

    pub(super) async fn reset_noted(&mut self, reply_to: Reply<()>) {
        if let Some(executor) = self.ready() {
            // Before any cell that has waited for it.
            let done = send_now(&executor, |reply_to| ExecutorMsg::Reset { reply_to });
            tokio::spawn(async move {
                // If the sandbox ended meanwhile, the next one is as fresh as can be.
                let _ = reply_to.send(done.await.unwrap_or(Ok(())));
            });
        } else {
            let _ = reply_to.send(Ok(()));
        }
        self.apply(Input::ResetNoted).await;
    }

    /// Whoever else wants that while it is under way is told when it is done: its sandbox is gone only then.
    pub(super) async fn remove(&mut self, myself: &OwnSession, reply_to: Option<Reply<()>>) {
        if let Some(removers) = &self.removers {
            removers.lock().extend(reply_to);
            return;
        }
        self.removers = Some(Arc::default());
        self.apply(Input::Remove).await;
        if let Some(created) = self.args.created.take() {
            let _ = created.send(Err(Problem::new(Code::NoSuchSession, "the session was removed")));
        }
        let executor = self.executor.take();
        let session = myself.any_generation().clone();
        let (journal, id) = (self.args.journal.clone(), self.args.id);
        let making = self.making.take();
        tokio::spawn(async move {
            if let Some(making) = making {
                // A workspace that came to be after the end would be nobody's.
                let _ = making.await;
            }
            // First in the journal: should the daemon die over it, the next one finds no session whose sandbox is half gone,
            // and clears away what is left.
            let mut noted = RemovalRecord::begin(&journal, id);
            noted.is_written().await;
            if let Some(executor) = executor {
                let _ = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
            }
            let _ = session.cast(SessionMsg::Removed { reply_to, noted });
        });
    }

    /// The last of it goes, and whoever asked is told, but not before the journal knows.
    pub(super) fn removed(&mut self, reply_to: Option<Reply<()>>, mut noted: RemovalRecord) {
        self.log.append(EventBody::SessionRemoved);
        self.log.close();
        self.forgo_sandbox();
        let unwritable = self.unwritable("the session was removed, but may come back with the next daemon");
        // Nobody can ask what became of one that was never made.
        let never_made = self.args.before.is_none() && self.receipt.is_none();
        let (workspace, journal, id) = (self.workspace.clone(), self.args.journal.clone(), self.args.id);
        let removers = Arc::clone(self.removers.get_or_insert_default());
        removers.lock().extend(reply_to);
        let last = async move {
            if let Some(workspace) = workspace {
                remove_workspace(workspace).await;
            }
            let written = noted.is_written().await;
            if never_made {
                forget(&journal, id);
            }
            let mut removers = std::mem::take(&mut *removers.lock());
            if !written {
                for reply_to in removers.drain(..) {
                    let _ = reply_to.send(Err(unwritable.clone()));
                }
            }
            removers
        };
        self.end_after(last);
    }

    /// The daemon ends: all that the session has to say is in the journal.
    pub(super) fn left(&self) {
        let log = Arc::clone(&self.log);
        self.end_after(async move {
            log.flushed().await;
            log.close();
            Vec::new()
        });
    }

    /// Ends the session when that is done, whose outcome is who waits for it.
    fn end_after(&self, last: impl Future<Output = Vec<Reply<()>>> + Send + 'static) {
        let (supervisor, session, id) = (self.args.supervisor.clone(), self.myself.clone(), self.args.id);
        spawn_reporting(last, move |removers| {
            let removers = removers.unwrap_or_default();
            let _ = supervisor.cast(SupervisorMsg::Ended { id, removers });
            session.any_generation().stop(None);
        });
    }
}
