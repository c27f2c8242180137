//! The session: one user's Python world. It holds the queue of cells, starts a sandbox when it
//! needs one, lets it go after a time without use, and writes every step into its events. `lives` is what happens when
//! it panics.

use ractor::{Actor, ActorProcessingErr, SpawnErr, SupervisionEvent};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::asks::AsksRef;
use super::charge::JournalAccount;
use super::directory::Directory;
use super::executor::{ExecutorMsg, ExecutorRef};
use super::holding::Holders;
use super::llm::Models;
use super::supervisor::{SupervisorMsg, SupervisorRef};
use crate::protocol::api::{Interrupted, SessionView, VariableList};
use crate::protocol::event::EventBody;
use crate::protocol::ids::{CellNumber, JobId, Seq, SessionId, SessionName};
use crate::protocol::preload::{Preload, Preloaded};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, Receipt};
use crate::protocol::result::ExecutionResult;
use crate::quota::{Gauge, Ledger, Permit};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::launch::{Launcher, UserSlot, Wanted};
use crate::sandbox::workspace::Workspace;
use crate::session::machine::{Expiry, Input, Machine};
use crate::session::restore::Restored;
use crate::session::rules::CellRules;
use crate::store::{EventLog, Journal, OutputCaps, Recorder, Spill};
use crate::tools;

mod agent;
mod cells;
mod effects;
mod ending;
mod freeze;
mod holding;
mod keyed;
mod lives;
mod messages;
mod restore;
mod sandbox;
mod turns;
mod undo;
mod view;
mod written;

pub(super) use agent::result_of;
pub(super) use ending::{Noted, forget};
pub use keyed::{CellTarget, Keyed, Wants};
pub use messages::{
    CellRequest, Handles, OwnSession, ReplayOf, SessionMsg, SessionRef, Standing, Ticket, unwritten,
};
pub(super) use restore::events as events_of;

use lives::{Estate, Lives};
use messages::Answer;
pub(super) use sandbox::a_sandbox;
use sandbox::make_workspace;

/// How often idleness and age are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Computations that wait for a sandbox.
const COMPUTATIONS_WAITING: usize = 16;

pub struct SessionArgs {
    pub id: SessionId,
    pub name: SessionName,
    pub owner: u32,
    pub journal: Journal,
    /// What was asked for, as the journal keeps it.
    pub request: Value,
    pub created_at: String,
    pub ledger: Ledger,
    /// For what the session is found to have on disk.
    pub gauge: Gauge,
    /// Of the first sandbox.
    pub permit: Option<Permit>,
    /// A cell of another session wants it and waits for it.
    pub nested: bool,
    pub supervisor: SupervisorRef,
    /// Where an ask finds the session that it makes for an ask within it.
    pub directory: Directory,
    pub launcher: Arc<Launcher>,
    pub tools: Arc<tools::Registry>,
    pub models: Models,
    pub wanted: Wanted,
    pub backend: Backend,
    /// A folder of the owner's; none for a managed one.
    pub workspace: Option<String>,
    pub idle: Duration,
    pub seed: Map<String, Value>,
    /// The job that it serves.
    pub job: Option<JobId>,
    pub preload: Preload,
    /// It goes when nobody holds it any more.
    pub ephemeral: bool,
    /// Answered when the first sandbox is ready, or could not be made.
    pub created: Option<Answer<SessionView>>,
    /// It was there before the daemon was started anew, with this user id of the range.
    pub before: Option<Before>,
}

/// What the record of an earlier session says beside its request.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub slot: Option<u32>,
}

