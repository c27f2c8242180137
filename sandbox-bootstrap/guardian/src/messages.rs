//! Messages of runners. User code can forge all of them: they can end the runner's own cell, show something in it and
//! answer what was asked, and nothing else is trusted.

use rustix::process::Signal;
use serde_json::json;

use crate::calls::Begun;
use crate::controls;
use crate::frames::{self, Refusal};
use crate::guardian::Guardian;
use crate::handle::{Handle, Role, Side};
use crate::limits::{COPY_END, NAMES_BYTES, REASON, REFUSALS_BYTES, SAID_BYTES};
use crate::poller::Timer;
use crate::process_table;
use crate::wire::{self, from_runner};

impl Guardian {
    /// Handles a message on the control channel. A runner that breaks the rules is killed.
    pub fn runner_message(&mut self, index: u32, kind: u8, payload: &[u8]) {
        let Some(handle) = self.handles.get(&index) else { return };
        let is_known = handle.pid.is_some();
        if handle.role == Role::Retired && is_known {
            return; // it has been killed
        }
        let is_timely = is_known || kind == from_runner::PRESENT;
        if !is_timely || payload.len() > SAID_BYTES || !self.take_message(index, kind, payload) {
            self.kill(index);
        }
    }

    /// False if the runner may not send this now.
    fn take_message(&mut self, index: u32, kind: u8, payload: &[u8]) -> bool {
        match kind {
            from_runner::DISPLAY => self.displayed(index, payload),
            from_runner::BACKGROUND_DISPLAY => self.background_displayed(index, payload),
            from_runner::BACKGROUND_DONE => self.background_done(index, payload),
            from_runner::CELL_BEGUN => self.cell_begun(index, payload),
            from_runner::CELL_DONE => self.cell_done(index, payload),
            from_runner::BACK => self.back(index, payload),
            from_runner::HURRY => {
                if !self.is_pressed {
                    self.drain(index);
                    self.drain_backgrounds(index);
                }
                true
            }
            from_runner::VARIABLES_DONE => self.listed(index, payload),
            from_runner::PRELOADED => self.preloaded(index, payload),
            from_runner::RESTORED => self.restored(index, payload),
            from_runner::PRESENT => self.present(index, payload),
            from_runner::PROMOTED => self.handles.get_mut(&index).is_some_and(|handle| {
                handle.promoted = true;
                handle.role == Role::Worker
            }),
            from_runner::SPAWN_FAILED => self.spawn_failed(index, payload),
            _ => false,
        }
    }

    /// Handles a message on the channel of tools.
    pub fn runner_called(&mut self, index: u32, kind: u8, payload: &[u8]) {
        let Some(handle) = self.handles.get_mut(&index) else { return };
        if matches!(handle.role, Role::Checkpoint | Role::Retired) {
            return;
        }
        if kind == from_runner::TOOL_GIVEN_UP
            && let Ok(number) = <[u8; wire::NUMBER_BYTES]>::try_from(payload)
        {
            if let Some(call) = handle.calls.give_up(u32::from_be_bytes(number)) {
                self.send(&json!({"type": "tool_abandoned", "call": call}));
            }
            return;
        }
        if kind != from_runner::TOOL_CALL || !(wire::CALL_BYTES..=SAID_BYTES).contains(&payload.len()) {
            self.kill(index);
            return;
        }
        let call = self.next_call;
        // What lists, packs or loads variables runs no cell: its client has not asked for the effects of a tool call.
        let is_cell = !matches!(handle.role, Role::View | Role::Snapshot) && handle.loading.is_none();
        let most = if is_cell { self.limits.tool_calls } else { 0 };
        match handle.calls.begin(call, payload, most, handle.tools.handled()) {
            Begun::Refused { answer, is_of_cell } => {
                if is_of_cell {
                    handle.tools.read_while(Some(REFUSALS_BYTES), &self.poller);
                }
                self.send_on(index, Side::Tools, answer);
            }
            Begun::Passed { is_of_cell } => {
                self.next_call += 1;
                let present = Some(handle.cell).filter(|cell| is_of_cell && *cell != 0);
                let cell = match wire::calling_background(payload) {
                    // One that does not run, or not in this runner, is no cell that could wait for the answer.
                    Some(named) => Some(named).filter(|named| self.has_background(index, *named)),
                    None => present,
                };
                self.drain(index);
                let own = json!({"type": "tool_call", "call": call, "cell": cell});
                self.send_of_runner(&own, &payload[wire::CALL_BYTES..]);
            }
        }
    }

