//! The daemon: boots in order, serves until it is asked to stop, and shuts down in order.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::actors::directory::Directory;
use crate::actors::jobs::{Inputs, Jobs, JobsArgs};
use crate::actors::llm::Models;
use crate::actors::pool::{Pool, PoolArgs};
use crate::actors::reaper::{self, Reaper};
use crate::actors::restarting_actor::RestartingActor;
use crate::actors::supervisor::messages::{SupervisorMsg, SupervisorRef};
use crate::actors::supervisor::{RESTORES_AT_ONCE, Supervisor, SupervisorArgs};
use crate::config::{self, Loaded, Paths, Serving};
use crate::control::user_lookup::UserLookup;
use crate::control::{self, App};
use crate::memory::bound_arenas;
use crate::panics::spawn_restarting;
use crate::protocol::exit_codes;
use crate::protocol::limits::DRAIN;
use crate::protocol::principal::Principal;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::sandbox::subordinate;
use crate::sandbox::workspace::Service;
use crate::security_controls;
use crate::store::{Journal, JournalError, KEEP_REMOVED};

use super::boot::{self, Lock};
use super::notify::Notifier;
use super::socket::SocketGuard;
use super::{journals, snapshots, tool_registry, trust};

/// The time between two clean-ups of the journal.
const TIDY: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time for removing the sandboxes of all sessions.
const REMOVAL: Duration = Duration::from_secs(60);
/// The longest wait for sandboxes that are being created when the daemon ends and leaves the others running.
const LAUNCHES: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("{0}")]
    Config(String),
    #[error("a daemon serves `{location}` already (pid {pid})")]
    AlreadyRunning { location: String, pid: String },
    #[error(
        "the home of the daemon was removed or replaced while it ran, and all sessions with it; the daemon ends and removes their sandboxes\n\nhint: start it anew, and move its state only while no daemon runs"
    )]
    HomeGone,
    #[error("{0}")]
    Start(String),
}

impl DaemonError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => exit_codes::USAGE,
            Self::AlreadyRunning { .. } => exit_codes::ALREADY_RUNNING,
            Self::HomeGone | Self::Start(_) => exit_codes::OWN,
        }
    }
}

/// Runs the daemon in the foreground until a signal or a request ends it.
pub fn main(config: Option<PathBuf>, serving: Serving) -> ExitCode {
    bound_arenas();
    boot::close_inherited();
    match start(config, serving) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = error.to_string();
            let prefix = if text.starts_with("error:") { "" } else { "error: " };
            // Not `eprintln`: stderr may be a file on a full disk, and the exit code has to come through.
            let _ = writeln!(std::io::stderr(), "{prefix}{text}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(config: Option<PathBuf>, serving: Serving) -> Result<(), DaemonError> {
    if serving.system && !config::is_system() {
        let problem =
            "only root can serve the whole machine\n\nhint: leave `--system` out for a daemon of your own";
        return Err(DaemonError::Config(problem.into()));
    }
    let paths = Paths::of_this_process()
        .map_err(|error| DaemonError::Config(format!("{error}\n\nhint: {}", error.fix())))?;
    let loaded = read_config(config.as_deref(), &paths)?;
    let guests = &loaded.settings.sandbox;
    if config::is_system()
        && security_controls::holds("guest_ids_are_free")
        && let Some(why) = subordinate::taken(guests.uid_first, guests.uid_count)
    {
        return Err(DaemonError::Config(format!(
            "guests cannot have the user ids from `sandbox.uid_first` = {} on: {why}\n\nhint: set `sandbox.uid_first` to the first of `sandbox.uid_count` = {} ids that nobody has",
            guests.uid_first, guests.uid_count
        )));
    }
    let paths = match &config {
        Some(config) => paths.with_config(config.clone()),
        None => paths,
    };
    let paths = boot::make_home(paths)?;
    let lock = Lock::take(&paths)?;
    let _log = boot::start_log(&paths, &loaded.settings);
    boot::harden();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| DaemonError::Start(format!("no threads: {error}")))?;
    let settings = Arc::new(loaded.settings.clone());
    let instance = boot::instance(&paths)?;
    let (named, again) = (config, paths.clone());
    let read = move || {
        // Otherwise no daemon could start with a file that this one has accepted.
        let with_tools = |loaded: Loaded| tool_registry::load(&loaded.settings).map(|_| loaded);
        read_config(named.as_deref(), &again).and_then(with_tools).map_err(|error| error.to_string())
    };
    let file = std::path::absolute(paths.config_file()).unwrap_or_else(|_| paths.config_file().to_owned());
    let config = control::ConfigInUse::new(file, loaded, read);
    let launcher = Arc::new(Launcher::new(Service::of_this_process(), settings, paths, instance));
    let journal =
        Journal::open(launcher.paths.home()).map_err(|error| DaemonError::Start(error.to_string()))?;
    let served = runtime.block_on(serve(Arc::clone(&launcher), journal.clone(), config, serving, &lock));
    journal.close();
    // Blocking threads may hang in a dead file system and must not delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(2));
    served
}

