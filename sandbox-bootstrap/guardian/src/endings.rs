//! How runners end: kills, resets, and what is told of it. Deadlines are the daemon's: at one it sends a kill.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::computations::KilledFor;
use crate::controls;
use crate::frames::{After, HostFrame, Refusal};
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::limits::{
    CROWD, HALT, ORPHANED, REAP_BUSY, REAP_IDLE, REAP_WITHOUT_PIDFD, REAPED_REMEMBERED, RESET, RESET_POLL,
    SETTLE,
};
use crate::poller::Timer;
use crate::process;
use crate::process_table::{self, Which};

pub const KILLED: i32 = -9;

/// The frame that reports that a runner ended during a cell.
pub fn cell_lost(handle: &Handle, cell: u64, exit_code: i32, after: After) -> Value {
    let mut frame = json!({
        "type": "cell_lost", "cell": cell, "exit_code": exit_code, "killed": handle.killed, "after": after.to_json(),
    });
    if handle.out_of_memory {
        frame["out_of_memory"] = json!(true);
    }
    frame
}

impl Guardian {
    pub fn interrupt(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let cell = frame.get("cell")?;
        self.interrupt_command(cell);
        self.interrupt_background(cell);
        if let Some(index) = self.of_cell(cell) {
            // The frame tells a runner that has not begun which cell the signal was for.
            self.forward(index, frame.text);
            if let Some(handle) = self.handles.get_mut(&index) {
                handle.interrupted = true;
            }
            self.signal(index, Signal::INT);
        }
        Ok(())
    }

    pub fn kill_cell(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (cell, grace) = (frame.get("cell")?, Duration::from_millis(frame.get("grace_ms")?));
        self.kill_command(cell, grace);
        self.kill_background(cell, grace);
        let Some(index) = self.of_cell(cell) else { return Ok(()) };
        let Some(handle) = self.handles.get_mut(&index) else { return Ok(()) };
        handle.killed = true;
        handle.ends_late = true;
        if self.processes.is_crowded(CROWD) {
            // The other processes would take the CPU time in which the runner could clean up, and the guardian's, too.
            self.end_late(index);
        } else {
            self.signal(index, Signal::TERM);
            self.poller.after(Timer::End(index), grace);
        }
        Ok(())
    }

    /// Kills a runner; a copy that does not exist yet is not waited for.
    pub fn end(&mut self, index: u32) {
        let Some(handle) = self.handles.get(&index) else { return };
        if handle.pid.is_some() {
            self.kill(index);
            return;
        }
        self.list_failed(index);
        self.forget_checkpoint(index);
        self.copy_lost(index, KILLED);
    }

    /// Ends a runner whose cell the daemon wants killed: the others are stopped until all that it started is found.
    pub fn end_late(&mut self, index: u32) {
        if self.handles.get(&index).is_some_and(|handle| handle.pid.is_some()) {
            self.processes.halt();
            self.poller.after(Timer::Resume, HALT);
        }
        self.end(index);
    }

    /// Kills all processes that were ever started here, and waits for their end. `None` if some do not end.
    ///
    /// The caller handles the end of the worker, of which this is the exit code.
    pub fn end_all(&mut self) -> Option<i32> {
        let worker_pid = self.line.worker.and_then(|index| self.handles.get(&index)?.pid);
        let (mut of_worker, deadline) = (KILLED, Instant::now() + RESET);
        self.computations.stop();
        self.give_up_expression(KilledFor::Reset);
        self.commands.end_all();
        self.strays.forget_condemned();
        for index in self.indexes() {
            if let Some(handle) = self.handles.get_mut(&index) {
                handle.killed = true;
            }
            self.refuse_list(index, &Refusal::Busy("the session was reset meanwhile"));
        }
        loop {
            self.processes.kill_all();
            for (pid, exit_code) in process::reap() {
                if worker_pid == Some(pid) {
                    of_worker = exit_code;
                } else {
                    self.child_ended(pid, exit_code);
                }
            }
            if !process::has_children() {
                break;
            }
            if Instant::now() > deadline {
                return None;
            }
            sleep(RESET_POLL);
        }
        for index in self.indexes() {
            if self.line.worker != Some(index) {
                self.forget_checkpoint(index);
                self.copy_lost(index, KILLED);
            }
        }
        Some(of_worker)
    }

    /// The pidfd of the runner reports its end, or an earlier pidfd of the same number did.
    pub fn has_ended(&mut self, index: u32) {
        self.reap();
        let Some(handle) = self.handles.get_mut(&index) else { return };
        let Some(pid) = handle.pid else { return };
        if self.by_pid.get(&pid) == Some(&index) && !process_table::is_alive(pid) {
            // It becomes a child of the guardian when the process ends that forked it. Or never, if code of the session
            // posed as a copy: then its exit code stays unknown.
            handle.unwatch_end(&self.poller);
            self.poller.after(Timer::EndedUnseen(index), ORPHANED);
            self.poller.within(Timer::Reap, REAP_WITHOUT_PIDFD);
        }
    }

    pub fn ended_unseen(&mut self, index: u32) {
        self.reap();
        if self.handles.contains_key(&index) {
            self.runner_ended(index, KILLED);
        }
    }

    fn list_failed(&mut self, index: u32) {
        self.refuse_list(index, &Refusal::NotListed);
    }

