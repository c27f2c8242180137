//! Makes a running sandbox from a request: prepares its folders and starts it, or takes over one that runs.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

use crate::config::{LiveSettings, Paths, Settings};
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact, Receipt};
use crate::quota::Ledger;
use crate::sandbox::backend::docker::Docker;
use crate::sandbox::backend::jail::{Isolation, Jails};
use crate::sandbox::backend::{Progress, SandboxBackend};
use crate::sandbox::built_images::BuiltImages;
use crate::sandbox::claims::{Claim, Claims};
use crate::sandbox::etc;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::health_checks::HealthChecks;
use crate::sandbox::host_memory;
use crate::sandbox::left_sandboxes::{LeftSandboxes, note_user};
use crate::sandbox::packages::cache::PackageCache;
use crate::sandbox::packages::charges::UnreadSession;
use crate::sandbox::packages::sandbox_packages;
use crate::sandbox::slots::UserSlots;
use crate::sandbox::spec::{self, Limits, SandboxSpec, SpecMount, hardware};
use crate::sandbox::uid_accounts::UidAccounts;
use crate::sandbox::volumes::{VolumeHold, Volumes};
use crate::sandbox::workspace::own_user::MountedFolder;
use crate::sandbox::workspace::{Service, Workspace};

pub use crate::sandbox::backend::{ConnectError, SandboxEnd};
pub use crate::sandbox::images::WantedImage;
pub use crate::sandbox::running::{CpuLimitLifted, Sandbox};
pub use crate::sandbox::slots::UserSlot;
pub use crate::sandbox::spec::SandboxRequest;

/// Makes sandboxes. The daemon has one launcher.
pub struct Launcher {
    pub docker: Docker,
    jails: Jails,
    processes: Box<dyn SandboxBackend>,
    pub service: Service,
    /// The settings with which the daemon was started.
    pub settings: Arc<Settings>,
    /// The same, but for what has changed since then and can change.
    pub live: LiveSettings,
    pub paths: Paths,
    pub instance: String,
    pub slots: Arc<UserSlots>,
    /// The accounts whose sessions and jobs are here.
    pub accounts: UidAccounts,
    /// The images that users have built.
    pub built_images: BuiltImages,
    pub volumes: Volumes,
    claims: Arc<Claims>,
    /// Packages that were installed for sessions.
    pub packages: PackageCache,
    pub(super) health_checks: HealthChecks,
    /// Compiled kernels by image id.
    pub(super) kernels: Mutex<HashMap<String, PathBuf>>,
    /// Held while a kernel is compiled, because one user id compiles them all.
    pub(super) compiling: tokio::sync::Mutex<()>,
    /// The sandboxes that could not be removed.
    pub(super) left_sandboxes: Arc<LeftSandboxes>,
}

/// A sandbox that does not run yet. Its folders exist.
pub struct Prepared {
    spec: SandboxSpec,
    /// The reason why this backend was chosen.
    why: String,
    folder: Folder,
    /// Lets go of the volumes if the sandbox is never started.
    hold: VolumeHold,
    claim: Claim,
    /// The guest's user id, which the sandbox keeps until it is gone, whatever becomes of its session.
    slot: Option<UserSlot>,
    launcher: Arc<Launcher>,
}

impl Launcher {
    pub fn new(service: Service, settings: Arc<Settings>, paths: Paths, instance: String) -> Self {
        let claims = Arc::<Claims>::default();
        let jails = |walls| {
            let (settings, claims) = (Arc::clone(&settings), Arc::clone(&claims));
            Jails::new(walls, service, settings, paths.clone(), instance.clone(), claims)
        };
        let built_images = BuiltImages::load(paths.home().join("images.json"));
        let (sandboxes, images) = (paths.sandboxes_dir(), built_images.clone());
        Self {
            docker: Docker::new(Arc::clone(&settings), instance.clone(), sandboxes, images),
            jails: jails(Isolation::Bubblewrap),
            processes: Box::new(jails(Isolation::None)),
            slots: Arc::new(UserSlots::new(&settings.sandbox)),
            accounts: UidAccounts::load(paths.home().join("accounts")),
            built_images,
            volumes: Volumes::new(paths.volumes_dir(), service),
            packages: PackageCache::new(paths.packages_dir(), &settings.packages, service.principal()),
            service,
            live: LiveSettings::new(Arc::clone(&settings)),
            settings,
            paths,
            instance,
            claims,
            health_checks: HealthChecks::default(),
            kernels: Mutex::default(),
            compiling: tokio::sync::Mutex::default(),
            left_sandboxes: Arc::default(),
        }
    }