    /// Passes the answer to the program or the runner that made the call. An answer to a call that has ended is dropped.
    pub fn tool_answered(&mut self, call: u64, text: &str) {
        if self.requests.answer(call, text, &mut self.poller) {
            return;
        }
        let answer = self
            .handles
            .values_mut()
            .find_map(|handle| Some((handle.index, handle.calls.answer(call, text)?)));
        if let Some((index, message)) = answer {
            self.send_on(index, Side::Tools, message);
        }
    }

    fn displayed(&mut self, index: u32, payload: &[u8]) -> bool {
        self.drain(index); // so that earlier output comes first
        let most = self.limits.displays;
        let Some(handle) = self.handles.get_mut(&index) else { return true };
        handle.displays += 1;
        let (cell, is_shown) = (handle.cell, handle.displays <= most);
        if cell != 0 && is_shown {
            self.send_of_runner(&json!({"type": "display", "cell": cell}), payload);
        }
        true
    }

    fn cell_begun(&mut self, index: u32, payload: &[u8]) -> bool {
        let Some(handle) = self.handles.get_mut(&index) else { return true };
        handle.begun = true;
        if handle.cell != 0 && self.line.worker == Some(index) {
            self.line.deaths_in_a_row = 0;
        }
        handle.names = if payload.len() <= NAMES_BYTES { payload.to_vec() } else { Vec::new() };
        handle.cell != 0
    }

    fn cell_done(&mut self, index: u32, payload: &[u8]) -> bool {
        let Some(handle) = self.handles.get(&index) else { return true };
        let Some(done) = wire::parse_done(payload) else { return false };
        if done.cell != handle.cell || done.cell == 0 {
            // Code of an earlier cell may have reported the end of that cell too early, and this is the real end.
            let is_known = (1..=handle.newest_cell).contains(&done.cell);
            return is_known && controls::holds("an_end_may_be_told_twice");
        }
        if handle.killed && controls::holds("a_killed_cell_is_not_done") {
            return true;
        }
        self.poller.cancel(Timer::End(index));
        let is_main = self.line.worker == Some(index);
        let as_before = handle.as_before;
        // A cell in a copy cannot harm the main line.
        let protected = !is_main || self.has_near_checkpoint();
        if self.handles.get(&index).is_none_or(|handle| handle.cell != done.cell) {
            return true; // meanwhile its end was told again, and that was taken
        }
        self.end_cell(index);
        let harmless = is_main && frames::is_redo(done.redo);
        let own = json!({
            "type": "cell_done", "cell": done.cell, "protected": protected, "as_before": as_before, "harmless": harmless,
        });
        self.send_of_runner(&own, done.outcome);
        if is_main {
            self.main_cell_done(done.cell, done.redo);
        } else {
            self.end_soon(index);
        }
        true
    }

    /// Ends a copy that has answered. Nothing else would if its code continues: it has no cell and no deadline.
    fn end_soon(&mut self, index: u32) {
        if controls::holds("copies_that_answered_end") {
            if let Some(handle) = self.handles.get_mut(&index) {
                handle.ends_late = false;
            }
            self.poller.after(Timer::End(index), COPY_END);
        }
    }

    fn back(&mut self, index: u32, payload: &[u8]) -> bool {
        if let Some(handle) = self.handles.get_mut(&index)
            && handle.asked_back != 0
            && payload == handle.asked_back.to_be_bytes()
        {
            handle.back_from = handle.asked_back;
            self.poller.cancel(Timer::NotBack(index));
        }
        true
    }

    fn listed(&mut self, index: u32, payload: &[u8]) -> bool {
        let Some(handle) = self.handles.get_mut(&index) else { return true };
        let as_before = handle.as_before;
        let Some(request) = handle.variables_request.take() else { return false };
        self.send_of_runner(
            &json!({"type": "variables", "request": request, "as_before": as_before}),
            payload,
        );
        self.end_soon(index);
        true
    }

    fn preloaded(&mut self, index: u32, payload: &[u8]) -> bool {
        let Some(handle) = self.handles.get_mut(&index) else { return true };
        let Some(request) = handle.preload_request.take() else { return false };
        self.send_of_runner(&json!({"type": "preloaded", "request": request}), payload);
        true
    }

