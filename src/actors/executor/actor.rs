//! The executor's actor: how it starts, and how it handles each message.

use ractor::{Actor, ActorProcessingErr, ActorRuntime, MessagingErr, SpawnErr};
use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

use super::messages::{Command, ExecutorMsg, ExecutorRef, ToTerminal};
use super::packages::FirstPackages;
use super::pending::Request;
use super::state::{ExecutorArgs, ExecutorState, FreezeState};
use super::workspace::{measured, scanned};
use crate::actors::launch::{ReadySandbox, attach, launch};
use crate::actors::session::messages::SessionMsg;
use crate::actors::session::waking;
use crate::bridge::{Closed, OpenCalls};
use crate::memory::{MemoryPurpose, offload_if_large};
use crate::panics::spawn_reporting;
use crate::protocol::api::VariablesFilter;
use crate::protocol::command::TerminalSize;
use crate::protocol::event::EventBody;
use crate::protocol::frames::{HostFrame, LiveResources};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::artifacts::Snapshot;
use crate::sandbox::workspace::remeasure::LastLook;
use crate::security_controls;
use crate::session::rules::SandboxRules;
use crate::store::EventLog;

/// Time between two events about a pull.
const PULL_EVENTS_APART: Duration = Duration::from_millis(500);

pub struct Executor;

impl Executor {
    /// Starts an executor, without waiting for it. If it cannot start, the session is told.
    pub fn spawn(args: ExecutorArgs) -> Result<ExecutorRef, SpawnErr> {
        let session = args.session.clone();
        let (executor, started) = ActorRuntime::spawn_linked_instant(None, Self, args, session.get_cell())?;
        tokio::spawn(async move {
            if let Ok(Err(error)) = started.await {
                let problem = Problem::new(Code::Internal, format!("no executor: {error}"));
                let _ = session.cast(SessionMsg::SandboxFailed(problem));
            }
        });
        Ok(executor)
    }
}

impl Actor for Executor {
    type Msg = ExecutorMsg;
    type State = ExecutorState;
    type Arguments = ExecutorArgs;