    /// Replaces the backend for plain processes, which a test names without having to run any.
    #[cfg(test)]
    #[must_use]
    pub fn with_processes(self, processes: impl SandboxBackend + 'static) -> Self {
        Self { processes: Box::new(processes), ..self }
    }

    /// The backend that makes sandboxes of a kind.
    pub fn backend(&self, kind: Backend) -> &dyn SandboxBackend {
        match kind {
            Backend::Docker | Backend::Auto => &self.docker,
            Backend::Bubblewrap => &self.jails,
            Backend::Process => &*self.processes,
        }
    }

    /// Finds the volumes of earlier daemons, and holds those of the sandboxes that they left.
    pub fn load_volumes(&self, ledger: &Ledger) {
        let most = self.settings.sandbox.workspace_bytes;
        self.volumes.load(ledger, most, &self.paths.sandboxes_dir());
    }

    /// Keeps the user ids of sandboxes that nobody holds from new ones, each until its sandbox is gone: of those that earlier
    /// daemons left, and of one whose session cannot go on.
    pub fn keep_left_user_ids(&self) {
        self.left_sandboxes.load(&self.paths.sandboxes_dir(), &self.slots);
    }

    /// Keeps what a sandbox has that could not be taken over, and may run, until the reaper has seen that it is gone.
    pub fn keep_until_reaped(&self, receipt: &Receipt, has: impl Send + 'static) {
        self.left_sandboxes.add(receipt.backend, receipt.sandbox.clone(), has);
    }

    /// Removes every sandbox of this daemon's home that no session owns. Returns how many, and those that are still there.
    pub async fn reap(&self) -> (usize, BTreeSet<SandboxId>) {
        let is_live = |sandbox: &str| self.is_live(sandbox);
        let (mut count, mut all_left) = (0, BTreeSet::new());
        for kind in [Backend::Bubblewrap, Backend::Process, Backend::Docker] {
            let unowned = self.volumes.holders(kind).into_iter().filter(|sandbox| !is_live(&sandbox.0));
            let unowned: Vec<_> = unowned.collect();
            let left_before = self.left_sandboxes.of(kind);
            let reaped = self.backend(kind).reap(&is_live).await;
            count += reaped.count;
            // A sandbox that could not be removed keeps its own volumes only, not those of other users.
            if let Some(left) = reaped.left {
                for sandbox in unowned.iter().filter(|sandbox| !left.contains(sandbox)) {
                    self.volumes.let_go(sandbox);
                }
                self.left_sandboxes.are_gone(&left_before, &left);
                all_left.extend(left);
            }
        }
        (count, all_left)
    }

    /// Charges all users for packages that an earlier daemon kept for them, in caches and in images. Until the answer is
    /// dropped, none of them is removed, because a session that is not known yet may use it.
    pub fn charge_kept_packages(&self, ledger: &Ledger) -> UnreadSession {
        let unread = self.packages.unread_session(None);
        self.packages.charge_all(ledger);
        self.built_images.charge_all(ledger);
        unread
    }

    /// Whether a sandbox may still be there that nobody holds.
    pub fn is_left(&self, sandbox: &str) -> bool {
        self.left_sandboxes.has(sandbox)
    }

    /// Whether a session or a launch owns the sandbox, so that the reaper must not remove it.
    pub fn is_live(&self, sandbox: &str) -> bool {
        self.claims.is_live(sandbox)
    }

    /// Waits until this process holds and makes no sandbox. A sandbox whose session ended during the launch is removed
    /// when the launch is over.
    pub async fn all_let_go(&self) {
        self.claims.all_let_go().await;
    }

    /// Keeps the reaper from a sandbox until the claim is dropped.
    pub(super) fn claim(&self, sandbox: &SandboxId) -> Claim {
        self.claims.claim(sandbox)
    }

    /// Records that the sandbox belongs to a session by its journal, so that the reaper keeps it even while this
    /// process does not hold it.
    pub fn expect(&self, sandbox: &SandboxId) {
        self.claims.expect(sandbox);
    }