pub struct SessionActorState {
    args: SessionArgs,
    myself: OwnSession,
    asks: AsksRef,
    clients: tools::ClientTools,
    common: agent::Common,
    /// Of cells that clients send.
    client_rules: Arc<CellRules>,
    /// What it does next.
    machine: Machine<Answer<VariableList>>,
    /// The executor of the sandbox that runs, or that is being started.
    executor: Option<ExecutorRef>,
    /// Requests that need a sandbox and came while there was none.
    deferred: Vec<SessionMsg>,
    log: Arc<EventLog>,
    recorder: Arc<Recorder>,
    /// Makes the workspace.
    making: Option<JoinHandle<()>>,
    workspace: Option<Arc<Workspace>>,
    /// Held for the life of the session, so that nobody else gets its user id.
    slot: Option<UserSlot>,
    receipt: Option<Arc<Receipt>>,
    preloaded: Option<Preloaded>,
    tickets: HashMap<CellNumber, Pending>,
    holders: Holders,
    /// The daemon ends.
    leaving: bool,
    /// Of the sandbox, for what it counts.
    cgroup: Option<Cgroup>,
    turns: turns::Turns,
    /// Requests that came before the workspace was there; bounded by the connections of the owner.
    waiting_for_handles: Vec<Answer<Handles>>,
    /// What was going on when the daemon ended, until the sandbox is attached or gone.
    restored: Option<Restored>,
}

struct Pending {
    events_after: Seq,
    done: oneshot::Sender<Arc<ExecutionResult>>,
}

/// When the sandboxes of a session are let go.
fn expiry(args: &SessionArgs) -> Expiry {
    Expiry { idle: args.idle, life: args.launcher.settings.sandbox.life }
}

pub struct Session;

impl Session {
    pub async fn spawn(args: SessionArgs) -> Result<SessionRef, SpawnErr> {
        let supervisor = args.supervisor.get_cell();
        Actor::spawn_linked(None, Self, args, supervisor).await.map(|(session, _)| session)
    }
}

impl Actor for Session {
    type Msg = SessionMsg;
    type State = Lives;
    type Arguments = SessionArgs;

    async fn pre_start(&self, myself: SessionRef, args: SessionArgs) -> Result<Lives, ActorProcessingErr> {
        let estate = Estate::first(args);
        agent::watch_clients(&myself, &estate.clients);
        myself.send_interval(TICK, || SessionMsg::Tick);
        Lives::first(&myself, estate).await
    }

