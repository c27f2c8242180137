//! The executor: one sandbox and its bridge. It owns the deadlines, interrupts and tool calls in
//! flight, and tells the session how each cell ended. It ends with its sandbox.

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinHandle};

use super::launch::{Ready, launch};
use super::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use super::session::{SessionMsg, SessionRef};
use super::sink::RecorderSink;
use crate::bridge::{Calls, Closed, Incoming, Link, Refusal};
use crate::protocol::api::{Computed, VariableList};
use crate::protocol::event::EventBody;
use crate::protocol::frames::{ComputeOutcome, HostFrame, KernelFrame, RefusedCode, ToolFailure};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{INTERRUPT_GRACE, KILL_GRACE, KILL_REPORT, TOOL_NAME_CHARS};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::sandbox::artifacts::{self, Snapshot};
use crate::sandbox::cgroup::Counters;
use crate::sandbox::launch::{Launcher, Sandbox, SandboxEnd, Wanted};
use crate::sandbox::workspace::Workspace;
use crate::store::{EventLog, Recorder};
use crate::tools;

/// Names of completed tool calls that a result lists.
const TOOL_CALLS_LISTED: usize = 100;
/// Time between two looks at the size of the workspace while a cell runs.
const QUOTA_LOOK: Duration = Duration::from_secs(1);
/// Time a request without a cell (variables, reset, compute) may take on top of its own limit.
const REQUEST_SLACK: Duration = Duration::from_secs(10);
/// Time until a cell is sent again that found no worker.
const WORKER_PAUSE: Duration = Duration::from_millis(100);

pub type ExecutorRef = ActorRef<ExecutorMsg>;

type Answer<T> = RpcReplyPort<Result<T, Problem>>;

pub enum ExecutorMsg {
    /// The launching task is done.
    Launched(Box<Result<Ready, Problem>>),
    /// Run a cell; its end is reported to the session as `CellFinished`. In `main` mode only after
    /// the previous one has ended.
    Run(CellStart),
    Interrupt(CellNumber),
    Variables {
        private: bool,
        reply_to: Answer<VariableList>,
    },
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        reply_to: Answer<Computed>,
    },
    Reset {
        reply_to: Answer<()>,
    },
    /// Not by a cell: the next one is not to be credited with it.
    FilesChanged,
    /// Remove the sandbox and end. Answered when it is gone.
    Shutdown {
        reply_to: RpcReplyPort<()>,
    },

    Arrived(Box<KernelFrame>, OwnedSemaphorePermit),
    Closed(Closed),
    Deadline(CellNumber),
    InterruptOverdue(CellNumber),
    KillOverdue(CellNumber),
    RequestOverdue(u64),
    /// A cell that came while its worker was being replaced.
    SendAgain(CellNumber),
    QuotaLook(CellNumber),
    QuotaExceeded {
        cell: CellNumber,
        bytes: u64,
    },
    ToolDone {
        call: u64,
        outcome: Result<Value, ToolFailure>,
    },
    /// The workspace was compared; the cell is over.
    Concluded {
        result: Box<ExecutionResult>,
        snapshot: Snapshot,
    },
    /// The engine said what became of a sandbox whose bridge closed.
    Ended {
        why: String,
        end: Option<SandboxEnd>,
    },
}

pub struct ExecutorArgs {
    pub session: SessionRef,
    pub launcher: Arc<Launcher>,
    pub workspace: Arc<Workspace>,
    pub wanted: Wanted,
    pub seed: Map<String, Value>,
    pub tools: Arc<tools::Registry>,
    pub context: tools::Context,
    pub recorder: Arc<Recorder>,
    pub log: Arc<EventLog>,
}

pub struct ExecutorState {
    args: ExecutorArgs,
    cage: Option<Cage>,
    running: HashMap<CellNumber, Running>,
    requests: HashMap<u64, Request>,
    next_request: u64,
    calls: Calls<CallGuard>,
    /// The workspace as the last cell left it.
    snapshot: Snapshot,
    /// Somebody else has changed files since.
    snapshot_is_old: bool,
    /// Workers whose end has been told with a cell or was asked for.
    replacements_told: u32,
}

struct Cage {
    sandbox: Arc<Sandbox>,
    link: Link,
}

struct Running {
    start: CellStart,
    since: Instant,
    before: Counters,
    ended_by: Option<EndedBy>,
    completed: Vec<String>,
    timers: Vec<AbortHandle>,
}

