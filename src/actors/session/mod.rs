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
use crate::session::queue::{Job, Queue};
use crate::session::restore::Restored;
use crate::session::rules::CellRules;
use crate::store::{EventLog, Journal, OutputCaps, Recorder, Spill};
use crate::tools;

mod agent;
mod cells;
mod ending;
mod frost;
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
/// Lists of variables that wait for the main line.
const VIEWS_WAITING: usize = 16;

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

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct SessionActorState {
    args: SessionArgs,
    myself: OwnSession,
    asks: AsksRef,
    clients: tools::ClientTools,
    common: agent::Common,
    /// Of cells that clients send.
    client_rules: Arc<CellRules>,
    /// A sandbox of before may be there; whether it is, is not known yet.
    attaching: bool,
    /// Requests that need a sandbox and came while there was none.
    deferred: Vec<SessionMsg>,
    log: Arc<EventLog>,
    recorder: Arc<Recorder>,
    /// Makes the workspace.
    making: Option<JoinHandle<()>>,
    workspace: Option<Arc<Workspace>>,
    /// Held for the life of the session, so that nobody else gets its user id.
    slot: Option<UserSlot>,
    sandbox: SandboxPhase,
    receipt: Option<Arc<Receipt>>,
    preloaded: Option<Preloaded>,
    queue: Queue<Answer<VariableList>>,
    tickets: HashMap<CellNumber, Pending>,
    /// Of a life before this one, until it is known which of these cells are to come.
    inherited: HashMap<CellNumber, Pending>,
    cells: CellNumber,
    /// To be told with the next cell's result.
    note: Option<String>,
    active_at: Instant,
    holders: Holders,
    removing: bool,
    /// The daemon ends.
    leaving: bool,
    /// Undos and resets that are under way; cells that come meanwhile wait.
    going_back: usize,
    /// Somebody runs the cells of before again.
    replaying: bool,
    frozen: bool,
    /// Of the sandbox, for what it counts.
    cgroup: Option<Cgroup>,
    turns: turns::Turns,
    /// Requests that came before the workspace was there; bounded by the connections of the owner.
    waiting_for_handles: Vec<Answer<Handles>>,
    /// What was going on when the daemon ended, until the sandbox is attached or gone.
    restored: Option<Restored>,
    /// The kernel has to be told of the last reset once more.
    reset_again: bool,
}

enum SandboxPhase {
    None,
    Starting(ExecutorRef),
    Ready { executor: ExecutorRef, since: Instant },
}

