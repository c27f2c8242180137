//! The cells of a session: into the queue, to the executor, to their end.

use std::sync::Arc;

use super::messages::{CellRequest, CellStatus, OwnSession, SessionMsg, Ticket};
use super::state::{CellWaiter, SessionActorState};
use crate::actors::asks::messages::AsksMsg;
use crate::actors::calls::Reply;
use crate::actors::journal_charges::{CELL_COPIES, ROOM_TO_BEGIN_BYTES};
use crate::bridge::FrameGuard;
use crate::config::show_size;
use crate::memory::{Charge, MemoryPurpose, NoRoom, SMALL_BYTES};
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::DISK_TOLERANCE;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::result::{ExecutionResult, Mode, Reason};
use crate::security_controls;
use crate::session::machine::Input;
use crate::session::outcome::CellStart;
use crate::store::AppliedFrame;

impl SessionActorState {
    pub(super) fn enqueue(&mut self, myself: &OwnSession, request: CellRequest, reply_to: Reply<Ticket>) {
        self.touch();
        if let Err(problem) = self.takes_cell(&request) {
            let _ = reply_to.send(Err(problem));
            return;
        }
        let cell = self.machine.cells() + 1;
        let events_after = self.log.newest();
        let queued = EventBody::CellQueued {
            cell,
            mode: request.mode,
            code: request.code.clone(),
            command: request.command.as_deref().cloned().map(Box::new),
            expression: request.expression,
            timeout_s: request.timeout.as_secs_f64(),
            replays: request.replay.as_ref().map(|replay| replay.cell),
            origin: request.origin.clone(),
            bound_by: request.bound_by,
            commands_ahead: match request.mode {
                Mode::Command => self.machine.queue().commands_ahead(),
                Mode::Main | Mode::Scratch | Mode::Background | Mode::Fork => 0,
            },
        };
        let paid = match self.log.pay_for(&queued) {
            Ok(paid) => paid,
            Err(exceeded) => {
                let _ = reply_to.send(Err(exceeded.into()));
                return;
            }
        };
        let command_bytes = request.command.as_ref().map_or(0, |command| command.size());
        let memory = match self.code_in_memory(request.code.len() + command_bytes) {
            Ok(memory) => memory,
            Err(no_room) => {
                let _ = reply_to.send(Err(no_room.into()));
                return;
            }
        };
        let mut waiter = CellWaiter::nobody(events_after);
        let ticket = waiter.ticket(self.args.id, cell);
        self.tickets.insert(cell, waiter);
        let start = CellStart {
            cell,
            code: request.code,
            mode: request.mode,
            command: request.command,
            expression: request.expression,
            timeout: request.timeout,
            ask: request.origin.as_ref().map(|origin| origin.ask).or(request.bound_by),
            rules: request.rules.unwrap_or_else(|| Arc::clone(&self.client_rules)),
            replay: request.replay.map(|replay| replay.calls),
            memory,
            ..CellStart::default()
        };
        let aim = request.keyed.map(|keyed| keyed.aim(self.args.id, cell, events_after));
        let session = myself.clone();
        // A cell that can start at once is queued and started with one commit.
        let log = Arc::clone(&self.log);
        let _together = log.together();
        self.append_aimed_and(queued, paid, aim, move |is_written| {
            if is_written {
                let _ = reply_to.send(Ok(ticket));
            } else {
                let _ = session.cast(SessionMsg::Unwritten { ticket, reply_to });
            }
        });
        self.apply(Input::Cell(start));
    }

    /// Charges the code, which stays in memory from when it is queued until its cell has ended.
    fn code_in_memory(&self, size: usize) -> Result<Option<Arc<Charge>>, NoRoom> {
        let bytes = (size as u64).saturating_mul(CELL_COPIES);
        if bytes <= SMALL_BYTES || !security_controls::holds("cell_memory_charge") {
            return Ok(None);
        }
        let pool = self.args.ledger.memory(self.args.owner);
        pool.try_charge(MemoryPurpose::Cells, bytes).map(|charge| Some(Arc::new(charge)))
    }

