//! The session: one user's Python world. It holds the queue of cells, starts a sandbox when it
//! needs one, lets it go after a time without use, and writes every step into its events.

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr, SupervisionEvent};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

use super::executor::{Executor, ExecutorArgs, ExecutorMsg, ExecutorRef};
use super::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
use super::past::Past;
use super::queue::{Job, Queue};
use super::supervisor::{SupervisorMsg, SupervisorRef};
use crate::bridge::Turn;
use crate::protocol::api::{
    Computed, Interrupted, SessionLimits, SessionState, SessionView, Undone, VariableList,
};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::frames::StateAfter;
use crate::protocol::ids::{CellNumber, Seq, SessionId, SessionName};
use crate::protocol::limits::ARTIFACTS;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, Receipt};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::sandbox::attest::isolation_line;
use crate::sandbox::launch::{Launcher, UserSlot, Wanted};
use crate::sandbox::workspace::Workspace;
use crate::store::{
    Applied, CellRecord, EventLog, Journal, JournalError, OutputCaps, Recorder, SessionRecord, Spill,
};
use crate::tools;

mod restore;

/// How often idleness and age are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Lists of variables that wait for the main line.
const VIEWS_WAITING: usize = 16;
/// Time for a removal to get into the journal before it goes on without.
const REMOVAL_NOTED: Duration = Duration::from_secs(2);

pub type SessionRef = ActorRef<SessionMsg>;

type Answer<T> = RpcReplyPort<Result<T, Problem>>;

/// A cell as a client asks for it, checked.
#[derive(Clone, Debug)]
pub struct CellRequest {
    pub code: String,
    pub mode: Mode,
    pub expression: bool,
    pub timeout: Duration,
}

/// A cell that was taken into the queue. Dropping `done` does not stop the cell.
#[derive(Debug)]
pub struct Ticket {
    pub cell: CellNumber,
    pub events_after: Seq,
    pub done: oneshot::Receiver<Arc<ExecutionResult>>,
}

/// What other parts may use directly, without asking the actor: files and events.
#[derive(Clone)]
pub struct Handles {
    pub log: Arc<EventLog>,
    pub workspace: Arc<Workspace>,
}

pub enum SessionMsg {
    /// Queue a cell. Answered at once; a full queue is `busy`.
    Run {
        request: CellRequest,
        reply_to: Answer<Ticket>,
    },
    /// Where a cell stands: queued, running, or unknown here (ended, or never there).
    Standing {
        cell: CellNumber,
        reply_to: RpcReplyPort<Standing>,
    },
    Interrupt {
        reply_to: Answer<Interrupted>,
    },
    /// Shows the state before the cell that runs, if one does. `patient` ones wait until the main line is idle.
    Variables {
        private: bool,
        patient: bool,
        reply_to: Answer<VariableList>,
    },
    /// Does not wait: it sees no state of the session.
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        reply_to: Answer<Computed>,
    },
    /// Take back the last cells of the main line; `busy` while something runs or waits.
    Undo {
        cells: u64,
        reply_to: Answer<Undone>,
    },
    /// Drops queued cells, ends the running one, starts afresh.
    Reset {
        reply_to: Answer<()>,
    },
    View {
        reply_to: RpcReplyPort<SessionView>,
    },
    Receipt {
        reply_to: Answer<Arc<Receipt>>,
    },
    /// Counts as activity.
    Handles {
        reply_to: Answer<Handles>,
    },
    /// Files of the workspace were changed from outside.
    FilesChanged,
    /// End for good: sandbox, workspace (if managed) and events go. Answered by the supervisor,
    /// when the name is free again.
    Remove {
        reply_to: Option<Answer<()>>,
    },

    WorkspaceReady(Box<Result<(Workspace, Option<UserSlot>), Problem>>),
    SandboxReady(Box<Receipt>),
    /// The sandbox of before is there, with its variables.
    SandboxAttached(Box<Receipt>),
    /// End, and leave the sandbox running for the next daemon. The session itself stays.
    Leave,
    /// The executor has let go; the actor can end.
    Left,
    SandboxFailed(Problem),
    SandboxGone {
        reason: String,
    },
    /// The process with the variables died between cells; a fresh one is in its place.
    WorkerReplaced {
        exit_code: i32,
        after: StateAfter,
    },
    /// The kernel cannot run this copy now.
    PutBack(CellStart),
    UndoDone {
        outcome: Result<CellNumber, Problem>,
        reply_to: Answer<Undone>,
    },
    /// The turn is given back when the result is in the journal.
    CellFinished(Box<ExecutionResult>, Option<Turn>),
    /// The sandbox is removed; the rest can go.
    Removed {
        reply_to: Option<Answer<()>>,
    },
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Queued(Seq),
    Running(Seq),
    Unknown,
}

