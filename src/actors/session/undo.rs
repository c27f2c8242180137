//! Undo: the last cells of the main line are undone in the kernel, then in the journal.

use super::freeze::ended_meanwhile;
use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::{Command, ExecutorMsg, UndoneState};
use crate::panics::spawn_reporting;
use crate::protocol::api::Undone;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::ARTIFACTS;
use crate::protocol::problem::Problem;
use crate::protocol::result::Artifact;
use crate::session::machine::Input;
use crate::session::outcome;
use crate::store::EventLog;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

impl SessionActorState {
    pub(super) fn undo(&mut self, myself: &OwnSession, cells: u64, reply_to: Reply<Undone>) {
        self.apply(Input::Thaw);
        let may = self.machine.may_undo().and_then(|()| self.can_write());
        let executor = match (may, self.ready()) {
            (Ok(()), Some(executor)) => executor,
            (Err(problem), _) => return drop(reply_to.send(Err(problem))),
            (Ok(()), None) => return,
        };
        self.apply(Input::Undo);
        let (session, log, newest) = (myself.clone(), Arc::clone(&self.log), self.machine.cells());
        let undone =
            send_now(&executor, move |reply_to| ExecutorMsg::Command(Command::Undo { cells, reply_to }));
        let work = async move {
            let outcome = undone.await.unwrap_or_else(|| Err(ended_meanwhile()));
            let files_changed = match &outcome {
                Ok(done) => {
                    let gone = done.state_of.saturating_add(1)..=newest;
                    // The results may be large and numerous, so they are read on a blocking thread.
                    tokio::task::spawn_blocking(move || files_changed_by(&log, gone))
                        .await
                        .unwrap_or_default()
                }
                Err(_) => Vec::new(),
            };
            (outcome, files_changed)
        };
        // Cells wait until the undo is over, however it ended.
        spawn_reporting(work, move |done| {
            let (outcome, files_changed) = done.unwrap_or_else(|| (Err(ended_meanwhile()), Vec::new()));
            let _ = session.cast(SessionMsg::UndoDone { outcome, files_changed, reply_to });
        });
    }

    /// Records the undo. The kernel keeps its frame until the journal has the event, and sends it to the next
    /// daemon if this one ends before.
    pub(super) fn undo_done(
        &self,
        outcome: Result<UndoneState, Problem>,
        files_changed: Vec<String>,
        reply_to: Reply<Undone>,
    ) {
        let UndoneState { state_of, gone, frame_guard } = match outcome {
            Ok(done) => done,
            Err(problem) => {
                let _ = reply_to.send(Err(problem));
                return;
            }
        };
        let undone = Undone { state_of, files_changed, note: outcome::gone(gone) };
        let late = self.log.unwritten("the cells were undone, which may be forgotten");
        let applied = self.applied(&frame_guard);
        self.append_applied_and(EventBody::Undone { state_of }, applied, move |is_written| {
            let _ = reply_to.send(if is_written { Ok(undone) } else { Err(late) });
        });
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
