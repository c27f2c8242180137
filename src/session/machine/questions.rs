//! Queries of the machine's state.

use std::time::{Duration, Instant};

use super::{Phase, ReplayPhase, Replays, SessionMachine};
use crate::protocol::event::Counters;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Mode;
use crate::session::queue::{Queue, QueueItem};

impl<W> SessionMachine<W> {
    /// Lets a new session have no sandbox before something needs one.
    pub fn begin_without_sandbox(&mut self) {
        self.wants_sandbox = false;
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    pub fn queue(&self) -> &Queue<W> {
        &self.queue
    }

    pub fn cells(&self) -> CellNumber {
        self.cells
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The number of the newest freeze.
    pub fn freezes(&self) -> u64 {
        self.freezes
    }

    pub fn is_replaying(&self) -> bool {
        self.replay == ReplayPhase::Running
    }

    pub fn replays(&self) -> Replays {
        Replays { newest: self.replays, is_running: self.is_replaying() }
    }

    /// Whether cells after a snapshot run again, and all others wait for them.
    pub fn is_waking(&self) -> bool {
        self.replay == ReplayPhase::Waking
    }

    pub fn is_ending(&self) -> bool {
        self.ending
    }

    pub fn is_attaching(&self) -> bool {
        self.attaching
    }

    /// Whether the kernel has to get the last reset again; asked once, when its sandbox is attached.
    pub fn takes_reset_again(&mut self) -> bool {
        std::mem::take(&mut self.reset_again)
    }

    /// Whether the cell has not ended.
    pub fn is_open(&self, cell: CellNumber) -> bool {
        self.open.contains(&cell)
    }

    pub fn idle_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.active_at)
    }

    pub fn touch(&mut self, now: Instant) {
        self.active_at = now;
    }

    /// Records the sandbox's counters from when a cell began.
    pub fn counted(&mut self, cell: CellNumber, before: Counters) {
        if let Some(start) = self.queue.running(cell) {
            start.before = before;
        }
    }

    /// Takes all waiting items, when a generation of the session ends.
    pub fn take_waiting(&mut self) -> Vec<QueueItem<W>> {
        self.queue.take_waiting()
    }

    /// Whether a cell may be queued; at most `limit` cells may wait. Those that run again come one at a time, and the cells
    /// that wait need what they make. `replay` is the number of the replay or waking for which the cell runs again.
    pub fn may_run(&self, mode: Mode, replay: Option<u64>, limit: usize) -> Result<(), Problem> {
        let goes_on = |number| number == self.replays && (self.is_replaying() || self.is_waking());
        if replay.is_some_and(|number| !goes_on(number)) {
            return Err(replay_has_ended());
        }
        // A main cell during a replay would find half-rebuilt variables, and the replay would overwrite its
        // changes.
        let is_in_the_way = matches!(self.replay, ReplayPhase::Prepared | ReplayPhase::Running);
        if replay.is_none() && is_in_the_way && (mode.is_in_line() || mode == Mode::Background) {
            return Err(a_replay_goes_on());
        }
        self.may_change()?;
        if replay.is_none() && self.queue.waiting() >= limit {
            return Err(Problem::new(Code::Busy, format!("{limit} cells wait already"))
                .hint("wait for one to end, or `belljar interrupt` the session"));
        }
        Ok(())
    }

    pub fn may_undo(&self) -> Result<(), Problem> {
        if !self.is_ready() {
            return Err(Problem::new(
                Code::OutOfReach,
                "the session has no sandbox, so there is nothing to undo",
            )
            .hint("the next cell gets a new one; `belljar replay` rebuilds the variables there"));
        }
        if self.replay != ReplayPhase::None {
            return Err(a_replay_goes_on());
        }
        // A cell that has begun and was not sent yet would reach the sandbox after the undo.
        let is_beginning = || self.beginning.values().any(|beginning| !self.is_command(beginning.cell));
        if self.going_back > 0 || !self.queue.may_go_back() || is_beginning() {
            return Err(Problem::new(Code::Busy, "a cell runs or waits").hint("wait for it, or interrupt it"));
        }
        Ok(())
    }

    /// Whether a replay may be prepared, before any data is read for it.
    pub fn may_replay(&self) -> Result<(), Problem> {
        if self.replay != ReplayPhase::None {
            return Err(busy("a replay goes on already"));
        }
        self.may_go_back()
    }

    /// Whether a reset is allowed. That of the replay with a number needs this replay to be prepared.
    pub fn may_reset(&self, replay: Option<u64>) -> Result<(), Problem> {
        match replay {
            Some(number) if self.replay == ReplayPhase::Prepared && number == self.replays => {
                self.may_go_back()
            }
            Some(_) => Err(replay_has_ended()),
            None => self.may_change(),
        }
    }

    fn may_change(&self) -> Result<(), Problem> {
        if self.ending { Err(Problem::new(Code::Busy, "the session is ending")) } else { Ok(()) }
    }

    fn may_go_back(&self) -> Result<(), Problem> {
        self.may_change()?;
        let is_idle = self.queue.is_idle() && self.going_back == 0;
        if is_idle { Ok(()) } else { Err(busy("a cell runs or waits")) }
    }

    pub fn may_freeze(&self) -> Result<(), Problem> {
        if self.is_ready() {
            return Ok(());
        }
        Err(Problem::new(Code::Busy, "the session has no sandbox at the moment")
            .hint("there is nothing to freeze"))
    }

    /// The cell that an interrupt applies to; none without a sandbox, because no interrupt would be sent.
    pub fn interruptible(&self) -> Option<CellNumber> {
        self.queue.foremost().filter(|_| self.is_ready())
    }

    /// Whether the cell has been sent to the sandbox.
    pub fn runs(&self, cell: CellNumber) -> bool {
        self.queue.is_running(cell) && !self.beginning.values().any(|beginning| beginning.cell == cell)
    }
}

/// A replay owns the main line until it is over.
fn a_replay_goes_on() -> Problem {
    Problem::new(Code::Busy, "a replay goes on").hint("wait until it has ended, or interrupt it")
}

fn busy(why: &str) -> Problem {
    Problem::new(Code::Busy, why).hint("wait for it, or interrupt it, before you replay")
}

fn replay_has_ended() -> Problem {
    Problem::new(Code::Busy, "the replay has ended: the session was reset, or its sandbox is gone")
        .hint("`belljar replay` runs the cells again from the start")
}
