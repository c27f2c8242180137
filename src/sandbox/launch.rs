//! From a request to a running container and back to nothing: prepare folders, create, start,
//! attest, end. The bridge comes in between and is not known here.

use bollard::models::ContainerInspectResponse;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::attest;
use super::cgroup::Cgroup;
use super::engine::{Engine, EngineError, EngineMode, engine_mode};
use super::images;
use super::kernel_files;
use super::spec::{self, Limits, SandboxSpec};
use super::workspace::{Service, Workspace};
use crate::config::{Paths, Settings};
use crate::protocol::event::Counters;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{ImageFact, Receipt};

/// Time to compile the kernel's bytecode for a new image.
const COMPILE: Duration = Duration::from_secs(60);

/// Time between two looks whether all sandboxes are let go.
const LET_GO_POLL: Duration = Duration::from_millis(20);

/// Makes sandboxes; one for the whole daemon.
pub struct Launcher {
    pub engine: Engine,
    pub service: Service,
    pub settings: Arc<Settings>,
    pub paths: Paths,
    pub instance: String,
    /// Sandboxes that somebody owns: the reaper leaves them alone.
    live: Mutex<BTreeSet<SandboxId>>,
    /// User ids in use.
    slots: Mutex<BTreeSet<u32>>,
    /// Compiled kernels by image id; also the lock that lets only one compile.
    kernels: tokio::sync::Mutex<HashMap<String, PathBuf>>,
    /// Guest user ids as the engine maps them; asked once.
    mode: tokio::sync::OnceCell<EngineMode>,
    /// The daemon ends and the next one goes on with its sandboxes.
    leaving: AtomicBool,
}

/// What a session wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub image: Option<String>,
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
}

/// A sandbox that does not run yet; its bridge folder is there to be listened in.
pub struct Prepared {
    spec: SandboxSpec,
    folder: Folder,
    claim: Claim,
    launcher: Arc<Launcher>,
}

/// Host folder of one sandbox, removed with it.
struct Folder {
    path: PathBuf,
    left: AtomicBool,
}

