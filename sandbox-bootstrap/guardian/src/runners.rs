//! The guardian's runners: how copies are asked for, what is read from runners, which processes are theirs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::{self, Errno};
use rustix::process::Signal;
use serde_json::json;

use crate::channel::{Read, Unread, bytes_waiting};
use crate::frames::Refusal;
use crate::guardian::Guardian;
use crate::handle::{Handle, Role, Side};
use crate::limits::{OUTPUT_FRAME_BYTES, OUTPUT_GATHER, RUNNER_INDEXES, SWEEP};
use crate::output::{OutputMeter, STREAMS, Stream};
use crate::poller::Timer;
use crate::process::send_signal;
use crate::process_table::Spared;
use crate::wire;
use crate::zygote::is_ready;

fn gathers(index: u32, stream: Stream) -> Timer {
    match stream {
        Stream::Stdout => Timer::GatherStdout(index),
        Stream::Stderr => Timer::GatherStderr(index),
    }
}

impl Guardian {
    pub fn indexes(&self) -> Vec<u32> {
        self.handles.keys().copied().collect()
    }

    pub fn of_cell(&self, cell: u64) -> Option<u32> {
        self.handles
            .values()
            .find(|handle| handle.cell != 0 && handle.cell == cell)
            .map(|handle| handle.index)
    }

    pub fn running_cells(&self) -> Vec<u64> {
        let of_runners: BTreeSet<u64> = self.handles.values().map(|handle| handle.cell).collect();
        let of_runners = of_runners.into_iter().filter(|cell| *cell != 0);
        of_runners.chain(self.commands.cells()).chain(self.background.cells()).collect()
    }

    /// Pids of processes that are not strays.
    pub fn living(&self) -> BTreeSet<i32> {
        let runners = self.handles.values().filter(|handle| handle.role != Role::Retired);
        let own = self
            .inbox
            .pid()
            .into_iter()
            .chain(self.zygote.pid())
            .chain(self.computations.pids())
            .chain(self.evaluator.pid())
            .chain(self.commands.pids())
            .chain(self.requests.pids());
        runners.filter_map(|handle| handle.pid).chain(own).collect()
    }

    /// The processes to spare when strays are killed, without those of the copy `but`.
    pub fn spared(&mut self, but: Option<u32>) -> Spared {
        let is_copy = |handle: &&Handle| {
            matches!(handle.role, Role::Fork | Role::View | Role::Snapshot) && Some(handle.index) != but
        };
        let copies: Vec<&Handle> = self.handles.values().filter(is_copy).collect();
        let there = copies.iter().filter_map(|handle| handle.pid).chain(self.commands.pids()).collect();
        let coming = copies.iter().filter(|handle| handle.pid.is_none());
        let coming: BTreeSet<u64> =
            coming.filter_map(|handle| self.processes.tag(handle.index, handle.role)).collect();
        if !coming.is_empty() {
            // A process that is spared as a coming copy, by its tag, may be something else.
            self.poller.within(Timer::Sweep, SWEEP);
        }
        Spared { living: self.living(), copies: there, coming, commands: self.commands.were_there() }
    }

    /// The same, but commands and what they have left running are not spared: a worker needs their places.
    pub fn spared_without_commands(&mut self) -> Spared {
        let (mut spared, commands) = (self.spared(None), self.commands.pids().collect::<Vec<_>>());
        for pid in commands {
            spared.living.remove(&pid);
            spared.copies.remove(&pid);
        }
        Spared { commands: false, ..spared }
    }

    // Handles.

    /// A handle that is not among the others yet. `None` if the descriptors for it are not available.
    pub fn new_handle(&mut self, role: Role) -> Option<Handle> {
        let mut index = self.next_index;
        while self.handles.contains_key(&index) {
            index = (index + 1) % RUNNER_INDEXES;
        }
        self.next_index = (index + 1) % RUNNER_INDEXES;
        Handle::new(index, role, &self.limits).ok()
    }

    /// Asks a runner for a copy of itself.
    pub fn spawn(&mut self, parent: u32, role: Role) -> Result<u32, Refusal> {
        // Started now, the inbox has none of what follows.
        self.inbox.runner_end(&self.poller).map_err(|_| Refusal::no_process())?;
        let mut handle = self.new_handle(role).ok_or(Refusal::NoDescriptors)?;
        let of = self.handles.get_mut(&parent).ok_or_else(Refusal::no_process)?;
        (handle.parent, handle.state_of, handle.position) = (Some(parent), of.state_of, of.position);
        let what = json!([handle.index, role == Role::Checkpoint, self.processes.tag(handle.index, role)]);
        let message = wire::pack(wire::to_runner::SPAWN, what.to_string().as_bytes());
        let inbox = self.inbox.runner_end(&self.poller).map_err(|_| Refusal::no_process())?;
        let sent = of.control.send_with(message, &handle.runner_descriptors(inbox), &self.poller);
        sent.map_err(|error| match error {
            Errno::TOOMANYREFS => Refusal::NoDescriptors,
            _ => Refusal::no_process(),
        })?;
        if let Some(pid) = of.pid.filter(|_| role == Role::Checkpoint) {
            self.memory.may_hide(pid);
        }
        handle.close_runner_ends();
        handle.read(!self.is_pressed, &self.poller);
        let index = handle.index;
        self.handles.insert(index, handle);
        Ok(index)
    }

