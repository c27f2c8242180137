//! Enforces the sandbox's memory limit: above it commands are ended and checkpoints are dropped, then processes are
//! killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::controls;
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::helpers::MemoryReserve;
use crate::limits::{BUDGET_SCARCE_PERCENT, Limits, MEMORY_ALARM, MEMORY_CHECK, MEMORY_PARTS, MEMORY_SUM};
use crate::memory;
use crate::poller::Timer;
use crate::process::send_signal;

/// What the guardian has used of the processor. On a busy machine a check takes long by the clock though it costs
/// little, and the next one must not come later for that.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[derive(Default)]
pub struct MemoryLimit {
    pub reserve: MemoryReserve,
    /// Pids that were killed for their memory, and may still have it.
    ending: BTreeSet<i32>,
    /// The last check dropped a checkpoint.
    is_short: bool,
    check_again_at: Option<Instant>,
}

impl Guardian {
    /// Watches while a cell runs, and between cells, too, if the system does not enforce the memory limit.
    pub fn watch_memory_soon(&mut self) {
        self.poller.within(Timer::WatchMemory, MEMORY_CHECK);
    }

    pub fn watch_memory(&mut self) {
        let (begun, used) = (Instant::now(), processor_time());
        self.hold_packing();
        self.measure_memory();
        let cost = processor_time().saturating_sub(used) * MEMORY_PARTS;
        // A guest that makes measuring slow, without work for the guardian, is not measured without a pause either.
        let pause = MEMORY_CHECK.max(cost).max(begun.elapsed());
        let is_active = |handle: &Handle| handle.cell != 0 || handle.loading.is_some();
        let runs_beside = self.commands.are_running() || self.background.are_running();
        if runs_beside || self.handles.values().any(is_active) {
            self.poller.after(Timer::WatchMemory, pause);
        } else if self.packing().is_some() || !self.memory.is_limited_by_system(&self.limits) {
            // Threads and processes of earlier cells may still run.
            self.poller.after(Timer::WatchMemory, MEMORY_SUM.max(pause));
        }
    }

    fn measure_memory(&mut self) {
        if self.processes.is_halted() {
            return; // stopped for the end of a cell, which comes first
        }
        if self.memory.is_limited_by_system(&self.limits) {
            if self.memory.take_turn(MEMORY_SUM) {
                self.check_memory();
            }
            self.help_the_system();
            return;
        }
        let sizes: BTreeMap<i32, u64> =
            self.active().into_iter().map(|pid| (pid, memory::resident(pid))).collect();
        // Shared pages count for each process here, so the sum may be higher than the real use.
        let is_crowded = sizes.values().sum::<u64>() > self.limits.all_memory();
        let is_due = self.memory.take_turn(if is_crowded { MEMORY_ALARM } else { MEMORY_SUM });
        let is_relieved = is_due && self.check_memory();
        self.end_gluttons(&sizes, is_due && !is_relieved);
    }

    /// Supports the system where it ends processes for memory, but too late or too few of them.
    fn help_the_system(&mut self) {
        if !self.line.ring.is_empty() {
            let in_use = self.memory.in_use(&self.limits, &[], &mut self.processes);
            self.memory_limit.reserve.keep(in_use, self.limits.all_memory());
        }
        // What packs variables goes first, and may be enough.
        if self.memory.is_brimful(&self.limits) && !self.end_packing_for_memory() {
            let largest = self.active().into_iter().max_by_key(|pid| memory::resident(*pid));
            if let Some(pid) = largest {
                self.end_glutton(pid);
            }
        }
    }

    fn end_glutton(&mut self, pid: i32) {
        if let Some(handle) = self.by_pid.get(&pid).and_then(|index| self.handles.get_mut(index)) {
            handle.out_of_memory = true;
        }
        self.computations.out_of_memory(pid);
        self.commands.out_of_memory(pid);
        self.memory_limit.ending.insert(pid);
        send_signal(pid, Signal::KILL);
    }

    /// Processes that can take more memory. Waiting copies only seem large, because of the pages that they share, and
    /// so do the zygote and an evaluator that waits.
    fn active(&mut self) -> Vec<i32> {
        let is_waiting = |index: &u32| {
            self.handles.get(index).is_some_and(|handle| {
                handle.cell == 0 && self.line.worker != Some(*index) && handle.role != Role::Snapshot
            })
        };
        let mut living = self.processes.descendants();
        self.memory_limit.ending.retain(|pid| living.contains(pid));
        living.retain(|pid| {
            !self.by_pid.get(pid).is_some_and(is_waiting)
                && self.zygote.pid() != Some(*pid)
                && (self.evaluator.pid() != Some(*pid) || self.evaluator.is_busy())
                && !self.memory_limit.ending.contains(pid)
        });
        living
    }

