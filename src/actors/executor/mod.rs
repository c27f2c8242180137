//! The executor: one sandbox and its bridge. It owns the deadlines, interrupts and tool calls in
//! flight, and tells the session how each cell ended. It ends with its sandbox; if it dies before, the sandbox stays
//! and the session attaches another executor to it.
//!
//! `attach` goes on where an earlier daemon ended, with what `notes` kept; `cells` begins and ends
//! cells, `requests` is everything else that is asked of the kernel, `calls` the tool calls that the
//! kernel makes, `said` their answers, `preload` what a sandbox begins with, `frost` and `strangers` are
//! about frozen sandboxes, `fate` the end of one.

mod attach;
mod calls;
mod cells;
mod fate;
mod frost;
mod messages;
mod notes;
mod permits;
mod preload;
mod requests;
mod said;
mod strangers;

use ractor::{Actor, ActorProcessingErr, MessagingErr, RpcReplyPort, SpawnErr};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::asks::{AsksRef, Port};
use super::launch::{Ready, attach, launch};
use super::session::{OwnSession, SessionMsg};
use super::sink::RecorderSink;
use crate::bridge::{Calls, Closed, Incoming, Link, Turn};
use crate::deaths::watched;
use crate::memory::{Charge, Pool, Use, work_on};
use crate::protocol::api::Which;
use crate::protocol::event::EventBody;
use crate::protocol::frames::{HostFrame, KernelFrame, Live};
use crate::protocol::ids::CellNumber;
use crate::protocol::preload::Preload;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;
use crate::quota::{Gauge, Permit};
use crate::sandbox::launch::{Launcher, Sandbox, Wanted};
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::artifacts::Snapshot;
use crate::sandbox::workspace::usage::Usage;
use crate::session::rules::{CellRules, SandboxRules};
use crate::store::{EventLog, Recorder};
use crate::tools;

pub(super) use messages::Answer;
pub use messages::{Attach, Back, ExecutorMsg, ExecutorRef, Overdue, Resumed};

use calls::CallGuard;
use cells::{Finishing, Running, measured, scanned};
use fate::LastPrograms;
use frost::Frost;
use requests::Request;
use said::Said;

/// Time between two words about what was too much to be kept.
const EXCEEDED_APART: Duration = Duration::from_millis(100);
/// Time between two events about a pull.
const PULL_EVENTS_APART: Duration = Duration::from_millis(500);
/// Bits that a request's number does not have, so that every reader of JSON takes it for the same number.
const REQUEST_NUMBER_SPARED: u32 = 12;
/// Time between two looks at the size of the workspace, and at whether somebody paused the sandbox.
const QUOTA_LOOK: Duration = Duration::from_secs(1);

pub struct ExecutorArgs {
    pub session: OwnSession,
    pub launcher: Arc<Launcher>,
    pub workspace: Arc<Workspace>,
    pub wanted: Wanted,
    pub seed: Map<String, Value>,
    pub preload: Preload,
    pub tools: Arc<tools::Registry>,
    pub context: tools::Context,
    /// What tools may do with the session that its code calls.
    pub port: Port,
    pub asks: AsksRef,
    /// Of code that clients send.
    pub client_rules: Arc<CellRules>,
    pub recorder: Arc<Recorder>,
    pub log: Arc<EventLog>,
    /// The sandbox to take over, instead of a new one.
    pub attach: Option<Attach>,
    /// What the sandbox may have; given back before anybody hears that it is gone.
    pub permit: Option<Permit>,
    /// For the size of a workspace that counts.
    pub gauge: Option<Gauge>,
    /// The owner's part of the daemon's memory.
    pub memory: Pool,
}

