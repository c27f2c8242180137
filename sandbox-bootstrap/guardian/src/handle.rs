//! What the guardian knows about one runner, and the descriptors that it holds for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io;
use rustix::pipe::{self, PipeFlags};
use rustix::process::{self, Pid, PidfdFlags};

use crate::background::Ended;
use crate::calls::Calls;
use crate::channel::Channel;
use crate::frames::Refusal;
use crate::limits::{Limits, PIPE_BYTES};
use crate::output::{OutputMeter, STREAMS, Stream};
use crate::poller::{Poller, Token, Watch};
use crate::snapshots::{Loading, Packing};

/// What a runner is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The runner works on the main line.
    Worker,
    /// The runner is a copy that waits to become the worker.
    Checkpoint,
    /// The runner runs one cell on a copy of the state.
    Fork,
    /// The runner lists variables once, on a copy of the state.
    View,
    /// The runner packs the variables of a copy of the state.
    Snapshot,
    /// The runner was a worker or a checkpoint and is about to end.
    Retired,
}

/// One of a runner's two channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Control,
    Tools,
}

/// The read end of an output pipe.
pub struct OutputPipe {
    pub descriptor: OwnedFd,
    /// The writer's end, until it is handed over.
    pub runner_end: Option<OwnedFd>,
    pub watch: Watch,
}

/// A runner's channels and output pipes, and the cell it works on.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own, learnt at another time
pub struct Handle {
    pub index: u32,
    pub pid: Option<i32>,
    pidfd: Option<(OwnedFd, Watch)>,
    pub role: Role,
    /// The present cell; 0 if there is none.
    pub cell: u64,
    pub newest_cell: u64,
    /// Whether the code of the cell runs.
    pub begun: bool,
    /// Names that the cell may assign, as the runner reports.
    pub names: Vec<u8>,
    pub killed: bool,
    /// Whether the guardian killed the runner for its memory, because the system did not.
    pub out_of_memory: bool,
    pub interrupted: bool,
    pub has_spoken: bool,
    /// The runner that was asked for this copy, until the copy reports.
    pub parent: Option<u32>,
    /// Why the copy does not come, if that runner has said so.
    pub missing_for: Option<Refusal>,
    /// The newest cell whose changes the runner holds.
    pub state_of: u64,
    /// How many cells of the main line led to that state.
    pub position: u64,
    /// The cells after a checkpoint, with what repeats each, as far as they need no copy.
    pub redo: Vec<(u64, Vec<u8>)>,
    /// Whether seed or tools were given to a checkpoint after the cells in `redo`.
    pub given_later: bool,
    /// The cell of the main line that ran when this copy was made.
    pub as_before: Option<u64>,
    pub promoted: bool,
    /// The last cell after which the runner's first thread said that it is free.
    pub back_from: u64,
    /// The cells in the background that ended while the present cell of the main line runs.
    pub ended_beside: Vec<u64>,
    /// The last cell of the main line that the runner ran.
    pub last_cell: u64,
    /// The last cell after which the guardian asked whether the first thread is free.
    pub asked_back: u64,
    /// Number of displays of the present cell.
    pub displays: u64,
    /// Whether the end that a timer brings is that of a cell whose time is over.
    pub ends_late: bool,
    pub variables_request: Option<u64>,
    /// The daemon's request for the imports that the runner begins with, until they are done.
    pub preload_request: Option<u64>,
    /// What a copy packs, until its end is told.
    pub packing: Option<Packing>,
    /// What a worker loads, until it has said how that went.
    pub loading: Option<Loading>,
    /// Whether the worker was told to load a snapshot.
    pub has_loaded: bool,
    /// The background cells that ended with this worker.
    pub backgrounds: Vec<Ended>,
    /// Requests that are answered when a fresh worker has taken the place of this one.
    pub resets: Vec<u64>,
    pub control: Channel,
    pub tools: Channel,
    pub calls: Calls,
    pub meter: OutputMeter,
    pipes: [OutputPipe; 2],
    pub reads: bool,
}

impl Handle {
    pub fn new(index: u32, role: Role, limits: &Limits) -> io::Result<Self> {
        let pipe = |stream| OutputPipe::new(Token::Output(index, stream));
        Ok(Self {
            index,
            pid: None,
            pidfd: None,
            role,
            cell: 0,
            newest_cell: 0,
            begun: false,
            names: Vec::new(),
            killed: false,
            out_of_memory: false,
            interrupted: false,
            has_spoken: false,
            parent: None,
            missing_for: None,
            state_of: 0,
            position: 0,
            redo: Vec::new(),
            given_later: false,
            as_before: None,
            promoted: false,
            back_from: 0,
            last_cell: 0,
            ended_beside: Vec::new(),
            asked_back: 0,
            displays: 0,
            ends_late: false,
            variables_request: None,
            preload_request: None,
            packing: None,
            loading: None,
            has_loaded: false,
            backgrounds: Vec::new(),
            resets: Vec::new(),
            control: Channel::new(Token::Control(index), Token::ControlOut(index))?,
            tools: Channel::new(Token::Tools(index), Token::ToolsOut(index))?,
            calls: Calls::default(),
            meter: new_meter(limits),
            pipes: [pipe(Stream::Stdout)?, pipe(Stream::Stderr)?],
            reads: false,
        })
    }