    /// Tells the daemon that a requested listing of variables will not come.
    fn refuse_list(&mut self, index: u32, refusal: &Refusal) {
        let request = self.handles.get_mut(&index).and_then(|handle| handle.variables_request.take());
        if request.is_some() {
            self.refuse(refusal, request, None);
        }
    }

    pub fn runner_ended(&mut self, index: u32, exit_code: i32) {
        self.take_last_words(index);
        self.settle_copies(index, exit_code);
        self.list_failed(index);
        if self.line.worker == Some(index) {
            self.worker_ended(index, exit_code);
            return;
        }
        self.forget_checkpoint(index);
        let Some(handle) = self.handles.get(&index) else { return };
        let (role, pid) = (handle.role, handle.pid);
        if matches!(role, Role::Fork | Role::View | Role::Snapshot)
            && controls::holds("copies_end_with_descendants")
        {
            self.kill_strays(Which::LeftBehind(pid), Some(index));
        }
        self.copy_lost(index, exit_code);
        if matches!(role, Role::Checkpoint | Role::Retired) {
            self.check_memory_soon();
        }
    }

    fn copy_lost(&mut self, index: u32, exit_code: i32) {
        let cell = self.handles.get(&index).map_or(0, |handle| handle.cell);
        self.packing_ended(index, exit_code);
        self.end_cell(index);
        if let Some(handle) = self.handles.get(&index).filter(|_| cell != 0) {
            let frame = cell_lost(handle, cell, exit_code, After::Kept);
            self.send(&frame);
        }
        self.drop_handle(index);
    }

    /// Waits for copies that have not reported when the runner ends that was asked for them.
    ///
    /// As long as a copy may be on its way, it holds its end of the control channel open. When the worker ends, the
    /// other copies are waited for, too: their pids have to be known before strays are killed.
    fn settle_copies(&mut self, parent: u32, exit_code: i32) {
        for index in self.indexes() {
            let Some(handle) = self.handles.get(&index) else { continue };
            if handle.pid.is_some() || (handle.parent != Some(parent) && self.line.worker != Some(parent)) {
                continue;
            }
            // A stopped copy cannot report, and a copy that did not in all the time of a cell never will.
            let is_halted = self.processes.is_halted();
            let patience = if is_halted { Duration::ZERO } else { self.poller.patience(SETTLE) };
            self.wait_for(index, |copy| copy.pid.is_some(), patience);
            let is_missing = |handle: &Handle| handle.pid.is_none() && handle.parent == Some(parent);
            if self.handles.get(&index).is_some_and(is_missing) {
                self.refuse_list(index, &Refusal::Busy("the process ended that holds the variables"));
                self.forget_checkpoint(index);
                self.copy_lost(index, exit_code);
            }
        }
    }

    /// Waits until the views that this runner was asked for exist or have failed, so that it may end.
    pub fn wait_for_views(&mut self, parent: u32) {
        for index in self.indexes() {
            let is_coming = |handle: &Handle| {
                handle.pid.is_none() && handle.parent == Some(parent) && handle.role == Role::View
            };
            if self.handles.get(&index).is_some_and(is_coming) {
                self.wait_for(index, |view| view.pid.is_some(), self.poller.patience(SETTLE));
            }
        }
    }

    /// Collects every child that has ended; orphans become children of the guardian.
    pub fn reap(&mut self) {
        for (pid, exit_code) in process::reap() {
            self.child_ended(pid, exit_code);
        }
    }

    fn child_ended(&mut self, pid: i32, exit_code: i32) {
        if let Some(index) = self.by_pid.get(&pid) {
            self.runner_ended(*index, exit_code);
            return;
        }
        let is_own = self.computation_ended(pid, exit_code)
            || self.evaluator_ended(pid)
            || self.command_ended(pid, exit_code)
            || self.inbox.ended(pid)
            || self.request_ended(pid, exit_code)
            || self.zygote.ended(pid)
            || self.memory_limit.reserve.ended(pid);
        if is_own {
            return;
        }
        self.memory.let_go(pid);
        self.reaped.retain(|(known, _)| *known != pid);
        self.reaped.push_back((pid, exit_code));
        if self.reaped.len() > REAPED_REMEMBERED {
            self.reaped.pop_front();
        }
    }

    pub fn reap_regularly(&mut self) {
        self.reap();
        self.press_computations();
        self.reap_soon();
    }

    pub fn reap_soon(&mut self) {
        let is_busy = self.computations.is_busy()
            || self.evaluator.is_busy()
            || self.commands.are_running()
            || self.background.are_running()
            || self.handles.values().any(|handle| handle.cell != 0 || !handle.resets.is_empty());
        let pause = if !is_busy {
            REAP_IDLE
        } else if self.handles.values().all(Handle::is_watched) {
            REAP_BUSY
        } else {
            REAP_WITHOUT_PIDFD
        };
        // Not later than the timer that is set, since cells may start faster than the pause and must not put the
        // reaping off.
        self.poller.within(Timer::Reap, pause);
    }

    /// Gives a runner up that was a worker or a checkpoint.
    pub fn retire(&mut self, index: u32) {
        if let Some(handle) = self.handles.get_mut(&index) {
            handle.role = Role::Retired;
            handle.killed = true;
        }
        self.signal(index, Signal::KILL);
    }
}
