//! The state of a session beside its machine.

use super::admin_acts::AdminActs;
use super::messages::{Handles, OwnSession, SessionMsg, Ticket};
use super::packages::SessionPackages;
use super::removers::Removers;
use super::snapshots::SavedSession;
use super::undo::PendingUndo;
use super::waking::Rebuilding;
use crate::actors::asks::messages::AsksRef;
use crate::actors::branches::beginning::Carried;
use crate::actors::calls::Reply;
use crate::actors::directory::Directory;
use crate::actors::executor::messages::ExecutorRef;
use crate::actors::holds::Holders;
use crate::actors::launch::ReadySandbox;
use crate::actors::llm::Models;
use crate::actors::pool::Pool;
use crate::actors::snapshots::{SessionBase, SessionSnapshots};
use crate::actors::supervisor::messages::SupervisorRef;
use crate::actors::turns::UserTurn;
use crate::config::Settings;
use crate::protocol::api::{SessionView, VariableList};
use crate::protocol::command::CommandSummary;
use crate::protocol::ids::{CellNumber, JobId, Seq, SessionId, SessionName};
use crate::protocol::labels::Labels;
use crate::protocol::mounts::{FolderMount, VolumeMount};
use crate::protocol::preload::{Preload, Preloaded};
use crate::protocol::principal::Principal;
use crate::protocol::receipt::{Backend, Receipt};
use crate::protocol::result::ExecutionResult;
use crate::protocol::saved_state::SnapshotPolicy;
use crate::quota::{Gauge, Ledger, Permit};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::counters::CounterFiles;
use crate::sandbox::launch::{Launcher, SandboxRequest, UserSlot};
use crate::sandbox::packages::SessionUse;
use crate::sandbox::workspace::Workspace;
use crate::session::machine::{Expiry, SessionMachine};
use crate::session::restore::Restored;
use crate::session::rules::CellRules;
use crate::store::{EventLog, Journal, Recorder};
use crate::tools::{self, ExpectedAnswer};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct SessionArgs {
    pub id: SessionId,
    pub name: SessionName,
    pub owner: Principal,
    pub journal: Journal,
    /// The request for the session, as the journal keeps it.
    pub request: Value,
    pub created_at: String,
    pub ledger: Ledger,
    /// The gauge for the measured disk usage of the session.
    pub gauge: Gauge,
    /// The resources of the first sandbox, reserved before the session is made.
    pub permit: Option<Permit>,
    /// Whether a cell of another session requested this one and waits for it.
    pub nested: bool,
    pub supervisor: SupervisorRef,
    /// Where an ask finds the session that it creates for an inner ask.
    pub directory: Directory,
    pub launcher: Arc<Launcher>,
    pub pool: Pool,
    pub tools: Arc<tools::Registry>,
    pub models: Models,
    pub wanted: SandboxRequest,
    pub backend: Backend,
    /// The owner's own folder; none for a managed workspace.
    pub workspace: Option<String>,
    pub idle: Duration,
    pub seed: Map<String, Value>,
    /// The job that the session serves.
    pub job: Option<JobId>,
    pub preload: Preload,
    pub labels: Labels,
    pub volumes: Vec<VolumeMount>,
    pub mounts: Vec<FolderMount>,
    /// The session is removed as soon as no client holds it.
    pub ephemeral: bool,
    /// An ephemeral session is removed only when it was not used for its idle time either.
    pub lingers: bool,
    /// A new session begins without a sandbox, if it can.
    pub lazy: bool,
    /// What a new session begins with of another one, besides variables.
    pub carried: Carried,
    /// What the session uses of its owner's cache of packages.
    pub packages_use: SessionUse,
    /// When the variables are saved to the disk.
    pub policy: SnapshotPolicy,
    pub snapshots: SessionSnapshots,
    /// Held while a snapshot is taken.
    pub snapshot_turn: UserTurn,
    /// The variables with which the session begins, if it is new.
    pub base: Option<Arc<SessionBase>>,
    /// Held while the session reads its journal.
    pub restore_turn: UserTurn,
    /// Held while the schemas of lent tools are compiled.
    pub lend_turn: UserTurn,
    /// Cancelled when the session has read the journal of an earlier daemon, or has none to read.
    pub restored: CancellationToken,
    /// Answered when the first sandbox is ready, or could not be made.
    pub created: Option<Reply<SessionView>>,
    /// Set for a session that existed before: in an earlier daemon, or in an earlier generation.
    pub before: Option<PriorSession>,
}