pub struct SessionArgs {
    pub id: SessionId,
    pub name: SessionName,
    pub owner: u32,
    pub journal: Journal,
    /// What was asked for, as the journal keeps it.
    pub request: Value,
    pub created_at: String,
    pub supervisor: SupervisorRef,
    pub launcher: Arc<Launcher>,
    pub tools: Arc<tools::Registry>,
    pub wanted: Wanted,
    pub backend: Backend,
    /// A folder of the owner's; none for a managed one.
    pub workspace: Option<String>,
    pub idle: Duration,
    pub seed: Map<String, Value>,
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
    log: Arc<EventLog>,
    recorder: Arc<Recorder>,
    workspace: Option<Arc<Workspace>>,
    /// Held for the life of the session, so that nobody else gets its user id.
    slot: Option<UserSlot>,
    sandbox: SandboxPhase,
    receipt: Option<Arc<Receipt>>,
    queue: Queue,
    tickets: HashMap<CellNumber, Pending>,
    cells: CellNumber,
    /// To be told with the next cell's result.
    note: Option<String>,
    active_at: Instant,
    removing: bool,
    /// What was going on when the daemon ended, until the sandbox is attached or gone.
    past: Option<Past>,
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
    type State = SessionActorState;
    type Arguments = SessionArgs;

