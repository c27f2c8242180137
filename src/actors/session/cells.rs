//! Cells of a session: into the queue, to the executor, to their end.

use ractor::MessagingErr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

use super::super::asks::AsksMsg;
use super::super::charge::ROOM_TO_BEGIN_BYTES;
use super::super::executor::ExecutorMsg;
use super::written::JOURNALLED;
use super::{
    Answer, CellRequest, OwnSession, Pending, SandboxPhase, SessionActorState, SessionMsg, Standing, Ticket,
};
use crate::bridge::Turn;
use crate::config::show_size;
use crate::controls;
use crate::memory::{Charge, NoRoom, SMALL_BYTES, Use};
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::DISK_TOLERANCE;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::result::{ExecutionResult, Mode};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use crate::session::queue::Job;
use crate::store::{Applied, CellRecord};

/// Copies of a cell's code while it runs: in the queue, in the executor.
const CODE_COPIES: u64 = 2;
/// Told with a cell that a full disk kept from running.
const UNWRITTEN: &str = "The journal could not be written, so the cell was not run.";

/// It owns the main line until it is over.
pub(super) fn a_replay_goes_on() -> Problem {
    Problem::new(Code::Busy, "a replay goes on").hint("wait until it has ended, or interrupt it")
}

impl SessionActorState {
    pub(super) fn enqueue(&mut self, myself: &OwnSession, request: CellRequest, reply_to: Answer<Ticket>) {
        self.touch();
        let refused = match (request.mode, &request.replay) {
            (_, Some(_)) if !self.replaying => {
                Err(Problem::new(Code::Busy, "the session was reset, which ended the replay"))
            }
            // In between, it would find variables half rebuilt, and what it changes would be overwritten.
            (Mode::Main, None) if self.replaying => Err(a_replay_goes_on()),
            _ => self.takes_cells(),
        };
        if let Err(problem) = refused {
            let _ = reply_to.send(Err(problem));
            return;
        }
        let cell = self.cells + 1;
        let events_after = self.log.newest();
        let queued = EventBody::CellQueued {
            cell,
            mode: request.mode,
            code: request.code.clone(),
            expression: request.expression,
            timeout_s: request.timeout.as_secs_f64(),
            replays: request.replay.as_ref().map(|replay| replay.cell),
            origin: request.origin.clone(),
            bound_by: request.bound_by,
        };
        let paid = match self.log.pay_for(&queued) {
            Ok(paid) => paid,
            Err(exceeded) => {
                let _ = reply_to.send(Err(Problem::new(Code::QuotaExceeded, exceeded.to_string())));
                return;
            }
        };
        let memory = match self.code_in_memory(&request.code) {
            Ok(memory) => memory,
            Err(no_room) => {
                let _ = reply_to.send(Err(no_room.into()));
                return;
            }
        };
        self.cells = cell;
        let (done, receiver) = oneshot::channel();
        self.tickets.insert(cell, Pending { events_after, done });
        let start = CellStart {
            cell,
            code: request.code,
            mode: request.mode,
            expression: request.expression,
            timeout: request.timeout,
            ask: request.origin.as_ref().map(|origin| origin.ask).or(request.bound_by),
            rules: request.rules.unwrap_or_else(|| Arc::clone(&self.client_rules)),
            replay: request.replay.map(|replay| replay.calls),
            memory,
            ..CellStart::default()
        };
        self.queue.push(Job::Cell { start, patient: false });
        let aim = request.keyed.map(|keyed| keyed.aim(self.args.id, cell, events_after));
        let (session, ticket) =
            (myself.clone(), Ticket { session: self.args.id, cell, events_after, done: receiver });
        self.append_aimed_and(queued, paid, aim, move |written| {
            if written {
                let _ = reply_to.send(Ok(ticket));
            } else {
                let _ = session.cast(SessionMsg::Unwritten { ticket, reply_to });
            }
        });
    }

    /// Code is kept from when it is taken into the queue until its cell has ended.
    fn code_in_memory(&self, code: &str) -> Result<Option<Arc<Charge>>, NoRoom> {
        let bytes = (code.len() as u64).saturating_mul(CODE_COPIES);
        if bytes <= SMALL_BYTES || !controls::holds("cell_memory_charge") {
            return Ok(None);
        }
        let pool = self.args.ledger.memory(self.args.owner);
        pool.try_charge(Use::Cells, bytes).map(|charge| Some(Arc::new(charge)))
    }

    fn takes_cells(&self) -> Result<(), Problem> {
        if self.removing {
            return Err(Problem::new(Code::NoSuchSession, "the session is being removed"));
        }
        self.can_write()?;
        self.args.gauge.fits(Kind::Journal, ROOM_TO_BEGIN_BYTES)?;
        self.has_disk()?;
        let limit = self.args.launcher.settings.cells.queue;
        if self.queue.waiting() >= limit {
            return Err(Problem::new(Code::Busy, format!("{limit} cells wait already"))
                .hint("wait for one to end, or `belljar interrupt` the session"));
        }
        Ok(())
    }

