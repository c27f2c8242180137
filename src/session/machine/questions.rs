//! What a session is asked that changes nothing, or hardly anything.

use std::time::{Duration, Instant};

use super::{Machine, Phase, ReplayPhase};
use crate::protocol::event::Counters;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::Mode;
use crate::session::queue::{Queue, QueueItem};

impl<W> Machine<W> {
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

    pub fn is_replaying(&self) -> bool {
        self.replay == ReplayPhase::Running
    }

    pub fn is_ending(&self) -> bool {
        self.ending
    }

    pub fn is_attaching(&self) -> bool {
        self.attaching
    }

    /// Whether the kernel has to hear of a reset once more; asked when it is there.
    pub fn takes_reset_again(&mut self) -> bool {
        std::mem::take(&mut self.reset_again)
    }

    /// Whether it has not ended.
    pub fn is_open(&self, cell: CellNumber) -> bool {
        self.open.contains(&cell)
    }

    pub fn idle_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.active_at)
    }

    pub fn touch(&mut self, now: Instant) {
        self.active_at = now;
    }

    /// What the sandbox had counted when a cell began.
    pub fn counted(&mut self, cell: CellNumber, before: Counters) {
        if let Some(start) = self.queue.running(cell) {
            start.before = before;
        }
    }

    /// What waits, when a session ends over it.
    pub fn take_waiting(&mut self) -> Vec<QueueItem<W>> {
        self.queue.take_waiting()
    }

    /// Whether a cell may be queued, of which at most this many may wait.
    pub fn may_run(&self, mode: Mode, replays: bool, limit: usize) -> Result<(), Problem> {
        if replays && !self.is_replaying() {
            return Err(was_reset());
        }
        // In between, it would find variables half rebuilt, and what it changes would be overwritten.
        if !replays && self.replay != ReplayPhase::None && mode == Mode::Main {
            return Err(a_replay_goes_on());
        }
        self.may_change()?;
        if self.queue.waiting() >= limit {
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
        if self.going_back > 0 || !self.queue.is_idle() {
            return Err(Problem::new(Code::Busy, "a cell runs or waits").hint("wait for it, or interrupt it"));
        }
        Ok(())
    }

    /// Whether a replay may be prepared: asked before anything is read for it.
    pub fn may_replay(&self) -> Result<(), Problem> {
        if self.replay != ReplayPhase::None {
            return Err(busy("a replay goes on already"));
        }
        self.may_go_back()
    }

    /// The reset of a replay is that of the one which is being prepared.
    pub fn may_reset(&self, replay: bool) -> Result<(), Problem> {
        match replay {
            true if self.replay != ReplayPhase::Prepared => Err(was_reset()),
            true => self.may_go_back(),
            false => self.may_change(),
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

    /// The cell that an interrupt is meant for. Without a sandbox nothing is told, so nothing is claimed either.
    pub fn interruptible(&self) -> Option<CellNumber> {
        self.queue.foremost().filter(|_| self.is_ready())
    }

    /// Whether it has been sent to the sandbox.
    pub fn runs(&self, cell: CellNumber) -> bool {
        self.queue.is_running(cell) && !self.beginning.values().any(|beginning| beginning.cell == cell)
    }
}

/// It owns the main line until it is over.
fn a_replay_goes_on() -> Problem {
    Problem::new(Code::Busy, "a replay goes on").hint("wait until it has ended, or interrupt it")
}

fn busy(why: &str) -> Problem {
    Problem::new(Code::Busy, why).hint("wait for it, or interrupt it, before you replay")
}

fn was_reset() -> Problem {
    Problem::new(Code::Busy, "the session was reset, which ended the replay")
}