    /// Records that the sandbox belongs to no session any more.
    pub fn forgo(&self, sandbox: &SandboxId) {
        self.claims.forgo(sandbox);
    }

    /// Whether the machine has the memory for one more sandbox.
    pub fn check_memory(&self) -> Result<(), Problem> {
        host_memory::check(self.settings.sandbox.memory_reserve_bytes)
    }

    /// Picks the image and makes the folders and the compiled kernel on the host.
    pub async fn prepare(
        self: &Arc<Self>,
        wanted: &SandboxRequest,
        workspace: &Workspace,
        progress: Progress<'_>,
    ) -> Result<Prepared, Problem> {
        // The claim comes before the first await: from here on the end of the daemon waits for this launch.
        let sandbox = SandboxId::fresh();
        let claim = self.claims.claim(&sandbox);
        workspace.check_account().await?;
        self.check_memory()?;
        self.permits(workspace.choice.backend)?;
        let image = self.backend(workspace.choice.backend).resolve_image(wanted, progress).await?;
        let folder = self.paths.sandboxes_dir().join(&sandbox.0);
        let storage = |error: std::io::Error| {
            Problem::new(Code::Storage, format!("`{}` cannot be made: {error}", folder.display()))
        };
        let bridge_dir = spec::bridge_dir(&folder);
        // The folder around them is not made anew: without it, the home of the daemon is gone.
        std::fs::create_dir(&folder).map_err(storage)?;
        let guard = Folder::of(folder.clone());
        std::fs::create_dir(&bridge_dir).map_err(storage)?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).map_err(storage)?;
        // The guest can pass through this folder to the socket, but cannot list it.
        std::fs::set_permissions(&bridge_dir, std::fs::Permissions::from_mode(0o711)).map_err(storage)?;
        sandbox_packages::prepare(&spec::packages_dir(&folder)).map_err(storage)?;
        let mut spec = self.spec(&sandbox, wanted, workspace, image).map_err(storage)?;
        spec.user = workspace.guest_now().await?;
        spec.kernel_dir = self.kernel_for(&spec).await?;
        let why = workspace.choice.why.clone();
        // No request may remove the volumes between this and the start.
        let hold = self.volumes.hold_for_start(&sandbox, &folder, workspace).map_err(storage)?;
        let slot = self.slot_of(workspace);
        if let Some(slot) = &slot {
            note_user(&guard.path, workspace.choice.backend, slot).map_err(storage)?;
        }
        Ok(Prepared { spec, why, folder: guard, hold, claim, slot, launcher: Arc::clone(self) })
    }

    fn slot_of(&self, workspace: &Workspace) -> Option<UserSlot> {
        workspace.slot.map(|uid| self.slots.keep(uid))
    }

    fn spec(
        &self,
        sandbox: &SandboxId,
        wanted: &SandboxRequest,
        workspace: &Workspace,
        image: ImageFact,
    ) -> std::io::Result<SandboxSpec> {
        let settings = &self.settings.sandbox;
        let folder = self.paths.sandboxes_dir().join(&sandbox.0);
        Ok(SandboxSpec {
            sandbox: sandbox.clone(),
            backend: workspace.choice.backend,
            instance: self.instance.clone(),
            image,
            runtime: settings.runtime.clone(),
            user: workspace.user,
            limits: Limits::new(settings, wanted),
            workspace: workspace.path.clone(),
            workspace_identity: workspace.identity()?,
            bridge_dir: spec::bridge_dir(&folder),
            kernel_dir: PathBuf::new(),
            packages_dir: spec::packages_dir(&folder),
            etc_dir: etc::folder_in(&folder),
            hidden: hardware::hidden(),
            env: wanted.env.clone(),
            mounts: workspace.mounts.iter().map(spec_mount).collect::<Result<_, _>>()?,
        })
    }

    /// Takes over a sandbox that an earlier daemon left running; `None` if it is gone. A frozen sandbox is thawed,
    /// because its kernel has to answer.
    pub async fn adopt(
        self: &Arc<Self>,
        receipt: &Receipt,
        wanted: &SandboxRequest,
        workspace: &Workspace,
    ) -> Result<Option<Sandbox>, Problem> {
        let path = self.paths.sandboxes_dir().join(&receipt.sandbox.0);
        let backend_sandbox = self.backend(receipt.backend).adopt(receipt, &path).await?;
        // From here on the folder is removed together with the sandbox.
        let claim = self.claims.claim(&receipt.sandbox);
        let folder = Folder::of(path);
        let Some(backend_sandbox) = backend_sandbox else {
            self.volumes.let_go(&receipt.sandbox);
            return Ok(None);
        };
        let mut spec = match self.spec(&receipt.sandbox, wanted, workspace, receipt.image.clone()) {
            Ok(spec) => spec,
            Err(error) => {
                folder.left.store(true, Ordering::Relaxed);
                return Err(storage_problem(&workspace.path, &error));
            }
        };
        (spec.backend, spec.limits.cpus) = (receipt.backend, receipt.limits.cpus);
        // The settings may name another backend by now, whose reaper would not find the sandbox.
        let held = self.volumes.hold(&receipt.sandbox, receipt.backend, &folder.path, workspace);
        if let Err(error) = held {
            // This daemon holds them all the same, and the next one does so by the journal of the session.
            tracing::warn!(%error, sandbox = receipt.sandbox.0, "the volumes of a sandbox cannot be noted");
        }
        let left = (self.volumes.clone(), Arc::clone(&self.left_sandboxes));
        let sandbox = Sandbox::new(backend_sandbox, spec, String::new(), folder, claim, left);
        sandbox.is_of_session();
        sandbox.keep_until_gone(self.slot_of(workspace));
        sandbox.limit_cpus_again();
        Ok(Some(sandbox))
    }
}