pub struct ExecutorState {
    args: ExecutorArgs,
    cage: Option<Cage>,
    /// While the sandbox is being launched or attached to: who waits for its removal.
    arriving: Option<Vec<RpcReplyPort<()>>>,
    running: HashMap<CellNumber, Running>,
    /// Cells that ran when this daemon attached and of which the journal knows nothing, and when each was killed.
    unrecorded: HashMap<CellNumber, Instant>,
    /// Lost cells that wait to hear which names they may have assigned, by request.
    finishing: HashMap<u64, Finishing>,
    requests: HashMap<u64, Request>,
    /// The sandbox is ready when it has imported what it begins with.
    preloading: Option<Box<Receipt>>,
    calls: Calls<CallGuard>,
    /// Names of the seed that the kernel has not been told of.
    unassigned: Vec<String>,
    /// Of all code that has run in the sandbox since its last reset.
    bound: SandboxRules,
    /// What tools said that gives no value.
    said: Arc<Said>,
    /// What that takes of its owner's part of the memory.
    said_memory: Charge,
    /// The workspace as the last cell left it.
    snapshot: Snapshot,
    /// Somebody else has changed files since.
    snapshot_is_old: bool,
    /// The next daemon would not know of it.
    snapshot_unnoted: bool,
    /// The size of the workspace when it was last looked at.
    usage: Option<Usage>,
    quota_look: Option<tokio::task::JoinHandle<()>>,
    cell_ended_since_look: bool,
    growing_looks: u32,
    frost: Frost,
    /// What the last cell of the main line left running in the worker.
    live: Live,
    /// Cells that have ended and whose files are being compared.
    concluding: usize,
    /// Why there is no sandbox any more.
    gone: Option<String>,
    /// The daemon ends: who waits for the programs that run for calls.
    last_programs: Option<LastPrograms>,
    /// Of a frame that is for the next daemon.
    kept_turn: Option<Turn>,
    /// The sandbox is left to another executor, with the questions that its calls wait for.
    left: Arc<AtomicBool>,
    /// Attaches to the sandbox of before.
    attaching: Option<tokio::task::AbortHandle>,
}

struct Cage {
    sandbox: Arc<Sandbox>,
    link: Link,
    _quota: QuotaClock,
    _exceeded: QuotaClock,
}

/// Looks at the workspace from time to time, also between cells: processes of earlier ones may write.
struct QuotaClock(tokio::task::AbortHandle);

impl Drop for QuotaClock {
    fn drop(&mut self) {
        self.0.abort();
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
        let log = Arc::clone(&args.log);
        let adopted = args.attach.as_ref().map(|attach| (attach.receipt.clone(), attach.received));
        let executor = myself.clone();
        let arrive = async move {
            match adopted {
                None => {
                    // Before any cell runs, so that all that the first one writes is seen to grow.
                    if let Some((usage, _)) = measured(Arc::clone(&workspace), None, 0).await {
                        let _ = executor.cast(ExecutorMsg::QuotaLooked(usage));
                    }
                    let progress = pull_progress(log);
                    ExecutorMsg::Launched(Box::new(
                        Box::pin(launch(launcher, wanted, workspace, progress)).await,
                    ))
                }
                Some((receipt, received)) => ExecutorMsg::Attached(Box::new(
                    Box::pin(attach(launcher, receipt, wanted, workspace, received)).await,
                )),
            }
        };
        let is_attached = args.attach.is_some();
        let arriving = watched(arrive, move |message| {
            let undelivered = myself.cast(message.unwrap_or(ExecutorMsg::Closed(Closed::Fault)));
            // Nobody wants it any more. One that was attached to is left to whoever has its session.
            if let Err(MessagingErr::SendErr(ExecutorMsg::Launched(outcome))) = undelivered
                && let Ok(Ready { sandbox, .. }) = *outcome
            {
                tokio::spawn(sandbox.undo());
            }
        });
        let snapshot = scanned(&args.workspace).await;
        let said_memory = args.memory.open(Use::Calls);
        let bound = SandboxRules::new(Arc::clone(&args.client_rules));
        Ok(ExecutorState {
            args,
            cage: None,
            arriving: Some(Vec::new()),
            running: HashMap::new(),
            unrecorded: HashMap::new(),
            finishing: HashMap::new(),
            requests: HashMap::new(),
            preloading: None,
            calls: Calls::default(),
            unassigned: Vec::new(),
            bound,
            said: Arc::default(),
            said_memory,
            snapshot,
            snapshot_is_old: false,
            snapshot_unnoted: true,
            usage: None,
            quota_look: None,
            cell_ended_since_look: false,
            growing_looks: 0,
            frost: Frost::default(),
            live: Live::default(),
            concluding: 0,
            gone: None,
            last_programs: None,
            kept_turn: None,
            left: Arc::default(),
            attaching: is_attached.then(|| arriving.abort_handle()),
        })
    }

