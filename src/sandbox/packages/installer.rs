//! Installs packages: in the cache if they are there, else by a throw-away sandbox that sees no workspace, no bridge and
//! no files of other users, and reaches nothing but the package index.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::cache::{Answer, Draft, UserCache};
use super::index::{AUTHORITIES_BYTES, Index};
use super::relay::{Relay, SOCKET_NAME, Trouble};
use super::tree::{self, Bounds};
use crate::packages::requirement::{NameRules, Requirement, not_permitted};
use crate::packages::resolved::{FailureKind, Outcome, REPORT_BYTES, Report, request_key, set_key};
use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::packages::{PackageSet, PackageVersion, ReplacedPackage};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::{Backend, ImageFact};
use crate::quota::{Amounts, Ledger};
use crate::sandbox::backend::Progress;
use crate::sandbox::etc;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::launch::Launcher;
use crate::sandbox::spec::{Errand, ErrandMount, KERNEL_DIR, Limits, SandboxRequest, SandboxSpec, hardware};
use crate::sandbox::workspace::{disk, guest};
use crate::security_controls;

const TASK_DIR: &str = "/belljar/task";
const OUTPUT_DIR: &str = "/belljar/output";
const RELAY_DIR: &str = "/belljar/relay";
/// Time between two looks at what an installer has written.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time without a byte of the index.
const IDLE_S: u64 = 60;
/// Largest `uv`.
const UV_BYTES: u64 = 256 * 1024 * 1024;
/// What an installation holds in its user's quota.
const HOLD: &str = "packages that are being installed";

/// A request for packages, in the sandbox of a session.
pub struct WantedPackages {
    pub owner: Principal,
    pub backend: Backend,
    pub image: ImageFact,
    /// What the session has already.
    pub existing: Option<PackageSet>,
    /// What is wanted in addition.
    pub requirements: Vec<Requirement>,
    /// Whether versions that are there may give way to others.
    pub replace: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Installed {
    /// All packages of the session; none if the image has everything.
    pub set: Option<PackageSet>,
    pub in_image: Vec<PackageVersion>,
    pub replaced: Vec<ReplacedPackage>,
    /// Whether nothing had to be downloaded.
    pub cached: bool,
}

impl WantedPackages {
    /// All requirements of the session after this request, as text.
    fn all(&self) -> BTreeSet<String> {
        let named: BTreeSet<&str> = self.requirements.iter().map(|wanted| wanted.name.as_str()).collect();
        let before = self.existing.iter().flat_map(|set| &set.requirements);
        // Where versions may give way, the newer requirement of a package stands alone.
        let is_kept = |text: &&String| {
            !self.replace || !Requirement::parse(text).is_ok_and(|old| named.contains(old.name.as_str()))
        };
        let wanted = self.requirements.iter().map(ToString::to_string);
        before.filter(is_kept).cloned().chain(wanted).collect()
    }