/// Reads the configuration, if nobody else can write it.
fn read_config(named: Option<&Path>, paths: &Paths) -> Result<Loaded, DaemonError> {
    trust::check(named.unwrap_or(paths.config_file()), "name another file with `BELLJAR_CONFIG`")?;
    config::load(named, paths).map_err(|error| DaemonError::Config(error.to_string()))
}

/// Has the configuration read again whenever a service manager sends SIGHUP. On a terminal the signal says that the
/// terminal is gone, and ends the daemon as it always does.
async fn reload_on_hangup(app: App) {
    // Either of them may be redirected in a shell.
    if std::io::stderr().is_terminal() || std::io::stdin().is_terminal() {
        return;
    }
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let shutdown = app.shutdown.clone();
    while let Some(Some(())) = shutdown.run_until_cancelled(hangup.recv()).await {
        if let Err(problem) = app.reload().await {
            tracing::warn!(problem = problem.message, "the configuration was not read again");
        }
    }
}

/// The owners of sessions and of jobs that have not ended.
fn owners_in(journal: &Journal) -> Result<BTreeSet<Principal>, JournalError> {
    let of_jobs = journal.open_jobs()?.into_iter().map(|record| record.view.owner);
    Ok(journal.sessions()?.into_iter().map(|record| record.owner).chain(of_jobs).collect())
}

