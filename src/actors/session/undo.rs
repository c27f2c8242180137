//! Back again: the last cells of the main line are taken back in the kernel, then in the journal.

use super::freeze::ended_meanwhile;
use super::messages::{OwnSession, SessionMsg};
use super::state::SessionActorState;
use crate::actors::calls::{Reply, send_now};
use crate::actors::executor::messages::{ExecutorMsg, Undoing};
use crate::protocol::api::Undone;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::ARTIFACTS;
use crate::protocol::problem::Problem;
use crate::session::machine::Input;
use crate::session::outcome;

impl SessionActorState {
    pub(super) async fn undo(&mut self, myself: &OwnSession, cells: u64, reply_to: Reply<Undone>) {
        self.apply(Input::Thaw).await;
        let may = self.machine.may_undo().and_then(|()| self.can_write());
        let executor = match (may, self.ready()) {
            (Ok(()), Some(executor)) => executor,
            (Err(problem), _) => return drop(reply_to.send(Err(problem))),
            (Ok(()), None) => return,
        };
        self.apply(Input::Undo).await;
        let session = myself.clone();
        let undone = send_now(&executor, move |reply_to| ExecutorMsg::Undo { cells, reply_to });
        tokio::spawn(async move {
            let outcome = undone.await.unwrap_or_else(|| Err(ended_meanwhile()));
            let _ = session.cast(SessionMsg::UndoDone { outcome, reply_to });
        });
    }

    /// The kernel keeps its word on it until the journal has it, and tells the next daemon if this one
    /// dies before.
    pub(super) fn undo_done(&self, outcome: Result<Undoing, Problem>, reply_to: Reply<Undone>) {
        let Undoing { state_of, gone, frame_guard } = match outcome {
            Ok(done) => done,
            Err(problem) => {
                let _ = reply_to.send(Err(problem));
                return;
            }
        };
        let files_changed = self.files_changed_after(state_of);
        let undone = Undone { state_of, files_changed, note: outcome::gone(gone) };
        let late = self.unwritable("the cells were undone, which may be forgotten");
        let applied = self.applied(&frame_guard);
        self.append_applied_and(EventBody::Undone { state_of }, applied, move |written| {
            let _ = reply_to.send(if written { Ok(undone) } else { Err(late) });
        });
    }

    fn files_changed_after(&self, cell: CellNumber) -> Vec<String> {
        let mut files: Vec<String> = (cell.saturating_add(1)..=self.machine.cells())
            .filter_map(|cell| self.log.finished(cell))
            .filter_map(|event| serde_json::from_str::<Event>(&event.json).ok())
            .filter_map(|event| match event.body {
                EventBody::CellFinished { result } => Some(result.artifacts),
                _ => None,
            })
            .flatten()
            .map(|artifact| artifact.path)
            .collect();
        files.sort();
        files.dedup();
        files.truncate(ARTIFACTS);
        files
    }
}
