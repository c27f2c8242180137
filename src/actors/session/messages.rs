//! The messages to a session: requests of clients, and reports of its own parts.

use ractor::{ActorCell, ActorRef, MessagingErr, RpcReplyPort};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

use super::install_request::InstallRequest;
use super::journal_waits::RemovalRecord;
use super::keyed_request::KeyedRequest;
use super::removers::{Remover, Removers};
use crate::actors::asks::messages::AsksRef;
use crate::actors::calls;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::{ToTerminal, UndoneState};
use crate::actors::holds::Hold;
use crate::actors::launch::SandboxPlace;
use crate::actors::snapshots::TakenSnapshot;
use crate::bridge::FrameGuard;
use crate::config::Sandbox as Limits;
use crate::memory::Charge;
use crate::protocol::api::{Computed, Interrupted, SessionView, Undone, VariableList, VariablesFilter};
use crate::protocol::ask::AskNumber;
use crate::protocol::command::{CommandList, CommandSpec, EndCommand};
use crate::protocol::event::CellOrigin;
use crate::protocol::frames::{LiveResources, StateAfter};
use crate::protocol::ids::{CellNumber, Seq, SessionId};
use crate::protocol::packages::InstalledPackages;
use crate::protocol::preload::Preloaded;
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::{ExecutionResult, Mode};
use crate::protocol::saved_state::{Asleep, SnapshotList};
use crate::protocol::snapshot::{RestoreReport, SnapshotRecord};
use crate::protocol::tool::{ClientAnswer, NewClientTools};
use crate::quota::{Gauge, Permit};
use crate::sandbox::attest::counters::CounterFiles;
use crate::sandbox::packages::Installed;
use crate::sandbox::workspace::upload_room::UploadRoom;
use crate::sandbox::workspace::{Root, Workspace};
use crate::session::machine::Input;
use crate::session::replay::RecordedCalls;
use crate::session::restore::{CellsAgain, Wake};
use crate::session::rules::CellRules;
use crate::store::EventLog;
use crate::tools::Lease;

pub type SessionRef = ActorRef<SessionMsg>;

/// The session as its own parts see it: its executor, its asks actor, and its tasks. Their messages count
/// only in the generation that they belong to. The next generation starts from the journal and has its own
/// parts.
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
        let answer =
            calls::call_own(&self.session, |reply_to| Self::own(self.generation, message(reply_to))).await;
        if answer.is_err() && calls::lives(&self.session) {
            // The generation of this part has ended, and the part ends with it. What it made of a lost answer would get
            // into the journal, from which the next generation goes on.
            std::future::pending::<()>().await;
        }
        answer
    }

    /// Calls the session with a request that it may refuse.
    pub async fn try_call<T: Send + 'static>(
        &self,
        message: impl FnOnce(Reply<T>) -> SessionMsg,
    ) -> Result<T, Problem> {
        self.call(message).await?
    }

    /// The session in any generation.
    pub fn any_generation(&self) -> &SessionRef {
        &self.session
    }

    pub fn get_cell(&self) -> ActorCell {
        self.session.get_cell()
    }
}

/// A checked request for a cell.
#[derive(Clone, Debug, Default)]
pub struct CellRequest {
    pub code: String,
    pub mode: Mode,
    /// What to run, for a command.
    pub command: Option<Arc<CommandSpec>>,
    pub expression: bool,
    pub timeout: Duration,
    /// The record that tool calls are answered from, instead of being made.
    pub replay: Option<ReplayOf>,
    /// The ask that wants the cell.
    pub origin: Option<CellOrigin>,
    /// The ask whose rules bind the cell, although it did not request the cell.
    pub bound_by: Option<AskNumber>,
    /// What the code may do with tools; without it, the settings decide.
    pub rules: Option<Arc<CellRules>>,
    pub keyed: Option<KeyedRequest>,
    /// The charge for the client's request, until the cell has its own.
    pub memory: Option<Arc<Charge>>,
}

