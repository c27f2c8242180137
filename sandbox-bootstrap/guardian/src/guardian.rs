//! The guardian: pid 1 of the sandbox.
//!
//! It has runners made, forwards their messages to the daemon unread, but with its own statement of what each is about,
//! carries their output, and reports how they ended. It runs no user code and has no signal handlers, because a pid
//! namespace protects its init only from signals without one.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

use rustix::event::epoll::EventFlags;
use serde_json::{Value, json};

use crate::background::BackgroundCells;
use crate::bridge::Bridge;
use crate::commands::Commands;
use crate::computations::{Computations, KilledFor};
use crate::evaluator::Evaluator;
use crate::frames::{self, HostFrame, Refusal};
use crate::handle::{Handle, Side};
use crate::helpers::Inbox;
use crate::limits::{
    FIRST_HELLO, Limits, PROTOCOL_VERSION, READ_BYTES, ZYGOTE_ANSWER, ZYGOTE_RESTART, ZYGOTE_START,
    ZYGOTE_TRIES,
};
use crate::mainline::MainLine;
use crate::memory::Memory;
use crate::memory_limit::MemoryLimit;
use crate::output::Stream;
use crate::poller::{Poller, Timer, Token};
use crate::process::Processes;
use crate::process_table;
use crate::requests::Requests;
use crate::strays::Strays;
use crate::websocket;
use crate::zygote::{Wanted, Zygote};

pub struct Guardian {
    pub poller: Poller,
    pub bridge: Bridge,
    pub zygote: Zygote,
    pub processes: Processes,
    pub limits: Limits,
    pub line: MainLine,
    pub strays: Strays,
    pub computations: Computations,
    pub evaluator: Evaluator,
    pub commands: Commands,
    pub background: BackgroundCells,
    pub inbox: Inbox,
    pub requests: Requests,
    pub memory: Memory,
    pub memory_limit: MemoryLimit,
    /// Runners by index.
    pub handles: BTreeMap<u32, Handle>,
    pub by_pid: BTreeMap<i32, u32>,
    pub next_index: u32,
    pub next_call: u64,
    /// Exit codes of orphans by pid, in case one turns out to be a runner; oldest first.
    pub reaped: VecDeque<(i32, i32)>,
    /// Buffer that nearly all reads reuse.
    pub scratch: Vec<u8>,
    /// Whether runners are not read at present, because too much waits for the daemon.
    pub is_pressed: bool,
    findings: Value,
    greeted: bool,
    running: bool,
    pub last_cell: u64,
}

impl Guardian {
    pub fn new(poller: Poller, bridge: Bridge, zygote: Zygote, findings: Value) -> Self {
        let processes = Processes::new();
        Self {
            poller,
            bridge,
            zygote,
            limits: Limits::default(),
            line: MainLine::default(),
            strays: Strays::default(),
            computations: Computations::default(),
            evaluator: Evaluator::default(),
            commands: Commands::default(),
            background: BackgroundCells::default(),
            inbox: Inbox::default(),
            requests: Requests::default(),
            memory: Memory::new(processes.is_init()),
            memory_limit: MemoryLimit::default(),
            processes,
            handles: BTreeMap::new(),
            by_pid: BTreeMap::new(),
            next_index: 0,
            next_call: 0,
            reaped: VecDeque::new(),
            scratch: vec![0; READ_BYTES],
            is_pressed: false,
            findings,
            greeted: false,
            running: true,
            last_cell: 0,
        }
    }

    /// Serves until the sandbox ends. False if Python cannot be started.
    pub fn run(&mut self) -> bool {
        if !self.ensure_zygote() {
            return false;
        }
        if self.processes.is_init() {
            self.requests.listen(&self.poller); // before any code of the session could take the name
        }
        self.poller.after(Timer::Orphan, FIRST_HELLO);
        self.start_worker();
        self.reap_regularly();
        self.bridge.connect(&mut self.poller);
        while self.running {
            for (token, flags) in self.poller.wait() {
                self.ready(token, flags);
            }
            for timer in self.poller.due() {
                if self.poller.ring(timer) {
                    self.rung(timer);
                }
            }
        }
        true
    }