enum Request {
    Variables(Answer<VariableList>),
    Compute(Answer<Computed>),
    Reset(Answer<()>),
}

/// Stops a tool when nobody waits for it any more.
struct CallGuard(JoinHandle<()>);

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.timers.iter().for_each(AbortHandle::abort);
    }
}

pub struct Executor;

impl Executor {
    pub async fn spawn(args: ExecutorArgs) -> Result<ExecutorRef, SpawnErr> {
        let supervisor = args.session.get_cell();
        Actor::spawn_linked(None, Self, args, supervisor).await.map(|(executor, _)| executor)
    }
}

impl Actor for Executor {
    type Msg = ExecutorMsg;
    type State = ExecutorState;
    type Arguments = ExecutorArgs;

    async fn pre_start(
        &self,
        myself: ExecutorRef,
        args: ExecutorArgs,
    ) -> Result<ExecutorState, ActorProcessingErr> {
        let (launcher, wanted, workspace) =
            (Arc::clone(&args.launcher), args.wanted.clone(), Arc::clone(&args.workspace));
        tokio::spawn(async move {
            let outcome = Box::pin(launch(launcher, wanted, workspace)).await;
            // If nobody is there any more, dropping what was launched removes it.
            let _ = myself.cast(ExecutorMsg::Launched(Box::new(outcome)));
        });
        let snapshot = artifacts::scan(&args.workspace.root);
        Ok(ExecutorState {
            args,
            cage: None,
            running: HashMap::new(),
            requests: HashMap::new(),
            next_request: 1,
            calls: Calls::default(),
            snapshot,
            snapshot_is_old: false,
            replacements_told: 0,
        })
    }

    async fn handle(
        &self,
        myself: ExecutorRef,
        message: ExecutorMsg,
        state: &mut ExecutorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExecutorMsg::Launched(outcome) => state.launched(&myself, *outcome),
            ExecutorMsg::Run(start) => state.run(&myself, start),
            ExecutorMsg::Interrupt(cell) => state.interrupt(&myself, cell),
            ExecutorMsg::Variables { private, reply_to } => {
                let frame = |request| HostFrame::Variables { request, private };
                state.request(&myself, Request::Variables(reply_to), frame, Duration::ZERO);
            }
            ExecutorMsg::Compute { expression, values, timeout, reply_to } => {
                let memory_bytes = state.args.wanted.memory_bytes / 4;
                let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                let frame =
                    |request| HostFrame::Compute { request, expression, values, timeout_ms, memory_bytes };
                state.request(&myself, Request::Compute(reply_to), frame, timeout);
            }
            ExecutorMsg::Reset { reply_to } => {
                state.cancel_running(&myself);
                state.request(
                    &myself,
                    Request::Reset(reply_to),
                    |request| HostFrame::Reset { request },
                    Duration::ZERO,
                );
            }
            ExecutorMsg::FilesChanged => state.snapshot_is_old = true,
            ExecutorMsg::Shutdown { reply_to } => state.shut_down(&myself, reply_to),
            ExecutorMsg::Arrived(frame, _permit) => state.arrived(&myself, *frame),
            ExecutorMsg::Closed(closed) => state.closed(&myself, closed),
            ExecutorMsg::Deadline(cell) => state.end_cell(&myself, cell, EndedBy::Deadline),
            ExecutorMsg::InterruptOverdue(cell) => state.end_cell(&myself, cell, EndedBy::Interrupt),
            ExecutorMsg::KillOverdue(cell) => {
                if state.running.contains_key(&cell) {
                    state.give_up(&myself, "the kernel did not end a cell that it was told to kill".into());
                }
            }
            ExecutorMsg::RequestOverdue(request) => {
                if state.requests.contains_key(&request) {
                    state.give_up(&myself, "the kernel did not answer a request".into());
                }
            }
            ExecutorMsg::SendAgain(cell) => state.send_again(&myself, cell),
            ExecutorMsg::QuotaLook(cell) => state.look_at_quota(&myself, cell),
            ExecutorMsg::QuotaExceeded { cell, bytes } => {
                let limit = state.args.launcher.settings.sandbox.workspace_bytes;
                let why =
                    format!("The workspace held {bytes} bytes, more than the {limit} that it may hold.");
                state.end_cell(&myself, cell, EndedBy::Policy(why));
            }
            ExecutorMsg::ToolDone { call, outcome } => state.tool_done(call, outcome),
            ExecutorMsg::Concluded { result, snapshot } => {
                state.snapshot = snapshot;
                state.tell(SessionMsg::CellFinished(result));
            }
            ExecutorMsg::Ended { why, end } => state.ended(&myself, &why, end),
        }
        Ok(())
    }
}