    #[expect(clippy::too_many_lines, reason = "one field of the state a line")]
    async fn pre_start(
        &self,
        myself: ExecutorRef,
        mut args: ExecutorArgs,
    ) -> Result<ExecutorState, ActorProcessingErr> {
        let (launcher, wanted, workspace) =
            (Arc::clone(&args.launcher), args.wanted.clone(), Arc::clone(&args.workspace));
        let log = Arc::clone(&args.log);
        let adopted = args.attach.as_ref().map(|attach| (attach.receipt.clone(), attach.received));
        let (executor, ready, permit) = (myself.clone(), args.ready.take(), args.permit.clone());
        let (folder, scan_reply_to) = (Arc::clone(&workspace), myself.clone());
        let scan = async move {
            let _ = scan_reply_to.cast(ExecutorMsg::Scanned(scanned(&folder).await));
        };
        let packages = FirstPackages::of(&args);
        let (wakes, client_rules) = (args.wakes, Arc::clone(&args.client_rules));
        let restore_turn = args.restore_turn.clone();
        let arrive = async move {
            match adopted {
                None => {
                    // Measured before any cell runs, so that everything the first cell writes counts as
                    // growth.
                    if let Some((sizes, _)) = measured(Arc::clone(&workspace), None, 0).await {
                        let _ = executor.cast(ExecutorMsg::Measured(sizes));
                    }
                    let plan =
                        if wakes { waking::plan(&log, &client_rules, &restore_turn).await } else { Ok(None) };
                    let progress = pull_progress(log);
                    if let Some(ready) = &ready {
                        ready.sandbox.keep_until_gone(permit.clone());
                    }
                    let (plan, launched) = match (plan, ready) {
                        (Ok(plan), Some(ready)) => (plan, Ok(*ready)),
                        (Ok(plan), None) => {
                            (plan, Box::pin(launch(launcher, wanted, workspace, permit, progress)).await)
                        }
                        // Without its journal the session does not go on with variables that are not its own.
                        (Err(problem), Some(ready)) => {
                            ready.sandbox.undo().await;
                            (None, Err(problem))
                        }
                        (Err(problem), None) => (None, Err(problem)),
                    };
                    let sandbox = launched.as_ref().ok().map(|ready| &ready.sandbox);
                    if let Some(sandbox) = sandbox {
                        Box::pin(packages.show_in(sandbox)).await;
                    }
                    ExecutorMsg::Launched(Box::new(launched), Box::new(plan))
                }
                Some((receipt, received)) => {
                    let attaching = attach(launcher, receipt, wanted, workspace, received, permit);
                    let attached = Box::pin(attaching).await;
                    let sandbox =
                        attached.as_ref().ok().and_then(|ready| ready.as_ref()).map(|ready| &ready.sandbox);
                    if let Some(sandbox) = sandbox {
                        Box::pin(packages.take_over_in(sandbox)).await;
                    }
                    ExecutorMsg::Attached(Box::new(attached))
                }
            }
        };
        let is_attached = args.attach.is_some();
        // The scan is sent before the sandbox is reported, so the files are known before any cell runs.
        let arrive = async { tokio::join!(arrive, scan).0 };
        let arriving = spawn_reporting(arrive, move |message| {
            let undelivered = myself.cast(message.unwrap_or(ExecutorMsg::Closed(Closed::Fault)));
            // The executor has ended: a new sandbox is removed. One that was attached to stays for the next executor.
            if let Err(MessagingErr::SendErr(ExecutorMsg::Launched(outcome, _))) = undelivered
                && let Ok(ReadySandbox { sandbox, .. }) = *outcome
            {
                tokio::spawn(sandbox.undo());
            }
        });
        let responses_memory = args.memory.open(MemoryPurpose::Calls);
        let bound = SandboxRules::begin(&args.client_rules, args.inherited.as_deref());
        Ok(ExecutorState {
            args,
            connected: None,
            arriving: Some(Vec::new()),
            running: HashMap::new(),
            replays: false,
            unrecorded: HashMap::new(),
            finished: HashMap::new(),
            requests: HashMap::new(),
            preloading: None,
            python: String::new(),
            wake: None,
            loading: None,
            taking: None,
            calls: OpenCalls::default(),
            held: BTreeMap::new(),
            lending: Arc::default(),
            arguments_turn: Arc::new(Semaphore::new(1)),
            clients_may_return: false,
            unassigned: Vec::new(),
            bound,
            responses: Arc::default(),
            responses_memory,
            snapshot: Snapshot::unseen(),
            snapshot_is_old: false,
            stashed: None,
            snapshot_unnoted: true,
            usage: Vec::new(),
            usage_activity: None,
            measuring: None,
            last_look: LastLook::default(),
            cell_ended_since_look: false,
            growing_looks: 0,
            grew_at: None,
            freezing: FreezeState::default(),
            live: LiveResources::default(),
            replacements: 0,
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
        let bytes = match &message {
            ExecutorMsg::Arrived(_, frame_guard) => frame_guard.parsed_bytes(),
            _ => 0,
        };
        let act = AssertUnwindSafe(|| state.act(&myself, message));
        let acted = offload_if_large(bytes, || std::panic::catch_unwind(act));
        let outcome = acted.unwrap_or_else(|_| Err("the executor panicked".into()));
        if outcome.is_err() {
            state.let_go();
        }
        outcome
    }
}

impl ExecutorState {
    /// Handles one message. An error ends the actor but leaves the sandbox, and the session attaches a new
    /// executor.
    pub(super) fn act(
        &mut self,
        myself: &ExecutorRef,
        message: ExecutorMsg,
    ) -> Result<(), ActorProcessingErr> {
        let state = self;
        crate::panics::panic_if_requested("executor");
        match message {
            ExecutorMsg::Launched(outcome, plan) if state.is_wanted() => {
                state.wakes_with(*plan);
                state.launched(myself, *outcome);
            }
            ExecutorMsg::Launched(outcome, _) => state.remove_late(myself, outcome.ok()),
            ExecutorMsg::Attached(outcome) if state.is_wanted() => state.attached(myself, *outcome),
            ExecutorMsg::Attached(outcome) => state.remove_late(myself, outcome.ok().flatten()),
            ExecutorMsg::Command(command) => state.command(myself, command),
            ExecutorMsg::Scanned(snapshot) => {
                (state.snapshot, state.snapshot_unnoted) = (snapshot, true);
                state.unstash(myself);
            }
            ExecutorMsg::SendAgain(cell) => state.send_again(myself, cell),
            ExecutorMsg::AnswerAgain { call, outcome } => state.answer_again(myself, call, outcome),
            ExecutorMsg::FreezeFailed(number) => state.freeze_failed(myself, number),
            ExecutorMsg::Thawed => state.thawed(myself),
            ExecutorMsg::EndPrograms { reply_to } => state.end_programs(reply_to),
            ExecutorMsg::Leave { reply_to } => state.leave(myself, reply_to),
            ExecutorMsg::Shutdown { reply_to } => state.shut_down(myself, reply_to),
            // The guard is kept, so the frame is not acknowledged either, and the kernel sends it to the next
            // daemon.
            ExecutorMsg::Arrived(_, frame_guard) if state.last_programs.is_some() => {
                state.kept_turn = Some(frame_guard);
            }
            ExecutorMsg::Arrived(frame, frame_guard) => state.arrived(myself, *frame, frame_guard),
            ExecutorMsg::HeldAgain { call, held } => {
                state.held.insert(call, *held);
                state.make_held_calls(myself);
            }
            ExecutorMsg::ClientsAreLate => {
                state.clients_may_return = false;
                state.make_held_calls(myself);
            }
            ExecutorMsg::SnapshotReceived { request, outcome } => {
                state.snapshot_received(myself, request, *outcome);
            }
            ExecutorMsg::SnapshotSent { request, outcome } => state.snapshot_sent(myself, request, outcome),
            ExecutorMsg::Closed(Closed::Fault) => return Err("a task of the bridge panicked".into()),
            ExecutorMsg::Closed(closed) => state.closed(myself, closed),
            ExecutorMsg::Overdue(what) => state.overdue(myself, what),
            ExecutorMsg::Check => {
                state.start_measurement(myself);
                state.end_overdue_asked(myself);
                state.end_foreign_pauses(myself);
                state.look_at_transfers(myself);
            }
            ExecutorMsg::OverQuota(exceeded) => state.over_quota(myself, &exceeded),
            ExecutorMsg::Measured(sizes) => state.measured_usage(myself, &sizes),
            ExecutorMsg::ToolDone { call, outcome, memory } => {
                state.tool_done(call, outcome);
                drop(memory);
            }
            ExecutorMsg::WaitsForPerson { cell, waits: true } => state.person_asked(cell),
            ExecutorMsg::WaitsForPerson { cell, waits: false } => state.person_answered(myself, cell),
            ExecutorMsg::Concluded { finished, snapshot, changes } => {
                state.concluded(myself, *finished, snapshot, changes);
            }
            ExecutorMsg::Ended { why, end } => state.ended(myself, &why, end),
        }
        Ok(())
    }

    pub(super) fn command(&mut self, myself: &ExecutorRef, command: Command) {
        let Some(command) = self.stash(myself, command) else { return };
        match command {
            Command::Run(start) => self.run(myself, start),
            Command::Replayed => self.replays = false,
            Command::Interrupt(cell) => self.interrupt(myself, cell),
            Command::Kill(cell) => self.kill(myself, cell),
            Command::ToTerminal(cell, what) => {
                // A frame about a command that has ended would be one about nothing.
                if self.running.contains_key(&cell) {
                    self.send(
                        myself,
                        &match what {
                            ToTerminal::Typed(data) => HostFrame::Typed { cell, data },
                            ToTerminal::Resized(TerminalSize { rows, columns }) => {
                                HostFrame::Resize { cell, rows, columns }
                            }
                        },
                    );
                }
            }
            Command::Variables { which, reply_to } => {
                let VariablesFilter { private, imports, of, keys, begins, digests } = which.clone();
                let frame =
                    |request| HostFrame::Variables { request, private, imports, of, keys, begins, digests };
                self.request(myself, Request::Variables { which, reply_to }, frame, Duration::ZERO);
            }
            Command::Compute { expression, values, timeout, memory, reply_to } => {
                let memory_bytes = self.args.wanted.memory_bytes / 4;
                let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                let frame =
                    |request| HostFrame::Compute { request, expression, values, timeout_ms, memory_bytes };
                self.request(myself, Request::Compute(reply_to), frame, timeout);
                drop(memory);
            }
            Command::Reset { base, inherited, reply_to } => {
                self.cancel_running(myself);
                self.drop_loading();
                // The rules of the earlier code end only when the kernel confirms that none of that code is
                // left.
                let up_to = self.bound.newest();
                if !security_controls::holds("rules_end_when_a_reset_is_done") {
                    self.bound.release_up_to(up_to);
                }
                let frame = |request| HostFrame::Reset { request };
                let reset = Request::Reset { up_to, base, inherited, reply_to, cpu_boost: None };
                self.request(myself, reset, frame, Duration::ZERO);
            }
            // The size check needs no new start: a client's upload is refused if it does not fit, so it never
            // makes the workspace too large.
            Command::FilesChanged => {
                self.snapshot_is_old = true;
                self.last_look.files_changed();
            }
            Command::Undo { cells, reply_to } => {
                crate::panics::panic_if_requested("undo");
                let frame = |request| HostFrame::Undo { request, cells };
                self.request(myself, Request::Undo(reply_to), frame, Duration::ZERO);
            }
            Command::Freeze { reply_to } => self.freeze(myself, Some(reply_to)),
            Command::Thaw => self.thaw(myself),
            Command::Snapshot { wanted, reply_to } => self.take_snapshot(myself, &wanted, reply_to),
            Command::EndSnapshot { ticket } if self.takes(ticket) => {
                self.end_snapshot(
                    myself,
                    Problem::new(Code::Busy, "the snapshot was given up, because the session is used"),
                );
            }
            Command::EndSnapshot { .. } => {}
            Command::ShowPackages { set, reply_to } => self.show_packages(*set, reply_to),
            Command::Configure { seed, tools, given } => {
                (self.args.seed, self.args.tools) = (seed, tools);
                self.unassigned.extend(given);
                self.configure(myself);
                self.make_held_calls(myself);
            }
        }
    }

    /// Prepares for the next executor when this one ends or dies: drops the connection, so that the kernel
    /// connects again, and leaves the approvals that calls wait for in place.
    pub(super) fn let_go(&mut self) {
        self.left.store(true, Ordering::Relaxed);
        // Released now, because the next executor attaches, or starts a new sandbox, before this state is
        // dropped.
        if let Some(permit) = self.args.permit.take() {
            permit.give_back();
        }
        self.connected = None;
        self.calls = OpenCalls::default();
        // The attaching task would otherwise remove the sandbox, because the kernel connects to the next
        // executor instead.
        if let Some(attaching) = self.attaching.take() {
            attaching.abort();
        }
    }
}

/// Reports the steps of a pull as events, a few per second.
fn pull_progress(log: Arc<EventLog>) -> impl Fn(String) + Send + Sync {
    let last = parking_lot::Mutex::new(None::<Instant>);
    move |status| {
        let mut last = last.lock();
        let is_due = last.is_none_or(|at| at.elapsed() >= PULL_EVENTS_APART);
        if is_due && log.has_reserve().is_ok() {
            *last = Some(Instant::now());
            log.append(EventBody::ImagePulling { status });
        }
    }
}