impl CellRequest {
    /// A command that a client asks for.
    pub fn command(spec: CommandSpec, timeout: Duration) -> Self {
        let command = Some(Arc::new(spec));
        let code = command.as_ref().map(|command| command.command_line()).unwrap_or_default();
        Self { command, ..Self::new(code, Mode::Command, timeout) }
    }

    /// A cell that a client asks for: no ask or replay stands behind it, and only the settings bind it.
    pub fn new(code: String, mode: Mode, timeout: Duration) -> Self {
        Self { code, mode, timeout, ..Self::default() }
    }
}

/// A cell that ran before, with the tool calls that it made.
#[derive(Clone, Debug)]
pub struct ReplayOf {
    /// The number of the replay or waking for which the cell runs again.
    pub number: u64,
    pub cell: CellNumber,
    pub calls: RecordedCalls,
}

/// A cell that has not ended. Dropping `done` does not stop the cell.
#[derive(Debug)]
pub struct Ticket {
    pub session: SessionId,
    pub cell: CellNumber,
    pub events_after: Seq,
    pub done: oneshot::Receiver<Arc<ExecutionResult>>,
}

/// What other parts of the daemon use directly, without asking the actor: files and events.
#[derive(Clone)]
pub struct Handles {
    pub log: Arc<EventLog>,
    pub workspace: Arc<Workspace>,
    /// The gauge that the workspace's size is charged to; none for the owner's own folder.
    pub gauge: Option<Gauge>,
}

impl Handles {
    /// How much an upload may still put into the workspace; measured with the rights of the folder's owner.
    pub fn upload_room(
        &self,
        limits: &Limits,
    ) -> impl FnOnce(&Root<'_>) -> Result<UploadRoom, Problem> + Send + use<> {
        let (most, reserve) = (limits.workspace_bytes, limits.disk_reserve_bytes);
        let (fill_level, gauge) = (self.workspace.fill_level(), self.gauge.clone());
        move |root| UploadRoom::open(root, fill_level, most, reserve, gauge)
    }
}

/// What became of the variables that a new sandbox was to have.
pub enum WakeOutcome {
    Woken {
        wake: Box<Wake>,
        report: RestoreReport,
        /// Not all of it could be loaded.
        is_part: bool,
    },
    /// No snapshot was there: these cells are to make them.
    Rebuilds(CellsAgain),
    /// The variables are as at the start.
    Failed { snapshot: String, reason: String },
}

/// What became of the cells that run again when a session wakes.
pub struct RanAgain {
    /// Whether all of them have run. After one that died or was interrupted, the others do not.
    pub finished: bool,
    /// The cells that ended with another status than before.
    pub otherwise: Vec<CellNumber>,
    /// Those that did not run because they cannot, and why.
    pub not_run: Option<(Vec<CellNumber>, Problem)>,
}

