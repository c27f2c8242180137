//! The reset and the removal of a session.

use std::sync::Arc;

use super::journal_waits::{RemovalRecord, forget};
use super::messages::{OwnSession, SessionMsg};
use super::refusals::base_is_lost;
use super::removers::{Remover, Removers};
use super::snapshots::CHANGED;
use super::state::SessionActorState;
use crate::actors::asks::messages::AsksMsg;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::{Command, ExecutorMsg};
use crate::actors::snapshots::SessionSnapshots;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::panics::spawn_reporting;
use crate::protocol::event::EventBody;
use crate::protocol::ids::{CellNumber, SessionId};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::{Workspace, remove_tree};
use crate::session::machine::{Input, Phase};
use crate::session::restore::Wake;

/// Removes a workspace in a task, because a guest may have left a million files.
pub(super) async fn remove_workspace(workspace: Arc<Workspace>) {
    if let Err(error) = workspace.remove().await {
        let path = workspace.path.display();
        tracing::warn!(%error, %path, "a workspace is left to the reaper");
    }
}

/// Removes the snapshots of a session; what is left of them the next daemon removes.
pub(super) async fn remove_snapshots(snapshots: SessionSnapshots) {
    if tokio::task::spawn_blocking(move || snapshots.remove()).await.is_err() {
        tracing::error!("the snapshots of a session were not removed: an internal error");
    }
}

/// Removes the managed folder of a session that never started in this daemon and so has no `Workspace`.
/// A guest may have left a million files, so that is done on threads of the owner.
pub(super) async fn remove_folder(launcher: &Launcher, owner: Principal, id: SessionId) {
    let path = launcher.paths.workspaces_dir().join(id.to_string());
    let removed = folders::run(owner, WorkKind::Removal, None, move || remove_tree(&path)).await;
    let removed =
        removed.map_err(|problem| problem.message).and_then(|done| done.map_err(|error| error.to_string()));
    if let Err(error) = removed {
        tracing::warn!(error, session = %id, "a workspace is left to the reaper");
    }
}

impl SessionActorState {
    /// Reserves the session for a replay before any data is read for it, so that no second replay starts
    /// meanwhile. The answer is its number.
    pub(super) fn prepare_replay(&mut self, reply_to: Reply<u64>) {
        self.touch();
        let may = self.machine.may_replay().and_then(|()| self.can_write());
        if may.is_ok() {
            self.apply(Input::ReplayWanted);
        }
        let _ = reply_to.send(may.map(|()| self.machine.replays().newest));
    }

    /// Ends a replay, or the waking of the session, also for the executor: what the cells left behind calls tools from
    /// then on. Nothing follows from the end of one that a newer one came after.
    pub(super) fn replay_ended(&mut self, number: u64, finished: bool) {
        if number == self.machine.replays().newest {
            self.apply(Input::ReplayEnded { number, finished });
            self.command(Command::Replayed);
        }
    }

    pub(super) fn reset(
        &mut self,
        myself: &OwnSession,
        replay: Option<(u64, Vec<CellNumber>)>,
        reply_to: Reply<()>,
    ) {
        self.touch();
        let may = self
            .machine
            .may_reset(replay.as_ref().map(|(number, _)| *number))
            .and_then(|()| self.can_write());
        if let Err(problem) = may {
            let _ = reply_to.send(Err(problem));
            return;
        }
        self.give_up_snapshots(CHANGED);
        self.rebuilding.stop();
        self.apply(Input::Reset { replay: replay.is_some() });
        let event = match replay {
            Some((_, cells)) => EventBody::ReplayStarted { cells },
            None => EventBody::Reset,
        };
        self.saving.states.take(&event);
        if self.machine.phase() == Phase::Starting && !self.machine.is_attaching() {
            // The sandbox may be loading variables of before.
            self.saving.late_reset = Some(event.clone());
        }
        let session = myself.any_generation().clone();
        self.append_and(event, move |is_written| {
            let _ = session.cast(SessionMsg::ResetNoted { is_written, reply_to });
        });
    }

    /// Carries out the reset. If the journal does not have it yet, a crash may undo it, and its caller is told so.
    pub(super) fn reset_noted(&mut self, is_written: bool, reply_to: Reply<()>) {
        let noted = if is_written {
            Ok(())
        } else {
            Err(self.log.unwritten("the session was reset, which may be forgotten"))
        };
        if let Some(executor) = self.ready() {
            // Sent at once, so that it precedes any cell that has waited for the reset.
            let (base, inherited) = (self.base_of_replay(), self.inherited());
            let reset = |reply_to| ExecutorMsg::Command(Command::Reset { base, inherited, reply_to });
            let done = send_now(&executor, reset);
            tokio::spawn(async move {
                // If the sandbox ended meanwhile, the next one is fresh anyway.
                let _ = reply_to.send(done.await.unwrap_or(Ok(())).and(noted));
            });
        } else if noted.is_ok() && self.base_of_replay().is_some() {
            // Its cells are sent when it is answered, and would find nothing of what it begins with before.
            self.saving.replay_without_base = Some(reply_to);
        } else {
            let _ = reply_to.send(noted);
        }
        self.apply(Input::ResetNoted);
        if self.saving.replay_without_base.is_some() {
            self.apply(Input::SandboxWanted);
        }
        // What waited for the cells of a session that woke waits for nothing any more.
        self.resume_deferred();
    }

    /// The variables with which a replay begins.
    fn base_of_replay(&self) -> Option<Box<Wake>> {
        self.saving.states.base_wake().filter(|_| self.machine.is_replaying()).map(Box::new)
    }

