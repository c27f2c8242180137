//! The main line: the worker that keeps the session's variables, and the checkpoints of its past.
//!
//! After a cell the worker is asked for a copy, which waits: a checkpoint. After cells that change only plain values, what
//! repeats them is kept instead, and sessions may want copies only when they rest, or none. The worker itself goes on,
//! with its threads and connections. When it dies, the newest checkpoint takes its place; `undo` puts an older one there.

use std::time::Instant;

use crate::controls;
use crate::frames::{self, Refusal};
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::limits::{
    BACK, CHECKPOINT_BUSY, CHECKPOINT_PAUSE, CHECKPOINT_RETRY, CHECKPOINT_TRIES, HALF, KILLED_POLL,
    REDO_ALL_BYTES, REDO_CELLS, SETTLE, VIEW,
};
use crate::poller::Timer;
use crate::recovery::PendingReport;
use crate::wire::{self, to_runner};

/// `hello`, `configure` and `imports` are the daemon's latest frames of these kinds, for future workers.
#[derive(Default)]
pub struct MainLine {
    pub hello: Option<String>,
    pub configure: Option<String>,
    /// The frame with the number of its request.
    pub imports: Option<(u64, String)>,
    /// `None` only while a fresh one cannot be started.
    pub worker: Option<u32>,
    /// Checkpoints, oldest first.
    pub ring: Vec<u32>,
    /// The newest cell, as the daemon sent it, until it was tried again.
    pub started: Option<String>,
    /// The code of that cell, as it stands in the frame.
    pub code: String,
    /// The code of the last cell that was lost, and names that it may have assigned.
    pub lost: Option<(String, Vec<u8>)>,
    /// What is told when a fresh worker has started.
    pub at_worker_start: Vec<PendingReport>,
    /// Starts of workers that failed in a row.
    pub failed_starts: u32,
    /// Workers that ended in a row at rest, without a cell between them.
    pub deaths_in_a_row: u32,
    /// Checkpoints of the present state that failed.
    pub failed_checkpoints: u32,
    /// When the first cell ended whose changes no checkpoint holds.
    pub unsaved_since: Option<Instant>,
}

impl Guardian {
    pub fn worker(&self) -> Option<&Handle> {
        self.handles.get(&self.line.worker?)
    }

    pub fn worker_mut(&mut self) -> Option<&mut Handle> {
        self.handles.get_mut(&self.line.worker?)
    }

    pub fn newest(&self) -> Option<&Handle> {
        self.handles.get(self.line.ring.last()?)
    }

    fn newest_mut(&mut self) -> Option<&mut Handle> {
        self.handles.get_mut(self.line.ring.last()?)
    }

    pub fn state_of(&self) -> u64 {
        self.worker().map_or(0, |worker| worker.state_of)
    }

    pub fn is_idle(&self) -> bool {
        self.worker()
            .is_some_and(|worker| worker.cell == 0 && worker.resets.is_empty() && worker.loading.is_none())
    }

    // Frames of the daemon for more than one runner.

    /// Whether this is the first hello.
    pub fn greet(&mut self, text: &str) -> bool {
        let is_first = self.line.hello.replace(text.to_owned()).is_none();
        for index in self.indexes() {
            self.forward(index, text);
        }
        self.trim();
        if is_first && self.line.worker.is_some() {
            self.take_checkpoint();
        }
        is_first
    }

    /// Passes on seed and tools, also to checkpoints: going back does not bring back the old ones.
    pub fn set_up(&mut self, text: &str) {
        self.line.configure = Some(text.to_owned());
        for index in self.line.worker.into_iter().chain(self.line.ring.clone()) {
            self.forward(index, text);
        }
        for index in &self.line.ring {
            if let Some(checkpoint) = self.handles.get_mut(index) {
                checkpoint.given_later |= !checkpoint.redo.is_empty();
            }
        }
    }

    /// Imports modules before any checkpoint is made, so that the modules are in memory once and shared by all.
    ///
    /// If the modules are not bound to names, later workers go without them.
    pub fn preload(&mut self, request: u64, text: &str, bind: bool) {
        if bind {
            self.line.imports = Some((request, text.to_owned()));
        }
        self.drop_checkpoints();
        self.send_imports(request, text);
        self.take_checkpoint();
    }

    pub fn send_imports(&mut self, request: u64, text: &str) {
        let Some(worker) = self.worker_mut() else { return };
        worker.preload_request = Some(request);
        let index = worker.index;
        self.forward(index, text);
    }

    // Cells.

    pub fn start_cell(&mut self, cell: u64, text: &str, code: &str) {
        self.protect_state();
        (self.line.started, self.line.code) = (Some(text.to_owned()), code.to_owned());
        self.send_cell(cell, text);
    }

    /// Makes a checkpoint of the state before a cell, unless there is one or the session does not want one yet.
    pub fn protect_state(&mut self) {
        if self.may_wait() {
            self.poller.cancel(Timer::Checkpoint);
            self.ask_back();
        } else {
            self.ensure_checkpoint();
        }
    }

