//! A session survives its own panic: the next generation starts from the journal and attaches to the sandbox
//! that the previous one released. The actor stays, with its mailbox and all references to it; only the
//! message over which it panicked is lost, and the caller that waits for its answer gets an error.
//!
//! If the executor or the asks actor of a session dies, the generation ends as well, so that there is only
//! one way to start again. A session is parked if it dies too often, or if it cannot start again after a
//! restart of the daemon. A parked session keeps its sandbox, and accepts a reset or its removal.

use futures_util::FutureExt;
use ractor::{ActorCell, ActorProcessingErr};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ending::{remove_folder, remove_snapshots, remove_workspace};
use super::journal_waits::RemovalRecord;
use super::messages::{CellStatus, Handles, OwnSession, SessionMsg, SessionRef};
use super::removers::Removers;
use super::state::Common;
use super::state::{CellWaiter, PriorSession, SessionActorState, SessionArgs};
use super::undo::PendingUndo;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::{ExecutorMsg, ExecutorRef};
use crate::actors::holds::Holders;
use crate::actors::pace::Pace;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::panics::{CrashCounter, TOO_MANY, WITHIN, spawn_reporting};
use crate::protocol::api::{SessionState, SessionView, VariableList};
use crate::protocol::ids::{CellNumber, SandboxId};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::launch::UserSlot;
use crate::sandbox::workspace::Workspace;
use crate::security_controls;
use crate::session::machine::{Input, Replays};
use crate::session::queue::QueueItem;
use crate::tools::ClientTools;

/// The time for the executor and the asks actor to end. They never wait for slow work, so it is never used
/// up.
const PARTS_END: Duration = Duration::from_secs(10);

/// What one generation leaves to the next, beside the journal.
pub(super) struct Inheritance {
    pub args: SessionArgs,
    pub clients: ClientTools,
    pub common: Common,
    pub holders: Holders,
    /// The callers that wait for the ends of cells.
    pub tickets: HashMap<CellNumber, CellWaiter>,
    /// The callers that wait for the workspace.
    pub unanswered: Vec<Reply<Handles>>,
    pub deferred: Vec<SessionMsg>,
    /// The undo that was under way.
    pub undoing: Option<PendingUndo>,
    /// The waiting requests for lists of variables.
    pub views: Vec<Input<Reply<VariableList>>>,
    pub workspace_and_slot: Option<(Arc<Workspace>, Option<UserSlot>)>,
    /// A replay of earlier cells that is under way continues in the next generation.
    pub replays: Replays,
}

impl Inheritance {
    pub fn first(args: SessionArgs) -> Self {
        Self {
            args,
            clients: ClientTools::default(),
            common: Common::default(),
            holders: Holders::default(),
            tickets: HashMap::new(),
            unanswered: Vec::new(),
            deferred: Vec::new(),
            undoing: None,
            views: Vec::new(),
            workspace_and_slot: None,
            replays: Replays::default(),
        }
    }
}

pub struct Generations {
    /// The number of the present generation; messages of an earlier one are ignored.
    number: u64,
    deaths: CrashCounter,
    current: Generation,
    /// How often the session ticks.
    pace: Pace,
}

enum Generation {
    Living(Box<SessionActorState>),
    Parked(Box<ParkedSession>),
    /// The session of an earlier daemon, whose journal has not been read yet.
    Restoring(Box<ParkedSession>),
    /// The session has ended, and the actor is about to end.
    Stopped,
}

struct ParkedSession {
    inheritance: Inheritance,
    /// The last known view.
    view: SessionView,
    /// The sandboxes that the session keeps.
    sandboxes: Vec<SandboxId>,
    /// Held so that no other session gets the user id of this one's guests.
    slot: Option<UserSlot>,
    why: String,
    /// When the session was parked first.
    since: Instant,
}

