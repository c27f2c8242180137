//! What is asked of a session, and what its own parts tell it.

use ractor::{ActorCell, ActorRef, MessagingErr, RpcReplyPort};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

use super::journalled::RemovalRecord;
use super::keyed::Keyed;
use crate::actors::asks::messages::AsksRef;
use crate::actors::calls;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::Undoing;
use crate::actors::holding::Hold;
use crate::bridge::FrameGuard;
use crate::config::Sandbox as Limits;
use crate::protocol::api::{Computed, Interrupted, SessionView, Undone, VariableList, VariablesFilter};
use crate::protocol::ask::AskNumber;
use crate::protocol::event::CellOrigin;
use crate::protocol::frames::{LiveResources, StateAfter};
use crate::protocol::ids::{CellNumber, Seq, SessionId};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::preload::Preloaded;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::{ExecutionResult, Mode};
use crate::protocol::tool::{ClientAnswer, ClientTool};
use crate::quota::{Gauge, Permit};
use crate::sandbox::launch::UserSlot;
use crate::sandbox::workspace::room::{Payer, UploadRoom};
use crate::sandbox::workspace::{Root, Workspace};
use crate::session::outcome::Replay;
use crate::session::rules::CellRules;
use crate::store::EventLog;
use crate::tools::Lease;

pub type SessionRef = ActorRef<SessionMsg>;

/// A session as its own parts know it: its executor, its asks, and the tasks that work for it. What they say counts
/// only in the life of the session to which they belong. The next one knows from the journal what there was, and
/// has parts of its own.
#[derive(Clone)]
pub struct OwnSession {
    session: SessionRef,
    generation: u64,
}

impl OwnSession {
    pub(super) fn new(session: SessionRef, generation: u64) -> Self {
        Self { session, generation }
    }

    fn own(generation: u64, message: SessionMsg) -> SessionMsg {
        SessionMsg::Own { generation, message: Box::new(message) }
    }

    pub fn cast(&self, message: SessionMsg) -> Result<(), Box<MessagingErr<SessionMsg>>> {
        self.session.cast(Self::own(self.generation, message)).map_err(Box::new)
    }

    pub async fn call<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> SessionMsg,
    ) -> Result<T, Problem> {
        calls::call(&self.session, |reply_to| Self::own(self.generation, message(reply_to))).await
    }

    /// Asks it something that it may refuse.
    pub async fn ask<T: Send + 'static>(
        &self,
        message: impl FnOnce(Reply<T>) -> SessionMsg,
    ) -> Result<T, Problem> {
        self.call(message).await?
    }

    /// Whatever life it is in.
    pub fn any_generation(&self) -> &SessionRef {
        &self.session
    }

    pub fn get_cell(&self) -> ActorCell {
        self.session.get_cell()
    }
}

/// A cell as a client asks for it, checked.
#[derive(Clone, Debug)]
pub struct CellRequest {
    pub code: String,
    pub mode: Mode,
    pub expression: bool,
    pub timeout: Duration,
    /// Tool calls are answered from this record instead of being made.
    pub replay: Option<ReplayOf>,
    /// The ask that wants it.
    pub origin: Option<CellOrigin>,
    /// The ask whose rules it keeps to, without being wanted by it.
    pub bound_by: Option<AskNumber>,
    /// What its code may do with tools; none: what the settings say.
    pub rules: Option<Arc<CellRules>>,
    pub keyed: Option<Keyed>,
}

/// A cell that once ran, and the tool calls that it made.
#[derive(Clone, Debug)]
pub struct ReplayOf {
    pub cell: CellNumber,
    pub calls: Replay,
}

/// A cell that was taken into the queue. Dropping `done` does not stop the cell.
#[derive(Debug)]
pub struct Ticket {
    pub session: SessionId,
    pub cell: CellNumber,
    pub events_after: Seq,
    pub done: oneshot::Receiver<Arc<ExecutionResult>>,
}

impl Ticket {
    /// The result, when it is in the journal; a problem if the disk does not take it, or the session ends.
    pub async fn result(mut self, session: &SessionRef) -> Result<Arc<ExecutionResult>, Problem> {
        let cell = self.cell;
        let mut ended = false;
        loop {
            match tokio::time::timeout(JOURNAL_TIMEOUT, &mut self.done).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(_)) => {
                    if calls::lives(session) {
                        let message = format!("an internal error ended the wait for cell {cell}");
                        return Err(Problem::new(Code::Internal, message)
                            .hint("`belljar wait` says what became of it"));
                    }
                    let message = format!("the session, or the daemon, ended over cell {cell}");
                    return Err(Problem::new(Code::ShuttingDown, message)
                        .hint("the cell may go on: ask for it when the next daemon runs (`belljar wait`)"));
                }
                Err(_) if ended => return Err(unwritten(cell)),
                Err(_) => {}
            }
            // It is in no event, so it is found by looking.
            let standing = calls::call(session, |reply_to| SessionMsg::CellStatus { cell, reply_to }).await;
            ended = matches!(standing, Ok(CellStatus::Ended));
        }
    }
}

