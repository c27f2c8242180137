//! What a session knows, beside what its machine decides.

use super::messages::{Handles, OwnSession, SessionMsg};
use crate::actors::asks::messages::AsksRef;
use crate::actors::calls::Reply;
use crate::actors::directory::Directory;
use crate::actors::executor::messages::ExecutorRef;
use crate::actors::holding::Holders;
use crate::actors::llm::Models;
use crate::actors::supervisor::messages::SupervisorRef;
use crate::protocol::api::{SessionView, VariableList};
use crate::protocol::ids::{CellNumber, JobId, Seq, SessionId, SessionName};
use crate::protocol::preload::{Preload, Preloaded};
use crate::protocol::receipt::{Backend, Receipt};
use crate::protocol::result::ExecutionResult;
use crate::quota::{Gauge, Ledger, Permit};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::launch::{Launcher, SandboxRequest, UserSlot};
use crate::sandbox::workspace::Workspace;
use crate::session::machine::{Expiry, Machine};
use crate::session::restore::Restored;
use crate::session::rules::CellRules;
use crate::store::{EventLog, Journal, Recorder};
use crate::tools;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

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
    /// What the first sandbox may take, reserved before the session is made.
    pub permit: Option<Permit>,
    /// A cell of another session wants it and waits for it.
    pub nested: bool,
    pub supervisor: SupervisorRef,
    /// Where an ask finds the session that it makes for an ask within it.
    pub directory: Directory,
    pub launcher: Arc<Launcher>,
    pub tools: Arc<tools::Registry>,
    pub models: Models,
    pub wanted: SandboxRequest,
    pub backend: Backend,
    /// A folder of the owner's; none for a managed one.
    pub workspace: Option<String>,
    pub idle: Duration,
    pub seed: Map<String, Value>,
    /// The job that it serves.
    pub job: Option<JobId>,
    pub preload: Preload,
    /// The session is removed as soon as no client holds it.
    pub ephemeral: bool,
    /// Answered when the first sandbox is ready, or could not be made.
    pub created: Option<Reply<SessionView>>,
    /// It was there before the daemon was started anew, with this user id of the range.
    pub before: Option<PriorSession>,
}

/// What the record of an earlier session says beside its request.
#[derive(Clone, Copy, Debug)]
pub struct PriorSession {
    pub slot: Option<u32>,
}

pub struct SessionActorState {
    pub(super) args: SessionArgs,
    pub(super) myself: OwnSession,
    pub(super) asks: AsksRef,
    pub(super) clients: tools::ClientTools,
    pub(super) common: Common,
    /// The rules of cells that clients send.
    pub(super) client_rules: Arc<CellRules>,
    /// What it does next.
    pub(super) machine: Machine<Reply<VariableList>>,
    /// The executor of the sandbox that runs, or that is being started.
    pub(super) executor: Option<ExecutorRef>,
    /// Requests that need a sandbox and came while there was none.
    pub(super) deferred: Vec<SessionMsg>,
    pub(super) log: Arc<EventLog>,
    pub(super) recorder: Arc<Recorder>,
    /// Makes the workspace.
    pub(super) making: Option<JoinHandle<()>>,
    /// It is being removed, and these want that too.
    pub(super) removers: Option<Arc<Mutex<Vec<Reply<()>>>>>,
    pub(super) workspace: Option<Arc<Workspace>>,
    /// Held for the life of the session, so that nobody else gets its user id.
    pub(super) slot: Option<UserSlot>,
    pub(super) receipt: Option<Arc<Receipt>>,
    pub(super) preloaded: Option<Preloaded>,
    pub(super) tickets: HashMap<CellNumber, CellWaiter>,
    pub(super) holders: Holders,
    /// The daemon ends.
    pub(super) leaving: bool,
    /// Of the sandbox, for what it counts.
    pub(super) cgroup: Option<Cgroup>,
    pub(super) cell_permits: CellPermits,
    /// Requests that came before the workspace was there; bounded by the connections of the owner.
    pub(super) waiting_for_handles: Vec<Reply<Handles>>,
    /// What was going on when the daemon ended, until the sandbox is attached or gone.
    pub(super) restored: Option<Restored>,
}

pub(super) struct CellWaiter {
    pub(super) events_after: Seq,
    pub(super) done: oneshot::Sender<Arc<ExecutionResult>>,
}

/// When the sandboxes of a session are let go.
pub(super) fn expiry(args: &SessionArgs) -> Expiry {
    Expiry { idle: args.idle, life: args.launcher.settings.sandbox.life }
}

impl SessionActorState {
    pub(super) fn touch(&mut self) {
        self.machine.touch(Instant::now());
    }

    /// The executor, if its sandbox can be asked something.
    pub(super) fn ready(&self) -> Option<ExecutorRef> {
        self.executor.clone().filter(|_| self.machine.is_ready())
    }
}

#[derive(Default)]
pub(super) struct CellPermits {
    /// Of the cells that run.
    pub held: HashMap<CellNumber, Permit>,
    /// For whichever cell is first by now.
    pub spare: Option<Permit>,
    pub waiting: Option<AbortOnDropHandle<()>>,
}

/// What the session, its asks and its tools share.
#[derive(Clone, Default)]
pub(super) struct Common {
    /// What `compute_with_python` gave last.
    pub last_result: Arc<Mutex<Option<String>>>,
    /// Of the present sandbox, or the last.
    pub image_id: Arc<Mutex<Option<String>>>,
}

impl Common {
    pub fn image_is(&self, id: &str) {
        *self.image_id.lock() = Some(id.to_owned());
    }
}