impl ParkedSession {
    fn new(inheritance: Inheritance, view: SessionView, sandboxes: Vec<SandboxId>) -> Self {
        let slot = inheritance.args.before.and_then(|before| before.slot);
        let slot = slot.map(|uid| inheritance.args.launcher.slots.keep(uid));
        let why = format!("failed {TOO_MANY} times within {} s", WITHIN.as_secs());
        Self { inheritance, view, sandboxes, slot, why, since: Instant::now() }
    }

    /// Parks a session of an earlier daemon.
    fn of_before(inheritance: Inheritance) -> Self {
        let args = &inheritance.args;
        let sandboxes = args.journal.sandboxes(args.id).unwrap_or_default();
        let view = args.parked_view();
        Self::new(inheritance, view, sandboxes)
    }

    /// Whether an ephemeral session has to be removed: one that lingers stays for its idle time.
    fn is_forsaken(&self) -> bool {
        let Inheritance { args, holders, .. } = &self.inheritance;
        args.ephemeral && holders.are_gone() && !(args.lingers && self.since.elapsed() < args.idle)
    }

    fn problem(&self) -> Problem {
        let name = &self.view.name;
        Problem::new(
            Code::Internal,
            format!("the session {} and is parked; its sandbox is kept", self.why),
        )
        .hint(format!(
            "the daemon's log says why; when that is mended, a restart of the daemon takes it up again; `belljar reset {name}` starts it afresh, `belljar rm {name}` removes it"
        ))
    }
}

/// The outcome of a generation's end.
struct EndedGeneration {
    inheritance: Inheritance,
    view: SessionView,
    sandboxes: Vec<SandboxId>,
    removing: bool,
    leaving: bool,
    /// Only for a session that is still being made: its executor, whose sandbox has to be removed.
    executor: Option<ExecutorRef>,
}

impl Generations {
    pub(super) async fn first(
        myself: &SessionRef,
        inheritance: Inheritance,
        pace: Pace,
    ) -> Result<Self, ActorProcessingErr> {
        let mut generations =
            Self { number: 0, deaths: CrashCounter::default(), current: Generation::Stopped, pace };
        if inheritance.args.before.is_some() && security_controls::holds("session_of_before_is_parked") {
            generations.current = Generation::Restoring(Box::new(ParkedSession::of_before(inheritance)));
        } else {
            let own = OwnSession::new(myself.clone(), generations.number);
            let state = SessionActorState::begin(own, inheritance).await?;
            generations.current = Generation::Living(Box::new(state));
        }
        Ok(generations)
    }

    /// Takes up a session that an earlier daemon had. Its messages wait, and nothing else does: reading its journal takes
    /// the longer the more its user has put there.
    pub(super) async fn restore(&mut self, myself: &SessionRef) {
        match std::mem::replace(&mut self.current, Generation::Stopped) {
            Generation::Restoring(parked) => {
                // Also a panic ends the wait for this session.
                let _restored = parked.inheritance.args.restored.clone().drop_guard();
                self.revive(myself, *parked).await;
            }
            other => self.current = other,
        }
    }

    pub(super) async fn handle(&mut self, myself: &SessionRef, message: SessionMsg) {
        let message = match message {
            SessionMsg::Own { generation, message } if generation == self.number => *message,
            SessionMsg::Own { .. } => return,
            message => message,
        };
        let is_tick = matches!(message, SessionMsg::Tick);
        match &mut self.current {
            Generation::Living(state) => {
                let acted = std::panic::catch_unwind(AssertUnwindSafe(|| state.act(message)));
                if let Err(panic) = acted {
                    if !security_controls::holds("session_lives_on") {
                        std::panic::resume_unwind(panic);
                    }
                    Box::pin(self.begin_anew(myself, "it panicked")).await;
                }
            }
            Generation::Parked(_) => Box::pin(self.handle_parked(myself, message)).await,
            Generation::Restoring(_) | Generation::Stopped => {}
        }
        if is_tick {
            self.pace.set_calm(match &self.current {
                Generation::Living(state) => state.waits_for_nothing(),
                Generation::Parked(parked) => !parked.inheritance.args.ephemeral,
                Generation::Restoring(_) | Generation::Stopped => false,
            });
        }
    }