    async fn handle(
        &self,
        myself: ExecutorRef,
        message: ExecutorMsg,
        state: &mut ExecutorState,
    ) -> Result<(), ActorProcessingErr> {
        if matches!(message, ExecutorMsg::Run(_)) {
            state.look_before_cell().await;
        }
        let bytes = match &message {
            ExecutorMsg::Arrived(_, turn) => turn.parsed_bytes(),
            _ => 0,
        };
        let act = AssertUnwindSafe(|| state.act(&myself, message));
        let acted = work_on(bytes, || std::panic::catch_unwind(act));
        let outcome = acted.unwrap_or_else(|_| Err("the executor panicked".into()));
        if outcome.is_err() {
            state.let_go();
        }
        outcome
    }
}

impl ExecutorState {
    /// An error ends the actor and leaves the sandbox: its session attaches to it anew.
    fn act(&mut self, myself: &ExecutorRef, message: ExecutorMsg) -> Result<(), ActorProcessingErr> {
        let state = self;
        crate::deaths::on_demand("executor");
        match message {
            ExecutorMsg::Launched(outcome) if state.is_wanted() => state.launched(myself, *outcome),
            ExecutorMsg::Launched(outcome) => state.remove_late(myself, outcome.ok()),
            ExecutorMsg::Attached(outcome) if state.is_wanted() => state.attached(myself, *outcome),
            ExecutorMsg::Attached(outcome) => state.remove_late(myself, outcome.ok().flatten()),
            ExecutorMsg::Run(start) => state.run(myself, start),
            ExecutorMsg::Interrupt(cell) => state.interrupt(myself, cell),
            ExecutorMsg::Variables { which, reply_to } => {
                let Which { private, imports } = which;
                let frame = |request| HostFrame::Variables { request, private, imports };
                state.request(myself, Request::Variables { which, reply_to }, frame, Duration::ZERO);
            }
            ExecutorMsg::Compute { expression, values, timeout, reply_to } => {
                let memory_bytes = state.args.wanted.memory_bytes / 4;
                let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                let frame =
                    |request| HostFrame::Compute { request, expression, values, timeout_ms, memory_bytes };
                state.request(myself, Request::Compute(reply_to), frame, timeout);
            }
            ExecutorMsg::Reset { reply_to } => {
                state.cancel_running(myself);
                // Rules end when the kernel has said that nothing of that code is left, not before.
                let up_to = state.bound.newest();
                let frame = |request| HostFrame::Reset { request };
                state.request(myself, Request::Reset { up_to, reply_to }, frame, Duration::ZERO);
            }
            ExecutorMsg::SendAgain(cell) => state.send_again(myself, cell),
            ExecutorMsg::FilesChanged => {
                state.snapshot_is_old = true;
                // What grew by that grew by nobody in the sandbox.
                (state.usage, state.growing_looks) = (None, 0);
            }
            ExecutorMsg::Undo { cells, reply_to } => {
                let frame = |request| HostFrame::Undo { request, cells };
                state.request(myself, Request::Undo(reply_to), frame, Duration::ZERO);
            }
            ExecutorMsg::Freeze { reply_to } => state.freeze(myself, Some(reply_to)),
            ExecutorMsg::Thaw => {
                state.frost.again = false;
                state.thaw(myself);
            }
            ExecutorMsg::Thawed => state.thawed(myself),
            ExecutorMsg::EndPrograms { reply_to } => state.end_programs(reply_to),
            ExecutorMsg::Leave { reply_to } => state.leave(myself, reply_to),
            ExecutorMsg::Shutdown { reply_to } => state.shut_down(myself, reply_to),
            // Not given back, so not acknowledged, either.
            ExecutorMsg::Arrived(_, turn) if state.last_programs.is_some() => state.kept_turn = Some(turn),
            ExecutorMsg::Arrived(frame, turn) => state.arrived(myself, *frame, turn),
            ExecutorMsg::Closed(Closed::Fault) => return Err("a task of the bridge panicked".into()),
            ExecutorMsg::Closed(closed) => state.closed(myself, closed),
            ExecutorMsg::Overdue(what) => state.overdue(myself, what),
            ExecutorMsg::Look => {
                state.look_at_quota(myself);
                state.look_at_asked(myself);
                state.look_for_strangers(myself);
            }
            ExecutorMsg::OverQuota(exceeded) => state.over_quota(myself, &exceeded),
            ExecutorMsg::QuotaLooked(usage) => state.quota_looked(myself, usage),
            ExecutorMsg::ToolDone { call, outcome, memory } => {
                state.tool_done(call, outcome);
                drop(memory);
            }
            ExecutorMsg::PersonAsked(cell) => state.person_asked(cell),
            ExecutorMsg::PersonAnswered(cell) => state.person_answered(myself, cell),
            ExecutorMsg::Configure { seed, tools, given } => {
                (state.args.seed, state.args.tools) = (seed, tools);
                state.unassigned.extend(given);
                state.configure(myself);
            }
            ExecutorMsg::Concluded { result, snapshot, turn } => {
                state.snapshot_unnoted |= state.snapshot != snapshot;
                state.snapshot = snapshot;
                state.concluding -= 1;
                state.tell(SessionMsg::CellFinished(result, turn));
                state.end_if_done(myself);
            }
            ExecutorMsg::Ended { why, end } => state.ended(myself, &why, end),
        }
        Ok(())
    }