    async fn pre_start(
        &self,
        myself: SessionRef,
        args: SessionArgs,
    ) -> Result<SessionActorState, ActorProcessingErr> {
        let log = args.journal.log(args.id)?;
        let cells = &args.launcher.settings.cells;
        let spill = Spill::open(log.spill_folder(), cells.spill)?;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let caps = OutputCaps { head: size(cells.output_head), tail: size(cells.output_tail) };
        let past = match args.before {
            Some(_) => Past::of(restore::events(&log)),
            None => Past::default(),
        };
        if let Some(receipt) = &past.sandbox {
            args.launcher.expect(&receipt.sandbox);
        }
        let running: Vec<CellNumber> = past.running.iter().map(|(start, _)| start.cell).collect();
        let sandbox = past.sandbox.as_ref().map(|receipt| receipt.sandbox.clone());
        let recorder = Arc::new(Recorder::recover(Arc::clone(&log), spill, caps, sandbox, &running)?);
        make_workspace(&myself, &args);
        myself.send_interval(TICK, || SessionMsg::Tick);
        let mut state = SessionActorState {
            args,
            log,
            recorder,
            workspace: None,
            slot: None,
            sandbox: SandboxPhase::None,
            receipt: None,
            queue: Queue::default(),
            tickets: HashMap::new(),
            cells: 0,
            note: None,
            active_at: Instant::now(),
            removing: false,
            past: None,
        };
        state.recall(past);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: SessionRef,
        message: SessionMsg,
        state: &mut SessionActorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SessionMsg::Run { request, reply_to } => {
                let ticket = state.enqueue(request);
                let _ = reply_to.send(ticket);
                state.pump(&myself).await;
            }
            SessionMsg::Standing { cell, reply_to } => drop(reply_to.send(state.standing(cell))),
            SessionMsg::Interrupt { reply_to } => {
                state.touch();
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
            SessionMsg::Variables { private, patient, reply_to } => {
                state.touch();
                if state.queue.views() >= VIEWS_WAITING {
                    let problem =
                        Problem::new(Code::Busy, format!("{VIEWS_WAITING} such requests wait already"));
                    let _ = reply_to.send(Err(problem.hint("wait for one of them to be answered")));
                } else {
                    state.queue.push(Job::Variables { private, patient, reply_to });
                    state.pump(&myself).await;
                }
            }
            SessionMsg::Compute { expression, values, timeout, reply_to } => {
                state.touch();
                match &state.sandbox {
                    SandboxPhase::Ready { executor, .. } => {
                        let _ = executor.cast(ExecutorMsg::Compute { expression, values, timeout, reply_to });
                    }
                    SandboxPhase::None | SandboxPhase::Starting(_) => {
                        let problem = Problem::new(Code::Busy, "the session has no sandbox at the moment");
                        let _ = reply_to.send(Err(problem.hint("run a cell first, which starts one")));
                    }
                }
            }
            SessionMsg::Reset { reply_to } => state.reset(reply_to),
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
                let handles = state
                    .workspace
                    .clone()
                    .map(|workspace| Handles { log: Arc::clone(&state.log), workspace });
                let _ = reply_to
                    .send(handles.ok_or_else(|| Problem::new(Code::Busy, "the session is being made")));
            }
            SessionMsg::FilesChanged => match &state.sandbox {
                SandboxPhase::Starting(executor) | SandboxPhase::Ready { executor, .. } => {
                    let _ = executor.cast(ExecutorMsg::FilesChanged);
                }
                SandboxPhase::None => {}
            },
            SessionMsg::Remove { reply_to } => state.remove(&myself, reply_to),
            SessionMsg::WorkspaceReady(outcome) => state.workspace_ready(&myself, *outcome).await,
            SessionMsg::SandboxReady(receipt) => {
                state.sandbox_ready(*receipt);
                state.pump(&myself).await;
            }
            SessionMsg::SandboxAttached(receipt) => {
                state.sandbox_attached(*receipt);
                state.pump(&myself).await;
            }
            SessionMsg::Leave => state.leave(&myself),
            SessionMsg::Left => {
                state.log.flushed().await;
                state.log.close();
                let _ =
                    state.args.supervisor.cast(SupervisorMsg::Ended { id: state.args.id, reply_to: None });
                myself.stop(None);
            }
            SessionMsg::SandboxFailed(problem) => state.sandbox_failed(problem),
            SessionMsg::SandboxGone { reason } => {
                state.sandbox_gone(reason);
                state.pump(&myself).await;
            }
            SessionMsg::WorkerReplaced { exit_code, after } => state.worker_replaced(exit_code, after),
            SessionMsg::PutBack(start) => {
                state.queue.put_back(Job::Cell { start, patient: true });
                state.pump(&myself).await;
            }
            SessionMsg::Undo { cells, reply_to } => state.undo(&myself, cells, reply_to),
            SessionMsg::UndoDone { outcome, reply_to } => {
                let _ = reply_to.send(outcome.map(|state_of| state.undone(state_of)));
            }
            SessionMsg::CellFinished(result, turn) => {
                state.finished(*result, turn);
                state.pump(&myself).await;
            }
            SessionMsg::Removed { reply_to } => {
                state.log.append(EventBody::SessionRemoved);
                state.log.close();
                if let Some(workspace) = state.workspace.clone() {
                    remove_workspace(workspace).await;
                }
                let _ = state.args.supervisor.cast(SupervisorMsg::Ended { id: state.args.id, reply_to });
                myself.stop(None);
            }
            SessionMsg::Tick => state.tick(&myself),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: SessionRef,
        event: SupervisionEvent,
        state: &mut SessionActorState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, error) => {
                tracing::error!(%error, session = %state.args.id, "an executor failed");
                if state.is_current(child.get_id()) {
                    state.sandbox_gone("an internal error of the executor".into());
                    state.pump(&myself).await;
                }
            }
            SupervisionEvent::ActorStarted(_)
            | SupervisionEvent::ActorTerminated(..)
            | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

/// The workspace needs to know how the engine maps users, and the engine may be slow.
fn make_workspace(myself: &SessionRef, args: &SessionArgs) {
    let (launcher, session) = (Arc::clone(&args.launcher), myself.clone());
    let (folder, owner, id) = (args.workspace.clone(), args.owner, args.id);
    let (journal, mut record, before) = (args.journal.clone(), args.record(), args.before);
    // An id of before is taken at once, so that nobody else gets it meanwhile.
    let kept = before.and_then(|before| before.slot).map(|uid| launcher.keep_slot(uid));
    tokio::spawn(async move {
        let make = async {
            let slot = match (&folder, kept) {
                (Some(_), _) => None,
                (None, Some(kept)) => Some(kept),
                (None, None) => Some(launcher.take_slot()?),
            };
            record.slot = slot.as_ref().map(|slot| slot.uid);
            if before.is_none() {
                // First in the journal: nothing may exist that the next start would not find.
                journal.create_session(&record).await.map_err(|error| unrecorded(&error))?;
            }
            let mode = launcher.engine_mode().await?;
            let service = launcher.service;
            if let Some(folder) = folder {
                return Ok((Workspace::of_caller(folder.as_ref(), service, mode, owner)?, None));
            }
            let Some(slot) = slot else {
                return Err(Problem::new(Code::Internal, "a managed workspace without a user id"));
            };
            let path = launcher.paths.workspaces_dir().join(id.to_string());
            Ok((Workspace::managed(path, service, mode, slot.uid)?, Some(slot)))
        };
        let _ = session.cast(SessionMsg::WorkspaceReady(Box::new(make.await)));
    });
}

/// A guest may have left a million files; other actors go on meanwhile.
async fn remove_workspace(workspace: Arc<Workspace>) {
    let removed = tokio::task::spawn_blocking(move || {
        workspace.remove().inspect_err(|error| {
            let path = workspace.path.display();
            tracing::warn!(%error, %path, "a workspace is left to the reaper");
        })
    });
    let _ = removed.await;
}

fn unrecorded(error: &JournalError) -> Problem {
    match error {
        JournalError::NameTaken => Problem::new(Code::SessionExists, error.to_string()),
        JournalError::Closed => Problem::new(Code::ShuttingDown, error.to_string()),
        JournalError::Refused(_) | JournalError::Unreadable(_) => {
            Problem::new(Code::Storage, error.to_string()).hint("free some space where the daemon's home is")
        }
    }
}

/// A full disk must not hold up a removal that may free it: the note stays queued, the wait ends.
async fn note_removal(journal: &Journal, id: SessionId) {
    let noted = tokio::time::timeout(REMOVAL_NOTED, journal.remove_session(id)).await;
    if !matches!(noted, Ok(Ok(()))) {
        tracing::warn!(session = %id, "the removal of a session is not in the journal yet");
    }
}

impl SessionArgs {
    fn record(&self) -> SessionRecord {
        SessionRecord {
            id: self.id,
            owner: self.owner,
            name: self.name.clone(),
            created_at: self.created_at.clone(),
            request: self.request.clone(),
            slot: None,
        }
    }
}

impl SessionActorState {
    fn touch(&mut self) {
        self.active_at = Instant::now();
    }