impl ExecutorState {
    fn launched(&mut self, myself: &ExecutorRef, outcome: Result<Ready, Problem>) {
        let ready = match outcome {
            Ok(ready) => ready,
            Err(problem) => {
                self.tell(SessionMsg::SandboxFailed(problem));
                myself.stop(None);
                return;
            }
        };
        let executor = myself.clone();
        let link =
            Link::start(ready.socket, RecorderSink(Arc::clone(&self.args.recorder)), move |incoming| {
                let _ = executor.cast(match incoming {
                    Incoming::Frame(frame, permit) => ExecutorMsg::Arrived(frame, permit),
                    Incoming::Closed(closed) => ExecutorMsg::Closed(closed),
                });
            });
        let configure = HostFrame::Configure { seed: self.args.seed.clone(), tools: self.args.tools.specs() };
        let configured = link.send(&configure);
        self.cage = Some(Cage { sandbox: Arc::new(ready.sandbox), link });
        if let Err(error) = configured {
            let problem =
                Problem::new(Code::TooLarge, format!("the seed cannot be sent to the kernel: {error}"));
            self.tell(SessionMsg::SandboxFailed(problem));
            myself.stop(None);
            return;
        }
        self.tell(SessionMsg::SandboxReady(Box::new(ready.receipt)));
    }

    fn run(&mut self, myself: &ExecutorRef, start: CellStart) {
        let Some(cage) = &self.cage else {
            self.conclude_without_running(start, Ending::SandboxGone { end: None });
            return;
        };
        if std::mem::take(&mut self.snapshot_is_old) {
            self.snapshot = artifacts::scan(&self.args.workspace.root);
        }
        let (cell, mode) = (start.cell, start.mode);
        let frame = HostFrame::Cell { cell, code: start.code.clone(), mode, expression: start.expression };
        self.args.recorder.begin(cell);
        let before = cage.sandbox.counters();
        let sent = cage.link.send(&frame);
        let timers = vec![
            myself.send_after(start.timeout, move || ExecutorMsg::Deadline(cell)).abort_handle(),
            myself.send_interval(QUOTA_LOOK, move || ExecutorMsg::QuotaLook(cell)).abort_handle(),
        ];
        let running =
            Running { start, since: Instant::now(), before, ended_by: None, completed: Vec::new(), timers };
        self.running.insert(cell, running);
        if sent.is_err() {
            self.give_up(myself, "the kernel does not take cells any more".into());
        }
    }

    fn conclude_without_running(&self, start: CellStart, ending: Ending) {
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let record = crate::store::CellRecord::default();
        let result = conclude(start, ending, Cause::default(), record, changes, Duration::ZERO);
        self.tell(SessionMsg::CellFinished(Box::new(result)));
    }

    fn interrupt(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        self.args.log.append(EventBody::Interrupting { cell });
        running.timers.push(
            myself.send_after(INTERRUPT_GRACE, move || ExecutorMsg::InterruptOverdue(cell)).abort_handle(),
        );
        self.send(myself, &HostFrame::Interrupt { cell });
    }

    /// Before a reset, which ends the main line; copies of it have to be ended one by one.
    fn cancel_running(&mut self, myself: &ExecutorRef) {
        let mut copies = Vec::new();
        for (cell, running) in &mut self.running {
            match running.start.mode {
                Mode::Main => {
                    running.ended_by.get_or_insert(EndedBy::Cancel);
                }
                Mode::Fork => copies.push(*cell),
            }
        }
        for cell in copies {
            self.end_cell(myself, cell, EndedBy::Cancel);
        }
    }

    /// Tells the guardian to kill the cell's runner, once.
    fn end_cell(&mut self, myself: &ExecutorRef, cell: CellNumber, why: EndedBy) {
        let Some(running) = self.running.get_mut(&cell) else { return };
        if running.ended_by.is_some() {
            return;
        }
        running.ended_by = Some(why);
        running.timers.push(
            myself
                .send_after(KILL_GRACE + KILL_REPORT, move || ExecutorMsg::KillOverdue(cell))
                .abort_handle(),
        );
        let grace_ms = u64::try_from(KILL_GRACE.as_millis()).unwrap_or(0);
        self.send(myself, &HostFrame::Kill { cell, grace_ms });
    }

