//! Installs packages: in the cache if they are there, else by a throw-away sandbox that sees no workspace, no bridge and
//! no files of other users, and reaches nothing but the package index.

use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::cache::{Answer, CachedSet, UserCache};
use super::charges::{CopyUse, Pay, UseKind, disk};
use super::draft::Draft;
use super::index::Index;
use super::install_budget::InstallBudget;
use super::relay::{Relay, Trouble};
use super::sandbox_packages::{Payer, SandboxPackages};
use super::session_use::SessionUse;
use super::task::{self, Task};
use super::wanted::{Installed, WantedPackages, check_backend};
use super::watch::{look_at, too_large};
use crate::packages::requirement::{NameRules, Requirement, not_permitted};
use crate::packages::resolved::request_key;
use crate::protocol::ids::{SandboxId, SessionName};
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::{Backend, ImageFact};
use crate::quota::{Ledger, Permit, Refusal};
use crate::sandbox::backend::Progress;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::launch::{Launcher, UserSlot};
use crate::sandbox::spec::{Limits, SandboxRequest, SandboxSpec};
use crate::sandbox::user_database;
use crate::sandbox::workspace::disk as host_disk;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};

/// What an installation holds in its user's quota.
const HOLD: &str = "packages that are being installed";

impl Launcher {
    /// Installs packages for a session. The files are in the cache of the session's owner afterwards.
    pub async fn install(
        self: &Arc<Self>,
        wanted: &WantedPackages,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<Installed, Problem> {
        check_backend(wanted.backend)?;
        wanted.check_sources(&self.settings.packages)?;
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
        let _turn = tokio::select! {
            turn = turn.lock() => turn,
            () = wanted.stop.cancelled() => return Err(given_up()),
        };
        let built = wanted.builds_sources();
        let request = request_key(&wanted.image.id, &wanted.all(), built);
        let (asked, books, session) = (request.clone(), ledger.clone(), wanted.session.clone());
        let known = move |launcher: &Self, cache: &UserCache| {
            // What is found is used before anybody can remove it.
            let _in_use = cache.uses.read();
            let used = |set: CachedSet| launcher.use_cached(cache, &set, &books, session.as_ref());
            Ok(cache.answer(&asked).map(|(answer, set)| (answer, set.map(used).transpose())))
        };
        let found = self.in_cache(wanted.owner, built, known).await?;
        let is_for_all = found.as_ref().is_some_and(|(answer, _)| answer.pinned.is_empty());
        if let Some((answer, used)) = found.filter(|(answer, _)| wanted.is_answered_by(answer)) {
            task::check_names(&answer.packages, &rules)?;
            return wanted.installed(answer, used?, true);
        }
        let (answer, used) = self.run_installer(wanted, rules, ledger, progress).await?;
        let pinned = wanted.pinned();
        let is_sound = answer.replaced.is_empty() || (wanted.existing.is_none() && wanted.replace);
        // An answer for sessions like this one does not take the place of one for all.
        let is_kept = is_sound && (pinned.is_empty() || !is_for_all);
        let kept = is_kept.then(|| (request, Answer { pinned, ..answer.clone() }));
        let books = ledger.clone();
        let remember = move |launcher: &Self, cache: &UserCache| {
            let kept = kept.as_ref().map(|(request, answer)| (request.as_str(), answer));
            launcher.packages.remember(cache, &books, kept)
        };
        self.in_cache(wanted.owner, built, remember).await?;
        wanted.installed(answer, used, false)
    }

    /// Uses a set of the cache, if its user has the room.
    fn use_cached(
        &self,
        cache: &UserCache,
        set: &CachedSet,
        ledger: &Ledger,
        session: Option<&SessionName>,
    ) -> Result<Arc<CopyUse>, Refusal> {
        let charges = &self.packages.charges;
        let kind = UseKind::of(session);
        charges.use_copy(cache.owner(), &set.note, ledger, Pay::IfThereIsRoom, kind).map(Arc::new)
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

    /// Works in the cache that has a user's sets, `built` ones or others, on a thread for that user's files.
    pub(super) async fn in_cache<T: Send + 'static>(
        self: &Arc<Self>,
        owner: Principal,
        built: bool,
        work: impl FnOnce(&Self, &UserCache) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let launcher = Arc::clone(self);
        let done = folders::run(owner, WorkKind::Transfer, None, move || {
            launcher.packages.of(owner, built).and_then(|cache| work(&launcher, &cache))
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
        packages: &SandboxPackages,
        ledger: &Ledger,
        used: &SessionUse,
    ) -> Result<(), Problem> {
        if self.show_cached(owner, set, packages, ledger, used).await? {
            return Ok(());
        }
        let pinned = set.packages.iter().map(|package| format!("{}=={}", package.name, package.version));
        let requirements: Vec<Requirement> =
            pinned.filter_map(|text| Requirement::parse(&text).ok()).collect();
        let wanted = WantedPackages {
            owner,
            backend,
            image: image.clone(),
            existing: None,
            requirements,
            replace: true,
            sources: set.sources,
            session: None,
            stop: CancellationToken::new(),
        };
        let rules = self.package_rules(owner).await?;
        // Nobody, not even a full cache, removes what was installed before the session uses it.
        let _installed = self.install_what_is_needed(&wanted, rules, ledger, &|_| {}).await?;
        if self.show_cached(owner, set, packages, ledger, used).await? {
            return Ok(());
        }
        Err(Problem::new(
            Code::InstallFailed,
            "the packages of the session are not what they were: the index has other files for these versions",
        )
        .hint("install them again"))
    }

    /// Charges the user for the packages in a sandbox that an earlier daemon left running, and says whether the set is
    /// among them. Sessions wait for this before they are there again, so it waits for no transfer of the user.
    pub async fn take_over_packages(
        self: &Arc<Self>,
        owner: Principal,
        set: Option<&PackageSet>,
        packages: &SandboxPackages,
        ledger: &Ledger,
        session: &SessionName,
    ) -> Result<bool, Problem> {
        let (launcher, packages, ledger) = (Arc::clone(self), packages.clone(), ledger.clone());
        let (key, session) = (set.map(|set| set.key.clone()), session.clone());
        let take_over = move || {
            let charges = &launcher.packages.charges;
            packages.take_over(&Payer { owner, session: &session, ledger: &ledger, charges });
            key.is_some_and(|key| packages.has(&key))
        };
        folders::run(owner, WorkKind::Look, None, take_over).await
    }

    /// False if neither the sandbox nor the cache has the set. What the cache has is used by the session from then on, also
    /// when the sandbox is gone.
    async fn show_cached(
        self: &Arc<Self>,
        owner: Principal,
        set: &PackageSet,
        packages: &SandboxPackages,
        ledger: &Ledger,
        used: &SessionUse,
    ) -> Result<bool, Problem> {
        let (packages, ledger, used) = (packages.clone(), ledger.clone(), used.clone());
        let (key, built) = (set.key.clone(), set.sources);
        let show = move |launcher: &Self, cache: &UserCache| {
            let (session, charges) = (&used.session, &launcher.packages.charges);
            let payer = Payer { owner, session, ledger: &ledger, charges };
            let _in_use = cache.uses.read();
            let cached = cache.find(&key);
            let outcome = match &cached {
                _ if packages.has(&key) => Some(Ok(())),
                Some(set) => Some(packages.show(&key, set, &payer)),
                None => None,
            };
            if let (Some(set), Some(Ok(()))) = (&cached, &outcome) {
                // Who cannot pay for it beside the sandbox does not keep it: it is installed again when it is needed.
                used.hold_shown(&key, launcher.use_cached(cache, set, &ledger, Some(session)).ok());
            }
            Ok(outcome)
        };
        self.in_cache(owner, built, show).await?.transpose().map(|shown| shown.is_some())
    }

    async fn run_installer(
        self: &Arc<Self>,
        wanted: &WantedPackages,
        rules: Vec<NameRules>,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<(Answer, Option<Arc<CopyUse>>), Problem> {
        let index = Index::find(&self.settings.packages, wanted.owner).await?;
        wanted.check_sources(&self.settings.packages)?;
        wanted.check_builds()?;
        wanted.check_index(&index)?;
        self.check_memory()?;
        let sandboxes = &self.settings.sandbox;
        let amounts = SandboxRequest::of_errand(sandboxes).amounts(sandboxes);
        let permit = ledger.take(wanted.owner, HOLD, amounts)?;
        let sandbox = SandboxId::fresh();
        let _claim = self.claim(&sandbox);
        let (owner, built) = (wanted.owner, wanted.builds_sources());
        let (name, books) = (sandbox.0.clone(), ledger.clone());
        let (request, authorities) = (task::request(wanted, &index), index.authorities.clone());
        let make = move |launcher: &Self, cache: &UserCache| {
            let reserve = launcher.settings.sandbox.disk_reserve_bytes;
            if let Err(problem) = host_disk::check_at(launcher.paths.home(), reserve) {
                return Ok(Err(problem));
            }
            let left = books.available(owner, Kind::Workspace);
            // Charged before the first byte is written; what stays is charged to the cache before this is given back.
            let held = |has_uv| {
                let budget = InstallBudget::new(&launcher.settings.packages, left, has_uv);
                books.take(owner, HOLD, disk(budget.at_first())).map(|hold| (budget, hold))
            };
            // Most images have a `uv`, so a user who has no room for one is refused only if it has to be fetched.
            let (budget, hold) = match held(cache.has_uv()).or_else(|_| held(true)) {
                Ok(held) => held,
                Err(refusal) => return Ok(Err(refusal.into())),
            };
            let draft = cache.draft(&name, hold)?;
            let task = Task::make(&draft.path, cache, &request, authorities.as_deref())?;
            Ok(Ok((Arc::new(draft), task, budget)))
        };
        let (draft, task, budget) = self.in_cache(owner, built, make).await??;
        let outcome = self
            .install_in(&draft, &task, budget, &sandbox, permit, wanted, index, rules, ledger, progress)
            .await;
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
        task: &Task,
        budget: InstallBudget,
        sandbox: &SandboxId,
        permit: Permit,
        wanted: &WantedPackages,
        index: Index,
        rules: Vec<NameRules>,
        ledger: &Ledger,
        progress: Progress<'_>,
    ) -> Result<(Answer, Option<Arc<CopyUse>>), Problem> {
        let settings = &self.settings.packages;
        let failed = |error: std::io::Error| storage_problem(&self.paths.packages_dir(), &error);
        let stop = wanted.stop.child_token();
        let ends_with_this = stop.clone().drop_guard();
        let packages = wanted.requirements.iter().map(|wanted| wanted.name.clone()).collect();
        let relay =
            Relay::start(&task.relay, (index.clone(), packages), settings.download_bytes, stop.clone())
                .map_err(failed)?;
        let (spec, slot, folder) = self.installer_spec(sandbox, wanted, task, budget).await?;
        let errand = task.errand(&spec.kernel_dir, settings.timeout, stop.clone(), &index);
        progress("resolving".to_owned());
        let watched = self.watch(wanted.owner, task, spec.user.host_uid, &relay, budget, progress);
        let path = folder.path.clone();
        let running = self.run_errand(&spec, &path, &errand, (slot, permit, folder, Arc::clone(draft)));
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
        if wanted.stop.is_cancelled() {
            return Err(given_up());
        }
        outcome.map_err(|problem| {
            let words = index.without_secrets(&problem.message);
            Problem::new(Code::InstallFailed, format!("the installer failed: {words}"))
                .hint("look at `packages.timeout`, and at the daemon's log")
        })?;
        let (image_id, session) = (wanted.image.id.clone(), wanted.session.clone());
        let (output, target, books) = (task.output.clone(), draft.path.join("made"), ledger.clone());
        // Where code of packages ran, nothing vouches for a `uv` beside it.
        let built = wanted.builds_sources();
        let keeps_no_uv = task.has_uv || built;
        let (held, guest_uid) = (Arc::clone(draft), spec.user.host_uid);
        let explain = move |kind, words: &str| task::failure(kind, &index.quoted(words), trouble.as_ref());
        let take = move |launcher: &Self, cache: &UserCache| {
            // This goes on if its caller gives up: until it is done, the draft stays, so that no half of a set is kept.
            let hold = held.hold();
            let taken = look_at(&output, guest_uid, budget).and_then(|used| {
                let uv = task::fetched_uv(&output, keeps_no_uv);
                let bounds = hold.map_or(Ok(budget.packages), |hold| budget.for_copies(&hold, &used, uv))?;
                task::take(&output, &target, uv, bounds, (image_id.as_str(), built), &rules, explain)
            });
            let (answer, copied) = match taken {
                Ok(taken) => taken,
                Err(problem) => return Ok(Err(problem)),
            };
            let uv = target.with_file_name(task::UV);
            if uv.exists() {
                launcher.packages.keep_uv(cache, &books, &uv)?;
            }
            let keep = |key: &String| {
                launcher.packages.keep(cache, &books, &target, key, &copied, session.as_ref()).map(Arc::new)
            };
            let used = answer.key.as_ref().map(keep).transpose()?;
            Ok(Ok((answer, used)))
        };
        self.in_cache(wanted.owner, built, take).await?
    }

    /// The sandbox of an installer, whose user may write what it makes.
    async fn installer_spec(
        self: &Arc<Self>,
        sandbox: &SandboxId,
        wanted: &WantedPackages,
        task: &Task,
        budget: InstallBudget,
    ) -> Result<(SandboxSpec, Option<UserSlot>, Folder), Problem> {
        let settings = &self.settings.sandbox;
        let limits = Limits::new(settings, &SandboxRequest::of_errand(settings));
        let limits = Limits { file_bytes: budget.largest_file(), ..limits };
        let (spec, slot, folder) = self.errand_spec(sandbox, (wanted.backend, &wanted.image), limits).await?;
        let user = spec.user;
        if self.service.system {
            std::os::unix::fs::chown(&task.output, Some(user.host_uid), Some(user.host_gid))
                .map_err(|error| storage_problem(&task.output, &error))?;
        }
        Ok((spec, slot, folder))
    }
}

fn given_up() -> Problem {
    Problem::new(Code::InstallFailed, "the installation was given up: nobody waits for it any more")
}
