//! Background cells: threads of the worker beside the cell of the main line, with whose variables they work.
//!
//! Each has output pipes of its own, and one on which its thread is told to end. That such a cell has ended is the worker's
//! word, as for any cell: code of the session can say it too early, and what the thread writes from then on goes nowhere. A
//! cell that does not end when it is told to ends with the worker, for which a checkpoint takes over.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::{self, Errno};
use rustix::pipe::{self, PipeFlags};
use serde_json::{Value, json};

use crate::channel::bytes_waiting;
use crate::controls;
use crate::frames::{After, Refusal};
use crate::guardian::Guardian;
use crate::handle::{OutputPipe, new_meter};
use crate::limits::{BACKGROUND_CELLS, CROWD, OUTPUT_FRAME_BYTES, OUTPUT_GATHER, RUNNER_INDEXES};
use crate::output::{OutputMeter, STREAMS, Stream};
use crate::poller::{Poller, Timer, Token};
use crate::wire::{self, to_runner};

/// The exit code of a cell that ended by the exception that it was told to raise: SIGINT, which means the same.
const INTERRUPTED: i32 = -2;

struct Background {
    cell: u64,
    /// The worker whose thread it is.
    runner: u32,
    /// The output pipes by stream, until the worker has closed them.
    outputs: [Option<OutputPipe>; 2],
    /// A byte here has the thread raise an exception.
    orders: OwnedFd,
    meter: OutputMeter,
    displays: u64,
    killed: bool,
}

/// A background cell that ended with its worker.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub cell: u64,
    /// Whether the daemon wanted it killed.
    pub killed: bool,
    /// Whether the guardian killed the worker for its memory.
    pub out_of_memory: bool,
}

/// The background cells that run.
#[derive(Default)]
pub struct BackgroundCells {
    open: BTreeMap<u32, Background>,
    next: u32,
}

impl BackgroundCells {
    pub fn cells(&self) -> impl Iterator<Item = u64> {
        self.open.values().map(|background| background.cell)
    }

    pub fn are_running(&self) -> bool {
        !self.open.is_empty()
    }

    fn of_cell(&self, cell: u64) -> Option<u32> {
        self.open.iter().find(|(_, background)| background.cell == cell).map(|(index, _)| *index)
    }

    fn new_index(&mut self) -> u32 {
        while self.open.contains_key(&self.next) {
            self.next = (self.next + 1) % RUNNER_INDEXES;
        }
        let index = self.next;
        self.next = (index + 1) % RUNNER_INDEXES;
        index
    }
}

impl Background {
    fn watch_output(&mut self, stream: Stream, on: bool, poller: &Poller) {
        if let Some(output) = &mut self.outputs[stream.place()] {
            let wanted = if on { EventFlags::IN } else { EventFlags::empty() };
            output.watch.set(poller, &output.descriptor, wanted);
        }
    }

    fn close_output(&mut self, stream: Stream, poller: &Poller) {
        self.watch_output(stream, false, poller);
        self.outputs[stream.place()] = None;
    }

    /// Has the thread raise an exception before its next instruction.
    fn tell(&self) {
        // A full pipe says it already, and a thread that does not listen is killed with its worker.
        let _ = io::write(&self.orders, b"!");
    }
}

/// The frame that reports that a cell ended with its process. `rolled_back`: on account of something else than itself.
fn lost(ended: Ended, exit_code: i32, after: After, rolled_back: bool) -> Value {
    json!({
        "type": "cell_lost", "cell": ended.cell, "exit_code": exit_code, "killed": ended.killed,
        "out_of_memory": ended.out_of_memory, "after": after.to_json(), "rolled_back": rolled_back,
    })
}