    fn ready(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Bridge => self.bridge_ready(flags),
            Token::Inbox => {
                for (pid, descriptor) in self.inbox.receive() {
                    self.memory.hold(pid, descriptor);
                }
            }
            Token::Control(index) => drop(self.receive(index, Side::Control)),
            Token::Tools(index) => drop(self.receive(index, Side::Tools)),
            Token::ControlOut(index) => self.flush_channel(index, Side::Control),
            Token::ToolsOut(index) => self.flush_channel(index, Side::Tools),
            Token::Output(index, stream) => self.output_ready(index, stream),
            Token::Pidfd(index) => self.has_ended(index),
            Token::Computation(index) => self.computation_ready(index),
            Token::Evaluator => self.evaluator_ready(),
            Token::EvaluatorOut => self.evaluator.flush(&self.poller),
            Token::CommandOutput(index, stream) => self.command_wrote(index, stream),
            Token::BackgroundOutput(index, stream) => self.background_wrote(index, stream),
            Token::CommandInput(index) => self.feed_command(index),
            Token::Command(_) => self.reap(),
            Token::Requests => self.request_came(),
            Token::Request(index) => self.request_ready(index),
            Token::RequestOut(index) => self.requests.flush(index, &self.poller),
        }
    }

    fn rung(&mut self, timer: Timer) {
        match timer {
            Timer::Connect => self.bridge.connect(&mut self.poller),
            Timer::Handshake => {
                self.bridge.lose(&mut self.poller);
                self.after_bridge();
            }
            Timer::Orphan => self.stop(),
            Timer::Checkpoint => self.checkpoint_if_there_is_room(),
            Timer::StartWorker => self.start_worker(),
            Timer::Reap => self.reap_regularly(),
            Timer::Sweep => self.sweep(),
            Timer::KillStrays => self.kill_condemned(),
            Timer::WatchMemory => self.watch_memory(),
            Timer::CheckMemory => drop(self.check_memory()),
            Timer::Resume => self.processes.resume(),
            Timer::HoldPacking => self.hold_packing(),
            Timer::End(index) => match self.handles.get(&index) {
                Some(handle) if handle.ends_late => self.end_late(index),
                Some(handle) if handle.packing.is_some() => self.packing_is_late(index),
                _ => self.end(index),
            },
            Timer::NotBack(index) => self.kill_unless_back(index),
            Timer::EndedUnseen(index) => self.ended_unseen(index),
            Timer::GatherStdout(index) => self.watch_output_again(index, Stream::Stdout),
            Timer::GatherStderr(index) => self.watch_output_again(index, Stream::Stderr),
            Timer::Computation(index) => self.computation_timed_out(index),
            Timer::StartEvaluator => self.ensure_evaluator(),
            Timer::Evaluator => self.evaluator_timed_out(),
            Timer::GatherCommand(index) => self.read_command(index, true),
            Timer::EndCommand(index) => self.end_command(index),
            Timer::GatherBackground(index) => self.read_background(index, true),
            Timer::EndBackground(index) => self.end_background(index),
            Timer::Requests => self.watch_requests(),
            Timer::Request(index) => self.request_is_late(index),
        }
    }

    fn flush_channel(&mut self, index: u32, side: Side) {
        if let Some(handle) = self.handles.get_mut(&index) {
            handle.channel(side).flush(&self.poller);
        }
    }

    // The bridge.

    fn bridge_ready(&mut self, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.bridge.flush(&mut self.poller);
        }
        if flags.intersects(!EventFlags::OUT) {
            self.bridge.receive(&mut self.scratch, &mut self.poller);
        }
        self.after_bridge();
        while let Some(text) = self.bridge.next_text(&mut self.poller) {
            self.host_frame(&text);
        }
        self.after_bridge();
    }

    /// Sends a frame of the guardian's own.
    pub fn send(&mut self, frame: &Value) {
        self.bridge.send(&frame.to_string(), &mut self.poller);
        self.after_bridge();
    }

    /// Passes on what a runner said, below what the guardian says of it.
    pub fn send_of_runner(&mut self, own: &Value, said: &[u8]) {
        self.bridge.send_of_runner(&own.to_string(), said, &mut self.poller);
        self.after_bridge();
    }

    /// Notices that the connection was lost, or that more or less waits for the daemon than it takes.
    pub fn after_bridge(&mut self) {
        if self.bridge.take_lost() && std::mem::take(&mut self.greeted) {
            self.poller.after(Timer::Orphan, self.limits.orphan);
        }
        if self.bridge.outbox.pressed != self.is_pressed {
            self.is_pressed = self.bridge.outbox.pressed;
            for index in self.indexes() {
                self.read(index, !self.is_pressed);
            }
            self.read_commands(!self.is_pressed);
            self.read_backgrounds(!self.is_pressed);
        }
    }

    fn breach(&mut self, reason: &str) {
        self.bridge.close(websocket::PROTOCOL_ERROR, reason, &mut self.poller);
        self.after_bridge();
    }

    pub fn stop(&mut self) {
        self.running = false;
        self.bridge.flush(&mut self.poller);
        for index in self.indexes() {
            self.kill(index);
        }
        self.computations.stop();
        self.give_up_expression(KilledFor::Reset);
        self.processes.kill_all();
    }

    /// Says that a frame of the daemon was not accepted.
    pub fn refuse(&mut self, refusal: &Refusal, request: Option<u64>, cell: Option<u64>) {
        let (code, message) = (refusal.code(), refusal.message());
        self.send(
            &json!({"type": "refused", "code": code, "message": message, "request": request, "cell": cell}),
        );
    }

    // Frames of the daemon.

    fn host_frame(&mut self, text: &str) {
        let Some(frame) = HostFrame::parse(text) else {
            self.refuse(
                &Refusal::Malformed("the frame is no JSON object of a known type".into()),
                None,
                None,
            );
            return;
        };
        if !self.greeted && frame.kind != "hello" {
            self.breach("hello has to come first");
            return;
        }
        if let Err(refusal) = self.handle_frame(&frame) {
            let (request, cell) = frame.numbers();
            self.refuse(&refusal, request, cell);
        }
    }

    fn handle_frame(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        match frame.kind.as_str() {
            "hello" => self.hello(frame),
            "ack" => self.acknowledge(frame),
            "configure" => {
                self.set_up(frame.text);
                Ok(())
            }
            "preload" => {
                let (request, bind) = (frame.get("request")?, frame.get("bind")?);
                self.can_serve(false)?;
                self.preload(request, frame.text, bind);
                Ok(())
            }
            "cell" => self.cell(frame),
            "interrupt" => self.interrupt(frame),
            "kill" => self.kill_cell(frame),
            "command" => self.start_command(frame),
            "typed" => self.type_into(frame),
            "resize" => self.resize_terminal(frame),
            "compute" => {
                self.kill_condemned();
                self.start_compute(frame)
            }
            "names" => self.names(frame),
            "variables" => self.variables(frame),
            "reset" => {
                self.reset(frame.get("request")?);
                Ok(())
            }
            "undo" => self.undo_cells(frame),
            "snapshot" => self.snapshot(frame),
            "end_snapshot" => self.end_snapshot(frame),
            "restore" => self.restore(frame),
            "tool_result" | "tool_failed" => {
                self.tool_answered(frame.get("call")?, frame.text);
                Ok(())
            }
            "bye" => {
                self.stop();
                Ok(())
            }
            _ => Err(Refusal::Malformed("the frame is no JSON object of a known type".into())),
        }
    }

    fn hello(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        if self.greeted {
            self.breach("one hello is enough");
            return Ok(());
        }
        if !frame.get::<Vec<Value>>("versions")?.contains(&json!(PROTOCOL_VERSION)) {
            self.breach("no common version");
            return Ok(());
        }
        let limits = Limits::given(&frame.get("limits")?)
            .ok_or_else(|| Refusal::Malformed("hello: a limit is no number".into()))?;
        if !self.bridge.outbox.acknowledge(frame.get("received")?) {
            self.breach("so many frames were never sent");
            return Ok(());
        }
        self.bridge.outbox.held_most = limits.unacknowledged_bytes;
        self.limits = limits;
        let is_first = self.greet(frame.text);
        self.give_up_old_packing();
        self.poller.cancel(Timer::Orphan);
        self.greeted = true;
        let hello = json!({
            "type": "hello",
            "version": PROTOCOL_VERSION,
            "python": self.zygote.version,
            "probe": self.findings,
            "running": self.running_cells(),
            "state_of": self.state_of(),
            "last_cell": self.last_cell,
            "resumes_after": self.bridge.outbox.forgotten(),
        });
        self.bridge.open(&hello.to_string(), &mut self.poller);
        self.after_bridge();
        if is_first {
            // The reader of stdout may be gone.
            let _ = rustix::io::write(rustix::stdio::stdout(), b"INITIALIZED SERVER\n");
        }
        Ok(())
    }

    fn acknowledge(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        if self.bridge.outbox.acknowledge(frame.get("received")?) {
            self.after_bridge();
        } else {
            self.breach("so many frames were never sent");
        }
        Ok(())
    }

    fn cell(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (cell, mode): (u64, String) = (frame.get("cell")?, frame.get("mode")?);
        let code = frame.raw("code")?;
        if !["main", "scratch", "fork", "background"].contains(&mode.as_str()) {
            return Err(Refusal::Malformed("cell: there is no such mode".into()));
        }
        self.last_cell = self.last_cell.max(cell);
        self.can_serve(mode == "fork")?;
        match mode.as_str() {
            "fork" => self.copy_for_cell(cell, frame.text)?,
            "background" => self.start_background(cell, frame.text)?,
            _ => self.start_cell(cell, frame.text, code),
        }
        self.reap_soon();
        Ok(())
    }

    /// Whether the main line is idle, or the state before its cell can be copied.
    pub fn can_serve(&mut self, from_checkpoint: bool) -> Result<(), Refusal> {
        self.wait_for_room(); // what is asked for may need a process
        if self.line.worker.is_none() {
            return Err(Refusal::NoWorker("a fresh worker is being started"));
        }
        if self.is_idle() || (from_checkpoint && self.has_source()) {
            return Ok(());
        }
        Err(Refusal::Busy(if from_checkpoint {
            "the main line runs a cell, and there is no checkpoint"
        } else {
            "the main line runs a cell"
        }))
    }

    fn names(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (request, code): (u64, &str) = (frame.get("request")?, frame.raw("code")?);
        let known = self.names_of_lost(code);
        if let Some(names) = &known {
            self.send(&json!({"type": "names", "request": request, "names": names}));
        }
        self.kill_condemned(); // the daemon has all that it needs to report the end of the cell
        if known.is_none() { self.start_names(frame) } else { Ok(()) }
    }

    fn variables(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let request = frame.get("request")?;
        self.can_serve(true)?;
        // Always in a copy: the `__repr__` of a variable may loop, die or change things.
        self.copy_for_view(request, frame.text)
    }

    fn undo_cells(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (request, cells): (u64, u64) = (frame.get("request")?, frame.get("cells")?);
        if cells == 0 {
            return Err(Refusal::Malformed("undo: that is no number of cells".into()));
        }
        self.can_serve(false)?;
        if !self.undo(cells) {
            return Err(Refusal::OutOfReach(frames::describe_undo_distances(&self.undo_distances())));
        }
        self.send(&json!({"type": "undone", "request": request, "state_of": self.state_of()}));
        self.settle_after_undo();
        Ok(())
    }

    /// The pid of a process that Python's first process has made for this; `None` if there is no room for one.
    ///
    /// Code of the session may have killed the zygote so recently that it still seemed to be there: then another one is
    /// started and asked.
    pub fn make_process(
        &mut self,
        wanted: Wanted,
        payload: &[&[u8]],
        given: &[BorrowedFd<'_>],
    ) -> Option<i32> {
        for _ in 0..ZYGOTE_TRIES {
            let was_halted = self.processes.is_halted();
            let is_there = self.ensure_zygote();
            let patience = self.poller.patience(ZYGOTE_ANSWER);
            let made = if is_there { self.zygote.make(wanted, payload, given, patience) } else { None };
            if !was_halted {
                self.processes.resume(); // not before: they might kill a zygote that has just started
            }
            if !is_there {
                return None;
            }
            if made.is_some_and(|pid| !self.is_new_child(pid)) {
                self.zygote.give_up(); // guest code answered in the zygote's name
            } else if made.is_some() || self.zygote.pid().is_some() {
                return made;
            }
        }
        None
    }

    /// Whether the zygote can have made this process: a child of the guardian that is nothing else yet. A child that has
    /// ended since is still listed, because only the guardian reaps it.
    fn is_new_child(&self, pid: i32) -> bool {
        let is_child = process_table::row(pid).is_some_and(|row| row.parent == self.processes.own());
        is_child && !self.by_pid.contains_key(&pid) && !self.living().contains(&pid)
    }

    /// Whether Python's first process is there; it is started anew if code of the session has killed it. Then all other
    /// processes are stopped, until the caller has them go on.
    fn ensure_zygote(&mut self) -> bool {
        if self.zygote.is_alive() {
            return true;
        }
        if self.zygote.version.is_empty() {
            return self.zygote.start(ZYGOTE_START);
        }
        // Until it says so itself, other processes of its user can open its memory. At the first start there are none.
        self.processes.halt();
        self.zygote.start(self.poller.patience(ZYGOTE_RESTART))
    }
}