pub enum SessionMsg {
    /// A message of its executor, its asks or one of its tasks; ignored if that belongs to an earlier generation.
    Own {
        generation: u64,
        message: Box<SessionMsg>,
    },
    /// The owner may run one more cell.
    MayRun(Permit),
    /// An administrator acts on the session of another user.
    ActedOn {
        admin: Principal,
        act: String,
        /// Its repetitions are not recorded.
        only_looks_or_interrupts: bool,
    },
    /// Queue a cell. Answered as soon as it is in the journal; a full queue is `busy`.
    Run {
        request: CellRequest,
        reply_to: Reply<Ticket>,
    },
    /// Asks for a ticket of a cell; none if it has ended, or was never queued.
    Ticket {
        cell: CellNumber,
        reply_to: RpcReplyPort<Option<Ticket>>,
    },
    /// Asks for the status of a cell.
    CellStatus {
        cell: CellNumber,
        reply_to: RpcReplyPort<CellStatus>,
    },
    Interrupt {
        reply_to: Reply<Interrupted>,
    },
    /// Lists the commands: those that have not ended, and the last of those that have.
    Commands {
        reply_to: RpcReplyPort<CommandList>,
    },
    /// Passes something on to the terminal of a command.
    ToTerminal {
        cell: CellNumber,
        what: ToTerminal,
        reply_to: Reply<()>,
    },
    EndCommand {
        cell: CellNumber,
        how: EndCommand,
        reply_to: Reply<()>,
    },
    /// Shows the state before the running cell, if there is one. `patient` requests wait until the main line
    /// is idle.
    Variables {
        which: VariablesFilter,
        patient: bool,
        reply_to: Reply<VariableList>,
    },
    /// Install packages into the session. Answered when code can import them.
    Install(InstallRequest),
    /// An installation has ended.
    InstallDone {
        outcome: Box<Result<Installed, Problem>>,
        reply_to: Reply<InstalledPackages>,
    },
    /// Does not wait for cells, because it does not see the state of the session.
    Compute {
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
        /// The charge for the client's request.
        memory: Option<Charge>,
        reply_to: Reply<Computed>,
    },
    /// Undo the last cells of the main line; `busy` while something runs or waits. Cells that arrive
    /// meanwhile wait.
    Undo {
        cells: u64,
        reply_to: Reply<Undone>,
    },
    /// Stop all processes of the sandbox and the clock of a running cell. The next request, or `Thaw`,
    /// resumes them.
    Freeze {
        reply_to: Reply<()>,
    },
    Thaw {
        reply_to: Reply<()>,
    },
    /// Save the variables. Answered when they are on the disk and the journal says so.
    TakeSnapshot {
        name: Option<String>,
        /// Only as they were after this cell.
        at: Option<CellNumber>,
        /// The newest snapshot does, if nothing has changed since.
        or_newest: bool,
        reply_to: Reply<SnapshotRecord>,
    },
    Snapshots {
        reply_to: RpcReplyPort<SnapshotList>,
    },
    /// Remove a snapshot, by its id or its name.
    RemoveSnapshot {
        snapshot: String,
        reply_to: Reply<()>,
    },
    /// End the sandbox once its variables are saved: `busy` while anything runs or waits.
    Sleep {
        reply_to: Reply<Asleep>,
    },
    /// Reserve the session for a replay of its earlier cells: `busy` while anything runs or waits, or another
    /// replay is under way. The replay with the number in the answer then counts as under way until `ReplayEnded`.
    PrepareReplay {
        reply_to: Reply<u64>,
    },
    ReplayEnded {
        number: u64,
        finished: bool,
        reply_to: Reply<()>,
    },
    /// Drop queued cells, end the running one, start afresh; with `replay`, the cells of the replay with this number
    /// stay recorded, because they are about to be replayed.
    Reset {
        replay: Option<(u64, Vec<CellNumber>)>,
        reply_to: Reply<()>,
    },
    /// The reset is in the journal, so that the next daemon repeats it if this one ends now; or, if it is not
    /// `is_written`, the journal is too slow, and the reset continues without it.
    ResetNoted {
        is_written: bool,
        reply_to: Reply<()>,
    },
    View {
        reply_to: RpcReplyPort<SessionView>,
    },
    Receipt {
        reply_to: Reply<Arc<Receipt>>,
    },
    /// Gives access to files and events. Counts as activity.
    Handles {
        reply_to: Reply<Handles>,
    },
    /// Asks for the asks actor of the session.
    Asks {
        reply_to: Reply<AsksRef>,
    },
    /// Adds variables of an ask to the seed, so that every later sandbox has them, too. With `anew` they are
    /// also assigned in the present sandbox, where a cell may have changed them.
    Seed {
        values: Map<String, Value>,
        anew: bool,
    },
    /// Asks for the seed, including the variables that asks provided.
    Given {
        reply_to: RpcReplyPort<Map<String, Value>>,
    },
    /// Counts as activity.
    Touch,
    /// A client lends its tools for as long as it holds the lease.
    Lend {
        new: NewClientTools,
        memory: Charge,
        reply_to: Reply<Lease>,
    },
    AnswerCall {
        call: String,
        answer: ClientAnswer,
        memory: Charge,
        reply_to: Reply<()>,
    },
    ToolsChanged,
    /// Files of the workspace were changed from outside of the sandbox.
    FilesChanged,
    /// Remove the session: its sandbox, its workspace (if managed) and its events. Answered by the
    /// supervisor, when the name is free again; for who waits, when nothing is left.
    Remove {
        remover: Option<Remover>,
    },
    /// Let an ephemeral session stay for its idle time without a hold.
    Linger {
        reply_to: Reply<()>,
    },
    /// Take a hold on the session. An ephemeral session exists as long as a client has a hold.
    Hold {
        reply_to: Reply<Hold>,
    },
    /// A hold was dropped.
    Released,