impl Folder {
    fn of(path: PathBuf) -> Self {
        Self { path, left: AtomicBool::new(false) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// An entry in the list of live sandboxes.
struct Claim {
    launcher: Arc<Launcher>,
    sandbox: SandboxId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.launcher.live).remove(&self.sandbox);
    }
}

/// A user id of the range, given back when the session ends.
pub struct UserSlot {
    launcher: Arc<Launcher>,
    pub uid: u32,
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        lock(&self.launcher.slots).remove(&self.uid);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Launcher {
    #[must_use]
    pub fn new(service: Service, settings: Arc<Settings>, paths: Paths, instance: String) -> Self {
        Self {
            engine: Engine::new(),
            service,
            settings,
            paths,
            instance,
            live: Mutex::default(),
            slots: Mutex::default(),
            kernels: tokio::sync::Mutex::default(),
            mode: tokio::sync::OnceCell::new(),
            leaving: AtomicBool::new(false),
        }
    }

    /// From now on a sandbox that a session has is left running when its owner goes.
    pub fn leave_all(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_live(&self, sandbox: &str) -> bool {
        lock(&self.live).contains(&SandboxId(sandbox.to_owned()))
    }

    /// Waits until no sandbox is owned or being made. One whose session ended while it was being made
    /// is removed when its launch is over.
    pub async fn all_let_go(&self) {
        while !lock(&self.live).is_empty() {
            tokio::time::sleep(LET_GO_POLL).await;
        }
    }

    pub async fn engine_mode(&self) -> Result<EngineMode, Problem> {
        self.mode
            .get_or_try_init(|| async { Ok(engine_mode(&self.engine.info().await?)) })
            .await
            .copied()
            .map_err(|error: EngineError| error.problem())
    }

    /// A sandbox that will be adopted: the reaper has to leave it alone until then.
    pub fn expect(&self, sandbox: &SandboxId) {
        lock(&self.live).insert(sandbox.clone());
    }

    /// The user id that a session had before the daemon was started anew.
    pub fn keep_slot(self: &Arc<Self>, uid: u32) -> UserSlot {
        lock(&self.slots).insert(uid);
        UserSlot { launcher: Arc::clone(self), uid }
    }

    /// A user id that no other session has.
    pub fn take_slot(self: &Arc<Self>) -> Result<UserSlot, Problem> {
        let sandbox = &self.settings.sandbox;
        let mut slots = lock(&self.slots);
        let free = (sandbox.uid_first..sandbox.uid_first.saturating_add(sandbox.uid_count))
            .find(|uid| !slots.contains(uid));
        let uid = free.ok_or_else(|| {
            Problem::new(Code::TooMany, "all user ids for guests are in use")
                .hint("raise `sandbox.uid_count`")
        })?;
        slots.insert(uid);
        Ok(UserSlot { launcher: Arc::clone(self), uid })
    }

    /// Picks the image and makes the host's side: folders and the compiled kernel.
    pub async fn prepare(
        self: &Arc<Self>,
        wanted: &Wanted,
        workspace: &Workspace,
        progress: &(impl Fn(String) + Sync),
    ) -> Result<Prepared, Problem> {
        // Before anything is waited for: from here on the end of the daemon waits for this launch.
        let sandbox = SandboxId::fresh();
        lock(&self.live).insert(sandbox.clone());
        let claim = Claim { launcher: Arc::clone(self), sandbox: sandbox.clone() };
        let settings = &self.settings.sandbox;
        let requested = wanted.image.as_deref().or(settings.image.as_deref());
        let image =
            images::resolve(&self.engine, requested, &settings.images, settings.pull, progress).await?;
        let folder = self.paths.sandboxes_dir().join(&sandbox.0);
        let storage = |error: std::io::Error| {
            Problem::new(Code::Storage, format!("`{}` cannot be made: {error}", folder.display()))
        };
        let bridge_dir = folder.join("b");
        std::fs::create_dir_all(&bridge_dir).map_err(storage)?;
        let guard = Folder::of(folder.clone());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).map_err(storage)?;
        // The guest may pass through to the socket, and nothing else.
        std::fs::set_permissions(&bridge_dir, std::fs::Permissions::from_mode(0o711)).map_err(storage)?;
        let mut spec = self.spec(&sandbox, wanted, workspace, image).map_err(storage)?;
        spec.kernel_dir = self.kernel_for(&spec).await?;
        Ok(Prepared { spec, folder: guard, claim, launcher: Arc::clone(self) })
    }

    fn spec(
        &self,
        sandbox: &SandboxId,
        wanted: &Wanted,
        workspace: &Workspace,
        image: ImageFact,
    ) -> std::io::Result<SandboxSpec> {
        let settings = &self.settings.sandbox;
        Ok(SandboxSpec {
            sandbox: sandbox.clone(),
            instance: self.instance.clone(),
            image,
            runtime: settings.runtime.clone(),
            user: workspace.user,
            limits: Limits {
                // Checkpoints share pages with the worker until one of them writes.
                memory_bytes: wanted.memory_bytes.saturating_add(match settings.checkpoints {
                    0 => 0,
                    _ => settings.checkpoint_bytes,
                }),
                cpus: wanted.cpus,
                pids: wanted.pids,
                open_files: settings.open_files,
                file_bytes: settings.workspace_bytes,
                tmp_bytes: settings.tmp_bytes,
                tmp_inodes: settings.tmp_inodes,
                shm_bytes: settings.shm_bytes,
            },
            workspace: workspace.path.clone(),
            workspace_identity: workspace.identity()?,
            bridge_dir: self.bridge_dir(sandbox),
            kernel_dir: PathBuf::new(),
        })
    }

    fn bridge_dir(&self, sandbox: &SandboxId) -> PathBuf {
        self.paths.sandboxes_dir().join(&sandbox.0).join("b")
    }

    /// Takes over a sandbox that an earlier daemon left running; none if it is gone. One that
    /// somebody froze is thawed: it has to answer.
    pub async fn adopt(
        self: &Arc<Self>,
        receipt: &Receipt,
        wanted: &Wanted,
        workspace: &Workspace,
    ) -> Result<Option<Sandbox>, Problem> {
        let container = spec::container_name(&receipt.sandbox);
        let inspected = match self.engine.inspect(&container).await {
            Ok(inspected) => Some(inspected),
            Err(EngineError::NotFound(_)) => None,
            // Nothing is known of it, so nothing of it is touched.
            Err(error) => return Err(error.problem()),
        };
        // From here on its folder goes when it does.
        let claim = Claim { launcher: Arc::clone(self), sandbox: receipt.sandbox.clone() };
        let folder = Folder::of(self.paths.sandboxes_dir().join(&receipt.sandbox.0));
        let Some(inspected) = inspected else { return Ok(None) };
        let state = inspected.state.clone().unwrap_or_default();
        if state.running != Some(true) || inspected.id.as_deref() != Some(receipt.container.as_str()) {
            return Ok(None);
        }
        if state.paused == Some(true) {
            self.engine.unpause(&container).await.map_err(|error| error.problem())?;
        }
        let spec = self
            .spec(&receipt.sandbox, wanted, workspace, receipt.image.clone())
            .map_err(|error| storage_problem(&workspace.path, &error))?;
        self.expect(&receipt.sandbox);
        let cgroup = attest::container_pid(&inspected).and_then(Cgroup::of_process);
        Ok(Some(Sandbox {
            container,
            removed: AtomicBool::new(false),
            attested: AtomicBool::new(true),
            inspected,
            cgroup,
            folder,
            spec,
            _claim: claim,
            launcher: Arc::clone(self),
        }))
    }

    /// The kernel compiled for the spec's image; compiled now if it is new.
    async fn kernel_for(&self, spec: &SandboxSpec) -> Result<PathBuf, Problem> {
        let mut kernels = self.kernels.lock().await;
        if let Some(folder) = kernels.get(&spec.image.id) {
            return Ok(folder.clone());
        }
        let parent = self.paths.kernel_dir();
        let target = parent.join(kernel_files::folder_name(&spec.image.id));
        if !target.is_dir() {
            let draft = parent.join(format!(".draft-{}", spec.sandbox));
            let compiled = self.compile_kernel(spec, &draft).await;
            if compiled.is_err() {
                let _ = std::fs::remove_dir_all(&draft);
            }
            compiled?;
            std::fs::rename(&draft, &target).map_err(|error| storage_problem(&target, &error))?;
        }
        kernels.insert(spec.image.id.clone(), target.clone());
        Ok(target)
    }

    async fn compile_kernel(&self, spec: &SandboxSpec, draft: &Path) -> Result<(), Problem> {
        let failed = |error: std::io::Error| storage_problem(draft, &error);
        std::fs::create_dir_all(draft).map_err(failed)?;
        kernel_files::write(draft).map_err(failed)?;
        if self.service.system {
            kernel_files::chown_tree(draft, spec.user.host_uid, spec.user.host_gid).map_err(failed)?;
        }
        let spec = SandboxSpec { kernel_dir: draft.to_owned(), ..spec.clone() };
        let name = format!("{}-compile", spec::container_name(&spec.sandbox));
        let engine = &self.engine;
        let run = async {
            let container = engine.create(&name, spec::compile_container(&spec)).await?;
            engine.start(&container).await?;
            engine.wait(&container, COMPILE).await
        };
        let outcome = run.await;
        if let Err(error) = engine.remove(&name).await {
            tracing::warn!(%error, container = name, "a compiling container could not be removed");
        }
        let code = outcome.map_err(|error| error.problem())?;
        if code != 0 {
            return Err(Problem::new(
                Code::SandboxFailed,
                format!(
                    "Python in the image `{}` could not compile the kernel (exit code {code})",
                    spec.image.reference
                ),
            )
            .hint("the image needs `python3` 3.9 or later on its PATH"));
        }
        if self.service.system {
            kernel_files::chown_tree(draft, 0, 0).map_err(failed)?;
        }
        kernel_files::open_to_all(draft).map_err(failed)
    }
}

fn storage_problem(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("`{}` cannot be written: {error}", path.display()))
        .hint("free some space, or move the state with `BELLJAR_HOME`")
}

impl Prepared {
    /// Where the daemon has to listen before the container starts.
    #[must_use]
    pub fn bridge_dir(&self) -> &Path {
        &self.spec.bridge_dir
    }

