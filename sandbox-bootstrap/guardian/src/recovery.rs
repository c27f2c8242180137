//! Going back: a checkpoint takes the worker's place, or a fresh worker does.

use std::os::fd::AsFd;

use rustix::process::Signal;
use serde_json::json;

use crate::controls;
use crate::endings::{KILLED, cell_lost};
use crate::frames::{self, After, Refusal};
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::limits::{
    CROWD, DEATHS_BY_OTHERS, DEATHS_OF_A_STATE, NAMES_BYTES, PROMOTE, PROMOTE_HALTED, PROMOTE_LEAST, TURN,
    WORKER_START_RETRY, WORKER_START_TRIES,
};
use crate::poller::Timer;
use crate::process_table::Which;
use crate::wire::{self, to_runner};
use crate::zygote::Wanted;

/// What is told when a fresh worker has started.
pub enum PendingReport {
    ResetDone(u64),
    End { worker: Box<Handle>, cell: u64, exit_code: i32 },
}

impl Guardian {
    /// Starts a fresh worker and ends everything else: all checkpoints and copies, and all of their processes.
    pub fn reset(&mut self, request: u64) {
        self.poller.cancel(Timer::Checkpoint);
        self.poller.cancel(Timer::StartWorker);
        let worker = self.line.worker;
        let Some(exit_code) = self.end_all() else {
            self.stop();
            return;
        };
        self.drop_requests();
        let Some(worker) = worker else {
            self.line.at_worker_start.push(PendingReport::ResetDone(request));
            self.start_worker();
            return;
        };
        if let Some(handle) = self.handles.get_mut(&worker) {
            handle.resets.push(request);
        }
        self.take_last_words(worker);
        self.worker_ended(worker, exit_code);
    }

    /// How many cells ago each state was that can be restored, in order.
    pub fn undo_distances(&self) -> Vec<u64> {
        let position = self.worker().map_or(0, |worker| worker.position);
        let checkpoints = self.line.ring.iter().filter_map(|index| self.handles.get(index));
        let places = checkpoints.flat_map(|each| each.position..=each.reaches());
        let back: std::collections::BTreeSet<u64> =
            places.map(|place| position.saturating_sub(place)).collect();
        back.into_iter().collect()
    }

    /// Restores the state of that many cells ago. False if there is no checkpoint of it.
    pub fn undo(&mut self, cells: u64) -> bool {
        self.ensure_checkpoint();
        self.trim();
        let Some(undone) = self.line.worker else { return false };
        let position = self.worker().map_or(0, |worker| worker.position);
        let Some(wanted) = position.checked_sub(cells) else { return false };
        let reaches = |index: &u32| {
            self.handles.get(index).is_some_and(|each| (each.position..=each.reaches()).contains(&wanted))
        };
        let Some(place) = self.line.ring.iter().rposition(reaches) else { return false };
        let (target, newer) = (self.line.ring[place], self.line.ring[place + 1..].to_vec());
        if let Some(handle) = self.handles.get_mut(&target) {
            handle.redo.truncate(usize::try_from(wanted - handle.position).unwrap_or(usize::MAX));
        }
        self.wait_for_views(undone); // listings that were requested before the undo show the state before it
        if !self.promote(target) {
            return false;
        }
        for index in std::iter::once(undone).chain(newer) {
            self.forget_checkpoint(index);
            self.retire(index);
        }
        self.kill_younger();
        self.repeat_cells();
        let ended = self.finish_backgrounds(undone);
        self.tell_backgrounds(&ended, KILLED, After::Restored(self.state_of()), false);
        true
    }

    /// Makes the next checkpoint after the answer, so that the answer need not wait.
    pub fn settle_after_undo(&mut self) {
        if !self.has_newest() {
            self.take_checkpoint();
        }
    }

    /// Makes the checkpoint the worker. False if it does not answer; then it is given up.
    fn promote(&mut self, checkpoint: u32) -> bool {
        self.forget_checkpoint(checkpoint);
        if let Some(handle) = self.handles.get_mut(&checkpoint) {
            handle.role = Role::Worker;
        }
        self.signal(checkpoint, Signal::CONT); // user code may have stopped it
        self.tell(checkpoint, wire::pack(to_runner::PROMOTE, b""));
        let is_promoted = |handle: &Handle| handle.promoted;
        // The checkpoint may still be forking, or be making a copy of itself: then it waits for stopped processes.
        if self.processes.is_halted()
            && !self.wait_for(checkpoint, is_promoted, self.poller.patience(PROMOTE_HALTED))
        {
            self.processes.resume();
        }
        let mut patience = PROMOTE;
        if controls::holds("waits_have_one_budget") {
            patience = patience.min(self.poller.patience(TURN) / 2);
        }
        if self.wait_for(checkpoint, is_promoted, patience.max(PROMOTE_LEAST)) {
            self.line.worker = Some(checkpoint);
            self.read(checkpoint, !self.is_pressed);
            return true;
        }
        self.retire(checkpoint);
        false
    }