    fn request(
        &mut self,
        myself: &ExecutorRef,
        request: Request,
        frame: impl FnOnce(u64) -> HostFrame,
        own_limit: Duration,
    ) {
        let number = self.next_request;
        self.next_request += 1;
        self.requests.insert(number, request);
        myself.send_after(own_limit + REQUEST_SLACK, move || ExecutorMsg::RequestOverdue(number));
        self.send(myself, &frame(number));
    }

    /// A frame that cannot be sent ends the sandbox: the kernel does not read.
    fn send(&mut self, myself: &ExecutorRef, frame: &HostFrame) {
        let sent = self.cage.as_ref().map(|cage| cage.link.send(frame));
        match sent {
            Some(Ok(())) => {}
            Some(Err(error)) => self.give_up(myself, format!("the bridge failed: {error}")),
            None => self.fail_requests(&Problem::new(Code::SandboxFailed, "the sandbox is gone")),
        }
    }

    fn arrived(&mut self, myself: &ExecutorRef, frame: KernelFrame) {
        match frame {
            KernelFrame::CellDone {
                cell,
                status,
                reason,
                exit_code,
                result,
                exception,
                displays_dropped,
                ..
            } => {
                let ending = Ending::Done { status, reason, exit_code, result, exception, displays_dropped };
                self.finish(myself, cell, ending);
            }
            KernelFrame::CellLost { cell, exit_code, .. } => {
                self.finish(myself, cell, Ending::Lost { exit_code });
            }
            KernelFrame::WorkerReplaced { exit_code } => match self.replacements_told.checked_sub(1) {
                Some(left) => self.replacements_told = left,
                None => self.tell(SessionMsg::WorkerReplaced { exit_code }),
            },
            KernelFrame::ToolCall { call, cell, name, arguments } => {
                self.tool_called(myself, call, cell, name, arguments);
            }
            KernelFrame::Variables { request, variables, total } => {
                if let Some(Request::Variables(reply_to)) = self.requests.remove(&request) {
                    let _ = reply_to.send(Ok(VariableList { variables, total }));
                }
            }
            KernelFrame::Computed { request, outcome } => {
                if let Some(Request::Compute(reply_to)) = self.requests.remove(&request) {
                    let _ = reply_to.send(Ok(match outcome {
                        ComputeOutcome::Value(value) => Computed { result: Some(value), error: None },
                        ComputeOutcome::Error(error) => Computed { result: None, error: Some(error) },
                    }));
                }
            }
            KernelFrame::ResetDone { request } => {
                // Said in place of the replacement, whatever ended the worker first.
                self.replacements_told = 0;
                if let Some(Request::Reset(reply_to)) = self.requests.remove(&request) {
                    let _ = reply_to.send(Ok(()));
                }
            }
            KernelFrame::Refused { code, message, request, cell } => {
                self.refused(myself, code, &message, request, cell);
            }
            KernelFrame::Hello { .. } | KernelFrame::Display { .. } | KernelFrame::OutputGap { .. } => {
                self.give_up(myself, "the kernel sent a frame out of turn".into());
            }
        }
    }

    fn refused(
        &mut self,
        myself: &ExecutorRef,
        code: RefusedCode,
        message: &str,
        request: Option<u64>,
        cell: Option<CellNumber>,
    ) {
        let message: String = message.chars().filter(|c| !c.is_control()).take(500).collect();
        tracing::warn!(?code, message, "a kernel refused a frame");
        if let Some(request) = request.and_then(|number| self.requests.remove(&number)) {
            let code = match code {
                RefusedCode::Busy => Code::Busy,
                RefusedCode::NoProcess | RefusedCode::Malformed => Code::SandboxFailed,
            };
            request.fail(Problem::new(code, format!("the kernel refused: {message}")));
        } else if let Some(cell) = cell {
            if code == RefusedCode::NoProcess && self.waits_for_worker(myself, cell) {
                return;
            }
            if let Some(running) = self.running.get_mut(&cell) {
                let why = format!("The sandbox could not run the cell: {message}.");
                running.ended_by.get_or_insert(EndedBy::Policy(why));
            }
            // Nothing of it ran, so nothing but the cell is lost.
            self.finish_as(myself, cell, Ending::Lost { exit_code: 1 }, Mode::Fork);
        }
    }

