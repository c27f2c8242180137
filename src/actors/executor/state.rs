//! What an executor knows of its sandbox.

use ractor::RpcReplyPort;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tokio::task::JoinHandle;

use super::messages::{Attach, ExecutorMsg};
use super::pending::{CallGuard, Request};
use super::responses::ToolResponses;
use super::running::{Finishing, Running};
use crate::actors::asks::messages::AsksRef;
use crate::actors::asks::port::Port;
use crate::actors::session::messages::OwnSession;
use crate::bridge::{Calls, Delivery, FrameGuard, Link};
use crate::memory::{Charge, Pool};
use crate::protocol::frames::LiveResources;
use crate::protocol::ids::CellNumber;
use crate::protocol::preload::Preload;
use crate::protocol::receipt::Receipt;
use crate::quota::{Gauge, Permit};
use crate::sandbox::launch::{Launcher, Sandbox, SandboxRequest};
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::artifacts::Snapshot;
use crate::sandbox::workspace::usage::Usage;
use crate::session::rules::{CellRules, SandboxRules};
use crate::store::{EventLog, Recorder};
use crate::tools;

pub struct ExecutorArgs {
    pub session: OwnSession,
    pub launcher: Arc<Launcher>,
    pub workspace: Arc<Workspace>,
    pub wanted: SandboxRequest,
    pub seed: Map<String, Value>,
    pub preload: Preload,
    pub tools: Arc<tools::Registry>,
    pub context: tools::Context,
    /// What tools may do with the session that its code calls.
    pub port: Port,
    pub asks: AsksRef,
    /// The rules that code of clients keeps to.
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
    pub(super) args: ExecutorArgs,
    pub(super) connected: Option<Connected>,
    /// While the sandbox is being launched or attached to: who waits for its removal.
    pub(super) arriving: Option<Vec<RpcReplyPort<()>>>,
    pub(super) running: HashMap<CellNumber, Running>,
    /// Cells that ran when this daemon attached and of which the journal knows nothing, and when each was killed.
    pub(super) unrecorded: HashMap<CellNumber, Instant>,
    /// Lost cells that wait to hear which names they may have assigned, by request.
    pub(super) finishing: HashMap<u64, Finishing>,
    pub(super) requests: HashMap<u64, Request>,
    /// The sandbox is ready when it has imported what it begins with.
    pub(super) preloading: Option<Box<Receipt>>,
    pub(super) calls: Calls<CallGuard>,
    /// Names of the seed that the kernel has not been told of.
    pub(super) unassigned: Vec<String>,
    /// The rules of all code that has run in the sandbox since its last reset.
    pub(super) bound: SandboxRules,
    /// What tools said that gives no value.
    pub(super) responses: Arc<ToolResponses>,
    /// What that takes of its owner's part of the memory.
    pub(super) responses_memory: Charge,
    /// The workspace as the last cell left it.
    pub(super) snapshot: Snapshot,
    /// What the session wants of it while the workspace is looked at before a cell.
    pub(super) stashed: Option<Vec<ExecutorMsg>>,
    /// Somebody else has changed files since.
    pub(super) snapshot_is_old: bool,
    /// The next daemon would not know of it.
    pub(super) snapshot_unnoted: bool,
    /// The size of the workspace when it was last looked at.
    pub(super) usage: Option<Usage>,
    pub(super) quota_look: Option<tokio::task::JoinHandle<()>>,
    pub(super) cell_ended_since_look: bool,
    pub(super) growing_looks: u32,
    pub(super) freezing: Freezing,
    /// What the last cell of the main line left running in the worker.
    pub(super) live: LiveResources,
    /// Cells that have ended and whose files are being compared.
    pub(super) concluding: usize,
    /// Why there is no sandbox any more.
    pub(super) gone: Option<String>,
    /// The daemon ends: who waits for the programs that run for calls.
    pub(super) last_programs: Option<LastPrograms>,
    /// The frame that the next daemon is to hear: while its guard is held, the kernel keeps it.
    pub(super) kept_turn: Option<FrameGuard>,
    /// The sandbox is left to another executor, with the questions that its calls wait for.
    pub(super) left: Arc<AtomicBool>,
    /// Attaches to the sandbox of before.
    pub(super) attaching: Option<tokio::task::AbortHandle>,
}

pub(super) struct Connected {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) link: Link,
    _tasks: [AbortOnDrop; 2],
}

impl Connected {
    /// `tasks` work for as long as there is this sandbox.
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

/// Whether the sandbox stands still, and why.
pub(super) struct Freezing {
    /// Since when no time passes for its cells.
    pub at: Option<Instant>,
    /// It was frozen when the daemon ended, and will be again.
    pub again: bool,
    /// Whether it is to stand still; what was asked for last counts.
    pub wanted: bool,
    /// What was last asked of the backend. The next waits for it, so that they take effect in their order.
    pub under_way: Option<JoinHandle<()>>,
    /// When it was last seen to run, for the case that a stranger pauses it.
    pub seen_running: Instant,
    /// Looks in a row that found it paused by a stranger.
    pub looks: u32,
}

impl Default for Freezing {
    fn default() -> Self {
        Self {
            at: None,
            again: false,
            wanted: false,
            under_way: None,
            seen_running: Instant::now(),
            looks: 0,
        }
    }
}

/// What a daemon that ends waits for.
pub(super) struct LastPrograms {
    /// Answers on their way to the kernel.
    pub unsent: Vec<Delivery>,
    /// None if who waits has been told.
    pub reply_to: Option<RpcReplyPort<()>>,
}