    /// Versions of the session and of its image that would change with an answer.
    fn changed_by(&self, answer: &Answer) -> Vec<ReplacedPackage> {
        let packages = self.existing.iter().flat_map(|set| &set.packages);
        let changed = packages.filter_map(|has| {
            let wants = answer.packages.iter().find(|package| package.name == has.name)?;
            (wants.version != has.version).then(|| ReplacedPackage {
                name: has.name.clone(),
                has: has.version.clone(),
                wants: wants.version.clone(),
            })
        });
        // The installer names those of the session, too.
        let all = changed.chain(answer.replaced.iter().cloned());
        all.map(|one| (one.name.clone(), one)).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    fn installed(&self, answer: Answer, cached: bool) -> Result<Installed, Problem> {
        let replaced = self.changed_by(&answer);
        if !replaced.is_empty() && !self.replace {
            return Err(conflict(&replaced));
        }
        let Answer { key, packages, bytes, in_image, .. } = answer;
        let requirements = self.all().into_iter().collect();
        let set = key.map(|key| PackageSet { key, requirements, packages, bytes });
        Ok(Installed { set, in_image, replaced, cached })
    }
}

impl Launcher {
    /// Installs packages for a session. The files are in the cache of the session's owner afterwards.
    pub async fn install(
        self: &Arc<Self>,
        wanted: &WantedPackages,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<Installed, Problem> {
        if wanted.backend == Backend::Process {
            return Err(Problem::new(
                Code::BadRequest,
                "packages cannot be installed for the backend `process`",
            )
            .hint("install them on the host, or use `docker` or `bubblewrap`"));
        }
        // Not all that an installation takes is charged to its user, and a jail's installer has no control group.
        let is_own = wanted.owner == self.service.principal();
        if !is_own
            && !self.settings.packages.for_users
            && security_controls::holds("packages_are_for_the_daemons_user")
        {
            return Err(Problem::new(
                Code::Forbidden,
                "this daemon installs packages only for the user that it runs as",
            )
            .hint("use an image that has them, or ask its administrator, who can set `packages.for_users`"));
        }
        let failed = |error: std::io::Error| storage_problem(&self.paths.packages_dir(), &error);
        let cache = self.packages.of(wanted.owner).map_err(failed)?;
        let request = request_key(&wanted.image.id, &wanted.all());
        let turn = self.packages.turn(&cache);
        let _turn = turn.lock().await;
        let fits = |answer: &Answer| wanted.replace || wanted.changed_by(answer).is_empty();
        if let Some(answer) = cache.answer(&request).filter(fits) {
            return wanted.installed(answer, true);
        }
        let answer = self.run_installer(wanted, &cache, ledger, progress).await?;
        if answer.replaced.is_empty() || (wanted.existing.is_none() && wanted.replace) {
            cache.remember(&request, &answer).map_err(failed)?;
        }
        if let Some(key) = &answer.key {
            self.packages.make_room(&cache, key);
        }
        self.packages.charge(ledger, wanted.owner, &cache);
        wanted.installed(answer, false)
    }

    /// The folder with the files of a set; installed again if the cache has removed it since.
    pub async fn package_files(
        self: &Arc<Self>,
        owner: Principal,
        backend: Backend,
        image: &ImageFact,
        set: &PackageSet,
        ledger: &Ledger,
    ) -> Result<PathBuf, Problem> {
        let cache =
            self.packages.of(owner).map_err(|error| storage_problem(&self.paths.packages_dir(), &error))?;
        if let Some(files) = cache.files(&set.key) {
            return Ok(files);
        }
        let pinned = set.packages.iter().map(|package| format!("{}=={}", package.name, package.version));
        let requirements: Vec<Requirement> =
            pinned.filter_map(|text| Requirement::parse(&text).ok()).collect();
        let (image, existing) = (image.clone(), None);
        let wanted = WantedPackages { owner, backend, image, existing, requirements, replace: true };
        self.install(&wanted, ledger, &|_| {}).await?;
        cache.files(&set.key).ok_or_else(|| {
            Problem::new(Code::InstallFailed, "the packages of the session are not what they were")
                .hint("install them again")
        })
    }

    async fn run_installer(
        self: &Arc<Self>,
        wanted: &WantedPackages,
        cache: &UserCache,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<Answer, Problem> {
        let settings = &self.settings.packages;
        let index = Index::find(settings).await?;
        disk::check_at(self.paths.home(), self.settings.sandbox.disk_reserve_bytes)?;
        self.check_memory()?;
        // Charged before the first byte is written; what stays is charged to the cache afterwards.
        let room = Amounts::of([(Kind::Workspace, settings.unpacked_bytes)]);
        let _permit = ledger.take(wanted.owner, HOLD, room)?;
        let sandbox = SandboxId::fresh();
        let _claim = self.claim(&sandbox);
        let failed = |error: std::io::Error| storage_problem(&self.paths.packages_dir(), &error);
        let draft = cache.draft(&sandbox.0).map_err(failed)?;
        let stop = CancellationToken::new();
        let ends_with_this = stop.clone().drop_guard();
        let authorities = index.authorities.clone();
        let task = Task::make(&draft, wanted, &index, authorities.as_deref(), cache).map_err(failed)?;
        let relay =
            Relay::start(&task.relay, index, settings.download_bytes, stop.clone()).map_err(failed)?;
        let (spec, _slot, folder) = self.installer_spec(&sandbox, wanted, &task).await?;
        let errand = task.errand(&spec.kernel_dir, settings.timeout, stop.clone());
        let bounds = Bounds { bytes: settings.unpacked_bytes, files: settings.files };
        progress("resolving".to_owned());
        let watched = watch(&task.output, &relay, bounds, &stop, progress);
        let running = self.backend(wanted.backend).run_errand(&spec, &folder.path, &errand);
        tokio::pin!(running);
        let (outcome, mut too_much) = tokio::select! {
            outcome = &mut running => (outcome, None),
            // It has been told to stop, and takes its sandbox down.
            too_much = watched => (running.await, Some(too_much)),
        };
        if relay.trouble() == Some(Trouble::TooMuch) {
            too_much = Some(format!("more than {} bytes would be downloaded", settings.download_bytes));
        }
        drop(ends_with_this);
        if let Some(what) = too_much {
            return Err(Problem::new(Code::TooLarge, what).hint(
                "name fewer packages, or raise `packages.download`, `packages.unpacked` or `packages.files`",
            ));
        }
        outcome.map_err(|problem| {
            Problem::new(Code::InstallFailed, format!("the installer failed: {}", problem.message))
                .hint("look at `packages.timeout`, and at the daemon's log")
        })?;
        let (name_rules, trouble) = (settings.names.clone(), relay.trouble());
        drop(relay);
        let (image_id, target) = (wanted.image.id.clone(), draft.0.join("made"));
        let take = move || take(&task.output, &target, bounds, &image_id, &name_rules, trouble.as_ref());
        let taken = tokio::task::spawn_blocking(take).await;
        let taken = taken.map_err(|error| Problem::new(Code::Internal, error.to_string()))??;
        let uv = draft.0.join("uv");
        if uv.exists() {
            cache.keep_uv(&uv).map_err(failed)?;
        }
        if let Some(key) = &taken.key {
            cache.keep(&draft.0.join("made"), key, taken.bytes).map_err(failed)?;
        }
        Ok(taken)
    }

    /// The sandbox of an installer: that of a session, with a user id that no other sandbox and no account has.
    async fn installer_spec(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        wanted: &WantedPackages,
        task: &Task,
    ) -> Result<(SandboxSpec, Option<crate::sandbox::launch::UserSlot>, Folder), Problem> {
        let settings = &self.settings.sandbox;
        let mapping = self.backend(wanted.backend).user_mapping().await?;
        let slot = self.service.system.then(|| self.slots.take()).transpose()?;
        let user = guest(self.service, mapping, slot.as_ref().map_or(self.service.uid, |slot| slot.uid));
        let request = SandboxRequest {
            image: None,
            first_image: None,
            memory_bytes: settings.memory_bytes,
            cpus: settings.cpus,
            pids: settings.pids,
            checkpoints: 0,
            checkpoints_at_rest: false,
            env: Environment::new(),
        };
        let limits =
            Limits { file_bytes: self.settings.packages.unpacked_bytes, ..Limits::new(settings, &request) };
        let path = self.paths.sandboxes_dir().join(&sandbox.0);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| storage_problem(&path, &error))?;
        let folder = Folder::of(path);
        let mut spec = SandboxSpec {
            sandbox: sandbox.clone(),
            backend: wanted.backend,
            instance: self.instance.clone(),
            image: wanted.image.clone(),
            runtime: settings.runtime.clone(),
            user,
            limits,
            workspace: PathBuf::new(),
            workspace_identity: (0, 0),
            bridge_dir: PathBuf::new(),
            kernel_dir: PathBuf::new(),
            packages_dir: PathBuf::new(),
            etc_dir: etc::folder_in(&folder.path),
            hidden: hardware::hidden(),
            env: Environment::new(),
            mounts: Vec::new(),
        };
        spec.kernel_dir = self.kernel_for(&spec, &folder.path).await?;
        if self.service.system {
            std::os::unix::fs::chown(&task.output, Some(user.host_uid), Some(user.host_gid))
                .map_err(|error| storage_problem(&task.output, &error))?;
        }
        Ok((spec, slot, folder))
    }
}

/// The folders of one installation.
struct Task {
    /// What the installer is told; it cannot write there.
    told: PathBuf,
    output: PathBuf,
    relay: PathBuf,
}

impl Task {
    fn make(
        draft: &Draft,
        wanted: &WantedPackages,
        index: &Index,
        authorities: Option<&Path>,
        cache: &UserCache,
    ) -> std::io::Result<Self> {
        let folder = |name: &str, mode: u32| {
            let path = draft.0.join(name);
            std::fs::DirBuilder::new().mode(mode).create(&path)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
            Ok::<_, std::io::Error>(path)
        };
        let made = Self {
            told: folder("task", 0o755)?,
            output: folder("output", 0o700)?,
            relay: folder("relay", 0o711)?,
        };
        let pinned: Vec<PackageVersion> = wanted
            .existing
            .iter()
            .flat_map(|set| &set.packages)
            .map(|package| PackageVersion { name: package.name.clone(), version: package.version.clone() })
            .collect();
        let request = serde_json::json!({
            "requirements": wanted.all(),
            "pinned": pinned,
            "index": index.url,
            "replace": wanted.replace,
            "idle_s": IDLE_S,
        });
        made.tell("task.json", request.to_string().as_bytes(), 0o644)?;
        if let Some(authorities) = authorities {
            let is_small = std::fs::metadata(authorities)?.len() <= AUTHORITIES_BYTES;
            let text = if is_small { std::fs::read(authorities)? } else { Vec::new() };
            made.tell("ca.pem", &text, 0o644)?;
        }
        if let Ok(uv) = std::fs::read(cache.uv()) {
            made.tell("uv", &uv, 0o755)?;
        }
        Ok(made)
    }

