//! A kernel that is a task of the test. It connects, says hello, repeats what was not acknowledged and numbers its
//! frames as the guardian in `sandbox-bootstrap` does; it has no Python.

mod packing;

use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::script::{Script, Step, WHILE_RESETTING};
use crate::protocol::frames::{
    DoneReason, DoneStatus, HostFrame, KernelFrame, LiveResources, RUNNER_FRAME_KIND, RefusedCode, StateAfter,
};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::BRIDGE_VERSION;
use crate::protocol::result::Mode;
use crate::sandbox::attest::tests as sample;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(2);

/// A kernel with its whole sandbox. Clones are the same kernel.
#[derive(Clone)]
pub struct FakeKernel(Arc<Shared>);

struct Shared {
    socket: PathBuf,
    script: Arc<Script>,
    /// The runtime of the test, which lives longer than those of the daemons.
    runtime: Handle,
    state: Mutex<State>,
    changes: watch::Sender<()>,
    frozen: watch::Sender<bool>,
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    /// The frames that were not acknowledged.
    unacknowledged: VecDeque<Message>,
    /// The number of frames so far.
    frames: u64,
    connection: Option<mpsc::UnboundedSender<Message>>,
    received_frames: Vec<HostFrame>,
    running: BTreeMap<CellNumber, (Mode, AbortHandle)>,
    /// The cells that the test lets go on.
    released: BTreeSet<CellNumber>,
    last_cell: CellNumber,
    /// The newest cell of the main line whose changes the worker holds.
    newest_kept: CellNumber,
    calls: u64,
    waiting_calls: BTreeMap<u64, oneshot::Sender<Value>>,
    loses_answers: bool,
    ignores_interrupts: bool,
}

impl State {
    /// The number of frames that are never sent again.
    fn forgotten(&self) -> u64 {
        self.frames - self.unacknowledged.len() as u64
    }

    fn acknowledge(&mut self, received: u64) {
        assert!(received <= self.frames, "so many frames were never sent");
        for _ in self.forgotten()..received {
            self.unacknowledged.pop_front();
        }
    }
}

impl FakeKernel {
    pub(super) fn start(socket: PathBuf, script: Arc<Script>, runtime: Handle) -> Self {
        let kernel = Self(Arc::new(Shared {
            socket,
            script,
            runtime: runtime.clone(),
            state: Mutex::default(),
            changes: watch::Sender::default(),
            frozen: watch::Sender::default(),
            ended: CancellationToken::new(),
        }));
        let (connecting, end) = (kernel.clone(), kernel.0.ended.clone());
        runtime.spawn(async move { end.run_until_cancelled(connecting.connect_again_and_again()).await });
        kernel
    }

    /// Lets a cell go on that waits.
    pub fn lets_go_on(&self, cell: CellNumber) {
        self.change(|state| state.released.insert(cell));
    }

    /// From now on, until a daemon connects anew, the answers to tool calls do not arrive.
    pub fn loses_answers(&self) {
        self.change(|state| state.loses_answers = true);
    }

    /// From now on, cells go on when they are interrupted.
    pub fn ignores_interrupts(&self) {
        self.change(|state| state.ignores_interrupts = true);
    }

    /// Code of the cell calls a tool without arguments, beside the steps of the cell. Gives the number of the call.
    pub fn calls(&self, cell: CellNumber, name: &str) -> u64 {
        self.begin_call(Some(cell), name).0
    }

    /// The code that made a call does not wait for its answer any more.
    pub fn gives_up(&self, call: u64) {
        self.send(&KernelFrame::ToolAbandoned { call });
    }

    /// Waits until a call has failed with this code.
    pub async fn fails(&self, call: u64, code: &str) {
        self.hears(|frame| {
            matches!(frame, HostFrame::ToolFailed { call: failed, error } if *failed == call && error.code == code)
        })
        .await;
    }

    /// The worker ends between two cells, and another takes its place.
    pub fn replaces_worker(&self) {
        let after = StateAfter::Restored(self.0.state.lock().newest_kept);
        self.send(&KernelFrame::WorkerReplaced { exit_code: -9, after });
    }

    /// All frames of daemons that the kernel has acted on so far, but for acknowledgements.
    pub fn received_frames(&self) -> Vec<HostFrame> {
        self.0.state.lock().received_frames.clone()
    }

    /// Waits until the kernel has acted on such a frame.
    pub async fn hears(&self, is_it: impl Fn(&HostFrame) -> bool) {
        self.until("the kernel hears a frame", |state| state.received_frames.iter().any(&is_it)).await;
    }

    /// Waits until the daemon has dealt with all that the kernel told it.
    pub async fn is_heard(&self) {
        self.until("the daemon has heard all", |state| state.unacknowledged.is_empty()).await;
    }

    /// Waits until the kernel runs the cell.
    pub async fn runs(&self, cell: CellNumber) {
        self.until("the kernel runs a cell", |state| state.running.contains_key(&cell)).await;
    }