    /// It dies, and the next one goes on: the kernel is hung up on, so that it connects again, and what waits for a
    /// person goes on waiting.
    fn let_go(&mut self) {
        self.left.store(true, Ordering::Relaxed);
        self.cage = None;
        self.calls = Calls::default();
        // Else it would give the sandbox up because the kernel has connected to another.
        if let Some(attaching) = self.attaching.take() {
            attaching.abort();
        }
    }
}

/// Tells of each time that something of the sandbox's was too much to be kept.
fn tell_exceeded(executor: ExecutorRef, log: &EventLog) -> impl Future<Output = ()> + Send + use<> {
    let mut exceeded = log.watch_exceeded();
    async move {
        while exceeded.changed().await.is_ok() {
            let told = exceeded.borrow_and_update().clone();
            if let Some(told) = told {
                let _ = executor.cast(ExecutorMsg::OverQuota(told));
            }
            tokio::time::sleep(EXCEEDED_APART).await;
        }
    }
}

/// The number of a new request, which nobody can guess. A kernel may still have an answer for the daemon before
/// this one, too, whose requests had other numbers.
fn request_number() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0 >> REQUEST_NUMBER_SPARED
}

/// Steps of a pull as events, a few a second.
fn pull_progress(log: Arc<EventLog>) -> impl Fn(String) + Send + Sync {
    let last = std::sync::Mutex::new(None::<Instant>);
    move |status| {
        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= PULL_EVENTS_APART) {
            *last = Some(Instant::now());
            log.append(EventBody::ImagePulling { status });
        }
    }
}

impl ExecutorState {
    fn configuration(&mut self) -> HostFrame {
        let (seed, tools) = (self.args.seed.clone(), self.args.tools.specs());
        HostFrame::Configure { seed, tools, given: std::mem::take(&mut self.unassigned) }
    }

    /// As soon as there is a kernel.
    fn configure(&mut self, myself: &ExecutorRef) {
        if self.cage.is_some() {
            let configuration = self.configuration();
            self.send(myself, &configuration);
        }
    }