/// A cell whose end the journal does not have.
pub fn unwritten(cell: CellNumber) -> Problem {
    let message = format!("cell {cell} has ended, but its result cannot be written into the journal");
    Problem::new(Code::Storage, message).hint("free some space where the daemon's home is, and ask again")
}

/// What other parts may use directly, without asking the actor: files and events.
#[derive(Clone)]
pub struct Handles {
    pub log: Arc<EventLog>,
    pub workspace: Arc<Workspace>,
    /// What the workspace is measured by; none for a folder of the owner's own.
    pub gauge: Option<Gauge>,
}

impl Handles {
    /// How much an upload may still put into the workspace; measured with the rights of the folder's owner.
    pub fn room(
        &self,
        limits: &Limits,
    ) -> impl FnOnce(&Root<'_>) -> Result<UploadRoom, Problem> + Send + use<> {
        let (most, reserve) = (limits.workspace_bytes, limits.disk_reserve_bytes);
        let filling = self.workspace.filling();
        let payer = self.gauge.clone().map(|gauge| Box::new(gauge) as Box<dyn Payer>);
        move |root| UploadRoom::open(root, filling, most, reserve, payer)
    }
}

/// A user pays for what is put into workspaces.
impl Payer for Gauge {
    fn measured(&self, bytes: u64) -> Result<(), Problem> {
        Ok(self.measure(Kind::Workspace, bytes)?)
    }

    fn grow(&self, bytes: u64) -> Result<(), Problem> {
        Ok(Gauge::grow(self, Kind::Workspace, bytes)?)
    }

    fn shrink(&self, bytes: u64) {
        Gauge::shrink(self, Kind::Workspace, bytes);
    }
}

pub enum SessionMsg {
    /// A message of its executor, its asks or one of its tasks; ignored if that belongs to an earlier generation.
    Own {
        generation: u64,
        message: Box<SessionMsg>,
    },
    /// The owner may run one more cell.
    MayRun(Permit),
    /// An administrator does something with somebody else's session.
    ActedOn {
        admin: u32,
        act: String,
    },
    /// Queue a cell. Answered as soon as it is in the journal; a full queue is `busy`.
    Run {
        request: CellRequest,
        reply_to: Reply<Ticket>,
    },
    /// Where a cell stands.
    CellStatus {
        cell: CellNumber,
        reply_to: RpcReplyPort<CellStatus>,
    },
    Interrupt {
        reply_to: Reply<Interrupted>,
    },
    /// Shows the state before the cell that runs, if one does. `patient` ones wait until the main line is idle.
    Variables {
        which: VariablesFilter,
        patient: bool,
        reply_to: Reply<VariableList>,
    },
    /// Does not wait: it sees no state of the session.
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        reply_to: Reply<Computed>,
    },
    /// Take back the last cells of the main line; `busy` while something runs or waits. Cells that
    /// come meanwhile wait.
    Undo {
        cells: u64,
        reply_to: Reply<Undone>,
    },
    /// Stop all processes of the sandbox; a running cell's clock stops too. The next request, or
    /// `Thaw`, lets them go on.
    Freeze {
        reply_to: Reply<()>,
    },
    Thaw {
        reply_to: Reply<()>,
    },
    /// Somebody wants to run the cells of before again: `busy` while anything runs or waits, or another replay goes on.
    /// From here on it goes on itself, until `ReplayEnded`.
    PrepareReplay {
        reply_to: Reply<()>,
    },
    /// Drops queued cells, ends the running one, starts afresh; the cells that are about to be replayed
    /// are not forgotten.
    Reset {
        replay: Option<Vec<CellNumber>>,
        reply_to: Reply<()>,
    },
    /// It is in the journal, so that the next daemon would do it if this one died now.
    ResetNoted {
        reply_to: Reply<()>,
    },
    View {
        reply_to: RpcReplyPort<SessionView>,
    },
    Receipt {
        reply_to: Reply<Arc<Receipt>>,
    },
    /// Counts as activity.
    Handles {
        reply_to: Reply<Handles>,
    },
    /// The actor of the session's asks.
    Asks {
        reply_to: Reply<AsksRef>,
    },
    /// Variables that an ask brings along; every later sandbox has them too.
    /// `anew`: also where a cell may have changed them.
    Seed {
        values: Map<String, Value>,
        anew: bool,
    },
    /// What it began with and what asks brought along.
    Given {
        reply_to: RpcReplyPort<Map<String, Value>>,
    },
    /// Something of the session is being used.
    Touch,
    /// An ask has ended: its cells are not wanted any more.
    CancelCells {
        ask: AskNumber,
    },
    /// A client lends its tools, as long as it holds the lease.
    Lend {
        tools: Vec<ClientTool>,
        reply_to: Reply<Lease>,
    },
    AnswerCall {
        call: String,
        answer: ClientAnswer,
        reply_to: Reply<()>,
    },
    ToolsChanged,
    /// Files of the workspace were changed from outside.
    FilesChanged,
    /// End for good: sandbox, workspace (if managed) and events go. Answered by the supervisor,
    /// when the name is free again.
    Remove {
        reply_to: Option<Reply<()>>,
    },
    /// An ephemeral session lives as long as somebody has such a thing.
    Hold {
        reply_to: Reply<Hold>,
    },
    /// One of them is gone.
    Released,

    WorkspaceReady(Box<Result<(Workspace, Option<UserSlot>), Problem>>),
    SandboxReady {
        receipt: Box<Receipt>,
        preloaded: Option<Preloaded>,
    },
    /// The sandbox of before is there, with its variables.
    SandboxAttached(Box<Receipt>),
    /// End, and leave the sandbox running for the next daemon. The session itself stays. Programs of
    /// the host that run for it may end within this time.
    Leave {
        within: Duration,
    },
    /// The executor has let go; the actor can end.
    Left,
    SandboxFailed(Problem),
    /// All that ran in it was reported before. What was not never reached the kernel.
    SandboxGone {
        reason: String,
    },
    /// The sandbox of before is gone, with what ran in it.
    NotAttached {
        reason: String,
    },
    /// The process with the variables died between cells; a fresh one is in its place.
    WorkerReplaced {
        exit_code: i32,
        after: StateAfter,
        /// What ran beside cells, and does not come back.
        gone: LiveResources,
        frame_guard: FrameGuard,
    },
    FreezeDone {
        outcome: Result<(), Problem>,
        reply_to: Reply<()>,
    },
    /// A cell did not get into the journal in time.
    Unwritten {
        ticket: Ticket,
        reply_to: Reply<Ticket>,
    },
    /// Whether the start of a cell got into the journal in time.
    Started {
        begin: u64,
        written: bool,
    },
    /// The kernel cannot run this copy now.
    PutBack(CellNumber),
    /// The frame guard is dropped when the journal has been told.
    UndoDone {
        outcome: Result<Undoing, Problem>,
        files_changed: Vec<String>,
        reply_to: Reply<Undone>,
    },
    /// The daemon before this one had cells undone, and did not live to write it down.
    UndoneBefore {
        state_of: CellNumber,
        frame_guard: FrameGuard,
    },
    /// The replay that was prepared is over; not `finished` if cells are left that did not run.
    ReplayEnded {
        finished: bool,
    },
    /// The frame guard is dropped when the result is in the journal.
    CellFinished(Box<ExecutionResult>, Option<FrameGuard>),
    /// The sandbox is removed; the rest can go. `noted` tells when the journal has it.
    Removed {
        reply_to: Option<Reply<()>>,
        noted: RemovalRecord,
    },
    Tick,
}