    /// All processes but the zygote and those that are about to end.
    fn lasting(&self) -> Vec<i32> {
        let is_ending =
            |index: &u32| self.handles.get(index).is_some_and(|handle| handle.role == Role::Retired);
        let mut living = self.processes.descendants();
        living.retain(|pid| {
            !self.by_pid.get(pid).is_some_and(is_ending)
                && self.zygote.pid() != Some(*pid)
                && !self.memory_limit.ending.contains(pid)
        });
        living
    }

    /// Kills the largest processes when memory is used up, as the system does where it enforces the limit.
    ///
    /// What all of them take `together` costs more to measure, and comes after checkpoints that can be dropped.
    fn end_gluttons(&mut self, sizes: &BTreeMap<i32, u64>, together: bool) {
        let bound = self.limits.all_memory();
        let largest = sizes.iter().max_by_key(|(_, size)| **size).map(|(pid, _)| *pid);
        if let Some(largest) = largest.filter(|pid| self.memory.resident_with_files(*pid) > bound) {
            self.end_glutton(largest);
            return;
        }
        if !together {
            return;
        }
        let lasting = self.lasting();
        let excess = self.memory.total(&lasting, &mut self.processes).saturating_sub(bound);
        // Memory may have grown since the checkpoints were looked at, and one of them may be enough.
        if excess == 0 || self.check_memory() {
            return;
        }
        // Measured anew, because processes grow: after the sum, another one may be the largest.
        let pids: Vec<i32> = sizes.keys().copied().collect();
        let alone = self.memory.held_by_each(&pids, &mut self.processes);
        let worker = self.worker().and_then(|worker| worker.pid);
        for pid in gluttons(&alone, excess, worker) {
            self.end_glutton(pid);
        }
    }

    /// Checks after the checkpoints have changed, which they may do a thousand times a second.
    pub fn check_memory_soon(&mut self) {
        let again_at = self.memory_limit.check_again_at;
        let left =
            again_at.map(|at| at.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero());
        match left {
            Some(left) if !self.memory_limit.is_short => self.poller.within(Timer::CheckMemory, left),
            // What was dropped may not have been enough.
            _ => drop(self.check_memory()),
        }
    }

    /// Drops one checkpoint if memory is short. True if one was dropped.
    pub fn check_memory(&mut self) -> bool {
        // What they hold is free only when they have ended.
        if self.handles.values().any(|handle| handle.role == Role::Retired) || self.strays.are_dying() {
            return false;
        }
        let begun = Instant::now();
        self.memory_limit.is_short = self.end_large_packing() || self.drop_if_short();
        let pause = MEMORY_CHECK.max(begun.elapsed() * MEMORY_PARTS);
        self.memory_limit.check_again_at = Some(Instant::now() + pause);
        self.memory_limit.is_short
    }

    /// Above the session's own memory, drops one checkpoint, the oldest first. True if one was dropped.
    fn drop_if_short(&mut self) -> bool {
        let is_spare = !self.line.ring.is_empty() || self.packing().is_some();
        let Some(worker) = self.line.worker.filter(|_| is_spare) else { return false };
        // A checkpoint that is being made may never come, and the others are all that there is until it has reported.
        if self.newest().is_some_and(|newest| newest.pid.is_none()) {
            return false;
        }
        let pids: Vec<i32> = std::iter::once(worker)
            .chain(self.line.ring.iter().copied())
            .filter_map(|index| self.handles.get(&index)?.pid)
            .chain(self.pids_of_packing())
            .collect();
        let in_use = self.memory.in_use(&self.limits, &pids, &mut self.processes);
        let in_use = in_use.saturating_sub(self.memory_limit.reserve.bytes());
        if in_use <= self.limits.memory_bytes {
            return false;
        }
        if self.end_packing_for_memory() || self.end_command_for(in_use - self.limits.memory_bytes) {
            return true;
        }
        if self.line.ring.is_empty() {
            return false;
        }
        if self.line.ring.len() == 1 {
            let of = |index: u32| self.handles.get(&index).and_then(|handle| handle.pid);
            let (of_checkpoint, of_worker) = (of(self.line.ring[0]), of(worker));
            let known: Vec<i32> = of_checkpoint.into_iter().chain(of_worker).collect();
            if !is_budget_scarce(in_use, &self.limits) {
                return false;
            }
            let held = self.memory.held_by_each(&known, &mut self.processes);
            let of = |pid: Option<i32>| pid.and_then(|pid| held.get(&pid)).copied().unwrap_or(0);
            if !may_drop_last(in_use, of(of_checkpoint), of(of_worker), &self.limits) {
                return false;
            }
        }
        let oldest = self.line.ring.remove(0);
        self.retire(oldest);
        true
    }