    /// After a fork bomb it takes the kernel a while until it can have a process again. Nothing of
    /// the cell ran, so it is sent once more; its own deadline ends the waiting.
    fn waits_for_worker(&mut self, myself: &ExecutorRef, cell: CellNumber) -> bool {
        let waiting = |running: &&mut Running| running.ended_by.is_none() && running.start.mode == Mode::Main;
        let Some(running) = self.running.get_mut(&cell).filter(waiting) else { return false };
        let again = myself.send_after(WORKER_PAUSE, move || ExecutorMsg::SendAgain(cell));
        running.timers.push(again.abort_handle());
        true
    }

    fn send_again(&mut self, myself: &ExecutorRef, cell: CellNumber) {
        let Some(start) = self.running.get(&cell).map(|running| &running.start) else { return };
        let (code, mode, expression) = (start.code.clone(), start.mode, start.expression);
        self.send(myself, &HostFrame::Cell { cell, code, mode, expression });
    }

    fn finish(&mut self, myself: &ExecutorRef, cell: CellNumber, ending: Ending) {
        let mode = self.running.get(&cell).map_or(Mode::Main, |running| running.start.mode);
        self.finish_as(myself, cell, ending, mode);
    }

    /// Ends a cell. `state_mode` is `Fork` where the main line is untouched by its end.
    fn finish_as(&mut self, myself: &ExecutorRef, cell: CellNumber, ending: Ending, state_mode: Mode) {
        // A result for a cell that does not run is forged or late: it is dropped.
        let Some(mut running) = self.running.remove(&cell) else { return };
        if matches!((&ending, state_mode), (Ending::Lost { .. }, Mode::Main)) {
            self.replacements_told += 1;
        }
        drop(self.calls.cancel_cell(cell));
        let record = self.args.recorder.finish(cell);
        let after = self.cage.as_ref().map_or(running.before, |cage| cage.sandbox.counters());
        let cause = Cause {
            ended_by: running.ended_by.take(),
            out_of_memory: after.oom_kills > running.before.oom_kills,
            forks_refused: after.forks_refused > running.before.forks_refused,
            completed_tool_calls: std::mem::take(&mut running.completed),
        };
        let elapsed = running.since.elapsed();
        let mut start = running.start.clone();
        drop(running);
        let (asked_mode, before) = (start.mode, self.snapshot.clone());
        start.mode = state_mode;
        let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
        tokio::task::spawn_blocking(move || {
            let snapshot = artifacts::scan(&workspace.root);
            let (artifacts, cut) = artifacts::compare(&before, &snapshot);
            let mut result = conclude(start, ending, cause, record, Changes { artifacts, cut }, elapsed);
            result.mode = asked_mode;
            let _ = executor.cast(ExecutorMsg::Concluded { result: Box::new(result), snapshot });
        });
    }

    fn tool_called(
        &mut self,
        myself: &ExecutorRef,
        call: u64,
        cell: Option<CellNumber>,
        name: String,
        arguments: Map<String, Value>,
    ) {
        let cell = cell.filter(|cell| self.running.contains_key(cell));
        match self.calls.admit(call) {
            Ok(()) => {}
            Err(Refusal::Duplicate) => {
                self.give_up(myself, "the kernel used the number of a tool call twice".into());
                return;
            }
            Err(Refusal::TooMany) => {
                let error =
                    ToolFailure { code: "busy".into(), message: "too many tool calls at once".into() };
                self.send(myself, &HostFrame::ToolFailed { call, error });
                return;
            }
        }
        let shown: String = name.chars().filter(|c| !c.is_control()).take(TOOL_NAME_CHARS).collect();
        self.args.log.append(EventBody::ToolCalled { cell, call, name: shown.clone() });
        let executor = myself.clone();
        let begun = self.args.tools.call(&name, arguments, self.args.context.clone());
        let task = tokio::spawn(async move {
            let outcome = match begun {
                Ok(work) => work.await,
                Err(failure) => Err(failure),
            };
            let _ = executor.cast(ExecutorMsg::ToolDone { call, outcome });
        });
        self.calls.begin(call, cell, shown, CallGuard(task));
    }

