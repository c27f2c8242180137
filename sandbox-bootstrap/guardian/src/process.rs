//! Signals to the sandbox's processes: stopping all of them, killing strays, reaping.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread::sleep;

use rustix::process::{self, Pid, Resource, Signal, WaitId, WaitIdOptions, WaitOptions};

use crate::controls;
use crate::handle::Role;
use crate::limits::{CROWD, KILL_ROUNDS, REAPED_AT_ONCE, RUNNER_INDEXES, STAND_POLL};
use crate::process_table::{self, COMMAND_TAGS, Rows, Spared, Which};

/// Copies are tagged with a real-time CPU limit of so many microseconds, which no honest program sets. Those that list or
/// pack variables have the lowest tags: a process can only lower its tag, so it cannot take the tag of a copy that runs a
/// cell.
const VIEW_TAGS: u64 = 1 << 40;
const TAGS: u64 = VIEW_TAGS + RUNNER_INDEXES as u64;
const TAGS_END: u64 = TAGS + RUNNER_INDEXES as u64;
/// Commands are tagged in the same way. Cells cannot set such a tag, because Python starts with a lower limit.
const COMMAND_TAGS_END: u64 = COMMAND_TAGS + RUNNER_INDEXES as u64;
/// The limit of the main line, which the zygote sets at its start (`process.py`).
const MAIN_LINE: u64 = COMMAND_TAGS - 1;

/// Sends a signal. A process that is gone, or that changed its uid where the sandbox lets it, is no error.
pub fn send_signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = process::kill_process(pid, signal);
    }
}

/// Sends a signal to a runner and to what it has forked in its group.
pub fn send_signal_to_group(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|pid| *pid != Pid::INIT) {
        let _ = process::kill_process_group(pid, signal);
    }
}

/// Sends a signal to all other processes of this pid namespace, in one call.
fn send_to_all(signal: Signal) {
    // A group of the number 1 is what the system takes for «all».
    let _ = process::kill_process_group(Pid::INIT, signal);
}

/// Children that have ended, with their exit codes as in `subprocess`: n for an exit, negative for a signal. Only so many
/// at a time, because others may end as fast as these are reaped.
pub fn reap() -> Vec<(i32, i32)> {
    let mut ended = Vec::new();
    while ended.len() < REAPED_AT_ONCE
        && let Ok(Some((pid, status))) = process::wait(WaitOptions::NOHANG)
    {
        let code = status.exit_status().or_else(|| status.terminating_signal().map(|number| -number));
        ended.push((pid.as_raw_nonzero().get(), code.unwrap_or(0)));
    }
    ended
}

/// Whether there are children, also if none of them has ended.
pub fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    process::waitid(WaitId::All, options).is_ok()
}

pub struct Processes {
    own: i32,
    can_tag: bool,
    halted: bool,
}

impl Processes {
    pub fn new() -> Self {
        let most = process::getrlimit(Resource::Rttime).maximum;
        let own = process::getpid().as_raw_nonzero().get();
        Self { own, can_tag: most.is_none_or(|most| most >= COMMAND_TAGS_END), halted: false }
    }

    /// The guardian's own pid.
    pub fn own(&self) -> i32 {
        self.own
    }

    pub fn is_init(&self) -> bool {
        self.own == 1
    }