#[expect(clippy::too_many_lines, reason = "one step after the other")]
async fn serve(
    launcher: Arc<Launcher>,
    journal: Journal,
    config: control::ConfigInUse,
    serving: Serving,
    lock: &Lock,
) -> Result<(), DaemonError> {
    // Signals are handled before any client can know that there is a daemon to stop.
    let signals = Signals::listen()?;
    keep_tidy(journal.clone());
    let failed = |error: ractor::SpawnErr| DaemonError::Start(error.to_string());
    let tools = Arc::new(tool_registry::load(&launcher.settings)?);
    let models = Models::new(launcher.live.clone());
    let ledger = Ledger::new(&launcher.settings.quota);
    tokio::spawn(ledger.keep_memory_small());
    let unfinished = launcher.packages.unfinished();
    let unread = launcher.charge_kept_packages(&ledger);
    let (users, directory) = (UserLookup::default(), Directory::default());
    let unreadable = |error: JournalError| DaemonError::Start(error.to_string());
    limit(&ledger, &users, &launcher, owners_in(&journal).map_err(unreadable)?).await?;
    journals::watch(&launcher, &journal, &ledger, &directory);
    launcher.load_volumes(&ledger);
    launcher.keep_left_user_ids();
    let snapshots = snapshots::open(&launcher, journal.living().map_err(unreadable)?).await?;
    let pool = Pool::default();
    let args = SupervisorArgs {
        journal: journal.clone(),
        launcher: Arc::clone(&launcher),
        pool: pool.clone(),
        tools: Arc::clone(&tools),
        models: models.clone(),
        ledger: ledger.clone(),
        directory: directory.clone(),
        restores: Arc::new(Semaphore::new(RESTORES_AT_ONCE)),
        snapshots: snapshots.clone(),
    };
    // Restored sessions claim their sandboxes first; sandboxes that no session claims are left over.
    let (supervisor, supervision) = Supervisor::spawn(args).await.map_err(failed)?;
    // From here on each session that was not read yet keeps what it might use.
    drop(unread);
    let sessions = journal.living().map_err(unreadable)?;
    // Sandboxes are removed first, because none may still write into a folder that is being removed.
    let (reaped, left) = launcher.reap().await;
    drop(reaper::clear_folders(&launcher, &left, &sessions, unfinished));
    let (listener, socket) = SocketGuard::bind(&launcher.paths, serving.group.as_deref())?;
    let (shutdown, stop) = (CancellationToken::new(), CancellationToken::new());
    let inputs = Inputs::new(launcher.paths.jobs_dir(), ledger.clone());
    let jobs = JobsArgs {
        journal: journal.clone(),
        launcher: Arc::clone(&launcher),
        supervisor: supervisor.clone(),
        inputs: inputs.clone(),
        ledger: ledger.clone(),
        shutdown: shutdown.clone(),
    };
    let jobs =
        RestartingActor::start("jobs", shutdown.clone(), move |lifetime| Jobs::spawn(jobs.clone(), lifetime));
    let jobs = jobs.await.map_err(failed)?;
    let reaps = Arc::clone(&launcher);
    let reaper =
        RestartingActor::start("reaper", shutdown.clone(), move |_| Reaper::spawn(Arc::clone(&reaps)));
    let reaper = reaper.await.map_err(failed)?;
    // The sessions of earlier daemons have their user ids by now.
    let pool_args = PoolArgs { launcher: Arc::clone(&launcher), ledger: ledger.clone() };
    pool.start(pool_args, shutdown.clone()).await.map_err(failed)?;
    let (remove_all, journals) = (Arc::new(AtomicBool::new(false)), journal.clone());
    let app = App {
        supervisor: supervisor.clone(),
        directory,
        jobs,
        inputs,
        launcher: Arc::clone(&launcher),
        snapshots,
        pool: pool.clone(),
        settings: Arc::clone(&launcher.settings),
        shutdown: shutdown.clone(),
        stop: stop.clone(),
        remove_all: Arc::clone(&remove_all),
        answer_charges: control::AnswerCharges::open(journal.clone(), ledger.clone()).map_err(unreadable)?,
        journal,
        in_work: control::RequestsInProgress::default(),
        uploads: control::RequestSlots::of_uploads(),
        models,
        tools,
        ledger,
        users,
        config: Arc::new(config),
    };
    tokio::spawn(reload_on_hangup(app.clone()));
    let notifier = Notifier::of_this_process();
    tracing::info!(socket = %launcher.paths.socket().display(), reaped, "serving");
    let serving = tokio::spawn(control::serve(listener, app, shutdown.clone()));
    notifier.ready();

    let ended = tokio::select! {
        ended = until_told_to_stop(&stop, signals, supervision, &journals, lock) => ended,
        () = notifier.watch(&supervisor) => Ok(()),
    };
    notifier.stopping();
    // The socket is removed before connections close, so that a client that reconnects sees an intended stop and does
    // not start another daemon.
    drop(socket);
    shutdown.cancel();
    // When the home is gone, the records of its sandboxes are gone too, and no later daemon could remove them.
    let remove = remove_all.load(Ordering::Relaxed) || matches!(ended, Err(DaemonError::HomeGone));
    let drained_by = Instant::now() + DRAIN;
    let orderly = async {
        let _ = tokio::time::timeout(DRAIN + Duration::from_secs(1), serving).await;
        // From here on sandboxes have no owner in this process, so the reaper would remove them.
        reaper.stop();
        let within = drained_by.saturating_duration_since(Instant::now());
        release(&launcher, &supervisor, &pool, remove, within).await;
    };
    tokio::select! {
        () = orderly => {}
        () = second_signal() => tracing::warn!("forced to end; what is left is reaped at the next start"),
    }
    supervisor.stop(None);
    ended
}