    fn is_current(&self, executor: ractor::ActorId) -> bool {
        match &self.sandbox {
            SandboxPhase::None => false,
            SandboxPhase::Starting(current) | SandboxPhase::Ready { executor: current, .. } => {
                current.get_id() == executor
            }
        }
    }

    fn enqueue(&mut self, request: CellRequest) -> Result<Ticket, Problem> {
        self.touch();
        if self.removing {
            return Err(Problem::new(Code::NoSuchSession, "the session is being removed"));
        }
        let limit = self.args.launcher.settings.cells.queue;
        if self.queue.waiting() >= limit {
            return Err(Problem::new(Code::Busy, format!("{limit} cells wait already"))
                .hint("wait for one to end, or `belljar interrupt` the session"));
        }
        self.cells += 1;
        let cell = self.cells;
        let events_after = self.log.newest();
        self.log.append(EventBody::CellQueued {
            cell,
            mode: request.mode,
            code: request.code.clone(),
            expression: request.expression,
            timeout_s: request.timeout.as_secs_f64(),
        });
        let (done, receiver) = oneshot::channel();
        self.tickets.insert(cell, Pending { events_after, done });
        let start = CellStart {
            cell,
            code: request.code,
            mode: request.mode,
            expression: request.expression,
            timeout: request.timeout,
            note: None,
        };
        self.queue.push(Job::Cell { start, patient: false });
        Ok(Ticket { cell, events_after, done: receiver })
    }

