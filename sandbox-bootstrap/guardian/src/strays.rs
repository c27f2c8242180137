//! Strays: processes that user code left behind. They are killed, and for a crowd of them its end is waited for.

use std::thread::sleep;
use std::time::Instant;

use crate::guardian::Guardian;
use crate::limits::{FEW, KILLED_FEW, KILLED_ROOM, KILLED_WAIT, RESET_POLL, TELL_FIRST};
use crate::poller::Timer;
use crate::process_table::{self, Which};

/// What is still to be killed, and what may not be gone yet.
#[derive(Debug)]
pub struct Strays {
    /// Strays that stand still until they are killed; a copy that has ended is named by its index.
    condemned: Vec<(Which, Option<u32>)>,
    /// Pids of strays that were killed and may not be gone yet.
    killed: Vec<i32>,
    /// The number of killed strays that may be left when something else is started.
    killed_most: usize,
    /// The killed strays that still hold memory, as far as is known, and until when that is believed.
    dying: Vec<i32>,
    dying_until: Option<Instant>,
}

impl Default for Strays {
    fn default() -> Self {
        Self {
            condemned: Vec::new(),
            killed: Vec::new(),
            killed_most: KILLED_FEW,
            dying: Vec::new(),
            dying_until: None,
        }
    }
}

impl Strays {
    pub fn has_condemned(&self) -> bool {
        !self.condemned.is_empty()
    }

    /// Forgets the condemned strays, because everything is killed.
    pub fn forget_condemned(&mut self) {
        self.condemned.clear();
    }

    /// Remembers killed pids, which may not be gone yet.
    pub fn note(&mut self, pids: Vec<i32>) {
        if !pids.is_empty() {
            self.dying_until = Some(Instant::now() + KILLED_WAIT);
        }
        self.dying.extend(&pids);
        self.killed.extend(pids);
    }

    /// Whether some of the killed strays still hold memory, which is not the session's any more.
    ///
    /// Until that memory is free, it must cost no checkpoint, and the system would end the worker for what a cell takes.
    pub fn are_dying(&mut self) -> bool {
        if self.dying_until.is_none_or(|until| Instant::now() > until) {
            self.dying.clear();
        }
        self.dying.retain(|pid| process_table::is_alive(*pid));
        !self.dying.is_empty()
    }

    /// Whether only a few strays were killed, and not all of these are dead.
    fn few_are_dying(&mut self) -> bool {
        self.killed.len() <= KILLED_FEW && self.are_dying()
    }

    fn forget_killed(&mut self) {
        self.killed.clear();
        self.dying.clear();
    }

    /// Remembers killed pids, and how many of them may be left before something else is started.
    pub fn killed(&mut self, pids: Vec<i32>) {
        self.note(pids);
        self.killed_most = self.killed.len().saturating_sub(KILLED_ROOM).max(KILLED_FEW);
    }

    fn are_too_many(&self) -> bool {
        self.killed.len() > self.killed_most
    }
}

/// Whether killing waits until the cell is answered: dying processes take the CPU time that the answer needs.
fn is_put_off(is_halted: bool, is_crowded: bool) -> bool {
    is_halted && is_crowded
}

impl Guardian {
    /// Kills strays. For a stopped crowd, that waits until its cell is answered.
    pub fn kill_strays(&mut self, which: Which, copy: Option<u32>) {
        let is_halted = self.processes.is_halted();
        if is_put_off(is_halted, is_halted && self.processes.is_crowded(FEW)) {
            self.strays.condemned.push((which, copy));
            self.poller.within(Timer::KillStrays, TELL_FIRST);
        } else {
            self.kill_strays_now(which, copy);
        }
    }

    fn kill_strays_now(&mut self, which: Which, copy: Option<u32>) {
        let spared = self.spared(copy);
        let killed = self.processes.kill_strays(which, &spared);
        self.strays.killed(killed);
    }

    /// Kills the strays that were put off. Has to come before anything that may start a process.
    pub fn kill_condemned(&mut self) {
        for (which, copy) in std::mem::take(&mut self.strays.condemned) {
            self.kill_strays_now(which, copy);
        }
    }

    /// Searches for remains of copies while another copy is being made.
    pub fn sweep(&mut self) {
        let spared = self.spared(None);
        let killed = self.processes.kill_strays(Which::LeftBehind(None), &spared);
        self.strays.note(killed);
    }

    /// False as long as too few of a killed crowd are gone: no process is available before. A few have to be dead: in a
    /// full sandbox their memory is needed, and the next worker would be killed in their place.
    pub fn has_room(&mut self) -> bool {
        if self.strays.has_condemned() {
            return false;
        }
        if self.strays.are_too_many() {
            self.reap();
            self.strays.killed.retain(|pid| process_table::is_there(*pid));
        }
        if self.strays.are_too_many() || self.strays.few_are_dying() {
            return false;
        }
        self.strays.killed.clear();
        true
    }

    /// Waits until there is room, but not for ever.
    pub fn wait_for_room(&mut self) {
        self.kill_condemned();
        let deadline = Instant::now() + self.poller.patience(KILLED_WAIT);
        while !self.has_room() {
            if Instant::now() > deadline {
                self.strays.forget_killed();
                return;
            }
            sleep(RESET_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_crowd_waits_and_a_few_or_running_ones_do_not() {
        assert!(is_put_off(true, true));
        assert!(!is_put_off(true, false) && !is_put_off(false, true));
    }

    #[test]
    fn of_a_crowd_some_have_to_be_gone_before_something_starts() {
        let mut strays = Strays::default();
        strays.killed((0..16).collect());
        assert!(!strays.are_too_many());
        strays.killed((16..100).collect());
        assert!(!strays.are_too_many() || strays.killed_most == 100 - KILLED_ROOM);
        assert!(strays.are_too_many());
        strays.killed.truncate(100 - KILLED_ROOM);
        assert!(!strays.are_too_many());
    }
}