/// What the record of an earlier session contains beside its request: its user id of the range.
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
    /// The rules for cells that clients send.
    pub(super) client_rules: Arc<CellRules>,
    /// Decides what the session does next.
    pub(super) machine: SessionMachine<Reply<VariableList>>,
    /// The executor of the sandbox that runs, or that is being started.
    pub(super) executor: Option<ExecutorRef>,
    /// Requests that need a sandbox and arrived while there was none.
    pub(super) deferred: Vec<SessionMsg>,
    /// The undo that is under way.
    pub(super) undoing: Option<PendingUndo>,
    pub(super) log: Arc<EventLog>,
    pub(super) recorder: Arc<Recorder>,
    /// The task that creates the workspace.
    pub(super) making: Option<JoinHandle<()>>,
    /// When the workspace of a restored session is looked at again, after it was refused.
    pub(super) place_again: Option<Instant>,
    /// Set while the session is being removed: the callers that wait for that.
    pub(super) removers: Option<Removers>,
    pub(super) workspace: Option<Arc<Workspace>>,
    /// Held as long as the session exists, so that no other session gets its user id.
    pub(super) slot: Option<UserSlot>,
    /// A sandbox of the pool that the session has claimed, until its executor has it.
    pub(super) ready_ahead: Option<Box<ReadySandbox>>,
    pub(super) receipt: Option<Arc<Receipt>>,
    pub(super) preloaded: Option<Preloaded>,
    pub(super) packages: SessionPackages,
    pub(super) saving: SavedSession,
    /// The task that runs cells again after the session woke.
    pub(super) rebuilding: Rebuilding,
    pub(super) tickets: HashMap<CellNumber, CellWaiter>,
    /// The last commands that have ended, oldest first.
    pub(super) ended_commands: VecDeque<CommandSummary>,
    pub(super) holders: Holders,
    pub(super) admin_acts: AdminActs,
    /// Whether the daemon is shutting down.
    pub(super) leaving: bool,
    /// The control group of the sandbox, for what it uses.
    pub(super) cgroup: Option<Cgroup>,
    /// What the kernel counts in the sandbox.
    pub(super) counters: Arc<CounterFiles>,
    pub(super) cell_permits: CellPermits,
    /// Requests that arrived before the workspace was ready.
    pub(super) waiting_for_handles: Vec<Reply<Handles>>,
    /// The state that was recorded when the earlier daemon ended, until the sandbox is attached or gone.
    pub(super) restored: Option<Restored>,
    /// The answers of clients to calls of the earlier daemon, which may come before the sandbox is attached.
    pub(super) expected: HashMap<u64, ExpectedAnswer>,
}

/// The callers that wait for the end of a cell.
pub(super) struct CellWaiter {
    pub(super) events_after: Seq,
    done: Vec<oneshot::Sender<Arc<ExecutionResult>>>,
}

impl CellWaiter {
    pub fn nobody(events_after: Seq) -> Self {
        Self { events_after, done: Vec::new() }
    }

    /// A further ticket. The connections of clients bound the number of those that still wait.
    pub fn ticket(&mut self, session: SessionId, cell: CellNumber) -> Ticket {
        let (sender, done) = oneshot::channel();
        self.done.retain(|sender| !sender.is_closed());
        self.done.push(sender);
        Ticket { session, cell, events_after: self.events_after, done }
    }

    pub fn finish(self, result: &Arc<ExecutionResult>) {
        for done in self.done {
            let _ = done.send(Arc::clone(result));
        }
    }
}

/// When the sandboxes of a session are removed, and when its variables are saved.
pub(super) fn expiry(args: &SessionArgs) -> Expiry {
    let Settings { sandbox, snapshots, .. } = &*args.launcher.settings;
    let at_rest = (args.policy == SnapshotPolicy::Auto).then_some(snapshots.at_rest);
    let saves = args.policy != SnapshotPolicy::Off;
    Expiry { idle: args.idle, max_age: sandbox.max_age, at_rest, saves }
}

impl SessionActorState {
    pub(super) fn touch(&mut self) {
        self.machine.touch(Instant::now());
    }

    /// Keeps a request until the workspace is ready. The connections of clients bound the number of those that wait.
    pub(super) fn wait_for_handles(&mut self, reply_to: Reply<Handles>) {
        self.waiting_for_handles.retain(|waiting| !waiting.is_closed());
        self.waiting_for_handles.push(reply_to);
    }

    /// The executor, if its sandbox is ready for requests.
    pub(super) fn ready(&self) -> Option<ExecutorRef> {
        self.executor.clone().filter(|_| self.machine.is_ready())
    }
}

#[derive(Default)]
pub(super) struct CellPermits {
    /// The permits of the running cells.
    pub running: HashMap<CellNumber, Permit>,
    /// A granted permit for the cell that is first in the queue when it is used.
    pub spare: Option<Permit>,
    pub waiting: Option<AbortOnDropHandle<()>>,
}

/// What the session, its asks and its tools share.
#[derive(Clone, Default)]
pub(super) struct Common {
    /// The image of the present sandbox, or of the last one.
    pub image_id: Arc<Mutex<Option<String>>>,
}

impl Common {
    pub fn image_is(&self, id: &str) {
        *self.image_id.lock() = Some(id.to_owned());
    }
}