    /// Starts what waits, as far as the sandbox can take it.
    async fn pump(&mut self, myself: &SessionRef) {
        if !self.queue.has_waiting() || self.removing {
            return;
        }
        let executor = match &self.sandbox {
            SandboxPhase::Ready { executor, .. } => executor.clone(),
            SandboxPhase::Starting(_) => return,
            SandboxPhase::None => {
                self.start_sandbox(myself).await;
                return;
            }
        };
        while let Some(job) = self.queue.next() {
            let sent = match job {
                Job::Variables { private, reply_to, .. } => {
                    executor.cast(ExecutorMsg::Variables { private, reply_to })
                }
                Job::Cell { mut start, .. } => {
                    start.note = self.note.take();
                    self.log.append(EventBody::CellStarted { cell: start.cell });
                    executor.cast(ExecutorMsg::Run(start))
                }
            };
            if sent.is_err() {
                // The executor has just ended; its supervision event reports what ran in it.
                break;
            }
        }
    }

    async fn start_sandbox(&mut self, myself: &SessionRef) {
        let Some(workspace) = self.workspace.clone() else { return };
        let attach = self.take_attach();
        if attach.is_none() {
            let image = self.args.wanted.image.clone().unwrap_or_else(|| "default".into());
            self.log.append(EventBody::SandboxStarting { backend: self.args.backend, image });
        }
        let args = ExecutorArgs {
            session: myself.clone(),
            launcher: Arc::clone(&self.args.launcher),
            workspace,
            wanted: self.args.wanted.clone(),
            seed: self.args.seed.clone(),
            tools: Arc::clone(&self.args.tools),
            context: self.tool_context(),
            recorder: Arc::clone(&self.recorder),
            log: Arc::clone(&self.log),
            attach,
        };
        match Executor::spawn(args).await {
            Ok(executor) => self.sandbox = SandboxPhase::Starting(executor),
            Err(error) => self.sandbox_failed(Problem::new(Code::Internal, format!("no executor: {error}"))),
        }
    }

    fn tool_context(&self) -> tools::Context {
        let wanted = &self.args.wanted;
        tools::Context {
            session: json!({
                "session": self.args.name,
                "workspace": crate::sandbox::spec::WORKSPACE,
                "memory_bytes": wanted.memory_bytes,
                "cpus": wanted.cpus,
                "pids": wanted.pids,
                "network": "none",
                "cell_timeout_s": self.args.launcher.settings.cells.timeout.as_secs_f64(),
            }),
        }
    }

    async fn workspace_ready(
        &mut self,
        myself: &SessionRef,
        outcome: Result<(Workspace, Option<UserSlot>), Problem>,
    ) {
        match outcome {
            Ok((workspace, slot)) => {
                self.workspace = Some(Arc::new(workspace));
                self.slot = slot;
                if self.args.before.is_some() {
                    self.go_on(myself).await;
                } else if !self.removing {
                    self.log.append(EventBody::SessionCreated { name: self.args.name.to_string() });
                    self.start_sandbox(myself).await;
                }
            }
            Err(problem) => self.sandbox_failed(problem),
        }
    }

    fn sandbox_ready(&mut self, receipt: Receipt) {
        let SandboxPhase::Starting(executor) = &self.sandbox else { return };
        self.sandbox = SandboxPhase::Ready { executor: executor.clone(), since: Instant::now() };
        self.log.append(EventBody::SandboxReady {
            backend: receipt.backend,
            image: receipt.image.clone(),
            python: receipt.python.clone(),
            isolation: isolation_line(&receipt),
            receipt: Box::new(receipt.clone()),
        });
        self.receipt = Some(Arc::new(receipt));
        self.touch();
        if let Some(created) = self.args.created.take() {
            let _ = created.send(Ok(self.view()));
        }
    }

    fn sandbox_failed(&mut self, problem: Problem) {
        self.sandbox = SandboxPhase::None;
        if let Some(created) = self.args.created.take() {
            // It never lived: the name is freed before the caller hears of it.
            self.removing = true;
            let (id, problem) = (self.args.id, problem);
            let (supervisor, journal) = (self.args.supervisor.clone(), self.args.journal.clone());
            tokio::spawn(async move {
                note_removal(&journal, id).await;
                let _ = supervisor.cast(SupervisorMsg::NotCreated { id, problem, reply_to: created });
            });
            return;
        }
        self.log.append(EventBody::SandboxGone { reason: problem.message.clone() });
        self.cancel_queue(&format!("No sandbox could be started: {}.", problem.message), &problem);
    }