    async fn handle(
        &self,
        myself: SessionRef,
        message: SessionMsg,
        lives: &mut Lives,
    ) -> Result<(), ActorProcessingErr> {
        Box::pin(lives.handle(&myself, message)).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: SessionRef,
        event: SupervisionEvent,
        lives: &mut Lives,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(part, error) => lives.part_failed(&myself, &part, &error).await,
            SupervisionEvent::ActorStarted(_)
            | SupervisionEvent::ActorTerminated(..)
            | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl SessionActorState {
    /// Begins a life: the first one, or another from what the journal says and the one before left.
    async fn born(myself: OwnSession, estate: Estate) -> Result<Self, ActorProcessingErr> {
        let Estate { args, clients, common, holders, tickets, unanswered, deferred, views, place, replaying } =
            estate;
        let log = args.journal.log(args.id)?;
        let account = Arc::new(JournalAccount::new(args.gauge.clone(), &args.request));
        log.charge_to(args.owner, account, args.ledger.memory(args.owner));
        let cells = &args.launcher.settings.cells;
        let spill = Spill::open(log.spill_folder(), cells.spill)?;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let caps = OutputCaps { head: size(cells.output_head), tail: size(cells.output_tail) };
        let client_rules = Arc::new(CellRules::of_client(&args.launcher.settings.agent, &args.tools));
        let events = args.before.map(|_| restore::events(&log)).unwrap_or_default();
        let past = match args.before {
            Some(_) => Restored::of(&events, &client_rules),
            None => Restored::default(),
        };
        if let Some(receipt) = &past.last_sandbox {
            common.image_is(&receipt.image.id);
        }
        if let Some(receipt) = &past.sandbox {
            args.launcher.expect(&receipt.sandbox);
        }
        let running: Vec<CellNumber> = past.running.iter().map(|begun| begun.start.cell).collect();
        let sandbox = past.sandbox.as_ref().map(|receipt| receipt.sandbox.clone());
        let recorder = Arc::new(Recorder::recover(Arc::clone(&log), spill, caps, sandbox, &running)?);
        let held_by = past.sandbox.as_ref().map(|receipt| receipt.backend);
        let making = place.is_none().then(|| make_workspace(&myself, &args, held_by));
        let (workspace, slot) = place.map_or((None, None), |(workspace, slot)| (Some(workspace), slot));
        let asks = agent::spawn_asks(&myself, &args, &log, &clients, &common, events).await?;
        let machine = match args.before {
            Some(_) => restore::machine(&args, &past, replaying),
            None => Machine::new(expiry(&args), Instant::now()),
        };
        let mut state = Self {
            args,
            myself,
            asks,
            clients,
            common,
            client_rules,
            machine,
            executor: None,
            deferred,
            log,
            recorder,
            making,
            workspace,
            slot,
            receipt: None,
            preloaded: None,
            tickets: HashMap::new(),
            holders,
            leaving: false,
            cgroup: None,
            turns: turns::Turns::default(),
            waiting_for_handles: unanswered,
            restored: None,
        };
        state.recall(past, tickets);
        for view in views {
            state.apply(view).await;
        }
        if state.workspace.is_some() {
            state.is_placed().await;
        }
        Ok(state)
    }

    #[expect(clippy::too_many_lines, reason = "one arm a message; the work is in the methods")]
    async fn act(&mut self, message: SessionMsg) {
        crate::deaths::on_demand("session");
        let state = self;
        let myself = &state.myself.clone();
        let Some(message) = state.ready_for(message) else { return };
        match message {
            SessionMsg::Run { request, reply_to } => state.enqueue(myself, request, reply_to).await,
            SessionMsg::Unwritten { ticket, reply_to } => state.unwritten(ticket, reply_to).await,
            SessionMsg::Started { begin, written } => state.apply(Input::Started { begin, written }).await,
            SessionMsg::Standing { cell, reply_to } => drop(reply_to.send(state.standing(cell))),
            SessionMsg::Interrupt { reply_to } => {
                let cell = state.machine.interruptible();
                state.apply(Input::Interrupt).await;
                let _ = reply_to.send(Ok(Interrupted { cell }));
            }
            SessionMsg::Variables { which, patient, reply_to } => {
                state.apply(Input::Variables { which, patient, reply_to }).await;
            }
            SessionMsg::Compute { expression, values, timeout, reply_to } => match state.ready() {
                Some(executor) => {
                    state.apply(Input::SandboxWanted).await;
                    let _ = executor.cast(ExecutorMsg::Compute { expression, values, timeout, reply_to });
                }
                None if state.deferred.len() < COMPUTATIONS_WAITING => {
                    state.deferred.push(SessionMsg::Compute { expression, values, timeout, reply_to });
                    state.apply(Input::SandboxWanted).await;
                }
                None => {
                    let problem = Problem::new(Code::Busy, "the session has no sandbox yet");
                    let _ = reply_to.send(Err(problem.hint("try again when it is there")));
                }
            },
            SessionMsg::Reset { replay, reply_to } => state.reset(myself, replay, reply_to).await,
            SessionMsg::ResetNoted { reply_to } => state.reset_noted(reply_to).await,
            SessionMsg::View { reply_to } => drop(reply_to.send(state.view())),
            SessionMsg::Receipt { reply_to } => {
                let receipt = state.receipt.clone().filter(|_| state.machine.is_ready());
                let _ = reply_to.send(receipt.ok_or_else(|| {
                    Problem::new(
                        Code::Busy,
                        "the session has no sandbox at the moment, so there is nothing to attest",
                    )
                    .hint("run a cell first, which starts one")
                }));
            }
            SessionMsg::Handles { reply_to } => {
                state.touch();
                match state.handles() {
                    Some(handles) => drop(reply_to.send(Ok(handles))),
                    None => state.waiting_for_handles.push(reply_to),
                }
            }
            SessionMsg::Asks { reply_to } => {
                state.touch();
                let _ = reply_to.send(Ok(state.asks.clone()));
            }
            SessionMsg::Seed { values, anew } => state.seed(values, anew),
            SessionMsg::Given { reply_to } => drop(reply_to.send(state.args.seed.clone())),
            SessionMsg::Touch => state.touch(),
            SessionMsg::CancelCells { ask } => state.apply(Input::CancelCells(ask)).await,
            SessionMsg::Lend { tools, reply_to } => state.lend(tools, reply_to),
            SessionMsg::AnswerCall { call, answer, reply_to } => {
                let answered = state.clients.answer(&call, answer);
                let _ = reply_to
                    .send(answered.map_err(|error| Problem::new(Code::NoSuchCall, error.to_string())));
            }
            SessionMsg::ToolsChanged => state.configure(Vec::new()),
            SessionMsg::FilesChanged => match &state.executor {
                Some(executor) => drop(executor.cast(ExecutorMsg::FilesChanged)),
                None => state.measure_workspace(),
            },
            // Unwrapped before, where it is of this life.
            SessionMsg::Own { .. } => {}
            SessionMsg::MayRun(permit) => state.may_run(permit).await,
            SessionMsg::ActedOn { admin, act } => {
                state.log.append(EventBody::AdminActed { admin, act });
            }
            SessionMsg::Remove { reply_to } => state.remove(myself, reply_to).await,
            SessionMsg::WorkspaceReady(outcome) => state.workspace_ready(*outcome).await,
            SessionMsg::SandboxReady { receipt, preloaded } => {
                state.sandbox_ready(myself, *receipt, preloaded).await;
                state.resume_deferred();
            }
            SessionMsg::SandboxAttached(receipt) => {
                state.sandbox_attached(*receipt).await;
                state.resume_deferred();
            }
            SessionMsg::Leave { within } => state.leave(myself, within).await,
            SessionMsg::Left => {
                state.log.flushed().await;
                state.log.close();
                let _ =
                    state.args.supervisor.cast(SupervisorMsg::Ended { id: state.args.id, reply_to: None });
                myself.any_life().stop(None);
            }
            SessionMsg::SandboxFailed(problem) => {
                let failed = state.sandbox_failed(problem);
                state.apply(failed).await;
            }
            SessionMsg::SandboxGone { reason } => {
                state.forgo_sandbox();
                state.apply(Input::SandboxGone { reason }).await;
            }
            SessionMsg::NotAttached { reason } => {
                state.forgo_sandbox();
                state.apply(Input::NotAttached { reason }).await;
                state.resume_deferred();
            }
            SessionMsg::WorkerReplaced { exit_code, after, gone, turn } => {
                state.worker_replaced(exit_code, after, gone, &turn).await;
            }
            SessionMsg::PutBack(cell) => state.apply(Input::PutBack(cell)).await,
            SessionMsg::Freeze { reply_to } => state.freeze(myself, reply_to).await,
            SessionMsg::FreezeDone { outcome, reply_to } => state.freeze_done(outcome, reply_to).await,
            SessionMsg::Thaw { reply_to } => {
                state.apply(Input::Thaw).await;
                let _ = reply_to.send(Ok(()));
            }
            SessionMsg::Undo { cells, reply_to } => state.undo(myself, cells, reply_to).await,
            SessionMsg::UndoDone { outcome, reply_to } => {
                state.undo_done(outcome, reply_to);
                state.apply(Input::UndoDone).await;
            }
            SessionMsg::UndoneBefore { state_of, turn } => {
                state.log.append_then(EventBody::Undone { state_of }, state.applied(&turn), || {});
            }
            SessionMsg::ReplayEnded { finished } => state.apply(Input::ReplayEnded { finished }).await,
            SessionMsg::CellFinished(result, turn) => state.finished(*result, turn).await,
            SessionMsg::Removed { reply_to, noted } => {
                state.removed(reply_to, noted).await;
                myself.any_life().stop(None);
            }
            SessionMsg::Hold { reply_to } => drop(reply_to.send(Ok(state.hold(myself)))),
            SessionMsg::Released => state.holders.release(),
            SessionMsg::Tick => state.tick(myself).await,
        }
    }

    pub(super) fn touch(&mut self) {
        self.machine.touch(Instant::now());
    }

    /// The executor, if its sandbox can be asked something.
    fn ready(&self) -> Option<ExecutorRef> {
        self.executor.clone().filter(|_| self.machine.is_ready())
    }
}