    /// Ends the largest processes of commands if that frees as much as is too much: commands go before checkpoints. True
    /// if some were ended, or one that was ended before still has its memory.
    fn end_command_for(&mut self, excess: u64) -> bool {
        if !self.commands.were_there() || !controls::holds("commands_go_before_checkpoints") {
            return false;
        }
        let pids = self.processes.of_commands();
        if pids.iter().any(|pid| self.memory_limit.ending.contains(pid)) {
            return true;
        }
        let mut sizes: Vec<(u64, i32)> = pids.into_iter().map(|pid| (memory::resident(pid), pid)).collect();
        if sizes.iter().map(|(size, _)| size).sum::<u64>() < excess {
            return false;
        }
        sizes.sort_unstable();
        let mut freed = 0;
        while freed < excess
            && let Some((size, pid)) = sizes.pop()
        {
            self.end_glutton(pid);
            freed += size;
        }
        true
    }
}

/// Whether copies of pages fill so much of their budget that even the last checkpoint may have to go.
fn is_budget_scarce(in_use: u64, limits: &Limits) -> bool {
    in_use > limits.memory_bytes + limits.checkpoint_bytes / 100 * BUDGET_SCARCE_PERCENT
}

/// Whether the newest checkpoint, which protects the running cell, is to be dropped.
///
/// That is so only if the session would keep to its memory without it: then copies of changed pages, which are not the
/// cell's fault, fill the budget. If the cell itself takes too much, its worker has to end instead. Pages that the
/// checkpoint shared with a worker that is just ending, and holds nothing any more, are not copies.
fn may_drop_last(in_use: u64, of_checkpoint: u64, of_worker: u64, limits: &Limits) -> bool {
    in_use.saturating_sub(of_checkpoint) <= limits.memory_bytes && of_worker > 0
}

/// The processes whose end frees so much, the largest first. The worker goes only if it is the largest: the end of the
/// others may be enough, although their parts did not add up to the excess.
fn gluttons(alone: &BTreeMap<i32, u64>, excess: u64, worker: Option<i32>) -> Vec<i32> {
    let mut sizes: Vec<(i32, u64)> = alone.iter().map(|(pid, size)| (*pid, *size)).collect();
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let (mut left, mut found) = (excess, Vec::new());
    for (place, (pid, size)) in sizes.into_iter().enumerate() {
        if left == 0 || (place > 0 && Some(pid) == worker) {
            break;
        }
        left = left.saturating_sub(size);
        found.push(pid);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn limits() -> Limits {
        Limits { memory_bytes: 120 * MIB, checkpoint_bytes: 40 * MIB, checkpoints: 8, ..Limits::default() }
    }

    #[test]
    fn copies_of_pages_cost_the_last_checkpoint_and_not_the_cell() {
        assert!(!is_budget_scarce(140 * MIB, &limits()) && is_budget_scarce(170 * MIB, &limits()));
        assert!(may_drop_last(170 * MIB, 70 * MIB, 70 * MIB, &limits()));
    }

    #[test]
    fn a_cell_that_takes_too_much_itself_keeps_its_checkpoint() {
        assert!(!may_drop_last(250 * MIB, 70 * MIB, 70 * MIB, &limits()));
        assert!(!may_drop_last(170 * MIB, 70 * MIB, 0, &limits()));
    }

    #[test]
    fn the_largest_go_until_it_is_enough_and_the_worker_only_as_the_largest() {
        let alone = BTreeMap::from([(1, 50), (2, 70), (3, 20)]);
        assert_eq!(gluttons(&alone, 60, Some(1)), [2]);
        assert_eq!(gluttons(&alone, 90, Some(1)), [2]);
        assert_eq!(gluttons(&alone, 90, Some(2)), [2, 1]);
        assert_eq!(gluttons(&alone, 90, None), [2, 1]);
        assert_eq!(gluttons(&alone, 0, None), [0; 0]);
    }
}