    /// Answers a replay that waits for the variables with which it begins.
    pub(super) fn base_is_there(&mut self, outcome: Result<(), Problem>) {
        if let Some(reply_to) = self.saving.replay_without_base.take() {
            let _ = reply_to.send(outcome);
        }
    }

    /// Sends a reset to a sandbox that could not get it when it was wanted. Its caller has been answered, but for a replay that
    /// waits for what it begins with.
    pub(super) fn reset_late(&mut self) {
        let replay = self.saving.replay_without_base.take();
        let Some(executor) = &self.executor else { return };
        let (base, inherited) = (self.base_of_replay(), self.inherited());
        let reset = |reply_to| ExecutorMsg::Command(Command::Reset { base, inherited, reply_to });
        let done = send_now(executor, reset);
        let (session, number) = (self.myself.clone(), self.machine.replays().newest);
        tokio::spawn(async move {
            let done = done.await.unwrap_or_else(|| Err(base_is_lost()));
            if let Err(problem) = &done
                && problem.code == Code::SnapshotFailed
            {
                // The cells of a replay need what it begins with.
                tracing::warn!(%problem, "a late reset failed");
                let _ = session.cast(SessionMsg::Input(Input::ReplayEnded { number, finished: false }));
            }
            if let Some(reply_to) = replay {
                let _ = reply_to.send(done);
            }
        });
    }

    /// Removes the session. A further caller is answered like the first.
    pub(super) fn remove(&mut self, myself: &OwnSession, remover: Option<Remover>) {
        let (supervisor, id) = (self.args.supervisor.clone(), self.args.id);
        if let Some(removers) = &self.removers {
            return self.answer_removers(removers.add(remover));
        }
        let removers = self.removers.insert(Removers::default()).clone();
        removers.add(remover);
        let _ = self.asks.cast(AsksMsg::CancelAll);
        self.apply(Input::Remove);
        if let Some(created) = self.args.created.take() {
            let _ = created.send(Err(Problem::new(Code::NoSuchSession, "the session was removed")));
        }
        let executor = self.executor.take();
        let session = myself.any_generation().clone();
        let journal = self.args.journal.clone();
        let (making, waiting) = (self.making.take(), removers.clone());
        let taken_down = async move {
            if let Some(making) = making {
                // A workspace created after the removal would belong to no session, so its creation is
                // awaited.
                let _ = making.await;
            }
            // First in the journal: if the daemon ends here, the next one finds no session with a
            // half-removed sandbox, and removes the leftovers.
            let mut noted = RemovalRecord::begin(&journal, id);
            if noted.is_written().await {
                let removers = waiting.recorded();
                let _ = supervisor.cast(SupervisorMsg::Removed { id, removers });
            }
            if let Some(executor) = executor {
                let _ = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
            }
            noted
        };
        spawn_reporting(taken_down, move |noted| {
            let _ = session.cast(SessionMsg::Removed { removers, noted });
        });
    }

    /// Answers callers that came when the journal had the removal already.
    fn answer_removers(&self, removers: Vec<Reply<()>>) {
        if !removers.is_empty() {
            let _ = self.args.supervisor.cast(SupervisorMsg::Removed { id: self.args.id, removers });
        }
    }

    /// Removes the rest of the session and answers the callers, but not before the journal has the removal.
    pub(super) fn removed(&mut self, before: &Removers, noted: Option<RemovalRecord>) {
        let mut noted = noted.unwrap_or_else(|| RemovalRecord::begin(&self.args.journal, self.args.id));
        self.log.append(EventBody::SessionRemoved);
        self.log.close();
        self.forgo_sandbox();
        let unwritable =
            self.log.unwritten("the session was removed, but may come back with the next daemon");
        // No client can know a session that was never made, so its record is not kept.
        let never_made = self.args.before.is_none() && self.receipt.is_none();
        let (workspace, journal, id) = (self.workspace.clone(), self.args.journal.clone(), self.args.id);
        // The callers that an earlier generation has not answered are answered together with those of this one.
        let before = before.take();
        let removers = self.removers.get_or_insert_default().clone();
        self.answer_removers(removers.add(before));
        let (ready_ahead, log) = (self.ready_ahead.take(), Arc::clone(&self.log));
        let snapshots = self.args.snapshots.clone();
        let last = async move {
            if let Some(ready) = ready_ahead {
                ready.sandbox.undo().await;
            }
            if let Some(workspace) = workspace {
                remove_workspace(workspace).await;
            }
            remove_snapshots(snapshots).await;
            // Who is told of the end finds it among the session's events.
            let _ = log.is_flushed().await;
            let is_written = noted.is_written().await;
            if never_made {
                forget(&journal, id);
            }
            let mut removers = removers.take_replies();
            if !is_written {
                for reply_to in removers.drain(..) {
                    let _ = reply_to.send(Err(unwritable.clone()));
                }
            }
            removers
        };
        self.end_after(last);
    }

    /// Ends the actor when the daemon shuts down, after all events of the session are in the journal.
    pub(super) fn left(&self) {
        let log = Arc::clone(&self.log);
        self.end_after(async move {
            log.flushed().await;
            log.close();
            Vec::new()
        });
    }

    /// Ends the session when `last` is done; it gives the callers that wait for the end.
    fn end_after(&self, last: impl Future<Output = Vec<Reply<()>>> + Send + 'static) {
        let (supervisor, session, id) = (self.args.supervisor.clone(), self.myself.clone(), self.args.id);
        spawn_reporting(last, move |removers| {
            let removers = removers.unwrap_or_default();
            let _ = supervisor.cast(SupervisorMsg::Ended { id, removers });
            session.any_generation().stop(None);
        });
    }
}