    pub fn send_cell(&mut self, cell: u64, text: &str) {
        let Some(worker) = self.line.worker else { return };
        self.begin_cell(worker, cell);
        let is_whole = !controls::holds("half_a_message_ends_its_runner")
            || self.is_whole_within(worker, self.poller.patience(HALF));
        if !is_whole && self.newest_is_there() {
            self.kill(worker); // the checkpoint takes its place, and the cell
            return;
        }
        self.forward(worker, text);
        self.watch_memory_soon();
    }

    /// The cell has been answered. The checkpoint of the state after it is made soon, off the answer's way.
    ///
    /// If it is known what repeats the cell, that is kept with the newest checkpoint instead.
    pub fn main_cell_done(&mut self, cell: u64, redo: &[u8]) {
        let beside =
            self.worker_mut().map(|worker| std::mem::take(&mut worker.ended_beside)).unwrap_or_default();
        // What cells in the background have changed meanwhile is in no checkpoint, and repeating this cell repeats none of it.
        let can_repeat = self.has_newest() && beside.is_empty();
        if let Some(newest) = self.newest_mut().filter(|newest| can_repeat && !newest.given_later) {
            let kept: usize = newest.redo.iter().map(|(_, each)| each.len()).sum();
            if newest.redo.len() < REDO_CELLS && kept + redo.len() <= REDO_ALL_BYTES && frames::is_redo(redo)
            {
                newest.redo.push((cell, redo.to_vec()));
            }
        }
        if let Some(worker) = self.worker_mut() {
            (worker.state_of, worker.last_cell) = (beside.iter().copied().fold(cell, u64::max), cell);
            worker.position += beside.len() as u64;
        }
        self.state_changed();
    }

    /// A background cell has ended: what it has changed is as little to be lost as what a cell of the main line has.
    ///
    /// While a cell of the main line runs, the state before it stays the one that copies are made of.
    pub fn background_changed(&mut self, cell: u64) {
        let Some(worker) = self.worker_mut() else { return };
        if worker.cell != 0 {
            worker.ended_beside.push(cell);
            return;
        }
        worker.state_of = worker.state_of.max(cell);
        self.state_changed();
    }

    /// The worker has another state than the one that the newest checkpoint reaches.
    fn state_changed(&mut self) {
        if let Some(worker) = self.worker_mut() {
            worker.position += 1;
        }
        (self.line.failed_checkpoints, self.line.deaths_in_a_row) = (0, 0);
        if self.newest().is_some_and(|newest| newest.pid.is_some()) {
            self.trim(); // a checkpoint that may never come replaces none
        }
        if self.line.unsaved_since.is_none() && !self.has_newest() {
            self.line.unsaved_since = Some(Instant::now());
        }
        self.checkpoint_soon();
    }

    /// Whether the session gets no checkpoint before its next cell, because it has not rested.
    fn may_wait(&self) -> bool {
        let is_recent = |since: Instant| Instant::now() < since + CHECKPOINT_BUSY;
        self.limits.checkpoints_at_rest
            && !self.line.ring.is_empty()
            && self.line.unsaved_since.is_some_and(is_recent)
    }

    /// Whether a state can be restored that is as near as the session wants it to be; some want none.
    pub fn has_near_checkpoint(&mut self) -> bool {
        self.limits.checkpoints == 0
            || self.is_protected()
            || (self.limits.checkpoints_at_rest && !self.line.ring.is_empty())
    }

    /// Whether the state before the present cell can be restored.
    ///
    /// A copy that was just requested counts as present, unless such requests have failed before.
    fn is_protected(&mut self) -> bool {
        if let Some(index) = self.newest().filter(|newest| newest.pid.is_none()).map(|newest| newest.index) {
            // Its report that it is present, or its end, may wait to be read.
            self.receive(index, crate::handle::Side::Control);
        }
        let is_there = self.newest().is_some_and(|newest| newest.pid.is_some());
        self.has_newest() && (is_there || self.line.failed_checkpoints == 0)
    }

    /// Whether a copy of the state before the present cell exists, or is being made.
    pub fn has_newest(&self) -> bool {
        let reaches = self.newest().map(Handle::reaches);
        reaches.is_some() && reaches == self.worker().map(|worker| worker.position)
    }

    /// Whether a copy of the state before the present cell can take the worker's place, or can soon.
    fn newest_is_there(&mut self) -> bool {
        let Some(newest) = self.line.ring.last().copied().filter(|_| self.has_newest()) else { return false };
        let is_there = self.wait_for(newest, |newest| newest.pid.is_some(), self.poller.patience(SETTLE));
        // The checkpoint may have ended meanwhile, or been given up because memory is short.
        is_there && self.line.ring.last() == Some(&newest)
    }

    /// Fails if there is nothing to copy, or nothing to make a copy with.
    pub fn copy_for_cell(&mut self, cell: u64, text: &str) -> Result<(), Refusal> {
        self.watch_memory_soon();
        let copy = self.copy(Role::Fork)?;
        self.begin_cell(copy, cell);
        self.forward(copy, text);
        Ok(())
    }