impl SessionMsg {
    /// Tells whoever waits for an answer that there will be none. Where only an answer without a reason could be given,
    /// the port is dropped, which says as much.
    pub(super) fn refuse(self, problem: Problem) {
        match self {
            Self::Own { message, .. } => message.refuse(problem),
            Self::Run { reply_to, .. } | Self::Unwritten { reply_to, .. } => {
                drop(reply_to.send(Err(problem)));
            }
            Self::Interrupt { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Variables { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Compute { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Undo { reply_to, .. } | Self::UndoDone { reply_to, .. } => {
                drop(reply_to.send(Err(problem)));
            }
            Self::Receipt { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Handles { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Asks { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Lend { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Hold { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Freeze { reply_to }
            | Self::Thaw { reply_to }
            | Self::PrepareReplay { reply_to }
            | Self::Reset { reply_to, .. }
            | Self::ResetNoted { reply_to }
            | Self::AnswerCall { reply_to, .. }
            | Self::FreezeDone { reply_to, .. }
            | Self::Remove { reply_to: Some(reply_to) }
            | Self::Removed { reply_to: Some(reply_to), .. } => drop(reply_to.send(Err(problem))),
            Self::CellStatus { .. }
            | Self::View { .. }
            | Self::Given { .. }
            | Self::MayRun(_)
            | Self::ActedOn { .. }
            | Self::Seed { .. }
            | Self::Touch
            | Self::CancelCells { .. }
            | Self::ToolsChanged
            | Self::FilesChanged
            | Self::Remove { reply_to: None }
            | Self::Released
            | Self::WorkspaceReady(_)
            | Self::SandboxReady { .. }
            | Self::SandboxAttached(_)
            | Self::Leave { .. }
            | Self::Left
            | Self::SandboxFailed(_)
            | Self::SandboxGone { .. }
            | Self::NotAttached { .. }
            | Self::WorkerReplaced { .. }
            | Self::Started { .. }
            | Self::PutBack(_)
            | Self::UndoneBefore { .. }
            | Self::ReplayEnded { .. }
            | Self::CellFinished(..)
            | Self::Removed { reply_to: None, .. }
            | Self::Tick => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellStatus {
    Queued(Seq),
    Running(Seq),
    /// Its result is in the journal, or on its way.
    Ended,
    Unknown,
}