    Placed(Box<Result<SandboxPlace, Problem>>),
    SandboxReady {
        receipt: Box<Receipt>,
        preloaded: Option<Preloaded>,
        counters: Arc<CounterFiles>,
        /// What became of the snapshot that it was to have, if there was one.
        woken: Option<Box<WakeOutcome>>,
    },
    /// A new sandbox ended before it had loaded a snapshot, which is as good as before. It was never ready.
    WakeInterrupted {
        snapshot: String,
        problem: Problem,
    },
    /// The sandbox died over a snapshot, which the next one does not load.
    WakeDied {
        snapshot: String,
        reason: String,
    },
    /// The cells after a snapshot have run again, or were broken off, or could not run for a reason that may pass.
    Rebuilt {
        number: u64,
        outcome: Result<RanAgain, Problem>,
    },
    /// The executor has attached to the earlier sandbox, whose variables are intact.
    SandboxAttached {
        receipt: Box<Receipt>,
        counters: Arc<CounterFiles>,
    },
    /// End the actor, and leave the session and its sandbox to the next daemon. Host programs that run for
    /// the session may end within this time.
    Leave {
        within: Duration,
    },
    /// The executor has released the sandbox, so the actor can end.
    Left,
    SandboxFailed(Problem),
    /// Something happened about which the machine alone decides.
    Input(Input<Reply<VariableList>>),
    /// The process with the variables died between cells, and a fresh one has replaced it.
    WorkerReplaced {
        exit_code: i32,
        after: StateAfter,
        /// Resources that were running beside the cells and are gone.
        gone: LiveResources,
        frame_guard: FrameGuard,
    },
    /// The freeze with this number has ended; without an outcome, the executor ended before.
    FreezeDone {
        number: u64,
        outcome: Option<Result<(), Problem>>,
        reply_to: Reply<()>,
    },
    /// A snapshot was taken or not.
    SnapshotDone {
        ticket: u64,
        outcome: Box<Result<TakenSnapshot, Problem>>,
    },
    /// Whether the journal has that snapshot.
    SnapshotNoted {
        ticket: u64,
        is_written: bool,
    },
    /// A cell did not get into the journal in time.
    Unwritten {
        ticket: Ticket,
        reply_to: Reply<Ticket>,
    },
    /// The undo has ended; without an outcome, the executor ended before. The frame guard is held until the outcome is
    /// appended to the journal.
    UndoDone {
        outcome: Option<Result<UndoneState, Problem>>,
        files_changed: Vec<String>,
    },
    /// The earlier daemon had cells undone, but ended before the journal had it.
    UndoneBefore {
        state_of: CellNumber,
        frame_guard: FrameGuard,
    },
    /// The kernel of an attached sandbox has repeated all frames that were not acknowledged before.
    CaughtUp,
    /// The frame guard is held until the result is appended to the journal.
    CellFinished(Box<ExecutionResult>, Option<FrameGuard>),
    /// The sandbox is removed, and the rest can follow. `noted` tells whether the journal has the removal; `None` if the
    /// task that took the sandbox down panicked.
    Removed {
        removers: Removers,
        noted: Option<RemovalRecord>,
    },
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellStatus {
    Queued(Seq),
    Running(Seq),
    /// The result is in the journal, or on its way there.
    Ended,
    Unknown,
}