    fn launched(&mut self, myself: &ExecutorRef, outcome: Result<Ready, Problem>) {
        let ready = match outcome {
            Ok(ready) => ready,
            Err(problem) => {
                self.args.permit = None;
                self.tell(SessionMsg::SandboxFailed(problem));
                myself.stop(None);
                return;
            }
        };
        let receipt = ready.receipt.clone();
        self.take_in(myself, ready);
        let configure = self.configuration();
        let configured = self.cage.as_ref().map(|cage| cage.link.send(&configure));
        if let Some(Err(error)) = configured {
            let problem =
                Problem::new(Code::TooLarge, format!("the seed cannot be sent to the kernel: {error}"));
            self.remove_cage();
            self.tell(SessionMsg::SandboxFailed(problem));
            myself.stop(None);
            return;
        }
        if self.args.preload.is_empty() {
            self.tell(SessionMsg::SandboxReady { receipt: Box::new(receipt), preloaded: None });
        } else {
            self.preload(myself, receipt);
        }
    }

    /// From here on the kernel is heard.
    fn take_in(&mut self, myself: &ExecutorRef, ready: Ready) {
        let sandbox = ready.receipt.sandbox.clone();
        self.args.recorder.attach(sandbox.clone());
        self.args.recorder.replace(Arc::<Said>::clone(&self.said));
        let executor = myself.clone();
        let sink = RecorderSink {
            recorder: Arc::clone(&self.args.recorder),
            log: Arc::clone(&self.args.log),
            sandbox,
        };
        let link =
            Link::start(ready.socket, ready.received, self.args.memory.clone(), sink, move |incoming| {
                let _ = executor.cast(match incoming {
                    Incoming::Frame(frame, turn) => ExecutorMsg::Arrived(frame, turn),
                    Incoming::Closed(closed) => ExecutorMsg::Closed(closed),
                });
            });
        let quota = QuotaClock(myself.send_interval(QUOTA_LOOK, || ExecutorMsg::Look).abort_handle());
        let exceeded = QuotaClock(tokio::spawn(tell_exceeded(myself.clone(), &self.args.log)).abort_handle());
        self.frost.seen_running = Instant::now();
        self.cage = Some(Cage { sandbox: Arc::new(ready.sandbox), link, _quota: quota, _exceeded: exceeded });
        self.look_at_quota(myself);
    }

    fn arrived(&mut self, myself: &ExecutorRef, frame: KernelFrame, turn: Turn) {
        match frame {
            KernelFrame::CellDone { .. } | KernelFrame::CellLost { .. } => {
                self.cell_ended(myself, frame, turn);
            }
            KernelFrame::WorkerReplaced { exit_code, after } => {
                let gone = self.live;
                self.set_live(Live::default());
                self.tell(SessionMsg::WorkerReplaced { exit_code, after, gone, turn });
            }
            KernelFrame::ToolCall { call, cell, name, arguments } => {
                self.tool_called(myself, call, cell, &name, arguments, &turn);
            }
            KernelFrame::Variables { .. }
            | KernelFrame::Computed { .. }
            | KernelFrame::ResetDone { .. }
            | KernelFrame::Preloaded { .. }
            | KernelFrame::Undone { .. }
            | KernelFrame::Names { .. }
            | KernelFrame::Refused { .. } => self.answered(myself, frame, turn),
            KernelFrame::Hello { .. } | KernelFrame::Display { .. } | KernelFrame::OutputGap { .. } => {
                self.give_up(myself, "the kernel sent a frame out of turn".into());
            }
        }
    }

    /// A frame that cannot be sent ends the sandbox: the kernel does not read.
    fn send(&mut self, myself: &ExecutorRef, frame: &HostFrame) {
        let sent = self.cage.as_ref().map(|cage| cage.link.send(frame));
        match sent {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.give_up(myself, format!("the bridge failed: {error}")),
            None => self.fail_requests(&Problem::new(Code::SandboxFailed, "the sandbox is gone")),
        }
    }

    fn tell(&self, message: SessionMsg) {
        let _ = self.args.session.cast(message);
    }
}