    pub fn channel(&mut self, side: Side) -> &mut Channel {
        match side {
            Side::Control => &mut self.control,
            Side::Tools => &mut self.tools,
        }
    }

    /// The runner's descriptors: for sending on control and tools, stdout, stderr, for receiving on control and tools,
    /// and the one for sending descriptors to the guardian.
    pub fn runner_descriptors<'a>(&'a self, inbox: BorrowedFd<'a>) -> Vec<BorrowedFd<'a>> {
        let (mut speaks, mut listens) = (Vec::new(), Vec::new());
        for (speak, listen) in self.control.runner_ends().into_iter().chain(self.tools.runner_ends()) {
            speaks.push(speak);
            listens.push(listen);
        }
        speaks.extend(self.pipes.iter().filter_map(|pipe| Some(pipe.runner_end.as_ref()?.as_fd())));
        speaks.append(&mut listens);
        speaks.push(inbox);
        speaks
    }

    /// Closes the guardian's copies of them, after they were handed over.
    pub fn close_runner_ends(&mut self) {
        self.control.close_runner_ends();
        self.tools.close_runner_ends();
        for pipe in &mut self.pipes {
            pipe.runner_end = None;
        }
    }

    /// False if the process is gone already or its end cannot be watched.
    pub fn set_pid(&mut self, pid: i32, poller: &Poller) -> bool {
        self.pid = Some(pid);
        let opened = Pid::from_raw(pid).map(|pid| process::pidfd_open(pid, PidfdFlags::empty()));
        let Some(Ok(pidfd)) = opened else { return false };
        let mut watch = Watch::new(Token::Pidfd(self.index));
        let is_watched = watch.set(poller, &pidfd, EventFlags::IN);
        self.pidfd = is_watched.then_some((pidfd, watch));
        is_watched
    }

    /// Stops watching the pidfd: the runner has ended, and the pidfd would report that for ever.
    pub fn unwatch_end(&mut self, poller: &Poller) {
        if let Some((pidfd, mut watch)) = self.pidfd.take() {
            watch.set(poller, &pidfd, EventFlags::empty());
        }
    }

    /// Watches nothing of it any more. Closing the descriptors is not enough: other processes may hold the same pipes.
    pub fn unwatch(&mut self, poller: &Poller) {
        self.read(false, poller);
        self.control.end(poller);
        self.tools.end(poller);
        self.unwatch_end(poller);
    }

    /// Whether the guardian ended it on purpose: for its cell, or for one in the background.
    pub fn was_put_down(&self) -> bool {
        self.killed || self.backgrounds.iter().any(|ended| ended.killed)
    }

    /// Whether the end of the runner is noticed at once.
    pub fn is_watched(&self) -> bool {
        self.pidfd.is_some()
    }

    /// Reads what the runner sends, or lets it wait.
    pub fn read(&mut self, on: bool, poller: &Poller) {
        self.reads = on;
        self.control.read(on, poller);
        self.tools.read(on, poller);
        for stream in STREAMS {
            self.watch_output(stream, on, poller);
        }
    }

    pub fn watch_output(&mut self, stream: Stream, on: bool, poller: &Poller) {
        let pipe = &mut self.pipes[stream.place()];
        let wanted = if on { EventFlags::IN } else { EventFlags::empty() };
        pipe.watch.set(poller, &pipe.descriptor, wanted);
    }

    pub fn output(&self, stream: Stream) -> BorrowedFd<'_> {
        self.pipes[stream.place()].descriptor.as_fd()
    }

    /// The position of the last state that this checkpoint can restore.
    pub fn reaches(&self) -> u64 {
        self.position + self.redo.len() as u64
    }

    /// Begins a cell; the output of the time before it was forwarded.
    pub fn begin_cell(&mut self, cell: u64, poller: &Poller) {
        (self.cell, self.newest_cell) = (cell, cell);
        self.calls.begin_cell(cell, self.tools.sent());
        self.tools.read_while(None, poller);
        self.displays = 0;
        (self.begun, self.killed, self.interrupted, self.out_of_memory) = (false, false, false, false);
        self.names.clear();
    }

    /// The meter of the present cell; the count starts anew.
    pub fn take_meter(&mut self, limits: &Limits) -> OutputMeter {
        std::mem::replace(&mut self.meter, new_meter(limits))
    }
}

pub fn new_meter(limits: &Limits) -> OutputMeter {
    OutputMeter::new(limits.output_bytes, limits.output_tail_bytes)
}

impl OutputPipe {
    pub fn new(token: Token) -> io::Result<Self> {
        let (descriptor, runner_end) = pipe::pipe_with(PipeFlags::CLOEXEC)?;
        io::ioctl_fionbio(&descriptor, true)?;
        // The user's quota for pipes may be used up; the default size works, too.
        let _ = pipe::fcntl_setpipe_size(&descriptor, PIPE_BYTES);
        Ok(Self { descriptor, runner_end: Some(runner_end), watch: Watch::new(token) })
    }
}