    pub(super) async fn part_failed(
        &mut self,
        myself: &SessionRef,
        part: &ActorCell,
        error: &ActorProcessingErr,
    ) {
        if let Generation::Living(state) = &self.current
            && (state.is_current(part.get_id()) || state.asks.get_id() == part.get_id())
        {
            Box::pin(self.begin_anew(myself, &format!("a part of it failed: {error}"))).await;
        }
    }

    async fn begin_anew(&mut self, myself: &SessionRef, why: &str) {
        let Generation::Living(state) = std::mem::replace(&mut self.current, Generation::Stopped) else {
            return;
        };
        tracing::error!(session = %state.args.id, why, "the actor of a session died; a new one goes on from the journal");
        let too_often = self.deaths.one_more() && security_controls::holds("session_is_parked");
        // Messages of the previous executor and asks actor are ignored from here on.
        self.number += 1;
        let EndedGeneration { mut inheritance, view, sandboxes, removing, leaving, executor } =
            state.end().await;
        if leaving {
            return leave(myself, &inheritance);
        }
        if let Some(created) = inheritance.args.created.take() {
            // No client was told of this session, so it must not come into being.
            not_created(&inheritance.args, executor, created);
            return self.park(ParkedSession::new(inheritance, view, sandboxes));
        }
        let parked = ParkedSession::new(inheritance, view, sandboxes);
        if too_often && !removing {
            tracing::error!(session = %parked.view.id, "a session died too often and is parked");
            return self.park(parked);
        }
        self.revive(myself, parked).await;
        if removing {
            let _ = myself.cast(SessionMsg::Remove { remover: None });
        }
    }