/// Ends all sessions; their sandboxes are left to the next daemon, or removed.
async fn release(
    launcher: &Launcher,
    supervisor: &SupervisorRef,
    pool: &Pool,
    remove: bool,
    within: Duration,
) {
    launcher.built_images.end();
    let end = |reply_to| SupervisorMsg::Shutdown { remove, within, reply_to };
    // What waits for a session is of no use to the next daemon.
    let drained = tokio::time::timeout(REMOVAL, pool.drain());
    let (removed, drained) = tokio::join!(supervisor.call(end, Some(REMOVAL)), drained);
    if drained.is_err() {
        tracing::warn!("the pool is left to the next start");
    }
    tracing::info!(orderly = removed.is_ok(), "sessions ended");
    // A sandbox that is being created would otherwise run on without a daemon.
    let patience = if remove { REMOVAL } else { LAUNCHES };
    if tokio::time::timeout(patience, launcher.all_let_go()).await.is_err() {
        tracing::warn!("a sandbox was still being made at the end");
    }
    if remove {
        // This removes sandboxes that an executor could not remove.
        launcher.reap().await;
        launcher.settle_images().await;
    }
}

fn keep_tidy(journal: Journal) {
    spawn_restarting("the tidying of the journal", move || tidy(journal.clone()));
}

async fn tidy(journal: Journal) {
    loop {
        match journal.tidy(crate::protocol::clock::wall(), KEEP_REMOVED).await {
            Ok(tidied) => tracing::info!(?tidied, "the journal is tidy"),
            Err(error) => tracing::warn!(%error, "the journal cannot be tidied"),
        }
        tokio::time::sleep(TIDY).await;
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, DaemonError> {
        let listen = |kind| signal(kind).map_err(|error| DaemonError::Start(format!("signals: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }
}

/// Applies the limits of users who already have sessions or jobs, and records their accounts, before the daemon serves.
async fn limit(
    ledger: &Ledger,
    users: &UserLookup,
    launcher: &Launcher,
    owners: BTreeSet<Principal>,
) -> Result<(), DaemonError> {
    for owner in owners {
        let found = users.of(owner).await;
        if let Ok(who) = &found
            && launcher.service.system
            && !launcher.accounts.knows(owner)
        {
            let noted = launcher.accounts.note(owner, who.name.as_deref());
            noted.map_err(|problem| DaemonError::Start(problem.message))?;
        }
        // The requests of a user who cannot be looked up are refused until the lookup succeeds.
        let who = found.unwrap_or_default();
        ledger.set_limits(owner, launcher.settings.quota.of(owner, who.name.as_deref(), &who.groups));
    }
    Ok(())
}

/// Waits for a signal or a request to stop. An error only if the supervisor or the journal's writer died.
async fn until_told_to_stop(
    stop: &CancellationToken,
    mut signals: Signals,
    supervision: tokio::task::JoinHandle<()>,
    journal: &Journal,
    lock: &Lock,
) -> Result<(), DaemonError> {
    tokio::select! {
        () = lock.lost() => return Err(DaemonError::HomeGone),
        _ = signals.terminate.recv() => tracing::info!("SIGTERM: draining"),
        _ = signals.interrupt.recv() => tracing::info!("SIGINT: draining"),
        () = stop.cancelled() => tracing::info!("asked to stop: draining"),
        _ = supervision => return Err(DaemonError::Start("the supervisor died; see the log".into())),
        () = journal.failed() => {
            return Err(DaemonError::Start("the journal's writer died too often; see the log".into()));
        }
    }
    Ok(())
}

async fn second_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