    fn present(&mut self, index: u32, payload: &[u8]) -> bool {
        let Some(handle) = self.handles.get_mut(&index) else { return true };
        handle.has_spoken = true;
        if handle.pid.is_none() {
            self.copy_present(index, wire::parse_pid(payload));
            return true;
        }
        self.line.failed_starts = 0;
        self.line.worker == Some(index)
    }

    /// A copy that hangs up before its first message never comes: code of the session may end every copy at once.
    pub fn runner_hung_up(&mut self, index: u32) {
        let Some(handle) = self.handles.get(&index).filter(|handle| handle.pid.is_none()) else { return };
        if handle.killed {
            self.end(index);
            return;
        }
        if let Some(refusal) = handle.missing_for.clone() {
            self.copy_missing(index, &refusal);
            return;
        }
        let lives = |parent: &u32| {
            let pid = self.handles.get(parent).and_then(|parent| parent.pid);
            pid.is_some_and(process_table::is_alive)
        };
        if let Some(parent) = handle.parent.filter(lives) {
            let patience = self.poller.patience(REASON);
            self.receive_until(parent, |this| !this.handles.contains_key(&index), patience);
        }
        if self.handles.contains_key(&index) {
            self.copy_missing(index, &Refusal::no_process());
        }
    }

    /// The copy reports its pid. Any descendant of a runner can pose as a copy, but no other process can.
    fn copy_present(&mut self, index: u32, pid: i32) {
        let Some(handle) = self.handles.get_mut(&index) else { return };
        let (parent, role, killed, interrupted) =
            (handle.parent.take(), handle.role, handle.killed, handle.interrupted);
        if let Some(pid) = parent.and_then(|parent| self.handles.get(&parent)?.pid) {
            self.memory.shows_again(pid);
        }
        let is_gone = !process_table::is_there(pid);
        let was_reaped = |this: &Self| this.reaped.iter().any(|(each, _)| *each == pid);
        if is_gone && !was_reaped(self) {
            self.copy_missing(index, &Refusal::no_process());
            return;
        }
        let is_taken = self.by_pid.contains_key(&pid) || self.living().contains(&pid);
        let is_ours = || process_table::is_process(pid) && self.processes.comes_of_us(pid);
        if is_taken || !(is_gone || is_ours()) {
            // Code of the runner that was asked for a copy poses as the copy.
            self.copy_missing(index, &Refusal::no_process());
            if let Some(parent) = parent {
                self.kill(parent);
            }
            return;
        }
        let is_alive = self.set_pid(index, pid);
        // These were requested before the pid was known.
        if killed {
            self.kill(index);
        } else if interrupted {
            self.signal(index, Signal::INT);
        }
        let ended = self.reaped.iter().position(|(each, _)| *each == pid).filter(|_| !is_alive);
        if let Some((_, exit_code)) = ended.and_then(|place| self.reaped.remove(place)) {
            self.runner_ended(index, exit_code);
        } else if role == Role::Checkpoint {
            self.memory.expect(pid);
            self.checkpoint_present();
        } else if role == Role::Snapshot {
            self.tell_packing(index);
        }
    }

    fn spawn_failed(&mut self, parent: u32, payload: &[u8]) -> bool {
        let Ok((index, lacks_descriptors)) = serde_json::from_slice::<(u32, bool)>(payload) else {
            return false;
        };
        let refusal = if lacks_descriptors { Refusal::NoDescriptors } else { Refusal::no_process() };
        let is_awaited = |handle: &Handle| handle.pid.is_none() && handle.parent == Some(parent);
        if let Some(handle) = self.handles.get_mut(&index).filter(|handle| is_awaited(handle)) {
            handle.missing_for = Some(refusal.clone());
            // A copy may have come though its original gave it up, and its report waits to be read.
            self.receive(index, Side::Control);
        }
        if self.handles.get(&index).is_some_and(is_awaited) {
            self.copy_missing(index, &refusal);
        }
        true
    }

    fn copy_missing(&mut self, index: u32, refusal: &Refusal) {
        self.forget_checkpoint(index);
        let Some(handle) = self.drop_handle(index) else { return };
        if handle.role == Role::Checkpoint {
            self.checkpoint_failed();
        }
        if handle.cell != 0 {
            self.refuse(refusal, None, Some(handle.cell));
        } else if handle.variables_request.is_some() {
            self.refuse(refusal, handle.variables_request, None);
        }
        self.refuse_packing(&handle, refusal);
    }
}