    /// Starts the next generation. False if that fails; the session is parked then.
    async fn revive(&mut self, myself: &SessionRef, parked: ParkedSession) -> bool {
        // `slot` keeps the user id reserved during the attempt.
        let ParkedSession { inheritance, view, sandboxes, slot, since, .. } = parked;
        let spare = inheritance.spare();
        let own = OwnSession::new(myself.clone(), self.number);
        let begins = Box::pin(SessionActorState::begin(own, inheritance));
        let born = AssertUnwindSafe(begins).catch_unwind().await;
        let why = match born {
            Ok(Ok(state)) => {
                self.current = Generation::Living(Box::new(state));
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        tracing::error!(why, session = %view.id, "a session cannot go on, and is parked");
        self.number += 1;
        let why = format!("cannot go on ({why})");
        self.park(ParkedSession { inheritance: spare, view, sandboxes, slot, why, since });
        false
    }

    fn park(&mut self, mut parked: ParkedSession) {
        parked.view.state = SessionState::Parked;
        let problem = parked.problem();
        let inheritance = &mut parked.inheritance;
        // Dropping a ticket tells the caller that waits for the cell.
        inheritance.tickets.clear();
        for reply_to in inheritance.unanswered.drain(..) {
            let _ = reply_to.send(Err(problem.clone()));
        }
        inheritance.deferred.drain(..).for_each(|message| message.refuse(problem.clone()));
        if let Some(undo) = inheritance.undoing.take() {
            undo.refuse(problem.clone());
        }
        for view in inheritance.views.drain(..) {
            if let Input::Variables { reply_to, .. } = view {
                let _ = reply_to.send(Err(problem.clone()));
            }
        }
        self.current = Generation::Parked(Box::new(parked));
    }

    async fn handle_parked(&mut self, myself: &SessionRef, message: SessionMsg) {
        let Generation::Parked(parked) = &mut self.current else { return };
        let args = &parked.inheritance.args;
        let has_ended = |cell| args.journal.log(args.id).is_ok_and(|log| log.finished(cell).is_some());
        match message {
            SessionMsg::View { reply_to } => drop(reply_to.send(parked.view.clone())),
            SessionMsg::Handles { reply_to } => {
                let workspace_and_slot = parked
                    .inheritance
                    .workspace_and_slot
                    .as_ref()
                    .map(|(workspace, _)| Arc::clone(workspace));
                let handles =
                    workspace_and_slot.zip(args.journal.log(args.id).ok()).map(|(workspace, log)| {
                        let gauge = args.workspace.is_none().then(|| args.gauge.clone());
                        Handles { log, workspace, gauge }
                    });
                let _ = reply_to.send(handles.ok_or_else(|| parked.problem()));
            }
            // There is no answer for a cell that has not ended, because nothing tells when it will end.
            SessionMsg::Ticket { cell, reply_to } if has_ended(cell) => drop(reply_to.send(None)),
            SessionMsg::CellStatus { cell, reply_to } if has_ended(cell) => {
                let _ = reply_to.send(CellStatus::Ended);
            }
            SessionMsg::Given { reply_to } => drop(reply_to.send(args.seed.clone())),
            SessionMsg::Released => parked.inheritance.holders.release(),
            SessionMsg::Leave { .. } | SessionMsg::Left => {
                leave(myself, &parked.inheritance);
                self.current = Generation::Stopped;
            }
            message @ (SessionMsg::Reset { replay: None, .. }
            | SessionMsg::Remove { .. }
            | SessionMsg::Removed { .. }) => Box::pin(self.try_again(myself, message)).await,
            SessionMsg::Tick if parked.is_forsaken() => {
                Box::pin(self.try_again(myself, SessionMsg::Remove { remover: None })).await;
            }
            message => message.refuse(parked.problem()),
        }
    }

    /// Starts a parked session again, for a client that wants to reset or remove it.
    async fn try_again(&mut self, myself: &SessionRef, message: SessionMsg) {
        let Generation::Parked(parked) = std::mem::replace(&mut self.current, Generation::Stopped) else {
            return;
        };
        self.deaths.forget();
        if self.revive(myself, *parked).await {
            Box::pin(self.handle(myself, message)).await;
            return;
        }
        let Generation::Parked(parked) = &mut self.current else { return };
        let removers = match message {
            SessionMsg::Remove { remover } => {
                let removers = Removers::default();
                removers.add(remover);
                removers
            }
            SessionMsg::Removed { removers, .. } => removers,
            message => return message.refuse(parked.problem()),
        };
        if let Generation::Parked(parked) = std::mem::replace(&mut self.current, Generation::Stopped) {
            discard(myself, *parked, removers);
        }
    }
}

/// Ends the actor when the daemon shuts down; the next daemon finds the session in the journal.
fn leave(myself: &SessionRef, inheritance: &Inheritance) {
    let (id, supervisor) = (inheritance.args.id, inheritance.args.supervisor.clone());
    if let Ok(log) = inheritance.args.journal.log(id) {
        log.close();
    }
    let _ = supervisor.cast(SupervisorMsg::Ended { id, removers: Vec::new() });
    myself.stop(None);
}

impl Inheritance {
    /// The part that has to survive if the attempt to start again loses the rest.
    fn spare(&self) -> Self {
        let launcher = &self.args.launcher;
        let workspace_and_slot = self.workspace_and_slot.as_ref().map(|(workspace, slot)| {
            (Arc::clone(workspace), slot.as_ref().map(|slot| launcher.slots.keep(slot.uid)))
        });
        let (clients, common, holders) = (self.clients.clone(), self.common.clone(), self.holders.clone());
        let replays = Replays { is_running: false, ..self.replays };
        Self { clients, common, holders, workspace_and_slot, replays, ..Self::first(self.args.again()) }
    }
}

impl SessionActorState {
    /// Ends this generation. Its executor and asks actor end first, so that no event is written that the next
    /// generation would miss.
    async fn end(mut self) -> EndedGeneration {
        let view = self.view();
        // Stopped before the executor, whose open calls would otherwise withdraw their questions.
        stopped(self.asks.kill_and_wait(Some(PARTS_END)).await.is_ok());
        let executor = self.executor.take();
        let is_new = self.args.created.is_some();
        if let Some(executor) = executor.as_ref().filter(|_| !is_new) {
            let left = executor.call(|reply_to| ExecutorMsg::Leave { reply_to }, Some(PARTS_END)).await;
            // An executor that has died has released the sandbox as well.
            let _ = left;
            stopped(executor.wait(Some(PARTS_END)).await.is_ok());
        }
        self.recorder.seal();
        self.log.flushed().await;
        let views = self.machine.take_waiting().into_iter().filter_map(|job| match job {
            QueueItem::Variables { which, patient, reply_to } => {
                Some(Input::Variables { which, patient, reply_to })
            }
            QueueItem::Cell { .. } => None,
        });
        let workspace_and_slot = self.workspace.map(|workspace| (workspace, self.slot));
        let slot = match &workspace_and_slot {
            Some((_, slot)) => slot.as_ref().map(|slot| slot.uid),
            None => self.args.before.and_then(|before| before.slot),
        };
        self.args.before = Some(PriorSession { slot });
        EndedGeneration {
            view,
            sandboxes: self.receipt.iter().map(|receipt| receipt.sandbox.clone()).collect(),
            removing: self.machine.is_ending(),
            leaving: self.leaving,
            executor: executor.filter(|_| is_new),
            inheritance: Inheritance {
                args: self.args,
                clients: self.clients,
                common: self.common,
                holders: self.holders,
                tickets: self.tickets,
                unanswered: self.waiting_for_handles,
                deferred: self.deferred,
                undoing: self.undoing,
                views: views.collect(),
                workspace_and_slot,
                replays: self.machine.replays(),
            },
        }
    }
}

fn stopped(in_time: bool) {
    if !in_time {
        tracing::error!("a part of a session does not end");
    }
}

/// Removes what exists of a session that panicked while it was being made, and answers its caller.
fn not_created(args: &SessionArgs, executor: Option<ExecutorRef>, created: Reply<SessionView>) {
    let problem = Problem::new(Code::Internal, "the session could not be made: an internal error")
        .hint("the daemon's log says more; ask again");
    let (id, supervisor, journal) = (args.id, args.supervisor.clone(), args.journal.clone());
    tokio::spawn(async move {
        if let Some(executor) = executor {
            let _ = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
        }
        RemovalRecord::begin(&journal, id).is_written().await;
        let _ = supervisor.cast(SupervisorMsg::NotCreated { id, problem, reply_to: created });
    });
}

/// Removes a session that cannot even be started for its removal. Its remains are removed like leftovers.
fn discard(myself: &SessionRef, parked: ParkedSession, removers: Removers) {
    let ParkedSession { inheritance: Inheritance { args, workspace_and_slot, .. }, sandboxes, slot, .. } =
        parked;
    let (supervisor, session, id) = (args.supervisor.clone(), myself.clone(), args.id);
    let mut noted = RemovalRecord::begin(&args.journal, id);
    for sandbox in &sandboxes {
        args.launcher.forgo(sandbox);
    }
    let last = async move {
        if let Ok(log) = args.journal.log(id) {
            log.close();
        }
        // Sandboxes first: no process may still write into a folder that is being removed. One that cannot be removed
        // keeps its user id.
        args.launcher.keep_left_user_ids();
        args.launcher.reap().await;
        match workspace_and_slot {
            Some((workspace, _)) => remove_workspace(workspace).await,
            None if args.workspace.is_none() => remove_folder(&args.launcher, args.owner, id).await,
            None => {}
        }
        remove_snapshots(args.snapshots.clone()).await;
        drop(slot);
        noted.is_written().await;
    };
    spawn_reporting(last, move |_| {
        let _ = supervisor.cast(SupervisorMsg::Ended { id, removers: removers.take_replies() });
        session.stop(None);
    });
}
