//! From a request to a running sandbox: prepare folders, start, or take over what runs. The bridge
//! comes in between and is not known here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::docker::Container;
use super::engine::{Engine, EngineError, EngineMode, engine_mode};
use super::held::Held;
use super::jail::{self, Jail, Tools, Walls};
use super::spec::{GuestUser, Limits, SandboxSpec};
use super::workspace::{Service, Workspace};
use super::{hardware, images};
use crate::config::{Paths, Settings};
use crate::controls;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact, Receipt};

pub use super::held::{Sandbox, SandboxEnd};

/// Time between two looks whether all sandboxes are let go.
const LET_GO_POLL: Duration = Duration::from_millis(20);

/// Makes sandboxes; one for the whole daemon.
pub struct Launcher {
    pub engine: Engine,
    pub service: Service,
    pub settings: Arc<Settings>,
    pub paths: Paths,
    pub instance: String,
    /// Sandboxes that something of this process holds.
    live: Mutex<BTreeSet<SandboxId>>,
    /// Sandboxes that are a session's by its journal, whether anything holds them at the moment or not.
    expected: Mutex<BTreeSet<SandboxId>>,
    /// User ids in use, and by how many lives of a session: one begins before the other is quite over.
    slots: Mutex<BTreeMap<u32, usize>>,
    /// Compiled kernels by image id; also the lock that lets only one compile.
    pub(super) kernels: tokio::sync::Mutex<HashMap<String, PathBuf>>,
    /// For jails; looked for when one is first wanted, and again until one can be built.
    pub(super) tools: tokio::sync::OnceCell<Tools>,
    /// Guest user ids as the engine maps them; asked once.
    mode: tokio::sync::OnceCell<EngineMode>,
}

/// What a session wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub image: Option<String>,
    /// What the first container of the session was made from; the later ones are too.
    pub first_image: Option<ImageFact>,
    pub memory_bytes: u64,
    pub cpus: f64,
    pub pids: u64,
    /// Checkpoints of its state; 0 for none.
    pub checkpoints: u64,
}

/// A sandbox that does not run yet; its bridge folder is there to be listened in.
pub struct Prepared {
    spec: SandboxSpec,
    /// Why this backend.
    why: String,
    folder: Folder,
    claim: Claim,
    launcher: Arc<Launcher>,
}

