//! Undo: the last cells of the main line are undone in the kernel, then in the journal.
//!
//! If the executor or the session dies over an undo, its caller is still told how it ended: the next generation attaches to
//! the sandbox, whose kernel repeats what it has done. Cells wait until that is known.

use super::messages::SessionMsg;
use super::snapshots::CHANGED;
use super::state::SessionActorState;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::{Command, ExecutorMsg, UndoneState};
use crate::bridge::FrameGuard;
use crate::panics::spawn_reporting;
use crate::protocol::api::Undone;
use crate::protocol::event::EventBody;
use crate::protocol::frames::LiveResources;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::ARTIFACTS;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Artifact;
use crate::session::machine::Input;
use crate::session::outcome;
use crate::store::EventLog;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An undo whose caller waits for its outcome.
pub(super) struct PendingUndo {
    /// The newest cell when the undo was requested.
    newest: CellNumber,
    reply_to: Reply<Undone>,
    /// Whether an earlier generation asked the kernel, so that only the kernel's repeated frames say how it ended.
    inherited: bool,
}

impl PendingUndo {
    pub fn refuse(self, problem: Problem) {
        let _ = self.reply_to.send(Err(problem));
    }
}

fn not_undone() -> Problem {
    Problem::new(Code::Internal, "an internal error ended the work on this request; no cell was undone")
        .hint("ask again")
}

impl SessionActorState {
    pub(super) fn undo(&mut self, cells: u64, reply_to: Reply<Undone>) {
        self.apply(Input::Thaw);
        let may = self.machine.may_undo().and_then(|()| self.can_write());
        let executor = match (may, self.ready()) {
            (Ok(()), Some(executor)) => executor,
            (Err(problem), _) => return drop(reply_to.send(Err(problem))),
            (Ok(()), None) => return,
        };
        self.give_up_snapshots(CHANGED);
        self.apply(Input::Undo);
        self.undoing = Some(PendingUndo { newest: self.machine.cells(), reply_to, inherited: false });
        let undone =
            send_now(&executor, move |reply_to| ExecutorMsg::Command(Command::Undo { cells, reply_to }));
        self.report_undone(undone);
    }

    /// Waits for the outcome of the undo in a task. `undone` gives none if the executor ended without an answer.
    fn report_undone(
        &self,
        undone: impl Future<Output = Option<Result<UndoneState, Problem>>> + Send + 'static,
    ) {
        let newest = self.undoing.as_ref().map_or(0, |undo| undo.newest);
        let (session, log) = (self.myself.clone(), Arc::clone(&self.log));
        let work = async move {
            let outcome = undone.await;
            let files_changed = match &outcome {
                Some(Ok(done)) => {
                    let gone = done.state_of.saturating_add(1)..=newest;
                    // The results may be large and numerous, so they are read on a blocking thread.
                    tokio::task::spawn_blocking(move || files_changed_by(&log, gone))
                        .await
                        .unwrap_or_default()
                }
                Some(Err(_)) | None => Vec::new(),
            };
            (outcome, files_changed)
        };
        // Cells wait until the undo is over, however it ended.
        spawn_reporting(work, move |done| {
            let (outcome, files_changed) = done.unwrap_or_default();
            let _ = session.cast(SessionMsg::UndoDone { outcome, files_changed });
        });
    }

    /// Records the undo. The kernel keeps its frame until the journal has the event, and sends it to the next
    /// daemon if this one ends before.
    pub(super) fn undo_done(
        &mut self,
        outcome: Option<Result<UndoneState, Problem>>,
        files_changed: Vec<String>,
    ) {
        if outcome.is_none() && self.executor.is_some() {
            // The executor has died, of which the session is about to hear. The next generation learns the outcome.
            return;
        }
        let UndoneState { state_of, gone, frame_guard } =
            match outcome.unwrap_or_else(|| Err(self.ended_meanwhile())) {
                Ok(done) => done,
                Err(problem) => return self.end_undo(problem),
            };
        let undone = Undone { state_of, files_changed, note: outcome::gone(gone) };
        let late = self.log.unwritten("the cells were undone, which may be forgotten");
        let reply_to = self.undoing.take().map(|undo| undo.reply_to);
        // Without a caller that waits, the undo is over for the machine already.
        let is_awaited = reply_to.is_some();
        let applied = self.applied(&frame_guard);
        self.saving.states.take(&EventBody::Undone { state_of });
        self.append_applied_and(EventBody::Undone { state_of }, applied, move |is_written| {
            reply_to.map(|reply_to| reply_to.send(if is_written { Ok(undone) } else { Err(late) }));
        });
        if is_awaited {
            self.apply(Input::UndoDone);
        }
    }

    /// The kernel reports cells that it undid for an earlier generation, or for an earlier daemon.
    pub(super) fn undone_before(&mut self, state_of: CellNumber, frame_guard: FrameGuard) {
        if let Some(undo) = self.undoing.as_mut().filter(|undo| undo.inherited) {
            // Its outcome is known from here on: what comes before the task's report does not refuse it.
            undo.inherited = false;
            let done = UndoneState { state_of, gone: LiveResources::default(), frame_guard };
            self.report_undone(std::future::ready(Some(Ok(done))));
        } else {
            self.saving.states.take(&EventBody::Undone { state_of });
            self.log.append_then(EventBody::Undone { state_of }, self.applied(&frame_guard), || {});
        }
    }

    /// Takes over the undo of the previous generation, whose outcome the kernel of its sandbox knows.
    pub(super) fn inherit_undo(&mut self, undo: Option<PendingUndo>) {
        let Some(undo) = undo else { return };
        self.undoing = Some(PendingUndo { inherited: true, ..undo });
        self.apply(Input::Undo);
        if !self.machine.is_attaching() {
            self.undo_has_no_sandbox();
        }
    }

    /// The kernel has repeated all that an earlier generation did not hear, so an undo that is not among it was not done.
    pub(super) fn caught_up(&mut self) {
        self.end_inherited_undo(not_undone());
    }

    /// The sandbox that would know how the undo ended is gone.
    pub(super) fn undo_has_no_sandbox(&mut self) {
        self.end_inherited_undo(self.ended_meanwhile());
    }

    fn end_inherited_undo(&mut self, why: Problem) {
        if self.undoing.as_ref().is_some_and(|undo| undo.inherited) {
            self.end_undo(why);
        }
    }

    fn end_undo(&mut self, why: Problem) {
        if let Some(undo) = self.undoing.take() {
            undo.refuse(why);
            self.apply(Input::UndoDone);
        }
    }
}

/// The needed part of a cell's final event; the rest is not parsed into memory.
#[derive(Deserialize)]
struct CellFinished {
    result: ChangedFiles,
}

#[derive(Deserialize)]
struct ChangedFiles {
    artifacts: Vec<Artifact>,
}

/// The names of files that these cells changed. One result is read at a time, and no more names are kept than
/// are shown.
fn files_changed_by(log: &EventLog, cells: RangeInclusive<CellNumber>) -> Vec<String> {
    let mut files = BTreeSet::new();
    for cell in cells {
        let Some(event) = log.finished(cell) else { continue };
        let Ok(CellFinished { result }) = serde_json::from_str(&event.json) else { continue };
        files.extend(result.artifacts.into_iter().map(|artifact| artifact.path));
        while files.len() > ARTIFACTS {
            files.pop_last();
        }
    }
    files.into_iter().collect()
}
