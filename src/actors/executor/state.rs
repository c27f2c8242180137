//! The state of an executor.

use ractor::RpcReplyPort;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::loading::Loading;
use super::messages::{Attach, Command};
use super::pending::{CallGuard, HeldCall, Request};
use super::responses::ToolResponses;
use super::running::{FinishedCell, RunningCell};
use super::snapshots::Taking;
use crate::actors::asks::lending::LendingAsks;
use crate::actors::asks::messages::AsksRef;
use crate::actors::asks::port::Port;
use crate::actors::launch::ReadySandbox;
use crate::actors::session::messages::OwnSession;
use crate::actors::snapshots::SessionSnapshots;
use crate::actors::turns::UserTurn;
use crate::bridge::{Delivery, FrameGuard, Link, OpenCalls};
use crate::memory::{Charge, Pool};
use crate::protocol::frames::LiveResources;
use crate::protocol::ids::CellNumber;
use crate::protocol::packages::PackageSet;
use crate::protocol::preload::Preload;
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Receipt;
use crate::protocol::saved_state::BoundRules;
use crate::quota::{Gauge, Ledger, SharedPermit};
use crate::sandbox::launch::{Launcher, Sandbox, SandboxRequest};
use crate::sandbox::packages::SessionUse;
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::artifacts::Snapshot;
use crate::sandbox::workspace::remeasure::LastLook;
use crate::sandbox::workspace::usage::DiskUsage;
use crate::session::restore::Waking;
use crate::session::rules::{CellRules, SandboxRules};
use crate::store::{EventLog, Recorder};
use crate::tools;

/// How often the worker may be replaced without a cell in between, until its sandbox is ended.
pub const WORKER_REPLACEMENTS: u32 = 16;

pub struct ExecutorArgs {
    pub session: OwnSession,
    pub launcher: Arc<Launcher>,
    pub workspace: Arc<Workspace>,
    pub wanted: SandboxRequest,
    pub seed: Map<String, Value>,
    pub preload: Preload,
    pub tools: Arc<tools::Registry>,
    pub context: tools::Context,
    /// What tools may do with the session of the code that calls them.
    pub port: Port,
    pub asks: AsksRef,
    /// The rules for the code of clients.
    pub client_rules: Arc<CellRules>,
    /// The rules of what the session began with, until a reset.
    pub inherited: Option<Box<BoundRules>>,
    pub recorder: Arc<Recorder>,
    pub log: Arc<EventLog>,
    /// A sandbox of the pool, instead of a new one.
    pub ready: Option<Box<ReadySandbox>>,
    /// The sandbox to take over, instead of starting a new one.
    pub attach: Option<Attach>,
    /// The sandbox's resources, which it has itself, too, from its start on. They are released before any other actor
    /// learns that the sandbox is gone.
    pub permit: Option<SharedPermit>,
    /// The quota gauge for the workspace, if its size counts.
    pub gauge: Option<Gauge>,
    /// The owner's share of the daemon's memory.
    pub memory: Pool,
    pub owner: Principal,
    pub ledger: Ledger,
    /// The packages of the session beside those of its image.
    pub packages: Option<PackageSet>,
    /// What the session uses of its owner's cache.
    pub packages_use: SessionUse,
    pub snapshots: SessionSnapshots,
    /// Whether a new sandbox gets the variables of the session's newest snapshot.
    pub wakes: bool,
    /// The snapshot that took too long to load last.
    pub too_slow: Option<String>,
    /// Held while the journal is read for what the sandbox wakes with.
    pub restore_turn: UserTurn,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct ExecutorState {
    pub(super) args: ExecutorArgs,
    pub(super) connected: Option<ConnectedSandbox>,
    /// While the sandbox is being launched or attached to: the callers that wait for its removal.
    pub(super) arriving: Option<Vec<RpcReplyPort<()>>>,
    pub(super) running: HashMap<CellNumber, RunningCell>,
    /// Whether a replay goes on, or the session wakes: between two cells that run again, code that they left behind calls no
    /// tools.
    pub(super) replays: bool,
    /// Cells that ran when this daemon attached but are not in the journal, and when each was killed.
    pub(super) unrecorded: HashMap<CellNumber, Instant>,
    /// Lost cells for which the kernel still has to name the variables that they may have assigned, by
    /// request.
    pub(super) finished: HashMap<u64, FinishedCell>,
    pub(super) requests: HashMap<u64, Request>,
    /// Set while the sandbox imports the preloaded modules; it is ready after that.
    pub(super) preloading: Option<Box<Receipt>>,
    /// The version of Python in the sandbox.
    pub(super) python: String,
    /// The snapshot that the new sandbox is to load before it is ready.
    pub(super) wake: Option<Waking>,
    pub(super) loading: Option<Loading>,
    /// The snapshot that is being taken.
    pub(super) taking: Option<Taking>,
    pub(super) calls: OpenCalls<CallGuard>,
    /// Those of them that wait until a client lends their tools again.
    pub(super) held: BTreeMap<u64, HeldCall>,
    /// Asks within that wait until a cell has run one of its functions for them.
    pub(super) lending: Arc<LendingAsks>,
    /// A place for the one call whose arguments are read from the journal at a time.
    pub(super) arguments_turn: Arc<Semaphore>,
    /// Whether clients that lent tools before a death of the daemon still have time to come back.
    pub(super) clients_may_return: bool,
    /// Names of the seed that have not been sent to the kernel yet.
    pub(super) unassigned: Vec<String>,
    /// The rules of all code that has run in the sandbox since its last reset.
    pub(super) bound: SandboxRules,
    /// Answers of tools that give text instead of a value.
    pub(super) responses: Arc<ToolResponses>,
    /// The memory charged for those answers to the owner's share.
    pub(super) responses_memory: Charge,
    /// The workspace as the last cell left it.
    pub(super) snapshot: Snapshot,
    /// Commands of the session that wait while the workspace is scanned before a cell.
    pub(super) stashed: Option<Vec<Command>>,
    /// Whether something other than a cell has changed files since.
    pub(super) snapshot_is_old: bool,
    /// Whether the snapshot has not been saved for the next daemon yet.
    pub(super) snapshot_unnoted: bool,
    /// The last measured sizes of the workspace and of the volumes that the sandbox can write to, in their order.
    pub(super) usage: Vec<DiskUsage>,
    /// The activity of the sandbox when their measurement began.
    pub(super) usage_activity: Option<u64>,
    pub(super) measuring: Option<tokio::task::JoinHandle<()>>,
    pub(super) last_look: LastLook,
    pub(super) cell_ended_since_look: bool,
    pub(super) growing_looks: u32,
    /// When that was last seen.
    pub(super) grew_at: Option<Instant>,
    pub(super) freezing: FreezeState,
    /// The resources that the last cell of the main line left running in the worker.
    pub(super) live: LiveResources,
    /// How often the worker was replaced since the last cell began.
    pub(super) replacements: u32,
    /// The number of ended cells whose files are being compared.
    pub(super) concluding: usize,
    /// Why the sandbox is gone, once it is.
    pub(super) gone: Option<String>,
    /// Set when the daemon shuts down: the caller that waits for the running host programs.
    pub(super) last_programs: Option<LastPrograms>,
    /// The guard of a frame for the next daemon: while it is held, the kernel keeps the frame.
    pub(super) kept_turn: Option<FrameGuard>,
    /// Set when the sandbox is left to another executor, together with the open questions of its calls.
    pub(super) left: Arc<AtomicBool>,
    /// The task that attaches to the earlier sandbox.
    pub(super) attaching: Option<tokio::task::AbortHandle>,
}

pub(super) struct ConnectedSandbox {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) link: Link,
    _tasks: [AbortOnDrop; 2],
}