    /// Brings the promoted checkpoint to the state of the cells after it that needed no checkpoint.
    ///
    /// Before that it is copied, so that undo reaches those cells, too; not while a crowd waits to be killed.
    fn repeat_cells(&mut self) {
        let Some(worker) = self.worker_mut() else { return };
        let redo = std::mem::take(&mut worker.redo);
        let given_later = std::mem::take(&mut worker.given_later);
        let index = worker.index;
        let Some((last_cell, _)) = redo.last() else { return };
        if !self.strays.has_condemned() {
            self.take_checkpoint();
            if self.has_newest()
                && let Some(newest) = self.line.ring.last().and_then(|newest| self.handles.get_mut(newest))
            {
                (newest.redo, newest.given_later) = (redo.clone(), given_later);
            }
        }
        self.repeat(index, &redo, given_later);
        if let Some(worker) = self.handles.get_mut(&index) {
            worker.state_of = *last_cell;
            worker.position += redo.len() as u64;
        }
    }

    /// Kills processes that were started after the present worker was copied: its state knows nothing of them.
    fn kill_younger(&mut self) {
        if let Some(pid) = self.worker().and_then(|worker| worker.pid) {
            self.kill_strays(Which::Younger(pid), None);
        }
    }

    // The end of a worker and the start of a fresh one.

    /// The worker's last messages were handled. The daemon is told when another worker can take cells.
    pub fn worker_ended(&mut self, index: u32, exit_code: i32) {
        self.memory_limit.reserve.release();
        let cell = self.handles.get(&index).map_or(0, |handle| handle.cell);
        self.end_cell(index);
        self.line.worker = None;
        let backgrounds = self.finish_backgrounds(index);
        let Some(mut ended) = self.drop_handle(index) else { return };
        ended.backgrounds = backgrounds;
        ended.backgrounds.iter_mut().for_each(|each| each.out_of_memory = ended.out_of_memory);
        let was_reset = !ended.resets.is_empty();
        if cell == 0 && ended.backgrounds.is_empty() && !was_reset {
            self.go_back_past(ended.position, exit_code);
        }
        if let Some(request) = ended.preload_request.filter(|_| !ended.killed) {
            // The next worker would die of the imports, too.
            self.line.imports = None;
            let message = format!("the process ended while it imported modules (exit code {exit_code})");
            self.refuse(&Refusal::NoProcess(message), Some(request), None);
        }
        if let Some(loading) = ended.loading.filter(|_| !ended.killed) {
            let message = format!("the process ended while it loaded variables (exit code {exit_code})");
            self.refuse(&Refusal::NoProcess(message), Some(loading.request), None);
        }
        // Other processes of the sandbox are stopped, because they would take the CPU time that the checkpoint needs, also
        // while they die. A worker that the guardian did not kill may have been killed for memory: then these processes
        // would take that memory as well, and the checkpoint would be killed next.
        let may_be_short = exit_code == KILLED && !ended.was_put_down() && !self.line.ring.is_empty();
        if may_be_short || self.processes.is_crowded(CROWD) {
            self.processes.halt();
        }
        while let Some(newest) = self.line.ring.last().copied().filter(|_| !was_reset) {
            if self.promote(newest) {
                self.go_on_restored(&ended, cell, exit_code);
                return;
            }
        }
        self.drop_checkpoints();
        self.kill_condemned();
        let spared = self.spared(None);
        let killed = self.processes.kill_strays(Which::All, &spared);
        self.strays.killed(killed);
        let has_spoken = ended.has_spoken;
        self.line.at_worker_start.push(PendingReport::End { worker: Box::new(ended), cell, exit_code });
        if has_spoken || was_reset {
            self.start_worker();
        } else {
            self.start_worker_later(); // it ended before its first message
        }
    }

    /// Where workers end again and again without a cell, goes back past the state that they die of: checkpoints of that
    /// state would die, too, and so would one that repeats the cells which lead there.
    fn go_back_past(&mut self, deadly: u64, exit_code: i32) {
        self.line.deaths_in_a_row += 1;
        // One that was killed may have died of what others do, and its state is all right.
        let most = if exit_code == KILLED { DEATHS_BY_OTHERS } else { DEATHS_OF_A_STATE };
        if self.line.deaths_in_a_row < most {
            return;
        }
        while let Some(newest) = self.line.ring.last().copied() {
            if let Some(handle) = self.handles.get_mut(&newest)
                && handle.position < deadly
            {
                let repeated = usize::try_from(deadly - 1 - handle.position).unwrap_or(usize::MAX);
                handle.redo.truncate(repeated);
                return;
            }
            self.forget_checkpoint(newest);
            self.retire(newest);
        }
    }

