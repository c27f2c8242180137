//! Installs packages: in the cache if they are there, else by a throw-away sandbox that sees no workspace, no bridge and
//! no files of other users, and reaches nothing but the package index.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::cache::{Answer, NOTE_BYTES, UserCache};
use super::charges::disk;
use super::draft::Draft;
use super::index::{AUTHORITIES_BYTES, Index};
use super::relay::{Relay, Trouble};
use super::shown::{Payer, ShownPackages};
use super::task::{self, Task, UV_BYTES};
use super::tree::Bounds;
use crate::packages::requirement::{NameRules, Requirement, not_permitted};
use crate::packages::resolved::request_key;
use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::packages::{PackageSet, PackageVersion, ReplacedPackage};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::{Backend, ImageFact};
use crate::quota::Ledger;
use crate::sandbox::backend::Progress;
use crate::sandbox::etc;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::launch::{Launcher, UserSlot};
use crate::sandbox::spec::{Limits, SandboxRequest, SandboxSpec, hardware};
use crate::sandbox::user_database;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::usage::{DiskUsage, measure_of_guest};
use crate::sandbox::workspace::{disk as host_disk, guest};

/// Time between two looks at what an installer has written.
const LOOK: Duration = Duration::from_millis(500);
/// What an installation takes on the disk beside the files of packages: a `uv` that it fetched, with the daemon's copy,
/// and notes.
const BESIDE_BYTES: u64 = 2 * UV_BYTES + AUTHORITIES_BYTES + 4 * NOTE_BYTES;
/// The least room for packages with which an installation is begun.
const LEAST_BYTES: u64 = 16 * 1024 * 1024;
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
    pub(super) fn all(&self) -> BTreeSet<String> {
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
        let rules = self.package_rules(wanted.owner).await?;
        let is_permitted = |name: &str| rules.iter().all(|rules| rules.permits(name));
        if let Some(denied) = wanted.requirements.iter().find(|wanted| !is_permitted(&wanted.name)) {
            return Err(not_permitted(&denied.name));
        }
        self.install_what_is_needed(wanted, rules, ledger, progress).await
    }

    /// The same without a look at the names that are wanted: packages that a session has were permitted once, or are
    /// needed by others. What is denied is not installed.
    async fn install_what_is_needed(
        self: &Arc<Self>,
        wanted: &WantedPackages,
        rules: Vec<NameRules>,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<Installed, Problem> {
        let turn = self.packages.turn(wanted.owner);
        let _turn = turn.lock().await;
        let request = request_key(&wanted.image.id, &wanted.all());
        let asked = request.clone();
        let known = move |_: &Self, cache: &UserCache| Ok(cache.answer(&asked));
        let fits = |answer: &Answer| wanted.replace || wanted.changed_by(answer).is_empty();
        if let Some(answer) = self.in_cache(wanted.owner, known).await?.filter(fits) {
            task::check_names(&answer.packages, &rules)?;
            return wanted.installed(answer, true);
        }
        let answer = self.run_installer(wanted, rules, ledger, progress).await?;
        let is_kept = answer.replaced.is_empty() || (wanted.existing.is_none() && wanted.replace);
        let (kept, books) = (is_kept.then(|| (request, answer.clone())), ledger.clone());
        let remember = move |launcher: &Self, cache: &UserCache| {
            let kept = kept.as_ref().map(|(request, answer)| (request.as_str(), answer));
            launcher.packages.remember(cache, &books, kept)
        };
        self.in_cache(wanted.owner, remember).await?;
        wanted.installed(answer, false)
    }

    /// The lists that say which packages a user may have.
    async fn package_rules(&self, owner: Principal) -> Result<Vec<NameRules>, Problem> {
        let settings = &self.settings.packages;
        if !settings.know_users() {
            return Ok(settings.rules_of(owner, None, &[]));
        }
        let look = move || user_database::users().get(&owner.uid());
        let Ok(who) = folders::run(owner, WorkKind::Look, None, look).await? else {
            let what =
                "the machine's lists of users do not answer, so that it is not known what you may install";
            return Err(Problem::new(Code::Forbidden, what).hint("try again"));
        };
        Ok(settings.rules_of(owner, who.name.as_deref(), &who.groups))
    }

    /// Works in the cache of a user, on a thread for that user's files.
    async fn in_cache<T: Send + 'static>(
        self: &Arc<Self>,
        owner: Principal,
        work: impl FnOnce(&Self, &UserCache) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let launcher = Arc::clone(self);
        let done = folders::run(owner, WorkKind::Transfer, None, move || {
            launcher.packages.of(owner).and_then(|cache| work(&launcher, &cache))
        });
        done.await?.map_err(|error| storage_problem(&self.paths.packages_dir(), &error))
    }

    /// Lets the packages of a session appear in a sandbox. If the cache has removed them since, they are installed again,
    /// and have to be what they were: the key of a set has the hashes of its packages in it.
    pub async fn show_packages(
        self: &Arc<Self>,
        owner: Principal,
        (backend, image): (Backend, &ImageFact),
        set: &PackageSet,
        shown: &ShownPackages,
        ledger: &Ledger,
    ) -> Result<(), Problem> {
        if self.show_cached(owner, &set.key, shown, ledger).await? {
            return Ok(());
        }
        let pinned = set.packages.iter().map(|package| format!("{}=={}", package.name, package.version));
        let requirements: Vec<Requirement> =
            pinned.filter_map(|text| Requirement::parse(&text).ok()).collect();
        let (image, existing) = (image.clone(), None);
        let wanted = WantedPackages { owner, backend, image, existing, requirements, replace: true };
        let rules = self.package_rules(owner).await?;
        self.install_what_is_needed(&wanted, rules, ledger, &|_| {}).await?;
        if self.show_cached(owner, &set.key, shown, ledger).await? {
            return Ok(());
        }
        Err(Problem::new(
            Code::InstallFailed,
            "the packages of the session are not what they were: the index has other files for these versions",
        )
        .hint("install them again"))
    }

    /// False if the cache does not have the set.
    async fn show_cached(
        self: &Arc<Self>,
        owner: Principal,
        key: &str,
        shown: &ShownPackages,
        ledger: &Ledger,
    ) -> Result<bool, Problem> {
        let (key, shown, ledger) = (key.to_owned(), shown.clone(), ledger.clone());
        let show = move |launcher: &Self, cache: &UserCache| {
            let payer = Payer { owner, ledger: &ledger, charges: &launcher.packages.charges };
            let _in_use = cache.uses.read();
            Ok(cache.find(&key).map(|set| shown.show(&key, &set, &payer)))
        };
        self.in_cache(owner, show).await?.transpose().map(|shown| shown.is_some())
    }

    /// What packages may take, so that all that an installation writes at its height fits into the user's quota: first
    /// the installer's own files, then the daemon's copies beside them. Half of what the user has left is not touched.
    fn room_for(&self, owner: Principal, ledger: &Ledger) -> (Bounds, u64) {
        let settings = &self.settings.packages;
        let left = ledger.spare_room(owner, Kind::Workspace) / 2;
        let fitting = left.saturating_sub(BESIDE_BYTES) / 2;
        let bytes = settings.unpacked_bytes.min(fitting.max(LEAST_BYTES));
        (Bounds { bytes, files: settings.files }, bytes.saturating_mul(2).saturating_add(BESIDE_BYTES))
    }

    async fn run_installer(
        self: &Arc<Self>,
        wanted: &WantedPackages,
        rules: Vec<NameRules>,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<Answer, Problem> {
        let index = Index::find(&self.settings.packages).await?;
        host_disk::check_at(self.paths.home(), self.settings.sandbox.disk_reserve_bytes)?;
        self.check_memory()?;
        let sandboxes = &self.settings.sandbox;
        let amounts = SandboxRequest::of_errand(sandboxes).amounts(sandboxes);
        let _permit = ledger.take(wanted.owner, HOLD, amounts)?;
        // Charged before the first byte is written; what stays is charged to the cache before this is given back.
        let (bounds, peak) = self.room_for(wanted.owner, ledger);
        let room = ledger.take(wanted.owner, HOLD, disk(peak))?;
        let sandbox = SandboxId::fresh();
        let _claim = self.claim(&sandbox);
        let name = sandbox.0.clone();
        let make = move |_: &Self, cache: &UserCache| Ok((cache.draft(&name, room)?, cache.uv()));
        let (draft, uv) = self.in_cache(wanted.owner, make).await?;
        let draft = Arc::new(draft);
        let outcome =
            self.install_in(&draft, &uv, &sandbox, wanted, index, bounds, rules, ledger, progress).await;
        // What was begun in the draft is done, so this is the last share of it; otherwise the last one removes it.
        if let Some(draft) = Arc::into_inner(draft) {
            draft.remove().await;
        }
        outcome
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one installation, which has one caller")]
    async fn install_in(
        self: &Arc<Self>,
        draft: &Arc<Draft>,
        uv: &Path,
        sandbox: &SandboxId,
        wanted: &WantedPackages,
        index: Index,
        bounds: Bounds,
        rules: Vec<NameRules>,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<Answer, Problem> {
        let settings = &self.settings.packages;
        let failed = |error: std::io::Error| storage_problem(&self.paths.packages_dir(), &error);
        let stop = CancellationToken::new();
        let ends_with_this = stop.clone().drop_guard();
        let task = Task::make(&draft.path, wanted, &index, uv).map_err(failed)?;
        let relay = Relay::start(&task.relay, index.clone(), settings.download_bytes, stop.clone())
            .map_err(failed)?;
        let (spec, _slot, folder) = self.installer_spec(sandbox, wanted, &task, bounds).await?;
        let errand = task.errand(&spec.kernel_dir, settings.timeout, stop.clone(), &index);
        progress("resolving".to_owned());
        let watched = self.watch(wanted.owner, &task, spec.user.host_uid, &relay, bounds, progress);
        let running = self.backend(wanted.backend).run_errand(&spec, &folder.path, &errand);
        tokio::pin!(running);
        let (outcome, mut too_much) = tokio::select! {
            outcome = &mut running => (outcome, None),
            too_much = watched => {
                // It takes its sandbox down.
                stop.cancel();
                (running.await, Some(too_much))
            }
        };
        let trouble = relay.trouble();
        if trouble == Some(Trouble::TooMuch) {
            let what = format!("more than {} bytes would be downloaded", settings.download_bytes);
            too_much = Some(too_large(what));
        }
        drop((ends_with_this, relay));
        if let Some(problem) = too_much {
            return Err(problem);
        }
        outcome.map_err(|problem| {
            let words = index.without_secrets(&problem.message);
            Problem::new(Code::InstallFailed, format!("the installer failed: {words}"))
                .hint("look at `packages.timeout`, and at the daemon's log")
        })?;
        let image_id = wanted.image.id.clone();
        let (output, target, books) = (task.output.clone(), draft.path.join("made"), ledger.clone());
        let (had_uv, held) = (task.has_uv, Arc::clone(draft));
        let explain = move |kind, words: &str| task::failure(kind, &index.quoted(words), trouble.as_ref());
        let take = move |launcher: &Self, cache: &UserCache| {
            // This goes on if its caller gives up: until it is done, the draft stays, so that no half of a set is kept.
            let _held = held;
            let taken = task::take(&output, &target, had_uv, bounds, &image_id, &rules, explain);
            let (answer, copied) = match taken {
                Ok(taken) => taken,
                Err(problem) => return Ok(Err(problem)),
            };
            let uv = target.with_file_name("uv");
            if uv.exists() {
                cache.keep_uv(&uv)?;
            }
            if let Some(key) = &answer.key {
                launcher.packages.keep(cache, &books, &target, key, &copied)?;
            }
            Ok(Ok(answer))
        };
        self.in_cache(wanted.owner, take).await?
    }

    /// The sandbox of an installer: that of a session, with a user id that no other sandbox and no account has.
    async fn installer_spec(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        wanted: &WantedPackages,
        task: &Task,
        bounds: Bounds,
    ) -> Result<(SandboxSpec, Option<UserSlot>, Folder), Problem> {
        let settings = &self.settings.sandbox;
        let mapping = self.backend(wanted.backend).user_mapping().await?;
        let slot = self.service.system.then(|| self.slots.take()).transpose()?;
        let user = guest(self.service, mapping, slot.as_ref().map_or(self.service.uid, |slot| slot.uid));
        let limits = Limits::new(settings, &SandboxRequest::of_errand(settings));
        let limits = Limits { file_bytes: bounds.bytes.max(UV_BYTES), ..limits };
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

    /// Reports the progress, and returns when an installer has to be stopped: it has written more than it may, the disk
    /// is full, or nobody can say in time how much it wrote.
    async fn watch(
        &self,
        owner: Principal,
        task: &Task,
        guest_uid: u32,
        relay: &Relay,
        bounds: Bounds,
        progress: Progress<'_>,
    ) -> Problem {
        let mut told = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            let passed = relay.passed();
            if passed > told {
                told = passed;
                progress(format!("{} KiB downloaded", passed / 1024));
            }
            let (folder, home) = (task.output.clone(), self.paths.home().to_owned());
            let reserve = self.settings.sandbox.disk_reserve_bytes;
            let look = move || {
                host_disk::check_at(&home, reserve)?;
                look_at(&folder, guest_uid, bounds)
            };
            if let Err(problem) = folders::run(owner, WorkKind::Watch, None, look).await.and_then(|seen| seen)
            {
                return problem;
            }
        }
    }
}

/// A refusal if an installer has written more than it may, or if it is not known how much.
fn look_at(folder: &Path, guest_uid: u32, bounds: Bounds) -> Result<(), Problem> {
    let used = measure_of_guest(folder, guest_uid).map_err(|error| {
        let what = format!("what the installer wrote cannot be measured: {error}");
        Problem::new(Code::Storage, what).hint("look at the disk of the daemon's home")
    })?;
    if is_too_much(&used, bounds) {
        let what = format!("the packages take more than {} bytes or {} files", bounds.bytes, bounds.files);
        return Err(too_large(what));
    }
    Ok(())
}

fn too_large(what: String) -> Problem {
    Problem::new(Code::TooLarge, what).hint(
        "name fewer packages, remove files, or raise `packages.download`, `packages.unpacked`, `packages.files` or `quota.workspace`",
    )
}

/// An installer may have fetched a `uv` beside the packages.
fn is_too_much(used: &DiskUsage, bounds: Bounds) -> bool {
    let bytes = bounds.bytes.saturating_add(UV_BYTES);
    used.hidden.is_some() || used.bytes > bytes || used.entries as u64 > bounds.files
}

fn conflict(replaced: &[ReplacedPackage]) -> Problem {
    let list: Vec<String> = replaced
        .iter()
        .map(|one| format!("`{}` {} is there, {} is needed", one.name, one.has, one.wants))
        .collect();
    Problem::new(Code::PackageConflict, format!("versions do not fit together: {}", list.join("; ")))
        .hint("code may have imported what is there: to replace it, and reset the session, use `--reset`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installer_is_stopped_for_too_much_and_for_what_cannot_be_measured() {
        let home = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let bounds = Bounds { bytes: 100_000, files: 2 };
        std::fs::write(home.path().join("a"), "").unwrap();
        look_at(home.path(), uid, bounds).unwrap();
        for name in ["b", "c"] {
            std::fs::write(home.path().join(name), "").unwrap();
        }
        assert_eq!(look_at(home.path(), uid, bounds).unwrap_err().code, Code::TooLarge);
        assert_eq!(look_at(&home.path().join("none"), uid, bounds).unwrap_err().code, Code::Storage);
    }
}