fn spec_mount(mount: &MountedFolder) -> std::io::Result<SpecMount> {
    Ok(SpecMount {
        source: mount.folder.path.clone(),
        target: mount.target.clone(),
        writable: mount.writable,
        identity: mount.folder.identity()?,
    })
}

impl Prepared {
    /// Starts the sandbox, which keeps its user id and what else it `has` until it is gone. Where this future is dropped, the
    /// start goes on to its end, because the sandbox may come to be nevertheless, and is removed then.
    pub async fn start(self, has: impl Send + 'static) -> Result<Sandbox, Problem> {
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let started = Box::pin(self.start_to_the_end(has)).await;
            if let Err(Ok(unwanted)) = answer.send(started) {
                unwanted.undo().await;
            }
        });
        let panicked = |_| Problem::new(Code::Internal, "an internal error ended the start of a sandbox");
        answered.await.map_err(panicked)?
    }

    async fn start_to_the_end(self, has: impl Send + 'static) -> Result<Sandbox, Problem> {
        let (volumes, sandbox) = (self.launcher.volumes.clone(), self.spec.sandbox.clone());
        // From here on the sandbox may come to be, and has its volumes, its folder and the rest until it is known to be gone.
        self.hold.leave();
        self.folder.left.store(true, Ordering::Relaxed);
        let left = Arc::clone(&self.launcher.left_sandboxes);
        let mut begun = BegunStart { has: Some((self.slot, has)), backend: self.spec.backend, sandbox, left };
        let backend = self.launcher.backend(self.spec.backend);
        let backend_sandbox = match backend.start(&self.spec, &self.folder.path).await {
            Ok(backend_sandbox) => backend_sandbox,
            Err(error) => {
                if !error.is_left {
                    self.folder.left.store(false, Ordering::Relaxed);
                    volumes.let_go(&self.spec.sandbox);
                    drop(begun.has.take());
                }
                return Err(error.problem);
            }
        };
        self.folder.left.store(false, Ordering::Relaxed);
        let left = (volumes, Arc::clone(&begun.left));
        let sandbox = Sandbox::new(backend_sandbox, self.spec, self.why, self.folder, self.claim, left);
        sandbox.keep_until_gone(begun.has.take());
        Ok(sandbox)
    }
}

/// What a sandbox has whose start has begun. Unless it is taken out, also where a panic ends the start, the sandbox keeps it
/// until the reaper has seen that it is gone.
struct BegunStart<T: Send + 'static> {
    has: Option<T>,
    backend: Backend,
    sandbox: SandboxId,
    left: Arc<LeftSandboxes>,
}

impl<T: Send + 'static> Drop for BegunStart<T> {
    fn drop(&mut self) {
        if let Some(has) = self.has.take() {
            self.left.add(self.backend, self.sandbox.clone(), has);
        }
    }
}
