//! Cells that end without their kernel's word: cancelled, given up, or lost with their sandbox.

use super::{Effect, ReplayPhase, SessionMachine};
use crate::protocol::ask::AskNumber;
use crate::protocol::event::EventBody;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::session::notices;
use crate::session::outcome::{CellStart, EndedBy};
use crate::session::queue::QueueItem;

impl<W> SessionMachine<W> {
    /// An ask has ended: its queued cells are not run, and its running cells are interrupted. Those of its cells that run again
    /// make variables of the session, and go on.
    pub(super) fn cancel_cells(&mut self, ask: AskNumber, out: &mut Vec<Effect<W>>) {
        const ENDED: &str = "The ask that wanted this cell has ended.";
        for start in self.queue.take_waiting_of(ask) {
            self.unrun(start, ENDED, out);
        }
        let running = self.queue.running_of(ask);
        for cell in self.not_sent(|cell| running.contains(&cell)) {
            self.give_up(cell, ENDED, out);
        }
        let sent = running.into_iter().filter(|cell| self.queue.is_running(*cell));
        if self.is_ready() {
            out.extend(sent.map(Effect::Interrupt));
        } else if self.attaching {
            self.cancelled.extend(sent.collect::<Vec<_>>());
        }
    }

    /// Ends every queued cell without running it, and refuses every waiting list of variables.
    pub(super) fn cancel_queue(&mut self, note: &str, problem: &Problem, out: &mut Vec<Effect<W>>) {
        for job in self.queue.take_waiting() {
            match job {
                QueueItem::Cell { start, .. } => self.unrun(start, note, out),
                QueueItem::Variables { reply_to, .. } => out.push(Effect::Refuse(reply_to, problem.clone())),
            }
        }
    }

    /// Ends a cell that counts as running but never reached the sandbox.
    pub(super) fn give_up(&mut self, cell: CellNumber, note: &str, out: &mut Vec<Effect<W>>) {
        self.beginning.retain(|_, beginning| beginning.cell != cell);
        if let Some(start) = self.queue.take(cell) {
            self.unrun(start, note, out);
        }
    }

    fn unrun(&mut self, mut start: CellStart, note: &str, out: &mut Vec<Effect<W>>) {
        if self.open.remove(&start.cell) {
            start.note = Some(note.to_owned());
            out.push(Effect::Unrun(start));
        }
    }

    pub(super) fn lose_running(&mut self, ended_by: Option<&EndedBy>, out: &mut Vec<Effect<W>>) {
        self.beginning.clear();
        for start in self.queue.take_running() {
            if self.open.remove(&start.cell) {
                out.push(Effect::Lost(start, ended_by.cloned()));
            }
        }
    }

    /// A replay, or the waking of the session, is over. A reset ends a replay as well, and discards it. A replay that had not
    /// begun has changed nothing. The end of an earlier one may come late, and is none of the newest.
    pub(super) fn replay_ended(&mut self, number: u64, finished: bool, out: &mut Vec<Effect<W>>) {
        if number != self.replays {
            return;
        }
        match std::mem::take(&mut self.replay) {
            ReplayPhase::Running | ReplayPhase::Waking if finished => {
                out.push(Effect::Append(EventBody::ReplayFinished));
            }
            ReplayPhase::Running => self.note.set(notices::REPLAY_CUT.into()),
            ReplayPhase::Waking => {
                let before = self.note.take();
                self.note.set(notices::wake_cut(before));
            }
            ReplayPhase::Prepared | ReplayPhase::None => {}
        }
    }

    /// The cells that make the variables of a session that wakes could not run again, for a reason that may pass. Without them
    /// no other cell runs: what waits is refused, and the sandbox ends, so that the next one wakes from the start.
    pub(super) fn not_rebuilt(&mut self, problem: &Problem, out: &mut Vec<Effect<W>>) {
        if self.is_waking() && self.is_ready() {
            self.cancel_queue(&format!("The cell was not run: {}.", problem.message), problem, out);
            self.end_unused(problem.message.clone(), out);
        }
    }

    /// The sandbox that was waking is gone: the next one wakes from the start, and runs the cells again itself.
    pub(super) fn wakes_no_more(&mut self, out: &mut Vec<Effect<W>>) {
        if self.replay != ReplayPhase::Waking {
            return;
        }
        self.end_cells_that_run_again("The sandbox ended while the session woke.", out);
    }

    /// The variables that a replay has rebuilt so far, or with which it begins, are not there: the cells that are left of it
    /// would run without them.
    pub(super) fn replays_no_more(&mut self, why: &str, out: &mut Vec<Effect<W>>) {
        if self.replay == ReplayPhase::Running {
            self.end_cells_that_run_again(why, out);
        }
    }

    fn end_cells_that_run_again(&mut self, why: &str, out: &mut Vec<Effect<W>>) {
        self.replay = ReplayPhase::None;
        for cell in self.queue.replaying() {
            self.give_up(cell, why, out);
        }
    }
}