    fn sandbox_gone(&mut self, reason: String) {
        self.sandbox = SandboxPhase::None;
        // What the executor did not live to report.
        self.conclude_lost(None);
        self.note = Some(format!("The sandbox is a new one, because the old one is gone: {reason}."));
        self.log.append(EventBody::SandboxGone { reason });
    }

    fn conclude_lost(&mut self, ended_by: Option<EndedBy>) {
        for start in self.queue.take_running() {
            let record = self.recorder.finish(start.cell);
            let changes = Changes { artifacts: Vec::new(), cut: false };
            let ending = Ending::SandboxGone { end: None };
            let cause = Cause { ended_by: ended_by.clone(), ..Cause::default() };
            self.finished(conclude(start, ending, cause, record, changes, Duration::ZERO), None);
        }
    }

    fn worker_replaced(&mut self, exit_code: i32, after: StateAfter) {
        let reason =
            format!("the process that held the variables ended between cells (exit code {exit_code})");
        self.note = Some(match after {
            StateAfter::Restored(0) => format!("The variables are as at the start again: {reason}."),
            StateAfter::Restored(cell) => format!("The variables are as after cell {cell}: {reason}."),
            StateAfter::Kept | StateAfter::Lost => format!("All variables were lost: {reason}."),
        });
        self.log.append(EventBody::StateLost { reason });
    }