    /// Stops all other processes in this pid namespace, in one call, until some are killed.
    ///
    /// A few hundred busy processes would take the CPU time that is needed to find and end them, and would fork
    /// meanwhile. Stopped processes do neither, and can be killed.
    pub fn halt(&mut self) {
        if self.is_init() {
            if controls::holds("a_crowd_is_halted_first") {
                send_to_all(Signal::STOP);
            }
            self.halted = true;
        }
    }

    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Resumes all processes, if they were stopped.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.halted) {
            send_to_all(Signal::CONT);
        }
    }

    /// Whether there are so many processes that each gets little CPU time; false without a pid namespace of our own.
    pub fn is_crowded(&self, most: usize) -> bool {
        self.is_init() && process_table::pids().is_none_or(|pids| pids.len() > most)
    }

    /// The tag of the copy with this index and of all its descendants; `None` if tags cannot be used.
    ///
    /// It is a hard limit on CPU time that only applies to processes with a real-time priority, and there are none
    /// here. Every child inherits it, whichever session, parent or program it has, and it can only be lowered.
    pub fn tag(&self, index: u32, role: Role) -> Option<u64> {
        let first = if matches!(role, Role::View | Role::Snapshot) { VIEW_TAGS } else { TAGS };
        self.can_tag.then_some(first + u64::from(index))
    }

    /// The tag of a process; `None` on the main line, unless its code has set one itself, which only harms it.
    pub fn tag_of(&self, pid: i32) -> Option<u64> {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
        let line = limits.lines().find(|line| line.starts_with("Max realtime timeout"))?;
        let most = line.split_ascii_whitespace().rev().nth(1)?.parse().ok()?;
        (self.can_tag && most != MAIN_LINE).then_some(most)
    }

    /// Whether a process has lowered its own tag: the tag is no copy's and no command's, so its owner cannot be known.
    fn is_lowered(tag: u64) -> bool {
        tag < MAIN_LINE && !(VIEW_TAGS..TAGS_END).contains(&tag)
    }

    /// Whether a process with this tag may come of a copy that lists or packs variables: such a copy's tag is one of the
    /// lowest, and what it starts can only have lowered it.
    pub fn may_be_of_view(tag: u64) -> bool {
        tag < TAGS
    }

    /// All processes of commands, also of those that have ended.
    pub fn of_commands(&self) -> Vec<i32> {
        let mut found = self.descendants();
        found.retain(|pid| self.tag_of(*pid).is_some_and(process_table::is_of_command));
        found
    }

    /// The tag of the command with this index and of all that it starts; `None` if tags cannot be used.
    pub fn command_tag(&self, index: u32) -> Option<u64> {
        self.can_tag.then_some(COMMAND_TAGS + u64::from(index))
    }

    /// Kills a command and all that it started; returns the pids, which may not be gone yet.
    pub fn kill_command(&mut self, leader: i32, tag: Option<u64>) -> Vec<i32> {
        let own = self.own;
        let select = |rows: &Rows, this: &Self| {
            let is_known = tag.is_some() && controls::holds("commands_end_with_descendants");
            let has_tag = |pid| {
                is_known && this.tag_of(pid).is_some_and(|its| Some(its) == tag || Self::is_lowered(its))
            };
            process_table::of_command(rows, own, leader, has_tag)
        };
        self.kill_rounds(select, false)
    }

    /// Whether the process is a descendant of the guardian; it may have ended, but not been reaped.
    pub fn comes_of_us(&self, pid: i32) -> bool {
        process_table::comes_of(self.own, pid)
    }

    /// Pids of all living descendants.
    pub fn descendants(&self) -> Vec<i32> {
        process_table::descendants(&process_table::living(), self.own, &BTreeSet::new())
    }

    /// Kills everything that descends from the guardian.
    pub fn kill_all(&mut self) {
        if self.is_init() {
            // One call for all of them, so that no fork can slip through.
            send_to_all(Signal::KILL);
        } else {
            let own = self.own;
            self.kill_rounds(|rows, _| process_table::descendants(rows, own, &BTreeSet::new()), false);
        }
    }

    /// Kills strays and returns their pids, which may not be gone yet.
    ///
    /// Only descendants are looked at, so that this is safe outside of a pid namespace too.
    pub fn kill_strays(&mut self, which: Which, spared: &Spared) -> Vec<i32> {
        let (own, at_once) = (self.own, !matches!(which, Which::LeftBehind(None)));
        let select = |rows: &Rows, this: &Self| {
            process_table::strays(rows, own, spared, which, |pid| this.tag_of(pid))
        };
        self.kill_rounds(select, at_once)
    }

    /// Kills the selected processes, until the selection has none that was not killed before.
    ///
    /// A process that is told to stop in the middle of a fork still makes its child, perhaps after the listing. The
    /// child stops at its start, and a killed process makes none. So where all can be stopped, this ends soon. It ends
    /// when all remaining processes are stopped: a copy that is just being forked would stop unnoticed, and for ever.
    /// If not `at_once`, other processes are stopped only for a crowd, or if the selected ones fork faster than they
    /// are killed.
    fn kill_rounds(&mut self, select: impl Fn(&Rows, &Self) -> Vec<i32>, at_once: bool) -> Vec<i32> {
        let mut killed: BTreeMap<i32, u64> = BTreeMap::new(); // by pid, when it was started: numbers are used again
        let mut rows = Rows::new();
        for attempt in 0..KILL_ROUNDS {
            if at_once || attempt > 0 || self.is_crowded(CROWD) {
                self.halt();
            }
            rows = process_table::living();
            let mut found = select(&rows, self);
            found.retain(|pid| rows.get(pid).is_some_and(|row| killed.get(pid) != Some(&row.started)));
            for pid in &found {
                killed.extend(rows.get(pid).map(|row| (*pid, row.started)));
                send_signal(*pid, Signal::KILL);
            }
            if found.is_empty() {
                if !self.halted || self.all_stand(&rows, &killed) {
                    break;
                }
                sleep(STAND_POLL);
            }
        }
        if std::mem::take(&mut self.halted) {
            // Children first: a shell that goes on before its program does would take it for one that was stopped.
            for pid in rows.keys().rev().filter(|pid| !killed.contains_key(*pid) && **pid != self.own) {
                send_signal(*pid, Signal::CONT);
            }
        }
        killed.into_keys().collect()
    }

    /// Whether none of these can be in the middle of a fork.
    fn all_stand(&self, rows: &Rows, killed: &BTreeMap<i32, u64>) -> bool {
        rows.iter().all(|(pid, row)| row.stands || killed.contains_key(pid) || *pid == self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tag_of_a_view_can_be_lowered_to_one_of_a_cell() {
        let processes = Processes { own: 1, can_tag: true, halted: false };
        let tag = |index, role| processes.tag(index, role).unwrap();
        let highest_of_views = tag(RUNNER_INDEXES - 1, Role::View);
        for role in [Role::Fork, Role::Checkpoint, Role::Worker] {
            assert!(tag(0, role) > highest_of_views);
            assert!(!Processes::may_be_of_view(tag(0, role)));
        }
        for tag in [highest_of_views, tag(0, Role::View), tag(0, Role::Snapshot), 1, 0] {
            assert!(Processes::may_be_of_view(tag));
        }
        assert!(!Processes::may_be_of_view(MAIN_LINE) && !Processes::may_be_of_view(COMMAND_TAGS));
        assert!(!Processes::is_lowered(highest_of_views) && Processes::is_lowered(1));
    }
}