    /// A checkpoint has taken the place of the worker that ended.
    fn go_on_restored(&mut self, ended: &Handle, cell: u64, exit_code: i32) {
        let was_killed = exit_code == KILLED && !ended.was_put_down();
        if was_killed && self.line.ring.is_empty() && self.limits.checkpoints > 1 {
            // The worker was killed perhaps for memory, and no other checkpoint is left. The processes that took the memory
            // may be older than this checkpoint; if they lived on, the session could lose its variables.
            self.kill_strays(Which::All, None);
        } else {
            self.kill_younger();
        }
        self.repeat_cells();
        let after = After::Restored(self.state_of());
        let Some(text) = self.take_unbegun_cell(ended, cell) else {
            self.tell_end(ended, cell, exit_code, after);
            self.checkpoint_soon();
            return;
        };
        self.tell_end(ended, 0, exit_code, after);
        self.kill_condemned();
        if !self.has_newest() {
            self.take_checkpoint();
        }
        self.send_cell(cell, &text);
    }

    /// The frame of the cell that died with the worker, if the next worker can run it unchanged.
    ///
    /// An earlier cell may have spoilt the worker so that it dies of the next message. A cell that had not begun has
    /// had no effect, and the state that it was meant for is restored; or that state never existed, because the
    /// previous cell was reported as done and was not. This is tried only once, since the cell itself may be the cause
    /// after all.
    fn take_unbegun_cell(&mut self, ended: &Handle, cell: u64) -> Option<String> {
        if cell == 0 || ended.begun || ended.was_put_down() || ended.interrupted {
            return None;
        }
        let is_elsewhere = self.worker().is_none_or(|worker| worker.position != ended.position);
        if is_elsewhere && ended.back_from == ended.asked_back {
            return None;
        }
        self.line.started.take()
    }

    /// Which names the last lost cell may have assigned; `None` if they are unknown, or `code` is not its code.
    pub fn names_of_lost(&self, code: &str) -> Option<Vec<String>> {
        let (lost, names) = self.line.lost.as_ref()?;
        if lost == code { frames::parse_names(names, self.limits.names) } else { None }
    }

    fn tell_end(&mut self, ended: &Handle, cell: u64, exit_code: i32, after: After) {
        self.tell_backgrounds(&ended.backgrounds, exit_code, after, cell == 0 && ended.resets.is_empty());
        if cell != 0 {
            let names = ended.names[..ended.names.len().min(NAMES_BYTES)].to_vec();
            self.line.lost = Some((self.line.code.clone(), names));
            let mut frame = cell_lost(ended, cell, exit_code, after);
            if ended.was_put_down() && !ended.killed {
                frame["rolled_back"] = json!(true);
            }
            if after != After::Lost && self.worker().is_some_and(|worker| worker.position != ended.position) {
                frame["older"] = json!(true); // there was no checkpoint of the state before the cell
            }
            self.send(&frame);
        } else if ended.resets.is_empty() {
            self.send(&json!({"type": "worker_replaced", "exit_code": exit_code, "after": after.to_json()}));
        }
        for request in &ended.resets {
            self.send(&json!({"type": "reset_done", "request": request}));
        }
    }

    /// Starts a fresh worker that has only the seed, the tools and the preloaded modules.
    pub fn start_worker(&mut self) {
        let Some((index, pid)) = self.make_worker() else {
            let spared = self.spared_without_commands();
            self.processes.kill_strays(Which::All, &spared);
            self.reap();
            self.start_worker_later();
            return;
        };
        self.line.worker = Some(index);
        self.set_pid(index, pid);
        self.read(index, !self.is_pressed);
        for text in [self.line.hello.clone(), self.line.configure.clone()].into_iter().flatten() {
            self.forward(index, &text);
        }
        if let Some((request, text)) = self.line.imports.clone() {
            self.send_imports(request, &text);
        }
        for report in std::mem::take(&mut self.line.at_worker_start) {
            match report {
                PendingReport::ResetDone(request) => {
                    self.send(&json!({"type": "reset_done", "request": request}));
                }
                PendingReport::End { worker, cell, exit_code } => {
                    self.tell_end(&worker, cell, exit_code, After::Lost);
                }
            }
        }
        self.take_checkpoint();
    }

    /// The index and the pid of a worker that was just made.
    fn make_worker(&mut self) -> Option<(u32, i32)> {
        let inbox = self.inbox.runner_end(&self.poller).ok()?.try_clone_to_owned().ok()?;
        let mut handle = self.new_handle(Role::Worker)?;
        let given = handle.runner_descriptors(inbox.as_fd());
        let pid = self.make_process(Wanted::Worker, &[], &given)?;
        handle.close_runner_ends();
        let index = handle.index;
        self.handles.insert(index, handle);
        Some((index, pid))
    }

    /// If processes or memory are short, tries again for a while.
    fn start_worker_later(&mut self) {
        self.line.failed_starts += 1;
        if self.line.failed_starts >= WORKER_START_TRIES {
            self.stop();
        } else {
            self.poller.after(Timer::StartWorker, WORKER_START_RETRY);
        }
    }
}