struct Pending {
    events_after: Seq,
    done: oneshot::Sender<Arc<ExecutionResult>>,
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
        let goes_on = replaying && past.replaying;
        let mut state = Self {
            args,
            myself,
            asks,
            clients,
            common,
            client_rules,
            attaching: past.sandbox.is_some(),
            deferred,
            log,
            recorder,
            making,
            workspace,
            slot,
            sandbox: SandboxPhase::None,
            receipt: None,
            preloaded: None,
            queue: Queue::default(),
            tickets: HashMap::new(),
            inherited: tickets,
            cells: 0,
            note: None,
            active_at: Instant::now(),
            holders,
            removing: false,
            leaving: false,
            going_back: 0,
            replaying: goes_on,
            frozen: false,
            cgroup: None,
            turns: turns::Turns::default(),
            waiting_for_handles: unanswered,
            restored: None,
            reset_again: false,
        };
        state.recall(past);
        for view in views {
            state.queue.push(view);
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
            SessionMsg::Run { request, reply_to } => {
                state.enqueue(myself, request, reply_to);
                state.pump(myself).await;
            }
            SessionMsg::Unwritten { ticket, reply_to } => state.unwritten(ticket, reply_to),
            SessionMsg::Standing { cell, reply_to } => drop(reply_to.send(state.standing(cell))),
            SessionMsg::Interrupt { reply_to } => {
                state.touch();
                state.thaw();
                // Without a sandbox nothing is told, so nothing is claimed either.
                let cell = match &state.sandbox {
                    SandboxPhase::Ready { executor, .. } => state
                        .queue
                        .foremost()
                        .filter(|cell| executor.cast(ExecutorMsg::Interrupt(*cell)).is_ok()),
                    SandboxPhase::None | SandboxPhase::Starting(_) => None,
                };
                let _ = reply_to.send(Ok(Interrupted { cell }));
            }
            SessionMsg::Variables { which, patient, reply_to } => {
                state.touch();
                if state.queue.views() >= VIEWS_WAITING {
                    let problem =
                        Problem::new(Code::Busy, format!("{VIEWS_WAITING} such requests wait already"));
                    let _ = reply_to.send(Err(problem.hint("wait for one of them to be answered")));
                } else {
                    state.queue.push(Job::Variables { which, patient, reply_to });
                    state.pump(myself).await;
                }
            }
            SessionMsg::Compute { expression, values, timeout, reply_to } => {
                state.touch();
                state.thaw();
                match &state.sandbox {
                    SandboxPhase::Ready { executor, .. } => {
                        let _ = executor.cast(ExecutorMsg::Compute { expression, values, timeout, reply_to });
                    }
                    SandboxPhase::None | SandboxPhase::Starting(_)
                        if state.deferred.len() < VIEWS_WAITING =>
                    {
                        state.deferred.push(SessionMsg::Compute { expression, values, timeout, reply_to });
                        if matches!(state.sandbox, SandboxPhase::None) {
                            state.start_sandbox(myself).await;
                        }
                    }
                    SandboxPhase::None | SandboxPhase::Starting(_) => {
                        let problem = Problem::new(Code::Busy, "the session has no sandbox yet");
                        let _ = reply_to.send(Err(problem.hint("try again when it is there")));
                    }
                }
            }
            SessionMsg::Reset { replay, reply_to } => state.reset(myself, replay, reply_to),
            SessionMsg::ResetNoted { reply_to } => {
                state.reset_noted(reply_to);
                state.pump(myself).await;
            }
            SessionMsg::View { reply_to } => drop(reply_to.send(state.view())),
            SessionMsg::Receipt { reply_to } => {
                let receipt =
                    state.receipt.clone().filter(|_| matches!(state.sandbox, SandboxPhase::Ready { .. }));
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
            SessionMsg::CancelCells { ask } => {
                state.cancel_cells(ask);
                state.pump(myself).await;
            }
            SessionMsg::Lend { tools, reply_to } => state.lend(tools, reply_to),
            SessionMsg::AnswerCall { call, answer, reply_to } => {
                let answered = state.clients.answer(&call, answer);
                let _ = reply_to
                    .send(answered.map_err(|error| Problem::new(Code::NoSuchCall, error.to_string())));
            }
            SessionMsg::ToolsChanged => state.configure(Vec::new()),
            SessionMsg::FilesChanged => match &state.sandbox {
                SandboxPhase::Starting(executor) | SandboxPhase::Ready { executor, .. } => {
                    let _ = executor.cast(ExecutorMsg::FilesChanged);
                }
                SandboxPhase::None => state.measure_workspace(),
            },
            // Unwrapped before, where it is of this life.
            SessionMsg::Own { .. } => {}
            SessionMsg::MayRun(permit) => state.may_run(myself, permit).await,
            SessionMsg::ActedOn { admin, act } => {
                state.log.append(EventBody::AdminActed { admin, act });
            }
            SessionMsg::Remove { reply_to } => state.remove(myself, reply_to),
            SessionMsg::WorkspaceReady(outcome) => state.workspace_ready(myself, *outcome).await,
            SessionMsg::SandboxReady { receipt, preloaded } => {
                state.sandbox_ready(myself, *receipt, preloaded);
                state.resume_deferred();
                state.pump(myself).await;
            }
            SessionMsg::SandboxAttached(receipt) => {
                state.sandbox_attached(*receipt);
                state.attached_or_gone();
                state.pump(myself).await;
            }
            SessionMsg::Leave { within } => state.leave(myself, within),
            SessionMsg::Left => {
                state.log.flushed().await;
                state.log.close();
                let _ =
                    state.args.supervisor.cast(SupervisorMsg::Ended { id: state.args.id, reply_to: None });
                myself.any_life().stop(None);
            }
            SessionMsg::SandboxFailed(problem) => {
                state.sandbox_failed(problem);
                state.attached_or_gone();
            }
            SessionMsg::SandboxGone { reason } => {
                state.sandbox_gone(reason);
                state.pump(myself).await;
            }
            SessionMsg::NotAttached { reason } => {
                state.conclude_lost(None);
                state.sandbox_gone(reason);
                state.attached_or_gone();
                state.pump(myself).await;
            }
            SessionMsg::WorkerReplaced { exit_code, after, gone, turn } => {
                state.worker_replaced(exit_code, after, gone, &turn);
            }
            SessionMsg::PutBack(start) => {
                state.turns.ended(start.cell);
                state.queue.put_back(Job::Cell { start, patient: true });
                state.pump(myself).await;
            }
            SessionMsg::Freeze { reply_to } => state.freeze(myself, reply_to),
            SessionMsg::FreezeDone { outcome, reply_to } => state.freeze_done(outcome, reply_to),
            SessionMsg::Thaw { reply_to } => {
                state.touch();
                state.thaw();
                let _ = reply_to.send(Ok(()));
            }
            SessionMsg::Undo { cells, reply_to } => state.undo(myself, cells, reply_to),
            SessionMsg::UndoDone { outcome, reply_to } => {
                state.undo_done(outcome, reply_to);
                state.pump(myself).await;
            }
            SessionMsg::UndoneBefore { state_of, turn } => {
                state.log.append_then(EventBody::Undone { state_of }, state.applied(&turn), || {});
            }
            SessionMsg::ReplayEnded { finished } => state.replay_ended(finished),
            SessionMsg::CellFinished(result, turn) => {
                state.finished(*result, turn);
                state.pump(myself).await;
            }
            SessionMsg::Removed { reply_to, noted } => {
                state.removed(reply_to, noted).await;
                myself.any_life().stop(None);
            }
            SessionMsg::Hold { reply_to } => drop(reply_to.send(Ok(state.hold(myself)))),
            SessionMsg::Released => state.holders.release(),
            SessionMsg::Tick => state.tick(myself),
        }
    }

    pub(super) fn touch(&mut self) {
        self.active_at = Instant::now();
    }
}