    fn takes_cell(&self, request: &CellRequest) -> Result<(), Problem> {
        let limit = self.args.launcher.settings.cells.queue;
        self.machine.may_run(request.mode, request.replay.as_ref().map(|replay| replay.number), limit)?;
        self.can_write()?;
        self.args.gauge.fits(Kind::Journal, ROOM_TO_BEGIN_BYTES)?;
        self.has_disk()
    }

    /// Refuses a cell while far too much is on the disk. A cell that grows an oversized workspace is ended,
    /// but each cell could add what it writes until then.
    fn has_disk(&self) -> Result<(), Problem> {
        // A folder of the caller is on the caller's own disk.
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

    /// Drops a cell that no client was told of, unless it runs already.
    pub(super) fn unwritten(&mut self, ticket: Ticket, reply_to: Reply<Ticket>) {
        if self.machine.runs(ticket.cell) {
            let _ = reply_to.send(Ok(ticket));
            return;
        }
        self.apply(Input::CellUnwritten(ticket.cell));
        let _ = reply_to.send(Err(self.log.unwritten("the cell was not run")));
    }

    pub(super) fn finished(&mut self, result: ExecutionResult, frame_guard: Option<FrameGuard>) {
        let cell = result.cell;
        // The start of the next cell is committed with the end of this one.
        let log = Arc::clone(&self.log);
        let _together = log.together();
        if self.machine.is_open(cell) {
            self.tell_end(result, frame_guard);
        }
        self.apply(Input::Finished(cell));
    }

    /// Reports the end of a cell to all who wait for it.
    pub(super) fn tell_end(&mut self, mut result: ExecutionResult, frame_guard: Option<FrameGuard>) {
        if let Some(late) = self.machine.take_late_note(result.cell) {
            let note = result.state.note.take();
            result.state.note = Some(note.map_or_else(|| late.clone(), |note| format!("{late} {note}")));
        }
        let Some(ticket) = self.tickets.remove(&result.cell) else { return };
        let _ = self.asks.cast(AsksMsg::CallerEnded { cell: result.cell, call: None });
        self.note_command(&result);
        let result = Arc::new(result);
        let finished = EventBody::CellFinished { result: Box::new((*result).clone()) };
        self.saving.states.take(&finished);
        if result.mode.is_in_line() && result.reason != Reason::ByCancel && !self.machine.is_waking() {
            self.saving.states.untold.is_told();
        }
        let applied = frame_guard.as_ref().and_then(|frame_guard| self.applied(frame_guard));
        // Sent after the commit: a client must not see a result that a crash of the daemon could undo.
        self.log.append_then(finished, applied, move || ticket.finish(&result));
    }

    /// The frame of the present sandbox that an event is the effect of.
    pub(super) fn applied(&self, frame_guard: &FrameGuard) -> Option<AppliedFrame> {
        let sandbox = self.receipt.as_ref()?.sandbox.clone();
        Some(AppliedFrame { sandbox, received: frame_guard.number })
    }

    /// A further ticket of a cell that has not ended.
    pub(super) fn ticket(&mut self, cell: CellNumber) -> Option<Ticket> {
        self.tickets.get_mut(&cell).map(|waiter| waiter.ticket(self.args.id, cell))
    }

    pub(super) fn status(&self, cell: CellNumber) -> CellStatus {
        match self.tickets.get(&cell) {
            Some(ticket) if self.machine.queue().is_running(cell) => CellStatus::Running(ticket.events_after),
            Some(ticket) => CellStatus::Queued(ticket.events_after),
            None if (1..=self.machine.cells()).contains(&cell) => CellStatus::Ended,
            None => CellStatus::Unknown,
        }
    }
}