    #[must_use]
    pub fn image(&self) -> &ImageFact {
        &self.spec.image
    }

    /// Creates and starts the container. Dropping the sandbox removes it again.
    pub async fn start(self) -> Result<Sandbox, Problem> {
        let name = spec::container_name(&self.spec.sandbox);
        let launcher = Arc::clone(&self.launcher);
        let engine = &launcher.engine;
        // The guard comes first: a create whose answer is lost still leaves a container.
        let mut sandbox = Sandbox {
            container: name.clone(),
            removed: AtomicBool::new(false),
            attested: AtomicBool::new(false),
            inspected: ContainerInspectResponse::default(),
            cgroup: None,
            spec: self.spec,
            folder: self.folder,
            _claim: self.claim,
            launcher: self.launcher,
        };
        let started = async {
            engine.create(&name, spec::session_container(&sandbox.spec)).await?;
            engine.start(&name).await?;
            engine.inspect(&name).await
        };
        sandbox.inspected = started.await.map_err(|error| error.problem())?;
        sandbox.cgroup = attest::container_pid(&sandbox.inspected).and_then(Cgroup::of_process);
        Ok(sandbox)
    }
}

/// A container that was started. It is removed when this is dropped, at the latest by the reaper,
/// unless the daemon ends and leaves it to the next one.
pub struct Sandbox {
    container: String,
    removed: AtomicBool,
    /// It has a receipt, by which the next daemon knows it.
    attested: AtomicBool,
    inspected: ContainerInspectResponse,
    cgroup: Option<Cgroup>,
    spec: SandboxSpec,
    folder: Folder,
    _claim: Claim,
    launcher: Arc<Launcher>,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxEnd {
    pub running: bool,
    pub exit_code: Option<i64>,
    pub out_of_memory: bool,
}

impl Sandbox {
    /// The host's pid of the guardian.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        attest::container_pid(&self.inspected)
    }

    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.spec.sandbox
    }

