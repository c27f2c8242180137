//! Back again: the last cells of the main line are taken back in the kernel, then in the journal.

use super::super::executor::{Back, ExecutorMsg};
use super::cells::a_replay_goes_on;
use super::{Answer, OwnSession, SandboxPhase, SessionActorState, SessionMsg};
use crate::protocol::api::Undone;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::ARTIFACTS;
use crate::protocol::problem::{Code, Problem};
use crate::session::outcome;

impl SessionActorState {
    pub(super) fn undo(&mut self, myself: &OwnSession, cells: u64, reply_to: Answer<Undone>) {
        self.touch();
        self.thaw();
        let refused = match &self.sandbox {
            SandboxPhase::Ready { .. } if self.replaying => a_replay_goes_on(),
            SandboxPhase::Ready { .. } if self.going_back > 0 || !self.queue.is_idle() => {
                Problem::new(Code::Busy, "a cell runs or waits").hint("wait for it, or interrupt it")
            }
            SandboxPhase::Ready { executor, .. } => {
                if let Err(problem) = self.can_write() {
                    let _ = reply_to.send(Err(problem));
                    return;
                }
                let (executor, session) = (executor.clone(), myself.clone());
                self.going_back += 1;
                tokio::spawn(async move {
                    let answer = executor.call(|reply_to| ExecutorMsg::Undo { cells, reply_to }, None).await;
                    let outcome = match answer {
                        Ok(ractor::rpc::CallResult::Success(outcome)) => outcome,
                        _ => Err(Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile")),
                    };
                    let _ = session.cast(SessionMsg::UndoDone { outcome, reply_to });
                });
                return;
            }
            SandboxPhase::None | SandboxPhase::Starting(_) => {
                Problem::new(Code::OutOfReach, "the session has no sandbox, so there is nothing to undo")
                    .hint("the next cell gets a new one; `belljar replay` rebuilds the variables there")
            }
        };
        let _ = reply_to.send(Err(refused));
    }

    /// The kernel keeps its word on it until the journal has it, and tells the next daemon if this one
    /// dies before.
    pub(super) fn undo_done(&mut self, outcome: Result<Back, Problem>, reply_to: Answer<Undone>) {
        self.going_back -= 1;
        let Back { state_of, gone, turn } = match outcome {
            Ok(done) => done,
            Err(problem) => {
                let _ = reply_to.send(Err(problem));
                return;
            }
        };
        let files_changed = self.files_changed_after(state_of);
        let undone = Undone { state_of, files_changed, note: outcome::gone(gone) };
        let late = self.unwritable("the cells were undone, which may be forgotten");
        let applied = self.applied(&turn);
        self.append_applied_and(EventBody::Undone { state_of }, applied, move |written| {
            let _ = reply_to.send(if written { Ok(undone) } else { Err(late) });
        });
    }

    fn files_changed_after(&self, cell: CellNumber) -> Vec<String> {
        let mut files: Vec<String> = (cell.saturating_add(1)..=self.cells)
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