    /// False if the process is gone already or its end cannot be watched.
    pub fn set_pid(&mut self, index: u32, pid: i32) -> bool {
        self.by_pid.insert(pid, index);
        self.handles.get_mut(&index).is_some_and(|handle| handle.set_pid(pid, &self.poller))
    }

    /// Closes all that the guardian holds for a runner.
    pub fn drop_handle(&mut self, index: u32) -> Option<Handle> {
        let timers = [Timer::End(index), Timer::NotBack(index), Timer::EndedUnseen(index)];
        for timer in timers.into_iter().chain(STREAMS.map(|stream| gathers(index, stream))) {
            self.poller.cancel(timer);
        }
        let mut handle = self.handles.remove(&index)?;
        handle.unwatch(&self.poller);
        if let Some(pid) = handle.pid
            && self.by_pid.remove(&pid).is_some()
        {
            self.memory.let_go(pid);
        }
        Some(handle)
    }

    pub fn signal(&self, index: u32, signal: Signal) {
        if let Some(pid) = self.handles.get(&index).and_then(|handle| handle.pid) {
            send_signal(pid, signal);
        }
    }

    pub fn kill(&self, index: u32) {
        self.signal(index, Signal::KILL);
    }

    // What is sent to runners.

    /// Sends a message on the control channel.
    pub fn tell(&mut self, index: u32, message: Vec<u8>) {
        self.send_on(index, Side::Control, message);
    }

    pub fn send_on(&mut self, index: u32, side: Side, message: Vec<u8>) {
        let Some(handle) = self.handles.get_mut(&index) else { return };
        if handle.channel(side).send(message, &self.poller) == Err(Unread) {
            self.kill(index);
        }
    }

    /// Passes on a frame of the daemon.
    pub fn forward(&mut self, index: u32, text: &str) {
        self.tell(index, wire::pack(wire::to_runner::HOST_FRAME, text.as_bytes()));
    }

    // What is read from runners.

    /// Reads what the runner sends, or lets it wait.
    pub fn read(&mut self, index: u32, on: bool) {
        for stream in STREAMS {
            self.poller.cancel(gathers(index, stream));
        }
        if let Some(handle) = self.handles.get_mut(&index) {
            handle.read(on, &self.poller);
        }
    }

    /// Reads once and handles the messages that are whole. False at the end or if nothing came.
    pub fn receive(&mut self, index: u32, side: Side) -> bool {
        let Some(handle) = self.handles.get_mut(&index) else { return false };
        match handle.channel(side).receive(&mut self.scratch, &self.poller) {
            Read::Nothing => false,
            Read::Some => self.handle_read(index, side),
            Read::End => {
                self.runner_hung_up(index);
                false
            }
        }
    }

    /// Handles the messages that were read and are complete. False if the channel has ended.
    fn handle_read(&mut self, index: u32, side: Side) -> bool {
        loop {
            let Some(handle) = self.handles.get_mut(&index) else { return false };
            let channel = handle.channel(side);
            if channel.has_ended() {
                return false;
            }
            match (channel.next(), side) {
                (Ok(None), _) => return true,
                (Ok(Some((kind, payload))), Side::Control) => self.runner_message(index, kind, &payload),
                (Ok(Some((kind, payload))), Side::Tools) => self.runner_called(index, kind, &payload),
                (Err(wire::TooLong), _) => {
                    channel.end(&self.poller);
                    self.kill(index);
                    return false;
                }
            }
        }
    }

    /// Like `receive`, but waits that long if nothing is there yet.
    fn receive_within(&mut self, index: u32, side: Side, patience: Duration) -> bool {
        let Some(handle) = self.handles.get_mut(&index) else { return false };
        let channel = handle.channel(side);
        if channel.has_ended() {
            return false;
        }
        is_ready(channel.pipe(), PollFlags::IN, Instant::now() + patience);
        self.receive(index, side)
    }

    /// Handles messages of the runner until the condition holds. False if the runner ended or time is up.
    pub fn wait_for(&mut self, index: u32, condition: impl Fn(&Handle) -> bool, patience: Duration) -> bool {
        self.receive_until(index, |this| this.handles.get(&index).is_some_and(&condition), patience)
    }