    /// Reads back what the sandbox is; an error names every difference.
    pub fn attest(&self, python: String, probe: Probe) -> Result<Receipt, Problem> {
        let evidence = attest::gather(&self.spec, &self.inspected).ok_or_else(|| {
            Problem::new(
                Code::PolicyViolation,
                "the isolation of the sandbox cannot be read back from the host",
            )
            .hint("the daemon has to run on the host of the engine and see its `/proc`")
        })?;
        let differences = attest::differences(&self.spec, &self.inspected, &evidence, &probe);
        if !differences.is_empty() {
            return Err(Problem::new(
                Code::PolicyViolation,
                format!("the sandbox is not as isolated as it has to be: {}", differences.join("; ")),
            )
            .hint("no code ran in it; look at the engine's version and settings"));
        }
        self.attested.store(true, Ordering::Relaxed);
        Ok(attest::receipt(&self.spec, &self.inspected, evidence, python, probe))
    }

    /// The same as when it was made, read back again? Settings may have changed since, so it is held
    /// against its own receipt and not against today's wishes.
    pub fn attest_again(&self, before: &Receipt, python: String, probe: Probe) -> Result<(), Problem> {
        let now = attest::gather(&self.spec, &self.inspected)
            .map(|evidence| attest::receipt(&self.spec, &self.inspected, evidence, python, probe));
        if now.as_ref() == Some(before) {
            return Ok(());
        }
        Err(Problem::new(Code::PolicyViolation, "the sandbox is no longer isolated as its receipt says"))
    }

    /// Where the daemon has to listen for its kernel.
    #[must_use]
    pub fn bridge_dir(&self) -> &Path {
        &self.spec.bridge_dir
    }

    pub async fn freeze(&self) -> Result<(), EngineError> {
        self.launcher.engine.pause(&self.container).await
    }

    /// One that is not frozen is a success.
    pub async fn thaw(&self) -> Result<(), EngineError> {
        match self.launcher.engine.unpause(&self.container).await {
            Err(EngineError::Refused { message, .. }) if message.contains("not paused") => Ok(()),
            other => other,
        }
    }

    /// Whether its processes are stopped, by whomever. Where it cannot be told they are not.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.cgroup.as_ref().and_then(Cgroup::is_frozen).unwrap_or(false)
    }

    /// A folder of the daemon's own that goes with the sandbox.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// Leaves the container running for the next daemon.
    pub fn leave(&self) {
        self.removed.store(true, Ordering::Relaxed);
        self.folder.left.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.cgroup.as_ref().map(Cgroup::counters).unwrap_or_default()
    }

    /// Asks the engine what became of it.
    pub async fn end(&self) -> Option<SandboxEnd> {
        match self.launcher.engine.inspect(&self.container).await {
            Ok(found) => {
                let state = found.state.unwrap_or_default();
                Some(SandboxEnd {
                    running: state.running.unwrap_or(false),
                    exit_code: state.exit_code,
                    out_of_memory: state.oom_killed.unwrap_or(false),
                })
            }
            Err(error) => {
                tracing::warn!(%error, container = self.container, "the end of a sandbox cannot be read");
                None
            }
        }
    }

    /// Kills and removes the container, and tells when it is gone.
    pub async fn remove(&self) -> Result<(), EngineError> {
        let outcome = self.launcher.engine.remove(&self.container).await;
        self.removed.store(outcome.is_ok(), Ordering::Relaxed);
        outcome
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.removed.load(Ordering::Relaxed) {
            return;
        }
        if self.attested.load(Ordering::Relaxed) && self.launcher.leaving.load(Ordering::Relaxed) {
            self.leave();
            return;
        }
        let (launcher, container) = (Arc::clone(&self.launcher), self.container.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = launcher.engine.remove(&container).await {
                    tracing::warn!(%error, container, "left to the reaper");
                }
            });
        }
    }
}