    fn undo(&mut self, myself: &SessionRef, cells: u64, reply_to: Answer<Undone>) {
        self.touch();
        let refused = match &self.sandbox {
            SandboxPhase::Ready { .. } if !self.queue.is_idle() => {
                Problem::new(Code::Busy, "a cell runs or waits").hint("wait for it, or interrupt it")
            }
            SandboxPhase::Ready { executor, .. } => {
                let (executor, session) = (executor.clone(), myself.clone());
                tokio::spawn(async move {
                    let answer = executor.call(|reply_to| ExecutorMsg::Undo { cells, reply_to }, None).await;
                    let outcome = match answer {
                        Ok(ractor::rpc::CallResult::Success(outcome)) => outcome,
                        _ => Err(Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile")),
                    };
                    let _ = session.cast(SessionMsg::UndoDone { outcome, reply_to });
                });
                return;
            }
            SandboxPhase::None | SandboxPhase::Starting(_) => {
                Problem::new(Code::OutOfReach, "the session has no sandbox, so there is nothing to undo")
            }
        };
        let _ = reply_to.send(Err(refused));
    }

    fn undone(&mut self, state_of: CellNumber) -> Undone {
        self.log.append(EventBody::Undone { state_of });
        let mut files_changed: Vec<String> = (state_of + 1..=self.cells)
            .filter_map(|cell| self.log.finished(cell))
            .filter_map(|event| serde_json::from_str::<Event>(&event.json).ok())
            .filter_map(|event| match event.body {
                EventBody::CellFinished { result } => Some(result.artifacts),
                _ => None,
            })
            .flatten()
            .map(|artifact| artifact.path)
            .collect();
        files_changed.sort();
        files_changed.dedup();
        files_changed.truncate(ARTIFACTS);
        Undone { state_of, files_changed }
    }

    fn finished(&mut self, result: ExecutionResult, turn: Option<Turn>) {
        self.touch();
        self.queue.ended(result.cell);
        let Some(ticket) = self.tickets.remove(&result.cell) else { return };
        let result = Arc::new(result);
        let finished = EventBody::CellFinished { result: Box::new((*result).clone()) };
        let sandbox = self.receipt.as_ref().map(|receipt| receipt.sandbox.clone());
        let applied =
            sandbox.zip(turn.as_ref()).map(|(sandbox, turn)| Applied { sandbox, received: turn.number });
        // Nobody hears of a result that a death of the daemon could undo.
        self.log.append_then(finished, applied, move || drop(ticket.done.send(result)));
    }

    /// Ends every queued cell unrun.
    fn cancel_queue(&mut self, note: &str, problem: &Problem) {
        for job in self.queue.take_waiting() {
            match job {
                Job::Cell { mut start, .. } => {
                    start.note = Some(note.to_owned());
                    let changes = Changes { artifacts: Vec::new(), cut: false };
                    let (record, cause) = (CellRecord::default(), Cause::default());
                    self.finished(
                        conclude(start, Ending::Cancelled, cause, record, changes, Duration::ZERO),
                        None,
                    );
                }
                Job::Variables { reply_to, .. } => drop(reply_to.send(Err(problem.clone()))),
            }
        }
    }

    fn reset(&mut self, reply_to: Answer<()>) {
        self.touch();
        let cancelled = Problem::new(Code::Busy, "the session was reset");
        self.cancel_queue("The session was reset before this cell ran.", &cancelled);
        self.log.append(EventBody::Reset);
        self.note = None;
        match &self.sandbox {
            SandboxPhase::Ready { executor, .. } => drop(executor.cast(ExecutorMsg::Reset { reply_to })),
            SandboxPhase::None | SandboxPhase::Starting(_) => drop(reply_to.send(Ok(()))),
        }
    }

    fn remove(&mut self, myself: &SessionRef, reply_to: Option<Answer<()>>) {
        self.removing = true;
        let cancelled = Problem::new(Code::NoSuchSession, "the session was removed");
        self.cancel_queue("The session was removed before this cell ran.", &cancelled);
        self.conclude_lost(Some(EndedBy::Cancel));
        if let Some(created) = self.args.created.take() {
            let _ = created.send(Err(cancelled));
        }
        let executor = match std::mem::replace(&mut self.sandbox, SandboxPhase::None) {
            SandboxPhase::None => None,
            SandboxPhase::Starting(executor) | SandboxPhase::Ready { executor, .. } => Some(executor),
        };
        let session = myself.clone();
        let (journal, id) = (self.args.journal.clone(), self.args.id);
        tokio::spawn(async move {
            if let Some(executor) = executor {
                let _ = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
            }
            note_removal(&journal, id).await;
            let _ = session.cast(SessionMsg::Removed { reply_to });
        });
    }

    /// Lets the sandbox go when it was not used for long, or is old.
    fn tick(&mut self, myself: &SessionRef) {
        let SandboxPhase::Ready { executor, since } = &self.sandbox else { return };
        if !self.queue.is_idle() || self.removing {
            return;
        }
        let reason = if self.active_at.elapsed() >= self.args.idle {
            format!("it was not used for {} s", self.args.idle.as_secs())
        } else if since.elapsed() >= self.args.launcher.settings.sandbox.life {
            format!("it was older than {} s", self.args.launcher.settings.sandbox.life.as_secs())
        } else {
            return;
        };
        let executor = executor.clone();
        self.sandbox_gone(reason);
        let session = myself.get_id();
        tokio::spawn(async move {
            let ended = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
            tracing::debug!(%session, ok = ended.is_ok(), "an idle sandbox was removed");
        });
    }

    fn standing(&self, cell: CellNumber) -> Standing {
        match self.tickets.get(&cell) {
            Some(ticket) if self.queue.is_running(cell) => Standing::Running(ticket.events_after),
            Some(ticket) => Standing::Queued(ticket.events_after),
            None => Standing::Unknown,
        }
    }

    fn view(&self) -> SessionView {
        let wanted = &self.args.wanted;
        SessionView {
            id: self.args.id,
            name: self.args.name.clone(),
            owner: self.args.owner,
            state: match (&self.sandbox, self.queue.foremost()) {
                (SandboxPhase::None, _) => SessionState::Asleep,
                (SandboxPhase::Starting(_), _) => SessionState::Starting,
                (SandboxPhase::Ready { .. }, Some(_)) => SessionState::Busy,
                (SandboxPhase::Ready { .. }, None) => SessionState::Idle,
            },
            backend: self.receipt.as_ref().map_or(self.args.backend, |receipt| receipt.backend),
            image: self.receipt.as_ref().map(|receipt| receipt.image.clone()),
            python: self.receipt.as_ref().map(|receipt| receipt.python.clone()),
            isolation: self.receipt.as_deref().map(isolation_line),
            limits: SessionLimits {
                memory_bytes: wanted.memory_bytes,
                cpus: wanted.cpus,
                pids: wanted.pids,
                idle_s: self.args.idle.as_secs(),
            },
            workspace: self.workspace.as_ref().map(|w| w.path.display().to_string()).unwrap_or_default(),
            cells: self.cells,
            running: self.queue.foremost(),
            queued: self.queue.waiting(),
            created_at: self.args.created_at.clone(),
            idle_for_s: self.active_at.elapsed().as_secs(),
            last_event: self.log.newest(),
        }
    }
}