    /// The same for a condition that is not about that runner alone.
    pub fn receive_until(
        &mut self,
        index: u32,
        condition: impl Fn(&Self) -> bool,
        patience: Duration,
    ) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            if condition(self) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            // A process that holds the runner's end may send for ever, so that data always comes.
            if !self.receive_within(index, Side::Control, left) || left.is_zero() {
                return condition(self);
            }
        }
    }

    /// False if the runner has begun to send a message that is not complete after that time.
    pub fn is_whole_within(&mut self, index: u32, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        [Side::Control, Side::Tools].into_iter().all(|side| self.is_whole_by(index, side, deadline))
    }

    /// Whether the message that the runner has begun to send is complete by then; later messages do not count.
    fn is_whole_by(&mut self, index: u32, side: Side, deadline: Instant) -> bool {
        let half_at = |this: &mut Self| {
            let channel = this.handles.get_mut(&index)?.channel(side);
            channel.has_half().then(|| channel.handled())
        };
        let Some(begun) = half_at(self) else { return true };
        self.receive(index, side); // the rest may be there
        while half_at(self) == Some(begun) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.receive_within(index, side, left) {
                return half_at(self) != Some(begun);
            }
        }
        true
    }

    /// Handles messages that the runner had sent before its end.
    pub fn take_last_words(&mut self, index: u32) {
        for side in [Side::Tools, Side::Control] {
            self.handle_read(index, side); // the end may have been noticed while the first of them was handled
            self.receive_rest(index, side);
        }
    }

    /// Handles only what has been sent up to now; processes that the runner left behind may continue to send.
    fn receive_rest(&mut self, index: u32, side: Side) {
        let Some(handle) = self.handles.get_mut(&index) else { return };
        let end = handle.channel(side).sent();
        let is_left = |this: &mut Self| {
            let channel = this.handles.get_mut(&index).map(|handle| handle.channel(side));
            channel.is_some_and(|channel| !channel.has_ended() && channel.received() < end)
        };
        while is_left(self) && self.receive(index, side) {}
    }

    // Output.

    pub fn output_ready(&mut self, index: u32, stream: Stream) {
        let taken = self.read_output(index, stream, OUTPUT_FRAME_BYTES);
        let Some(handle) = self.handles.get_mut(&index) else { return };
        if !handle.reads || taken.is_some_and(|taken| taken >= OUTPUT_FRAME_BYTES) {
            return;
        }
        handle.watch_output(stream, false, &self.poller);
        if taken.is_some() {
            // What comes next waits a little for more, so that many short writes are few frames.
            self.poller.after(gathers(index, stream), OUTPUT_GATHER);
        }
    }

    pub fn watch_output_again(&mut self, index: u32, stream: Stream) {
        if let Some(handle) = self.handles.get_mut(&index) {
            handle.watch_output(stream, true, &self.poller);
        }
    }

    /// Bytes taken; `None` at the end of the pipe.
    fn read_output(&mut self, index: u32, stream: Stream, size: usize) -> Option<usize> {
        let handle = self.handles.get_mut(&index)?;
        let taken = match io::read(handle.output(stream), &mut self.scratch[..size]) {
            Ok(0) => return None,
            Ok(taken) => taken,
            Err(_) => return Some(0),
        };
        let now = handle.meter.take(stream, &self.scratch[..taken]);
        if !now.is_empty() {
            self.bridge.send_output(stream.header(handle.cell), now, &mut self.poller);
            self.after_bridge();
        }
        Some(taken)
    }

    /// Forwards what is in the pipes now.
    ///
    /// The amount is looked up first, so that an endless writer cannot keep the guardian here.
    pub fn drain(&mut self, index: u32) {
        for stream in STREAMS {
            let Some(handle) = self.handles.get(&index) else { return };
            let mut waiting = usize::try_from(bytes_waiting(handle.output(stream))).unwrap_or(usize::MAX);
            while waiting > 0 {
                match self.read_output(index, stream, waiting.min(OUTPUT_FRAME_BYTES)) {
                    None | Some(0) => break,
                    Some(taken) => waiting -= taken.min(waiting),
                }
            }
        }
    }

    /// Forwards what is in the pipes now and what the meter held back; the count starts anew.
    pub fn finish_output(&mut self, index: u32) {
        self.drain(index);
        let Some(handle) = self.handles.get_mut(&index) else { return };
        let (cell, meter) = (handle.cell, handle.take_meter(&self.limits));
        self.send_held_back(cell, meter);
    }

    /// Tells how much of the output was dropped, and forwards what the meter held back.
    pub fn send_held_back(&mut self, cell: u64, meter: OutputMeter) {
        let (gap, tail) = meter.finish();
        if let Some(gap) = gap {
            let (stdout, stderr) = (gap.stdout_bytes, gap.stderr_bytes);
            self.send(
                &json!({"type": "output_gap", "cell": cell, "stdout_bytes": stdout, "stderr_bytes": stderr}),
            );
        }
        for (stream, data) in tail {
            self.bridge.send_output(stream.header(cell), &data, &mut self.poller);
            self.after_bridge();
        }
    }

    pub fn begin_cell(&mut self, index: u32, cell: u64) {
        self.finish_output(index); // output held back from the time without a cell
        if let Some(handle) = self.handles.get_mut(&index) {
            handle.begin_cell(cell, &self.poller);
        }
        self.hold_packing();
    }

    pub fn end_cell(&mut self, index: u32) {
        self.finish_output(index);
        if let Some(handle) = self.handles.get_mut(&index) {
            handle.cell = 0;
        }
        self.hold_packing();
    }
}