/// Host folder of one sandbox, removed with it.
pub(super) struct Folder {
    pub path: PathBuf,
    pub left: AtomicBool,
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
pub(super) struct Claim {
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
        let mut slots = lock(&self.launcher.slots);
        match slots.get_mut(&self.uid) {
            Some(users) if *users > 1 => *users -= 1,
            _ => drop(slots.remove(&self.uid)),
        }
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
            expected: Mutex::default(),
            slots: Mutex::default(),
            kernels: tokio::sync::Mutex::default(),
            tools: tokio::sync::OnceCell::new(),
            mode: tokio::sync::OnceCell::new(),
        }
    }

    /// Whether it is somebody's: the reaper leaves it alone.
    #[must_use]
    pub fn is_live(&self, sandbox: &str) -> bool {
        let sandbox = SandboxId(sandbox.to_owned());
        lock(&self.live).contains(&sandbox) || lock(&self.expected).contains(&sandbox)
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

    /// How user ids of guests are mapped by a backend. Only an engine may do that.
    pub async fn guest_mode(&self, backend: Backend) -> Result<EngineMode, Problem> {
        match backend {
            Backend::Docker | Backend::Auto => self.engine_mode().await,
            Backend::Bubblewrap | Backend::Process => Ok(EngineMode::Rootful),
        }
    }

    /// It is a session's by its journal: also while nothing holds it, the reaper leaves it alone.
    pub fn expect(&self, sandbox: &SandboxId) {
        lock(&self.expected).insert(sandbox.clone());
    }

    /// It is nobody's any more.
    pub fn forgo(&self, sandbox: &SandboxId) {
        lock(&self.expected).remove(sandbox);
    }

    /// The user id that a session had before the daemon was started anew.
    pub fn keep_slot(self: &Arc<Self>, uid: u32) -> UserSlot {
        *lock(&self.slots).entry(uid).or_default() += 1;
        UserSlot { launcher: Arc::clone(self), uid }
    }

    /// A user id that no other session has.
    pub fn take_slot(self: &Arc<Self>) -> Result<UserSlot, Problem> {
        let sandbox = &self.settings.sandbox;
        let mut slots = lock(&self.slots);
        let free = (sandbox.uid_first..self.last_slot()).find(|uid| !slots.contains_key(uid));
        let uid = free.ok_or_else(|| {
            Problem::new(Code::TooMany, "all user ids for guests are in use")
                .hint("raise `sandbox.uid_count`")
        })?;
        slots.insert(uid, 1);
        Ok(UserSlot { launcher: Arc::clone(self), uid })
    }

    /// The last user id of the range; no session gets it.
    fn last_slot(&self) -> u32 {
        let sandbox = &self.settings.sandbox;
        sandbox.uid_first.saturating_add(sandbox.uid_count).saturating_sub(1)
    }

    /// The user id that compiles kernels, unless a session has it from before it was kept for that.
    pub(super) fn compiling_slot(&self) -> Result<u32, Problem> {
        let uid = self.last_slot();
        if lock(&self.slots).contains_key(&uid) {
            return Err(Problem::new(
                Code::TooMany,
                format!("user id {uid}, which compiles kernels, is in use"),
            )
            .hint("remove sessions, or raise `sandbox.uid_count`"));
        }
        Ok(uid)
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
        let image = match workspace.choice.backend {
            Backend::Bubblewrap => self.jail_image(wanted.image.as_deref())?,
            Backend::Process => self.jail_image(None)?,
            Backend::Docker | Backend::Auto => match &wanted.first_image {
                Some(first) if controls::holds("image_is_pinned") => {
                    images::again(&self.engine, first).await?
                }
                _ => {
                    let requested = wanted.image.as_deref().or(settings.image.as_deref());
                    images::resolve(&self.engine, requested, &settings.images, settings.pull, progress)
                        .await?
                }
            },
        };
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
        spec.kernel_dir = self.kernel_for(&spec, &folder).await?;
        let why = workspace.choice.why.clone();
        Ok(Prepared { spec, why, folder: guard, claim, launcher: Arc::clone(self) })
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
            backend: workspace.choice.backend,
            instance: self.instance.clone(),
            image,
            runtime: settings.runtime.clone(),
            user: workspace.user,
            limits: self.limits(wanted),
            workspace: workspace.path.clone(),
            workspace_identity: workspace.identity()?,
            bridge_dir: self.bridge_dir(sandbox),
            kernel_dir: PathBuf::new(),
            hidden: hardware::hidden(),
        })
    }

    fn limits(&self, wanted: &Wanted) -> Limits {
        let settings = &self.settings.sandbox;
        Limits {
            // Checkpoints share pages with the worker until one of them writes.
            memory_bytes: wanted.memory_bytes.saturating_add(match wanted.checkpoints {
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
        }
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
        let path = self.paths.sandboxes_dir().join(&receipt.sandbox.0);
        let held = if Walls::of(receipt.backend).is_none() {
            let container = Container::adopt(&self.engine, receipt).await?;
            container.map(|container| Held::Container(Box::new(container)))
        } else {
            let jail = Jail::adopt(receipt, &path, self.service.system);
            match &jail {
                Some(jail) => jail.thaw()?,
                // Its control group outlives it.
                None => drop(jail::reap(&receipt.sandbox, &path).await?),
            }
            jail.map(|jail| Held::Jail(Box::new(jail)))
        };
        // From here on its folder goes when it does.
        lock(&self.live).insert(receipt.sandbox.clone());
        let claim = Claim { launcher: Arc::clone(self), sandbox: receipt.sandbox.clone() };
        let folder = Folder::of(path);
        let Some(held) = held else { return Ok(None) };
        let mut spec = match self.spec(&receipt.sandbox, wanted, workspace, receipt.image.clone()) {
            Ok(spec) => spec,
            Err(error) => {
                folder.left.store(true, Ordering::Relaxed);
                return Err(storage_problem(&workspace.path, &error));
            }
        };
        spec.backend = receipt.backend;
        Ok(Some(Sandbox::new(held, spec, folder, claim, Arc::clone(self))))
    }

    /// Builds a jail that does nothing.
    pub(super) async fn try_out(&self, tools: &Tools) -> Result<(), Problem> {
        let sandbox = SandboxId::fresh();
        let path = self.paths.sandboxes_dir().join(&sandbox.0);
        lock(&self.live).insert(sandbox.clone());
        std::fs::create_dir_all(&path).map_err(|error| storage_problem(&path, &error))?;
        let folder = Folder::of(path);
        let settings = &self.settings.sandbox;
        let uid = if self.service.system { settings.uid_first } else { self.service.uid };
        let gid = if self.service.system { settings.uid_first } else { self.service.gid };
        let spec = SandboxSpec {
            sandbox: sandbox.clone(),
            backend: Backend::Bubblewrap,
            instance: self.instance.clone(),
            image: self.jail_image(None)?,
            runtime: None,
            user: GuestUser { uid, gid, host_uid: uid, host_gid: gid },
            limits: self.limits(&Wanted {
                image: None,
                first_image: None,
                memory_bytes: settings.memory_bytes,
                cpus: settings.cpus,
                pids: settings.pids,
                checkpoints: settings.checkpoints,
            }),
            workspace: PathBuf::new(),
            workspace_identity: (0, 0),
            bridge_dir: PathBuf::new(),
            kernel_dir: folder.path.clone(),
            hidden: hardware::hidden(),
        };
        let outcome = jail::try_out(tools, &spec, &folder.path).await;
        lock(&self.live).remove(&sandbox);
        outcome
    }
}

pub(super) fn storage_problem(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("`{}` cannot be written: {error}", path.display()))
        .hint("free some space, or move the state with `BELLJAR_HOME`")
}

impl Prepared {
    /// Where the daemon has to listen before the sandbox starts.
    #[must_use]
    pub fn bridge_dir(&self) -> &Path {
        &self.spec.bridge_dir
    }

    /// Starts it.
    pub async fn start(self) -> Result<Sandbox, Problem> {
        let launcher = self.launcher;
        let held = match Walls::of(self.spec.backend) {
            None => Held::Container(Box::new(Container::named(&self.spec))),
            Some(walls) => {
                let tools = match walls {
                    Walls::Bubblewrap => Some(launcher.jails().await?),
                    Walls::None => None,
                };
                Held::Jail(Box::new(jail::start(tools, &self.spec, &self.folder.path).await?))
            }
        };
        let mut sandbox = Sandbox::new(held, self.spec, self.folder, self.claim, Arc::clone(&launcher));
        sandbox.why = self.why;
        if let Err(problem) = sandbox.start_container(&launcher.engine).await {
            // A create whose answer is lost still leaves a container.
            sandbox.undo().await;
            return Err(problem);
        }
        Ok(sandbox)
    }
}