impl ConnectedSandbox {
    /// `tasks` are aborted when the connection is dropped.
    pub fn new(sandbox: Sandbox, link: Link, tasks: [tokio::task::AbortHandle; 2]) -> Self {
        Self { sandbox: Arc::new(sandbox), link, _tasks: tasks.map(AbortOnDrop) }
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether the sandbox is frozen, and why.
pub(super) struct FreezeState {
    /// When the sandbox was frozen, from which moment on no time passes for the cells; none while it is not frozen.
    pub at: Option<Instant>,
    /// Whether the sandbox was frozen when the earlier daemon ended, and is to be frozen again.
    pub again: bool,
    /// Whether the sandbox is to be frozen; the last request counts.
    pub wanted: bool,
    /// The number of freezes so far, so that a freeze that fails late is told from a newer one.
    pub freezes: u64,
    /// How the last freeze ended, once it has.
    pub outcome: watch::Receiver<Option<Result<(), Problem>>>,
    /// The last freeze or thaw. The next one waits for it, so that they take effect in their order.
    pub under_way: Option<JoinHandle<()>>,
    /// When the sandbox was last seen running, in case it is paused from outside.
    pub seen_running: Instant,
    /// The number of checks in a row that found the sandbox paused from outside.
    pub checks: u32,
}

impl Default for FreezeState {
    fn default() -> Self {
        Self {
            at: None,
            again: false,
            wanted: false,
            freezes: 0,
            outcome: watch::channel(None).1,
            under_way: None,
            seen_running: Instant::now(),
            checks: 0,
        }
    }
}

/// What the shutdown of the daemon waits for.
pub(super) struct LastPrograms {
    /// Answers on their way to the kernel.
    pub unsent: Vec<Delivery>,
    /// None once the caller has its answer.
    pub reply_to: Option<RpcReplyPort<()>>,
}
