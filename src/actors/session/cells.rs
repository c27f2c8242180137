//! Cells of a session: into the queue, to the executor, to their end; and back again with `undo`.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

use super::super::executor::ExecutorMsg;
use super::super::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use super::super::queue::Job;
use super::{
    Answer, CellRequest, Pending, SandboxPhase, SessionActorState, SessionMsg, SessionRef, Standing, Ticket,
};
use crate::bridge::Turn;
use crate::protocol::api::Undone;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::ARTIFACTS;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::ExecutionResult;
use crate::store::{Applied, CellRecord};

/// Time for the start of a cell to get into the journal. It takes some tens of microseconds; a disk
/// that hangs longer than this must not hold the session.
const JOURNALLED: Duration = Duration::from_secs(2);

impl SessionActorState {
    pub(super) fn enqueue(&mut self, request: CellRequest) -> Result<Ticket, Problem> {
        self.touch();
        if self.removing {
            return Err(Problem::new(Code::NoSuchSession, "the session is being removed"));
        }
        if let Err(trouble) = self.args.journal.healthy() {
            return Err(Problem::new(Code::Storage, format!("the journal cannot be written: {trouble}"))
                .hint(
                    "free some space where the daemon's home is; cells run again as soon as there is some",
                ));
        }
        let limit = self.args.launcher.settings.cells.queue;
        if self.queue.waiting() >= limit {
            return Err(Problem::new(Code::Busy, format!("{limit} cells wait already"))
                .hint("wait for one to end, or `belljar interrupt` the session"));
        }
        self.cells += 1;
        let cell = self.cells;
        let events_after = self.log.newest();
        self.log.append(EventBody::CellQueued {
            cell,
            mode: request.mode,
            code: request.code.clone(),
            expression: request.expression,
            timeout_s: request.timeout.as_secs_f64(),
            origin: request.origin.clone(),
        });
        let (done, receiver) = oneshot::channel();
        self.tickets.insert(cell, Pending { events_after, done });
        let start = CellStart {
            cell,
            code: request.code,
            mode: request.mode,
            expression: request.expression,
            timeout: request.timeout,
            note: None,
            replay: request.replay,
        };
        self.queue.push(Job::Cell { start, patient: false });
        Ok(Ticket { cell, events_after, done: receiver })
    }

    /// Starts what waits, as far as the sandbox can take it.
    pub(super) async fn pump(&mut self, myself: &SessionRef) {
        if !self.queue.has_waiting() || self.removing {
            return;
        }
        let executor = match &self.sandbox {
            SandboxPhase::Ready { executor, .. } => executor.clone(),
            SandboxPhase::Starting(_) => return,
            SandboxPhase::None => {
                self.start_sandbox(myself).await;
                return;
            }
        };
        self.thaw();
        while let Some(job) = self.queue.next() {
            let sent = match job {
                Job::Variables { private, reply_to, .. } => {
                    executor.cast(ExecutorMsg::Variables { private, reply_to })
                }
                Job::Cell { mut start, .. } => {
                    start.note = self.note.take();
                    self.log.append(EventBody::CellStarted { cell: start.cell });
                    // First in the journal: a kernel that ran a cell which nobody knows of would give
                    // its result to the next one of that number.
                    if tokio::time::timeout(JOURNALLED, self.log.flushed()).await.is_err() {
                        start.note =
                            Some("The journal could not be written, so the cell was not run.".into());
                        self.conclude_unrun(start);
                        continue;
                    }
                    executor.cast(ExecutorMsg::Run(start))
                }
            };
            if sent.is_err() {
                // The executor has just ended; its supervision event reports what ran in it.
                break;
            }
        }
    }

    pub(super) fn conclude_lost(&mut self, ended_by: Option<EndedBy>) {
        for start in self.queue.take_running() {
            let record = self.recorder.finish(start.cell);
            let changes = Changes { artifacts: Vec::new(), cut: false };
            let ending = Ending::SandboxGone { end: None };
            let cause = Cause { ended_by: ended_by.clone(), ..Cause::default() };
            self.finished(conclude(start, ending, cause, record, changes, Duration::ZERO), None);
        }
    }

    pub(super) fn undo(&mut self, myself: &SessionRef, cells: u64, reply_to: Answer<Undone>) {
        self.touch();
        self.thaw();
        let refused = match &self.sandbox {
            SandboxPhase::Ready { .. } if !self.queue.is_idle() => {
                Problem::new(Code::Busy, "a cell runs or waits").hint("wait for it, or interrupt it")
            }
            SandboxPhase::Ready { executor, .. } => {
                let (executor, session) = (executor.clone(), myself.clone());
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
            }
        };
        let _ = reply_to.send(Err(refused));
    }

    pub(super) fn undone(&mut self, state_of: CellNumber) -> Undone {
        self.log.append(EventBody::Undone { state_of });
        let mut files_changed: Vec<String> = (state_of + 1..=self.cells)
            .filter_map(|cell| self.log.finished(cell))
            .filter_map(|event| serde_json::from_str::<Event>(&event.json).ok())
            .filter_map(|event| match event.body {
                EventBody::CellFinished { result } => Some(result.artifacts),
                _ => None,
            })
            .flatten()
            .map(|artifact| artifact.path)
            .collect();
        files_changed.sort();
        files_changed.dedup();
        files_changed.truncate(ARTIFACTS);
        Undone { state_of, files_changed }
    }

    pub(super) fn finished(&mut self, result: ExecutionResult, turn: Option<Turn>) {
        self.touch();
        self.queue.ended(result.cell);
        let Some(ticket) = self.tickets.remove(&result.cell) else { return };
        let result = Arc::new(result);
        let finished = EventBody::CellFinished { result: Box::new((*result).clone()) };
        let sandbox = self.receipt.as_ref().map(|receipt| receipt.sandbox.clone());
        let applied =
            sandbox.zip(turn.as_ref()).map(|(sandbox, turn)| Applied { sandbox, received: turn.number });
        // Nobody hears of a result that a death of the daemon could undo.
        self.log.append_then(finished, applied, move || drop(ticket.done.send(result)));
    }

    /// Ends every queued cell unrun.
    pub(super) fn cancel_queue(&mut self, note: &str, problem: &Problem) {
        for job in self.queue.take_waiting() {
            match job {
                Job::Cell { mut start, .. } => {
                    start.note = Some(note.to_owned());
                    self.conclude_unrun(start);
                }
                Job::Variables { reply_to, .. } => drop(reply_to.send(Err(problem.clone()))),
            }
        }
    }

    pub(super) fn standing(&self, cell: CellNumber) -> Standing {
        match self.tickets.get(&cell) {
            Some(ticket) if self.queue.is_running(cell) => Standing::Running(ticket.events_after),
            Some(ticket) => Standing::Queued(ticket.events_after),
            None => Standing::Unknown,
        }
    }

    fn conclude_unrun(&mut self, start: CellStart) {
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let (record, cause) = (CellRecord::default(), Cause::default());
        self.finished(conclude(start, Ending::Cancelled, cause, record, changes, Duration::ZERO), None);
    }
}