    fn tell(&self, name: &str, content: &[u8], mode: u32) -> std::io::Result<()> {
        let path = self.told.join(name);
        std::fs::write(&path, content)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
    }

    fn errand(&self, kernel_dir: &Path, limit: Duration, stop: CancellationToken) -> Errand {
        let script = format!("{KERNEL_DIR}/install.py");
        let socket = format!("{RELAY_DIR}/{SOCKET_NAME}");
        let mount =
            |source: &Path, target, writable| ErrandMount { source: source.to_owned(), target, writable };
        Errand {
            command: ["python3", "-I", "-B", &script, TASK_DIR, OUTPUT_DIR, &socket]
                .map(str::to_owned)
                .into(),
            mounts: vec![
                mount(kernel_dir, KERNEL_DIR, false),
                mount(&self.told, TASK_DIR, false),
                mount(&self.relay, RELAY_DIR, false),
                mount(&self.output, OUTPUT_DIR, true),
            ],
            limit,
            stop,
        }
    }
}

/// Reports the progress, and returns when an installer has written more than it may.
async fn watch(
    output: &Path,
    relay: &Relay,
    bounds: Bounds,
    stop: &CancellationToken,
    progress: Progress<'_>,
) -> String {
    let mut told = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let passed = relay.passed();
        if passed > told {
            told = passed;
            progress(format!("{} KiB downloaded", passed / 1024));
        }
        let folder = output.to_owned();
        let measured = tokio::task::spawn_blocking(move || tree::measure(&folder, bounds)).await;
        let Ok(used) = measured else { continue };
        if used.bytes > bounds.bytes || used.files > bounds.files {
            stop.cancel();
            return format!("the packages take more than {} bytes or {} files", bounds.bytes, bounds.files);
        }
    }
}

/// Copies what the installer made to `target`, and the `uv` that it fetched beside that.
fn take(
    output: &Path,
    target: &Path,
    bounds: Bounds,
    image_id: &str,
    rules: &NameRules,
    trouble: Option<&Trouble>,
) -> Result<Answer, Problem> {
    let broken = |error: std::io::Error| {
        Problem::new(Code::InstallFailed, format!("what the installer made cannot be used: {error}"))
    };
    let text = tree::read_text(output, "report.json", REPORT_BYTES).map_err(broken)?;
    let report =
        Report::parse(&text).ok_or_else(|| broken(std::io::Error::other("its report cannot be read")))?;
    let (in_image, replaced) = match report.outcome {
        Outcome::Installed { in_image, replaced } => (in_image, replaced),
        Outcome::Failed { kind, words } => return Err(failure(kind, &words, trouble)),
    };
    tree::copy_file(&output.join("tools"), "uv", &target.with_file_name("uv"), UV_BYTES).map_err(broken)?;
    std::fs::DirBuilder::new().mode(0o700).create(target).map_err(broken)?;
    let copied = tree::copy(&output.join("site"), &target.join("site"), bounds).map_err(broken)?;
    // Also what was not named, but is needed by what was.
    let deny = NameRules { allow: Vec::new(), deny: rules.deny.clone() };
    if let Some(denied) = copied.packages.iter().find(|package| !deny.permits(&package.name)) {
        return Err(not_permitted(&denied.name));
    }
    let versions: BTreeSet<(String, String)> =
        copied.packages.iter().map(|package| (package.name.clone(), package.version.clone())).collect();
    let key = (!versions.is_empty()).then(|| set_key(image_id, &report.python, &report.platform, &versions));
    Ok(Answer { key, packages: copied.packages, bytes: copied.bytes, in_image, replaced })
}

fn failure(kind: FailureKind, words: &str, trouble: Option<&Trouble>) -> Problem {
    let (message, hint) = match (kind, trouble) {
        (_, Some(Trouble::Forbidden(host))) => (
            format!(
                "the installer wanted to reach `{host}`, which is not among the hosts of the package index: {words}"
            ),
            "name the host in `packages.hosts`".to_owned(),
        ),
        (_, Some(Trouble::Unreachable(what))) => (
            format!("the package index cannot be reached: {what}"),
            "look at the network, at `packages.index`, and at the proxy of the daemon".to_owned(),
        ),
        (FailureKind::NotFound, _) => (
            format!("the packages cannot be installed: {words}"),
            "only wheels are installed; look at names and versions, or choose another version".to_owned(),
        ),
        (FailureKind::NoInstaller, _) => (
            format!("there is nothing to install packages with: {words}"),
            "use an image that has `uv`, or an index that has it".to_owned(),
        ),
        (FailureKind::Other, _) => {
            (format!("the packages could not be installed: {words}"), "try again later".to_owned())
        }
    };
    Problem::new(Code::InstallFailed, message).hint(hint)
}

fn conflict(replaced: &[ReplacedPackage]) -> Problem {
    let list: Vec<String> = replaced
        .iter()
        .map(|one| format!("`{}` {} is there, {} is needed", one.name, one.has, one.wants))
        .collect();
    Problem::new(Code::PackageConflict, format!("versions do not fit together: {}", list.join("; ")))
        .hint("code may have imported what is there: to replace it, and reset the session, use `--reset`")
}