    /// Waits until the kernel does not run the cell.
    pub async fn has_ended(&self, cell: CellNumber) {
        self.until("a cell ends", |state| !state.running.contains_key(&cell)).await;
    }

    pub fn is_frozen(&self) -> bool {
        *self.0.frozen.borrow()
    }

    pub fn freeze(&self, frozen: bool) {
        self.0.frozen.send_replace(frozen);
    }

    pub fn lives(&self) -> bool {
        !self.0.ended.is_cancelled()
    }

    /// Waits until the sandbox has ended.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Ends the sandbox with all its processes.
    pub fn end(&self) {
        self.0.ended.cancel();
        self.change(|state| {
            state.connection = None;
            for (_, task) in std::mem::take(&mut state.running).into_values() {
                task.abort();
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.0.state.lock());
        self.0.changes.send_replace(());
        outcome
    }

    async fn until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let mut changes = self.0.changes.subscribe();
        let waiting = async {
            while !is_so(&self.0.state.lock()) {
                let _ = changes.changed().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(waited.is_ok(), "in vain the test waited until {what}; heard: {:?}", self.received_frames());
    }

    async fn thawed(&self) {
        let _ = self.0.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    async fn connect_again_and_again(self) {
        loop {
            self.thawed().await;
            let connected = UnixStream::connect(&self.0.socket).await;
            if let Ok(stream) = connected
                && let Ok(socket) = tokio_tungstenite::accept_async(stream).await
            {
                self.serve(socket).await;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Serves one connection until either side ends it.
    async fn serve(&self, mut socket: tokio_tungstenite::WebSocketStream<UnixStream>) {
        let Some(Ok(Message::Text(hello))) = socket.next().await else { return };
        let Ok(HostFrame::Hello { received, .. }) = serde_json::from_str(&hello) else { return };
        let (connection, mut outgoing) = mpsc::unbounded_channel();
        self.change(|state| {
            state.acknowledge(received);
            state.loses_answers = false;
            let hello = KernelFrame::Hello {
                version: BRIDGE_VERSION,
                python: "3.12.0".into(),
                probe: sample::probe(),
                running: state.running.keys().copied().collect(),
                state_of: state.newest_kept,
                last_cell: state.last_cell,
                resumes_after: state.forgotten(),
            };
            let again = state.unacknowledged.iter().cloned();
            std::iter::once(encoded(&hello)).chain(again).for_each(|frame| drop(connection.send(frame)));
            state.connection = Some(connection);
        });
        loop {
            tokio::select! {
                message = outgoing.recv() => {
                    let Some(message) = message else { return };
                    self.thawed().await;
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
                message = socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        self.thawed().await;
                        self.take(serde_json::from_str(&text).expect("a frame of the daemon"));
                    }
                    // The answer to a ping is sent when the next message is waited for.
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => self.thawed().await,
                    _ => return,
                },
            }
        }
    }

    fn send(&self, frame: &KernelFrame) {
        self.push(encoded(frame));
    }

    fn push(&self, frame: Message) {
        self.change(|state| {
            state.frames += 1;
            state.unacknowledged.push_back(frame.clone());
            if let Some(connection) = &state.connection {
                let _ = connection.send(frame);
            }
        });
    }

    fn take(&self, frame: HostFrame) {
        if let HostFrame::Ack { received } = frame {
            self.change(|state| state.acknowledge(received));
            return;
        }
        match frame.clone() {
            HostFrame::Cell { cell, code, mode, .. } => self.begin(cell, &code, mode),
            HostFrame::Interrupt { cell } => self.interrupt(cell),
            HostFrame::Kill { cell, .. } => self.lose(cell, true),
            HostFrame::Reset { request } => {
                let running: Vec<CellNumber> = self.0.state.lock().running.keys().copied().collect();
                for cell in running {
                    self.lose(cell, false);
                }
                self.change(|state| state.newest_kept = 0);
                for step in self.0.script.steps(WHILE_RESETTING) {
                    match step {
                        Step::Call(name) => drop(self.begin_call(None, name)),
                        Step::EndSandbox => return self.end(),
                        _ => {}
                    }
                }
                self.send(&KernelFrame::ResetDone { request });
            }
            HostFrame::Names { request, .. } => self.send(&KernelFrame::Names { request, names: Vec::new() }),
            HostFrame::ToolResult { call, value } => self.answer(call, value),
            HostFrame::ToolFailed { call, error } => self.answer(call, json!(error.code)),
            HostFrame::Snapshot { request, token, path, .. } => self.pack(request, token, path),
            HostFrame::Restore { request, token, path, state_of, .. } => {
                self.load(request, token, path, state_of);
            }
            HostFrame::Bye {} => self.end(),
            _ => {}
        }
        self.change(|state| state.received_frames.push(frame));
    }

    fn begin(&self, cell: CellNumber, code: &str, mode: Mode) {
        let steps = self.0.script.steps(code);
        self.change(|state| state.last_cell = state.last_cell.max(cell));
        if let Some(Step::Refuse(code)) = steps.first() {
            self.refuse(cell, *code);
            return;
        }
        let kernel = self.clone();
        // The cell is among the running ones before it can end.
        let mut state = self.0.state.lock();
        let task = self.0.runtime.spawn(async move {
            for step in steps {
                kernel.thawed().await;
                kernel.perform(cell, step).await;
            }
            kernel.thawed().await;
            kernel.finish(cell, DoneStatus::Success, DoneReason::Ok);
        });
        state.running.insert(cell, (mode, task.abort_handle()));
        drop(state);
        self.0.changes.send_replace(());
    }

    async fn perform(&self, cell: CellNumber, step: Step) {
        match step {
            Step::Print(text) => self.print(cell, text),
            Step::Call(name) => {
                let answer = self.call(cell, name).await;
                self.print(cell, &answer.to_string());
            }
            Step::Wait => self.until("a cell may go on", |state| state.released.contains(&cell)).await,
            Step::Refuse(_) | Step::Lacks(_) => {}
            Step::Die => self.lose(cell, false),
            Step::HangUp => self.change(|state| state.connection = None),
            Step::EndSandbox => self.end(),
        }
    }

    fn print(&self, cell: CellNumber, text: &str) {
        self.push(Message::binary([&[1][..], &cell.to_be_bytes(), text.as_bytes()].concat()));
    }

    async fn call(&self, cell: CellNumber, name: &str) -> Value {
        self.begin_call(Some(cell), name).1.await.expect("an answer")
    }

    /// Begins a call, and gives its number and its answer.
    fn begin_call(&self, cell: Option<CellNumber>, name: &str) -> (u64, oneshot::Receiver<Value>) {
        let (answer, answered) = oneshot::channel();
        let call = self.change(|state| {
            state.calls += 1;
            state.waiting_calls.insert(state.calls, answer);
            state.calls
        });
        let arguments = serde_json::Map::new();
        let (name, from_program) = (name.into(), false);
        self.send(&KernelFrame::ToolCall { call, cell, name, arguments, from_program });
        (call, answered)
    }

    fn answer(&self, call: u64, value: Value) {
        self.change(|state| {
            if !state.loses_answers
                && let Some(waiting) = state.waiting_calls.remove(&call)
            {
                let _ = waiting.send(value);
            }
        });
    }

    fn refuse(&self, cell: CellNumber, code: RefusedCode) {
        let message = "as the test wants it".into();
        self.send(&KernelFrame::Refused { code, message, request: None, cell: Some(cell) });
    }

    fn interrupt(&self, cell: CellNumber) {
        let state = self.0.state.lock();
        let task = state.running.get(&cell).map(|(_, task)| task.clone());
        let heeds = !state.ignores_interrupts;
        drop(state);
        if let Some(task) = task.filter(|_| heeds) {
            task.abort();
            self.finish(cell, DoneStatus::Interrupted, DoneReason::ByUser);
        }
    }

    fn finish(&self, cell: CellNumber, status: DoneStatus, reason: DoneReason) {
        let Some((mode, _)) = self.change(|state| state.running.remove(&cell)) else { return };
        if mode.is_in_line() {
            self.change(|state| state.newest_kept = cell);
        }
        self.send(&KernelFrame::CellDone {
            cell,
            status,
            reason,
            exit_code: 0,
            result: None,
            exception: None,
            duration_ms: 0.0,
            displays_dropped: 0,
            protected: true,
            as_before: None,
            harmless: false,
            live: LiveResources::default(),
        });
    }

    /// The process of a cell ends without an answer, and another takes its place with the state before the cell.
    fn lose(&self, cell: CellNumber, killed: bool) {
        let Some((mode, task)) = self.change(|state| state.running.remove(&cell)) else { return };
        let after = match mode {
            Mode::Main | Mode::Scratch | Mode::Background => {
                StateAfter::Restored(self.0.state.lock().newest_kept)
            }
            Mode::Fork | Mode::Command => StateAfter::Kept,
        };
        let (exit_code, out_of_memory, older, rolled_back) = (-9, false, false, false);
        self.send(&KernelFrame::CellLost {
            cell,
            exit_code,
            killed,
            out_of_memory,
            older,
            rolled_back,
            after,
        });
        task.abort();
    }
}

/// A frame as the guardian sends it: its own word as text, what a process of user code said as bytes.
fn encoded(frame: &KernelFrame) -> Message {
    let text = serde_json::to_string(frame).expect("JSON");
    let is_of_runner = matches!(
        frame,
        KernelFrame::CellDone { .. } | KernelFrame::ToolCall { .. } | KernelFrame::Restored { .. }
    );
    if is_of_runner {
        let length = u32::try_from(text.len()).expect("a short frame").to_be_bytes();
        return Message::binary([&[RUNNER_FRAME_KIND][..], &length, text.as_bytes(), b"{}"].concat());
    }
    Message::text(text)
}