    pub fn copy_for_view(&mut self, request: u64, text: &str) -> Result<(), Refusal> {
        let copy = self.copy(Role::View)?;
        if let Some(handle) = self.handles.get_mut(&copy) {
            handle.variables_request = Some(request);
        }
        self.poller.after(Timer::End(copy), VIEW);
        self.forward(copy, text);
        Ok(())
    }

    /// Whether there is a state at rest that can be copied.
    pub fn has_source(&mut self) -> bool {
        let is_reset = self.worker().is_none_or(|worker| !worker.resets.is_empty());
        self.is_idle() || (!is_reset && self.is_protected())
    }

    fn copy(&mut self, role: Role) -> Result<u32, Refusal> {
        let running = self.worker().map_or(0, |worker| worker.cell);
        let source = if running == 0 { self.line.worker } else { self.line.ring.last().copied() };
        let copy = self.spawn(source.ok_or_else(Refusal::no_process)?, role)?;
        if running != 0 {
            let newest = self.newest().map(|newest| (newest.redo.clone(), newest.given_later));
            let (redo, given_later) = newest.unwrap_or_default();
            if let Some(handle) = self.handles.get_mut(&copy) {
                handle.as_before = Some(running);
            }
            self.repeat(copy, &redo, given_later);
        }
        Ok(copy)
    }

    /// Has a runner repeat cells; what was given after them is given again, because it came later.
    pub fn repeat(&mut self, index: u32, redo: &[(u64, Vec<u8>)], given_later: bool) {
        if redo.is_empty() {
            return;
        }
        let written: Vec<&[u8]> = redo.iter().map(|(_, each)| each.as_slice()).collect();
        self.tell(index, wire::pack_parts(to_runner::REDO, &[b"[", &written.join(&b','), b"]"]));
        if let Some(text) = self.line.configure.clone().filter(|_| given_later) {
            self.forward(index, &text);
        }
    }

    // Checkpoints.

    pub fn take_checkpoint(&mut self) {
        let Some(worker) = self.line.worker else { return };
        if self.limits.checkpoints == 0 || self.line.hello.is_none() {
            return;
        }
        if let Ok(checkpoint) = self.spawn(worker, Role::Checkpoint) {
            self.line.ring.push(checkpoint);
            self.line.unsaved_since = None;
        }
    }

    pub fn checkpoint_soon(&mut self) {
        self.poller.after(Timer::Checkpoint, CHECKPOINT_PAUSE);
    }

    /// Puts the checkpoint off while a killed crowd still takes the room for processes.
    pub fn checkpoint_if_there_is_room(&mut self) {
        if self.has_room() {
            self.ensure_checkpoint();
        } else {
            self.poller.after(Timer::Checkpoint, KILLED_POLL);
        }
    }

    /// Makes a checkpoint of the present state, unless there is one.
    pub fn ensure_checkpoint(&mut self) {
        self.poller.cancel(Timer::Checkpoint);
        self.ask_back();
        if self.is_idle() && !self.has_newest() {
            self.take_checkpoint();
        }
    }

    fn ask_back(&mut self) {
        let Some(worker) = self.worker_mut() else { return };
        if worker.cell != 0 || worker.asked_back == worker.last_cell {
            return;
        }
        worker.asked_back = worker.last_cell;
        let (index, cell) = (worker.index, worker.last_cell);
        self.tell(index, wire::pack(to_runner::ARE_YOU_BACK, &cell.to_be_bytes()));
        if controls::holds("done_is_done") {
            // The worker reported the end of the last cell, but may still run its code.
            self.poller.after(Timer::NotBack(index), BACK);
        }
    }

    pub fn kill_unless_back(&mut self, index: u32) {
        if self.is_pressed {
            self.poller.after(Timer::NotBack(index), BACK); // its messages are not read at present
            return;
        }
        let is_back = |worker: &Handle| worker.back_from == worker.asked_back;
        if !self.wait_for(index, is_back, self.poller.patience(HALF)) {
            self.kill(index);
        }
    }

    /// There was no process or no memory for the checkpoint, or it ended before it reported.
    pub fn checkpoint_failed(&mut self) {
        self.line.failed_checkpoints += 1;
        if self.line.failed_checkpoints < CHECKPOINT_TRIES {
            self.poller.after(Timer::Checkpoint, CHECKPOINT_RETRY);
        }
    }

    pub fn checkpoint_present(&mut self) {
        self.line.failed_checkpoints = 0;
        // The end of a process takes time that a cell should not wait for. What is too old goes after the cell.
        if self.is_idle() {
            self.trim();
        }
        self.check_memory_soon();
    }

    /// The checkpoint has ended, or was never made.
    pub fn forget_checkpoint(&mut self, index: u32) {
        self.line.ring.retain(|each| *each != index);
    }

    pub fn trim(&mut self) {
        while self.line.ring.len() > self.limits.checkpoints {
            let oldest = self.line.ring.remove(0);
            self.retire(oldest);
        }
    }

    pub fn drop_checkpoints(&mut self) {
        while let Some(index) = self.line.ring.pop() {
            self.retire(index);
        }
    }
}