    fn tool_done(&mut self, call: u64, outcome: Result<Value, ToolFailure>) {
        let Some(ended) = self.calls.end(call) else { return };
        self.args.log.append(EventBody::ToolAnswered { call, ok: outcome.is_ok() });
        if outcome.is_ok()
            && let Some(running) = ended.cell.and_then(|cell| self.running.get_mut(&cell))
            && running.completed.len() < TOOL_CALLS_LISTED
        {
            running.completed.push(ended.name.clone());
        }
        let frame = match outcome {
            Ok(value) => HostFrame::ToolResult { call, value },
            Err(error) => HostFrame::ToolFailed { call, error },
        };
        if let Some(cage) = &self.cage
            && cage.link.send(&frame).is_err()
        {
            let error =
                ToolFailure { code: "failed".into(), message: "the tool's answer is too large".into() };
            let _ = cage.link.send(&HostFrame::ToolFailed { call, error });
        }
    }

    fn look_at_quota(&self, myself: &ExecutorRef, cell: CellNumber) {
        let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
        let limit = self.args.launcher.settings.sandbox.workspace_bytes;
        tokio::task::spawn_blocking(move || {
            let bytes = artifacts::scan(&workspace.root).bytes;
            if bytes > limit {
                let _ = executor.cast(ExecutorMsg::QuotaExceeded { cell, bytes });
            }
        });
    }

    fn closed(&mut self, myself: &ExecutorRef, closed: Closed) {
        let why = match closed {
            Closed::ByUs => return,
            Closed::ByKernel => "the sandbox ended".to_owned(),
            Closed::Violation(what) => format!("the kernel broke the protocol: {what}"),
        };
        self.give_up(myself, why);
    }

    /// Ends the sandbox for good; what ran in it is reported as lost.
    fn give_up(&mut self, myself: &ExecutorRef, why: String) {
        let Some(cage) = self.cage.take() else { return };
        tracing::warn!(why, "a sandbox is given up");
        drop(cage.link);
        let executor = myself.clone();
        tokio::spawn(async move {
            let end = cage.sandbox.end().await;
            if let Err(error) = cage.sandbox.remove().await {
                tracing::warn!(%error, "a sandbox is left to the reaper");
            }
            let _ = executor.cast(ExecutorMsg::Ended { why, end });
        });
    }

    fn ended(&mut self, myself: &ExecutorRef, why: &str, end: Option<SandboxEnd>) {
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        for cell in cells {
            let Some(mut running) = self.running.remove(&cell) else { continue };
            let cause = Cause {
                ended_by: running.ended_by.take(),
                completed_tool_calls: std::mem::take(&mut running.completed),
                ..Cause::default()
            };
            let record = self.args.recorder.finish(cell);
            let (artifacts, cut) =
                artifacts::compare(&self.snapshot, &artifacts::scan(&self.args.workspace.root));
            let ending = Ending::SandboxGone { end: end.clone() };
            let (start, elapsed) = (running.start.clone(), running.since.elapsed());
            let result = conclude(start, ending, cause, record, Changes { artifacts, cut }, elapsed);
            self.tell(SessionMsg::CellFinished(Box::new(result)));
        }
        self.fail_requests(&Problem::new(Code::SandboxFailed, format!("the sandbox is gone: {why}")));
        let out_of_memory = end.is_some_and(|end| end.out_of_memory);
        let reason = if out_of_memory { format!("{why} (out of memory)") } else { why.to_owned() };
        self.tell(SessionMsg::SandboxGone { reason });
        myself.stop(None);
    }

    fn shut_down(&mut self, myself: &ExecutorRef, reply_to: RpcReplyPort<()>) {
        self.fail_requests(&Problem::new(Code::SandboxFailed, "the sandbox is being removed"));
        let cage = self.cage.take();
        let executor = myself.clone();
        tokio::spawn(async move {
            if let Some(cage) = cage {
                let _ = cage.link.send(&HostFrame::Bye {});
                drop(cage.link);
                if let Err(error) = cage.sandbox.remove().await {
                    tracing::warn!(%error, "a sandbox is left to the reaper");
                }
            }
            let _ = reply_to.send(());
            executor.stop(None);
        });
    }

    fn fail_requests(&mut self, problem: &Problem) {
        for (_, request) in self.requests.drain() {
            request.fail(problem.clone());
        }
    }

    fn tell(&self, message: SessionMsg) {
        let _ = self.args.session.cast(message);
    }
}

impl Request {
    fn fail(self, problem: Problem) {
        match self {
            Self::Variables(reply_to) => drop(reply_to.send(Err(problem))),
            Self::Compute(reply_to) => drop(reply_to.send(Err(problem))),
            Self::Reset(reply_to) => drop(reply_to.send(Err(problem))),
        }
    }
}
