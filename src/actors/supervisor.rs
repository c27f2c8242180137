//! The supervisor: it owns the sessions, admits new ones within the quotas, and orders the shutdown.

pub mod messages;

use ractor::{Actor, ActorProcessingErr, RpcReplyPort, SpawnErr, SupervisionEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::actors::calls::Reply;
use crate::actors::charge::{ROOM_TO_BEGIN_BYTES, record_bytes, seed_bytes};
use crate::actors::directory::{Directory, Listed, Restoring};
use crate::actors::llm::Models;
use crate::actors::session::actor::Session;
use crate::actors::session::journalled::{RemovalRecord, forget};
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::actors::session::restore::RestoreTurns;
use crate::actors::session::sandbox::a_sandbox;
use crate::actors::session::state::{PriorSession, SessionArgs};
use crate::config::{self, MIN_MEMORY_BYTES, show_size};
use crate::controls;
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::clock;
use crate::protocol::ids::{JobId, SessionId, SessionName};
use crate::protocol::preload::Preload;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::values;
use crate::quota::{Amounts, Ledger, Permit};
use crate::sandbox::launch::{Launcher, SandboxRequest};
use crate::store::{Journal, JournalError, SessionRecord};
use crate::tools;

use messages::{ForJob, SupervisorMsg, SupervisorRef};

/// The most journals that sessions of all users read at once. What is read is needed, so it may overdraw the memory of
/// its user; a few at once overdraw no machine.
pub const RESTORES_AT_ONCE: usize = 4;

pub struct SupervisorArgs {
    pub journal: Journal,
    pub launcher: Arc<Launcher>,
    pub tools: Arc<tools::Registry>,
    pub models: Models,
    pub ledger: Ledger,
    /// Written by the supervisor; request handlers and asks read it without asking the supervisor.
    pub directory: Directory,
    /// A place for each journal that is read at once; `RESTORES_AT_ONCE` of them.
    pub restores: Arc<Semaphore>,
}

pub struct SupervisorState {
    args: SupervisorArgs,
    sessions: BTreeMap<SessionId, Entry>,
    restore_turns: RestoreTurns,
    shutting_down: Option<Vec<RpcReplyPort<()>>>,
}

struct Entry {
    owner: u32,
    name: SessionName,
    /// The job that the session serves: its owner sees the job instead of the session.
    job: Option<JobId>,
    session: SessionRef,
    permit: Permit,
    /// The memory charged for the session's seed.
    _seed: Charge,
}

/// The checked and completed values of a request for a session.
struct Admitted {
    name: SessionName,
    wanted: SandboxRequest,
    idle: Duration,
    permit: Permit,
    /// The resources of the first sandbox, reserved before the session is made.
    first: Permit,
    seed: Charge,
}

/// What a new session has, but a restored one does not.
struct Begin {
    reply_to: Reply<SessionView>,
    first: Permit,
    seed: Charge,
    nested: bool,
}

/// The quota of one session. A zero for the workspace refuses users who are over that quota already. The
/// session of a job is counted as the job. The record, with the seed, is the first thing stored of a session.
fn amounts(job: Option<JobId>, request: &serde_json::Value) -> Amounts {
    let sessions = u64::from(job.is_none());
    Amounts::of([(Kind::Sessions, sessions), (Kind::Workspace, 0), (Kind::Journal, record_bytes(request))])
}

/// The name under which the data of removed sessions appears in a user's quota.
const REMOVED: &str = "removed sessions";
/// A session is refused if the user has more than this many times the quota on the disk, removed sessions
/// included. Data of removed sessions above the quota is deleted within moments.
const REMOVED_TOLERANCE: u64 = 2;

pub struct Supervisor;

impl Supervisor {
    pub async fn spawn(
        args: SupervisorArgs,
    ) -> Result<(SupervisorRef, tokio::task::JoinHandle<()>), SpawnErr> {
        Actor::spawn(None, Self, args).await
    }
}

impl Actor for Supervisor {
    type Msg = SupervisorMsg;
    type State = SupervisorState;
    type Arguments = SupervisorArgs;

    async fn pre_start(
        &self,
        myself: SupervisorRef,
        args: SupervisorArgs,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        args.models.start(&myself.get_cell()).await?;
        let restore_turns = RestoreTurns::new(Arc::clone(&args.restores));
        let mut state =
            SupervisorState { args, sessions: BTreeMap::new(), restore_turns, shutting_down: None };
        state.restore(&myself).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: SupervisorRef,
        message: SupervisorMsg,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMsg::Create { id, peer, request, nested, job, reply_to } => {
                state.create(&myself, (id, peer), *request, (nested, job), reply_to).await;
            }
            SupervisorMsg::OfJobs { reply_to } => {
                let sessions = state.sessions.values();
                let found = sessions.filter_map(|entry| Some((entry.job?, entry.session.clone())));
                let _ = reply_to.send(found.collect());
            }
            SupervisorMsg::Count { reply_to } => drop(reply_to.send(state.sessions.len())),
            SupervisorMsg::NotCreated { id, problem, reply_to } => {
                state.args.directory.remove(id);
                // The session leaves nothing behind, so its whole charge is released.
                if let Some(entry) = state.sessions.remove(&id) {
                    let _ = entry.session.cast(SessionMsg::Remove { reply_to: None });
                }
                state.answer_shutdown();
                let _ = reply_to.send(Err(problem));
            }
            SupervisorMsg::Ended { id, removers } => {
                state.forget(id);
                for reply_to in removers {
                    let _ = reply_to.send(Ok(()));
                }
            }
            SupervisorMsg::Shutdown { remove, within, reply_to } => {
                state.shutting_down.get_or_insert_default().push(reply_to);
                for entry in state.sessions.values() {
                    let _ = entry.session.cast(if remove {
                        SessionMsg::Remove { reply_to: None }
                    } else {
                        SessionMsg::Leave { within }
                    });
                }
                state.answer_shutdown();
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: SupervisorRef,
        event: SupervisionEvent,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, error) => {
                tracing::error!(%error, actor = %child.get_id(), "an actor failed; what a session left goes to the reaper");
                state.args.models.revive(child.get_id(), &myself.get_cell()).await;
                state.forget_actor(child.get_id());
            }
            SupervisionEvent::ActorTerminated(child, _, _) => state.forget_actor(child.get_id()),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl SupervisorState {
    fn of(&self, peer: u32) -> impl Iterator<Item = (&SessionId, &Entry)> {
        self.sessions.iter().filter(move |(_, entry)| entry.owner == peer && entry.job.is_none())
    }

    async fn create(
        &mut self,
        myself: &SupervisorRef,
        (id, peer): (SessionId, u32),
        request: NewSession,
        (nested, job): (bool, Option<ForJob>),
        reply_to: Reply<SessionView>,
    ) {
        let (job, room) = job.map_or((None, None), |job| (Some(job.id), job.room));
        let admitted = self.admit(peer, &request, job, room);
        let Admitted { name, wanted, idle, permit, first, seed } = match admitted {
            Ok(admitted) => admitted,
            Err(problem) => {
                let _ = reply_to.send(Err(problem));
                return;
            }
        };
        let record = SessionRecord {
            id,
            owner: peer,
            name,
            created_at: clock::now(),
            request: serde_json::to_value(&request).unwrap_or_default(),
            job,
            slot: None,
        };
        self.spawn_session(
            myself,
            record,
            request,
            (wanted, idle),
            permit,
            Some(Begin { reply_to, first, seed, nested }),
        )
        .await;
    }

    /// Restores the sessions of the earlier daemon.
    async fn restore(&mut self, myself: &SupervisorRef) -> Result<(), JournalError> {
        let today = clock::today();
        for spent in self.args.journal.tokens_of_day(&clock::now())? {
            self.args.ledger.spend(spent.owner, today, &spent.by, spent.tokens);
        }
        let records = self.args.journal.sessions()?;
        // The reaper removes sandboxes that are not expected, so they are expected before a session can fail.
        for record in records.iter().filter(|_| controls::holds("sandboxes_are_expected_first")) {
            for sandbox in self.args.journal.sandboxes(record.id)? {
                self.args.launcher.expect(&sandbox);
            }
        }
        // Reserved first, so that no session gets the user id of a session that is restored later.
        let slots = &self.args.launcher.slots;
        let _kept: Vec<_> = records.iter().filter_map(|record| Some(slots.keep(record.slot?))).collect();
        for record in records {
            if !self.args.journal.was_ready(record.id)? {
                // The daemon ended while it made this session, so no client knows of it.
                RemovalRecord::begin(&self.args.journal, record.id).is_written().await;
                forget(&self.args.journal, record.id);
                continue;
            }
            let request: NewSession = serde_json::from_value(record.request.clone()).unwrap_or_default();
            // The session keeps what was allowed when it was made, even if the limits have changed since.
            let wishes = self.wishes(&request, record.job);
            let permit = self.args.ledger.keep(
                record.owner,
                record.name.as_str(),
                amounts(record.job, &record.request),
            );
            self.spawn_session(myself, record, request, wishes, permit, None).await;
        }
        Ok(())
    }

    async fn spawn_session(
        &mut self,
        myself: &SupervisorRef,
        record: SessionRecord,
        request: NewSession,
        (wanted, idle): (SandboxRequest, Duration),
        permit: Permit,
        begin: Option<Begin>,
    ) {
        let (id, peer, name, job) = (record.id, record.owner, record.name, record.job);
        let is_new = begin.is_some();
        let (created, first, begun_seed, nested) = match begin {
            Some(Begin { reply_to, first, seed, nested }) => {
                (Some(reply_to), Some(first), Some(seed), nested)
            }
            // Its sandbox may run, so it is paid for before others can take its room.
            None => (None, self.sandbox_permit(id, peer, &name, &wanted), None, false),
        };
        let settings = &self.args.launcher.settings;
        let entries = request.preload.as_ref().unwrap_or(&settings.sessions.preload);
        let pool = self.args.ledger.memory(peer);
        // A restored session is charged for its seed without a check.
        let seed =
            begun_seed.unwrap_or_else(|| pool.charge_anyway(MemoryPurpose::Seeds, seed_bytes(&request.seed)));
        let args = SessionArgs {
            id,
            name: name.clone(),
            owner: peer,
            journal: self.args.journal.clone(),
            request: record.request,
            created_at: record.created_at,
            before: (!is_new).then_some(PriorSession { slot: record.slot }),
            ledger: self.args.ledger.clone(),
            gauge: permit.gauge(),
            permit: first,
            nested,
            supervisor: myself.clone(),
            directory: self.args.directory.clone(),
            launcher: Arc::clone(&self.args.launcher),
            tools: Arc::clone(&self.args.tools),
            models: self.args.models.clone(),
            wanted,
            backend: request.backend.unwrap_or(self.args.launcher.settings.sandbox.backend),
            workspace: request.workspace,
            idle,
            seed: request.seed,
            job,
            // The entries were checked when the session was made.
            preload: Preload::parse(entries).unwrap_or_default(),
            ephemeral: request.ephemeral,
            restore_turn: self.restore_turns.of(peer),
            restored: CancellationToken::new(),
            created,
        };
        let restoring = (!is_new).then(|| Restoring::new(args.parked_view(), args.restored.clone()));
        match Session::spawn(args).await {
            Ok(session) => {
                let listed =
                    Listed { owner: peer, name: name.clone(), job, session: session.clone(), restoring };
                self.args.directory.add(id, listed);
                let entry = Entry { owner: peer, name, job, session, permit, _seed: seed };
                self.sessions.insert(id, entry);
            }
            // The reply port was dropped with the arguments, so the caller learns that the call failed.
            Err(error) => tracing::error!(%error, "a session could not be spawned"),
        }
    }

    /// The amounts of the sandbox that a session of an earlier daemon has, if it has one.
    fn sandbox_permit(
        &self,
        id: SessionId,
        owner: u32,
        name: &SessionName,
        wanted: &SandboxRequest,
    ) -> Option<Permit> {
        let sandboxes = self.args.journal.sandboxes(id).unwrap_or_default();
        let amounts = a_sandbox(wanted, &self.args.launcher.settings.sandbox);
        (!sandboxes.is_empty()).then(|| self.args.ledger.keep(owner, name.as_str(), amounts))
    }

    /// Checks everything before anything is created.
    fn admit(
        &self,
        peer: u32,
        request: &NewSession,
        job: Option<JobId>,
        room: Option<Permit>,
    ) -> Result<Admitted, Problem> {
        if self.shutting_down.is_some() {
            return Err(Problem::new(Code::ShuttingDown, "the daemon is going down"));
        }
        let settings = &self.args.launcher.settings;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => fresh_name(),
        };
        if self.of(peer).any(|(_, entry)| entry.name == name) {
            return Err(Problem::new(Code::SessionExists, format!("there is a session `{name}` already"))
                .hint(format!(
                    "use it with `belljar exec -s {name}`, or remove it with `belljar rm {name}`"
                )));
        }
        let sandbox = &settings.sandbox;
        let (wanted, idle) = self.wishes(request, job);
        let (least, most) = (MIN_MEMORY_BYTES, sandbox.max_memory_bytes);
        within("memory", wanted.memory_bytes, least, most, show_size)?;
        cpus_within(wanted.cpus, sandbox.max_cpus)?;
        within("pids", wanted.pids, MIN_PIDS, MAX_PIDS, |pids| pids.to_string())?;
        values::check_names(&request.seed)?;
        if let Err(message) = Preload::parse(request.preload.as_deref().unwrap_or_default()) {
            return Err(Problem::new(Code::BadRequest, message)
                .hint("name modules one by one, or a family: `stdlib`, `third-party`"));
        }
        if idle.is_zero() {
            return Err(Problem::new(Code::BadRequest, "`idle_s` has to be at least 1"));
        }
        if let Err(trouble) = self.args.journal.healthy() {
            return Err(Problem::new(Code::Storage, format!("the journal cannot be written: {trouble}"))
                .hint("free some space on the disk of `BELLJAR_HOME`"));
        }
        let ledger = &self.args.ledger;
        ledger.tolerates(peer, Kind::Journal, REMOVED_TOLERANCE)?;
        let record = serde_json::to_value(request).unwrap_or_default();
        let permit = ledger.take(peer, name.as_str(), amounts(job, &record))?;
        permit.gauge().fits(Kind::Journal, ROOM_TO_BEGIN_BYTES)?;
        let first = match room {
            Some(room) => room,
            None => ledger.take(peer, name.as_str(), a_sandbox(&wanted, &settings.sandbox))?,
        };
        let seed = ledger.memory(peer).try_charge(MemoryPurpose::Seeds, seed_bytes(&request.seed))?;
        Ok(Admitted { name, wanted, idle, permit, first, seed })
    }

    fn wishes(&self, request: &NewSession, job: Option<JobId>) -> (SandboxRequest, Duration) {
        let settings = &self.args.launcher.settings;
        let idle = request
            .idle_s
            .map_or(settings.sessions.idle, |seconds| Duration::from_secs(seconds.min(MAX_IDLE.as_secs())));
        (wanted(&settings.sandbox, request, job.is_some()), idle)
    }

    /// Forgets a session whose log stays on the disk.
    fn forget(&mut self, id: SessionId) {
        // Removed from the directory last: at any time, a reader finds the session there or its leftover
        // charge.
        if let Some(entry) = self.sessions.remove(&id) {
            entry.permit.leave(REMOVED, Kind::Journal);
        }
        self.args.directory.remove(id);
        self.answer_shutdown();
    }

    fn forget_actor(&mut self, actor: ractor::ActorId) {
        let ended = self.sessions.iter().find(|(_, entry)| entry.session.get_id() == actor);
        if let Some(id) = ended.map(|(id, _)| *id) {
            self.forget(id);
        }
    }

    fn answer_shutdown(&mut self) {
        if self.sessions.is_empty()
            && let Some(waiting) = &mut self.shutting_down
        {
            for reply_to in waiting.drain(..) {
                let _ = reply_to.send(());
            }
        }
    }
}

/// The request, completed by the settings.
pub(super) fn wanted(settings: &config::Sandbox, request: &NewSession, is_job: bool) -> SandboxRequest {
    SandboxRequest {
        image: request.image.clone(),
        first_image: None,
        memory_bytes: request.memory_bytes.unwrap_or(settings.memory_bytes),
        cpus: request.cpus.unwrap_or(settings.cpus),
        pids: request.pids.unwrap_or(settings.pids),
        // A job has no earlier state to return to.
        checkpoints: if is_job { 0 } else { settings.checkpoints },
    }
}

/// Enough for the guardian, the worker and a few processes of the user.
const MIN_PIDS: u64 = 16;
const MAX_PIDS: u64 = 32_768;
const MIN_CPUS: f64 = 0.05;
const MAX_IDLE: Duration = Duration::from_secs(30 * 24 * 3600);

fn within(
    what: &str,
    value: u64,
    least: u64,
    most: u64,
    show: impl Fn(u64) -> String,
) -> Result<(), Problem> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{what} of {} is not possible", show(value))).hint(format!(
        "use {} to {}",
        show(least),
        show(most)
    )))
}

fn cpus_within(value: f64, most: f64) -> Result<(), Problem> {
    if value >= MIN_CPUS && value <= most {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{value} CPUs are not possible"))
        .hint(format!("use {MIN_CPUS} to {most}")))
}

fn fresh_name() -> SessionName {
    let hex = uuid::Uuid::new_v4().simple().to_string();
    let short: String = hex.chars().take(8).collect();
    // The name is always valid, so the fallback is never reached.
    SessionName::parse(&format!("s-{short}")).unwrap_or_else(|_| fresh_name())
}
