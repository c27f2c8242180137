//! Tests of the actors with the journal on disk and kernels that the test plays. A daemon is a runtime with a
//! supervisor in it; the death of a daemon is the end of its runtime, at which no actor does anything any more.

/// What a session may do when its user id has become another account.
mod accounts;
/// How much a daemon allocates.
mod allocations;
/// Models are asked, run cells and wait for persons.
mod asks;
/// What sessions begin with, and snapshots that nothing has taken yet.
mod bases;
/// Sessions begin with what others have.
mod branches;
/// Cells run, wait for each other and survive the death of their process.
mod cells;
/// Sandboxes are frozen and thawed.
mod freezes;
/// The cost of a cell that nothing delays, counted and not timed.
mod hot_path;
/// Jobs wait for room.
mod jobs;
/// Sandboxes wait for sessions.
mod pool;
/// Sessions are removed while their sandboxes take their time.
mod removals;
/// Effects that a guest or a client causes again and again are bounded, and some events are written without any quota.
mod repetitions;
/// What the next daemon takes over from one that died.
mod restarts;
/// What clients are told while the disk is slow.
mod slow_journal;
/// Sessions sleep on the disk, and wake.
mod snapshots;

use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::allocations::Allocations;
use crate::actors::calls::{call, try_call};
use crate::actors::directory::Directory;
use crate::actors::llm::Models;
use crate::actors::pool::{Pool, PoolArgs};
use crate::actors::session::messages::{CellRequest, SessionMsg, SessionRef, Ticket};
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::actors::supervisor::{RESTORES_AT_ONCE, Supervisor, SupervisorArgs};
use crate::config::{Paths, load_text};
use crate::protocol::api::{NewSession, SessionState};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SessionId};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::quota::Ledger;
use crate::sandbox::backend::fake::{FakeBackend, Step, WHILE_RESETTING};
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::Service;
use crate::store::Journal;
use crate::store::snapshots::SnapshotStore;
use crate::tools::{Context, Definition, Registry, Tool, ToolFuture, ToolOutput};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const OWNER: Principal = Principal::new(4321);
/// What a daemon may do at once that blocks.
const BLOCKING_THREADS: usize = 32;
/// The model plays what `Home::model_says` wrote.
const SETTINGS: &str = r#"
    [sandbox]
    backend = "process"
    [model.played]
    provider = "script"
    file = "script.toml"
    [agent]
    model = "played"
    [pool]
    size = 0
"#;

/// A home of daemons, with the sandboxes that outlive them.
struct Home {
    folder: tempfile::TempDir,
    backend: FakeBackend,
    /// A place for each journal that sessions read at once.
    restores: Arc<Semaphore>,
}

/// A running daemon. Without `dies` it ends with the test.
struct Daemon {
    runtime: Option<Runtime>,
    journal: Journal,
    directory: Directory,
    launcher: Arc<Launcher>,
    ledger: Ledger,
    pool: Pool,
    snapshots: SnapshotStore,
    supervisor: crate::actors::supervisor::messages::SupervisorRef,
    allocations: Allocations,
}

/// A session of a daemon, as a client sees it.
struct Client {
    id: SessionId,
    session: SessionRef,
    journal: Journal,
}

/// The tool `answer`, which gives 42.
struct Answer;

impl Tool for Answer {
    fn definition(&self) -> Definition {
        let parameters = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Definition { output: Some(json!({"type": "integer"})), ..Definition::new("answer", "", parameters) }
    }

    fn run(&self, _: Map<String, Value>, _: Context) -> ToolFuture {
        Box::pin(std::future::ready(Ok(ToolOutput::Value(json!(42)))))
    }
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(PATIENCE, work).await;
    outcome.unwrap_or_else(|_| panic!("the test waited in vain until {what}"))
}

impl Home {
    fn new() -> Self {
        let restores = Arc::new(Semaphore::new(RESTORES_AT_ONCE));
        Self { folder: tempfile::tempdir().unwrap(), backend: FakeBackend::in_this_runtime(), restores }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Says what the model replies, one reply after the other.
    fn model_says(&self, replies: &str) {
        std::fs::create_dir_all(self.path()).unwrap();
        std::fs::write(self.path().join("script.toml"), replies).unwrap();
    }

    /// Starts a daemon, which takes over all that an earlier one left.
    async fn daemon(&self) -> Daemon {
        self.daemon_with(SETTINGS).await
    }

    async fn daemon_with(&self, settings: &str) -> Daemon {
        let home = self.path();
        let paths = Paths::discover(false, &|name| (name == "BELLJAR_HOME").then(|| home.clone().into()));
        let paths = paths.unwrap();
        for folder in [paths.sandboxes_dir(), paths.workspaces_dir(), paths.kernel_dir(), paths.spill_dir()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let settings = Arc::new(load_text(&home.join("config.toml"), settings).unwrap().settings);
        let journal = Journal::open(&home).unwrap();
        let service = Service { system: false, ..Service::of_this_process() };
        let launcher = Launcher::new(service, Arc::clone(&settings), paths, "test".into());
        let mut tools = Registry::built_in().unwrap();
        tools.add(Arc::new(Answer)).unwrap();
        tools.add(Arc::new(accounts::Program)).unwrap();
        let (directory, ledger) = (Directory::default(), Ledger::new(&settings.quota));
        let launcher = Arc::new(launcher.with_processes(self.backend.clone()));
        let pool = Pool::default();
        let snapshots = SnapshotStore::open(&home).unwrap();
        let pool_args = PoolArgs { launcher: Arc::clone(&launcher), ledger: ledger.clone() };
        let args = SupervisorArgs {
            journal: journal.clone(),
            launcher: Arc::clone(&launcher),
            pool: pool.clone(),
            tools: Arc::new(tools),
            models: Models::new(crate::config::LiveSettings::new(Arc::clone(&settings))),
            ledger: ledger.clone(),
            directory: directory.clone(),
            restores: Arc::clone(&self.restores),
            snapshots: snapshots.clone(),
        };
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).max_blocking_threads(BLOCKING_THREADS).enable_all();
        let allocations = Allocations::new();
        runtime.on_thread_start(move || allocations.count_this_thread());
        let runtime = runtime.build().unwrap();
        let (supervisor, _) = runtime.spawn(Supervisor::spawn(args)).await.unwrap().unwrap();
        let started = pool.clone();
        let start = async move { started.start(pool_args, CancellationToken::new()).await };
        runtime.spawn(start).await.unwrap().unwrap();
        let runtime = Some(runtime);
        Daemon { runtime, journal, directory, launcher, ledger, pool, snapshots, supervisor, allocations }
    }
}

impl Daemon {
    /// Makes a session, whose sandbox is ready then.
    async fn makes_a_session(&self) -> Client {
        self.makes(OWNER, NewSession::default()).await.unwrap()
    }