impl Guardian {
    /// Gives the worker, which is idle, a cell to run on another thread. The state before it can be restored.
    pub fn start_background(&mut self, cell: u64, text: &str) -> Result<(), Refusal> {
        if self.background.open.len() >= BACKGROUND_CELLS {
            return Err(Refusal::NoProcess("too many background cells are running".into()));
        }
        self.protect_state();
        let worker = self.line.worker.ok_or_else(Refusal::no_process)?;
        let index = self.background.new_index();
        let [stdout, stderr] = STREAMS.map(|stream| OutputPipe::new(Token::BackgroundOutput(index, stream)));
        let (mut stdout, mut stderr) = (none_left(stdout)?, none_left(stderr)?);
        let (heard, orders) = none_left(pipe::pipe_with(PipeFlags::CLOEXEC))?;
        none_left(io::ioctl_fionbio(&orders, true))?;
        let (Some(writes), Some(complains)) = (stdout.runner_end.take(), stderr.runner_end.take()) else {
            return Err(Refusal::NoDescriptors);
        };
        let of = self.handles.get_mut(&worker).ok_or_else(Refusal::no_process)?;
        let message = wire::pack(to_runner::BACKGROUND, text.as_bytes());
        let given = [writes.as_fd(), complains.as_fd(), heard.as_fd()];
        of.control.send_with(message, &given, &self.poller).map_err(|error| match error {
            Errno::TOOMANYREFS => Refusal::NoDescriptors,
            _ => Refusal::no_process(),
        })?;
        let (outputs, meter) = ([Some(stdout), Some(stderr)], new_meter(&self.limits));
        let started = Background { cell, runner: worker, outputs, orders, meter, displays: 0, killed: false };
        self.background.open.insert(index, started);
        self.line.deaths_in_a_row = 0;
        self.read_background(index, !self.is_pressed);
        self.watch_memory_soon();
        Ok(())
    }

    // Output.

    /// Reads what background cells write, or lets them wait.
    pub fn read_backgrounds(&mut self, on: bool) {
        for index in self.background.open.keys().copied().collect::<Vec<_>>() {
            self.read_background(index, on);
        }
    }

    pub fn read_background(&mut self, index: u32, on: bool) {
        self.poller.cancel(Timer::GatherBackground(index));
        if let Some(background) = self.background.open.get_mut(&index) {
            for stream in STREAMS {
                background.watch_output(stream, on, &self.poller);
            }
        }
    }

    pub fn background_wrote(&mut self, index: u32, stream: Stream) {
        let taken = self.take_background_output(index, stream, OUTPUT_FRAME_BYTES);
        let Some(background) = self.background.open.get_mut(&index) else { return };
        match taken {
            None => background.close_output(stream, &self.poller),
            Some(taken) if taken < OUTPUT_FRAME_BYTES && !self.is_pressed => {
                // What comes next waits a little for more, so that many short writes are few frames.
                background.watch_output(stream, false, &self.poller);
                self.poller.within(Timer::GatherBackground(index), OUTPUT_GATHER);
            }
            Some(_) => {}
        }
    }

    /// Bytes taken; `None` at the end of the stream.
    fn take_background_output(&mut self, index: u32, stream: Stream, size: usize) -> Option<usize> {
        let background = self.background.open.get_mut(&index)?;
        let output = background.outputs[stream.place()].as_ref()?;
        let taken = match io::read(&output.descriptor, &mut self.scratch[..size]) {
            Ok(0) => return None,
            Ok(taken) => taken,
            Err(_) => return Some(0),
        };
        let now = background.meter.take(stream, &self.scratch[..taken]);
        if !now.is_empty() {
            self.bridge.send_output(stream.header(background.cell), now, &mut self.poller);
            self.after_bridge();
        }
        Some(taken)
    }

    /// Forwards what is in the pipes of a runner's background cells now.
    pub fn drain_backgrounds(&mut self, runner: u32) {
        let of_runner =
            |(index, background): (&u32, &Background)| (background.runner == runner).then_some(*index);
        for index in self.background.open.iter().filter_map(of_runner).collect::<Vec<_>>() {
            self.drain_background(index);
        }
    }

    fn drain_background(&mut self, index: u32) {
        for stream in STREAMS {
            let output =
                self.background.open.get(&index).and_then(|each| each.outputs[stream.place()].as_ref());
            let Some(output) = output else { continue };
            // The amount is looked up first, so that an endless writer cannot keep the guardian here.
            let mut left = usize::try_from(bytes_waiting(output.descriptor.as_fd())).unwrap_or(usize::MAX);
            while let Some(taken) = self
                .take_background_output(index, stream, left.min(OUTPUT_FRAME_BYTES))
                .filter(|taken| *taken > 0 && left > 0)
            {
                left -= taken.min(left);
            }
        }
    }