    /// A cell that grows what is too large already is ended, but each could add what it writes until then.
    fn has_disk(&self) -> Result<(), Problem> {
        // A folder of the caller's is the caller's disk.
        if self.args.workspace.is_some() {
            return Ok(());
        }
        let most = self.args.launcher.settings.sandbox.workspace_bytes;
        let own = self.args.gauge.own(Kind::Workspace);
        let checked = if own > most.saturating_mul(DISK_TOLERANCE) {
            Err(Problem::new(
                Code::QuotaExceeded,
                format!("the workspace holds {}, and it may hold {}", show_size(own), show_size(most)),
            ))
        } else {
            self.args.gauge.tolerates(Kind::Workspace, DISK_TOLERANCE).map_err(Problem::from)
        };
        checked.map_err(|problem| {
            problem.hint(format!(
                "cells run again when files were removed: `DELETE /v1/sessions/{}/files/PATH`, or `belljar rm` for a whole session",
                self.args.name
            ))
        })
    }

    /// Nobody was told of the cell, so it does not run, unless it does already.
    pub(super) fn unwritten(&mut self, ticket: Ticket, reply_to: Answer<Ticket>) {
        if self.queue.is_running(ticket.cell) {
            let _ = reply_to.send(Ok(ticket));
            return;
        }
        if let Some(mut start) = self.queue.take(ticket.cell) {
            start.note = Some(UNWRITTEN.into());
            self.conclude_unrun(start);
        }
        let _ = reply_to.send(Err(self.unwritable("the cell was not run")));
    }

    /// Starts what waits, as far as the sandbox can take it.
    pub(super) async fn pump(&mut self, myself: &OwnSession) {
        if !self.queue.has_waiting() || self.removing || self.going_back > 0 {
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
        while let Some(is_cell) = self.queue.next_is_cell() {
            let permit = match is_cell.then(|| self.turn(myself)).transpose() {
                Ok(None) => None,
                Ok(Some(Some(permit))) => Some(permit),
                Ok(Some(None)) => break,
                Err(problem) => {
                    self.cancel_queue(&format!("The cell was not run: {}.", problem.message), &problem);
                    break;
                }
            };
            let Some(job) = self.queue.next() else { break };
            if let (Job::Cell { start, .. }, Some(permit)) = (&job, permit) {
                self.turns.begin(start.cell, permit);
            }
            let sent = match job {
                Job::Variables { which, reply_to, .. } => {
                    executor.cast(ExecutorMsg::Variables { which, reply_to })
                }
                Job::Cell { mut start, .. } => {
                    start.before = self.cgroup.as_ref().map(Cgroup::counters).unwrap_or_default();
                    self.log.append(EventBody::CellStarted { cell: start.cell, before: start.before });
                    // First in the journal: a kernel that ran a cell which nobody knows of would give
                    // its result to the next one of that number.
                    if tokio::time::timeout(JOURNALLED, self.log.flushed()).await.is_err() {
                        start.note = Some(UNWRITTEN.into());
                        self.conclude_unrun(start);
                        continue;
                    }
                    // A copy tells it too, but whoever goes on with the variables has to hear of it.
                    start.note = if start.mode == Mode::Main { self.note.take() } else { self.note.clone() };
                    executor.cast(ExecutorMsg::Run(start))
                }
            };
            if let Err(unsent) = sent {
                // The executor has just ended, of which the session is about to hear.
                if let MessagingErr::SendErr(ExecutorMsg::Variables { which, reply_to }) = unsent {
                    self.queue.put_back(Job::Variables { which, patient: false, reply_to });
                }
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

    pub(super) fn finished(&mut self, result: ExecutionResult, turn: Option<Turn>) {
        self.touch();
        self.queue.ended(result.cell);
        self.turns.ended(result.cell);
        let Some(ticket) = self.tickets.remove(&result.cell) else { return };
        let _ = self.asks.cast(AsksMsg::CellEnded { cell: result.cell });
        let result = Arc::new(result);
        let finished = EventBody::CellFinished { result: Box::new((*result).clone()) };
        let applied = turn.as_ref().and_then(|turn| self.applied(turn));
        // Nobody hears of a result that a death of the daemon could undo.
        self.log.append_then(finished, applied, move || drop(ticket.done.send(result)));
    }

    /// The frame of the present sandbox whose effect an event is.
    pub(super) fn applied(&self, turn: &Turn) -> Option<Applied> {
        let sandbox = self.receipt.as_ref()?.sandbox.clone();
        Some(Applied { sandbox, received: turn.number })
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
            None if (1..=self.cells).contains(&cell) => Standing::Ended,
            None => Standing::Unknown,
        }
    }

    pub(super) fn conclude_unrun(&mut self, start: CellStart) {
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let (record, cause) = (CellRecord::default(), Cause::default());
        self.finished(conclude(start, Ending::Cancelled, cause, record, changes, Duration::ZERO), None);
    }
}