    async fn makes(&self, owner: Principal, request: NewSession) -> Result<Client, Problem> {
        let (id, request) = (SessionId::fresh(), Box::new(request));
        let create = |reply_to| SupervisorMsg::Create {
            id,
            owner,
            request,
            nested: false,
            job: None,
            base: None,
            memory: None,
            reply_to,
        };
        within("there is a session", try_call(&self.supervisor, create)).await?;
        let session = self.directory.find(owner, &id.to_string(), false).expect("the session").session;
        Ok(Client { id, session, journal: self.journal.clone() })
    }

    /// The session that an earlier daemon made.
    fn client(&self, id: SessionId) -> Client {
        let found = self.directory.find(OWNER, &id.to_string(), false).expect("the session");
        Client { id, session: found.session, journal: self.journal.clone() }
    }

    /// Ends as if it was killed: none of its tasks does anything any more. The journal has all that was appended.
    async fn dies(mut self) {
        if let Some(runtime) = self.runtime.take() {
            tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE)).await.unwrap();
        }
        let journal = self.journal.clone();
        tokio::task::spawn_blocking(move || journal.close()).await.unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    async fn run(&self, code: &str) -> Ticket {
        self.run_in(Mode::Main, code).await
    }

    /// Queues a cell, which is in the journal then.
    async fn run_in(&self, mode: Mode, code: &str) -> Ticket {
        let request = CellRequest::new(code.into(), mode, PATIENCE);
        let run = |reply_to| SessionMsg::Run { request, reply_to };
        within("a cell is queued", try_call(&self.session, run)).await.unwrap()
    }

    /// Waits for the end of a cell.
    async fn result(&self, ticket: Ticket) -> Arc<ExecutionResult> {
        within("a cell has ended", ticket.result(&self.session)).await.unwrap()
    }

    async fn state(&self) -> SessionState {
        within("a view", call(&self.session, |reply_to| SessionMsg::View { reply_to })).await.unwrap().state
    }

    async fn freeze(&self) {
        within("a freeze", try_call(&self.session, |reply_to| SessionMsg::Freeze { reply_to }))
            .await
            .unwrap();
    }

    async fn thaw(&self) {
        within("a thaw", try_call(&self.session, |reply_to| SessionMsg::Thaw { reply_to })).await.unwrap();
    }

    async fn reset(&self) {
        let reset = |reply_to| SessionMsg::Reset { replay: None, reply_to };
        within("a reset", try_call(&self.session, reset)).await.unwrap();
    }

    /// The events of the session in the journal.
    fn events(&self) -> Vec<EventBody> {
        let log = self.journal.log(self.id).unwrap();
        let (mut after, mut found) = (0, Vec::new());
        loop {
            let read = log.read(after, 100).unwrap();
            let Some(last) = read.last() else { return found };
            after = last.seq;
            found.extend(read.iter().map(|event| serde_json::from_str::<Event>(&event.json).unwrap().body));
        }
    }

    /// Waits until the journal has such an event.
    async fn has_event(&self, is_it: impl Fn(&EventBody) -> bool) {
        let log = self.journal.log(self.id).unwrap();
        let mut newest = log.watch();
        let waiting = async {
            while !self.events().iter().any(&is_it) {
                newest.changed().await.unwrap();
            }
        };
        within("the journal has an event", waiting).await;
    }

    /// The results of a cell in the journal.
    fn results(&self, cell: CellNumber) -> Vec<ExecutionResult> {
        let ended = self.events().into_iter().filter_map(|event| match event {
            EventBody::CellFinished { result } if result.cell == cell => Some(*result),
            _ => None,
        });
        ended.collect()
    }

    /// Waits until the journal has the result of a cell, and gives it. There is only one.
    async fn only_result(&self, cell: CellNumber) -> ExecutionResult {
        let ends =
            |event: &EventBody| matches!(event, EventBody::CellFinished { result } if result.cell == cell);
        self.has_event(ends).await;
        let mut results = self.results(cell);
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0)
    }
}