    pub fn background_displayed(&mut self, runner: u32, payload: &[u8]) -> bool {
        let Some((cell, shown)) = wire::parse_cell(payload) else { return false };
        let Some(index) = self.background_of(runner, cell) else { return self.is_known(cell) };
        self.drain_background(index); // so that earlier output comes first
        let most = self.limits.displays;
        let Some(background) = self.background.open.get_mut(&index) else { return true };
        background.displays += 1;
        if background.displays <= most {
            self.send_of_runner(&json!({"type": "display", "cell": cell}), shown);
        }
        true
    }

    // Ends.

    fn background_of(&self, runner: u32, cell: u64) -> Option<u32> {
        let index = self.background.of_cell(cell)?;
        self.background.open.get(&index).filter(|background| background.runner == runner).map(|_| index)
    }

    /// Whether the runner runs this cell in the background.
    pub fn has_background(&self, runner: u32, cell: u64) -> bool {
        self.background_of(runner, cell).is_some()
    }

    /// Whether there was such a cell, so that code which outlives it may still speak of it.
    fn is_known(&self, cell: u64) -> bool {
        (1..=self.last_cell).contains(&cell)
    }

    /// A worker says that a background cell of its has ended; it can say so only of its own.
    pub fn background_done(&mut self, runner: u32, payload: &[u8]) -> bool {
        let Some((cell, outcome)) = wire::parse_cell(payload) else { return false };
        let Some(index) = self.background_of(runner, cell) else {
            // Code of the session has told the end too early, and this is the real one.
            return self.is_known(cell);
        };
        let Some(ended) = self.finish_background(index) else { return true };
        if ended.killed && controls::holds("a_killed_cell_is_not_done") {
            self.send(&lost(ended, INTERRUPTED, After::Kept, false));
        } else {
            let own = json!({
                "type": "cell_done", "cell": cell, "protected": true, "as_before": null, "harmless": false,
            });
            self.send_of_runner(&own, outcome);
        }
        self.background_changed(cell);
        true
    }

    /// Forwards what the cell had written, and forgets it.
    fn finish_background(&mut self, index: u32) -> Option<Ended> {
        self.drain_background(index);
        let mut background = self.background.open.remove(&index)?;
        for timer in [Timer::GatherBackground(index), Timer::EndBackground(index)] {
            self.poller.cancel(timer);
        }
        for stream in STREAMS {
            background.close_output(stream, &self.poller);
        }
        self.send_held_back(background.cell, background.meter);
        Some(Ended { cell: background.cell, killed: background.killed, out_of_memory: false })
    }

    /// The background cells of a runner that has ended or is about to.
    pub fn finish_backgrounds(&mut self, runner: u32) -> Vec<Ended> {
        let of_runner =
            |(index, background): (&u32, &Background)| (background.runner == runner).then_some(*index);
        let indexes: Vec<u32> = self.background.open.iter().filter_map(of_runner).collect();
        indexes.into_iter().filter_map(|index| self.finish_background(index)).collect()
    }

    /// Tells of the cells that ended with a worker. `alone`: nothing else ran in it that may have been the cause.
    pub fn tell_backgrounds(&mut self, ended: &[Ended], exit_code: i32, after: After, alone: bool) {
        let is_put_down = ended.iter().any(|each| each.killed);
        for each in ended {
            let rolled_back = !each.killed && (is_put_down || !alone);
            self.send(&lost(*each, exit_code, after, rolled_back));
        }
    }

    pub fn interrupt_background(&mut self, cell: u64) {
        if let Some(background) =
            self.background.of_cell(cell).and_then(|index| self.background.open.get(&index))
        {
            background.tell();
        }
    }

    /// Has a background cell end: by an exception, or after the grace with the worker.
    pub fn kill_background(&mut self, cell: u64, grace: Duration) {
        let Some(index) = self.background.of_cell(cell) else { return };
        let is_crowded = self.processes.is_crowded(CROWD);
        let Some(background) = self.background.open.get_mut(&index) else { return };
        background.killed = true;
        background.tell();
        if is_crowded {
            self.end_background(index);
        } else {
            self.poller.after(Timer::EndBackground(index), grace);
        }
    }

    /// Ends the worker of a cell that does not end otherwise.
    pub fn end_background(&mut self, index: u32) {
        if let Some(runner) = self.background.open.get(&index).map(|background| background.runner) {
            self.end_late(runner);
        }
    }
}

fn none_left<T>(result: io::Result<T>) -> Result<T, Refusal> {
    result.map_err(|_| Refusal::NoDescriptors)
}
