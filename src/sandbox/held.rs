//! A sandbox that runs, whichever backend holds it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cgroup::Cgroup;
use super::docker::Container;
use super::engine::Engine;
use super::jail::Jail;
use super::launch::{Claim, Folder, Launcher};
use super::spec::SandboxSpec;
use crate::protocol::event::Counters;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;

/// By what it is held.
pub(super) enum Held {
    Container(Box<Container>),
    Jail(Box<Jail>),
}

/// A sandbox that was started. It is removed when this is dropped, at the latest by the reaper,
/// unless the daemon ends and leaves it to the next one.
pub struct Sandbox {
    held: Held,
    removed: AtomicBool,
    /// It has a receipt, by which the next daemon knows it.
    attested: AtomicBool,
    spec: SandboxSpec,
    /// Why this backend.
    pub(super) why: String,
    folder: Folder,
    /// Until it is dropped, or removed after that.
    claim: Option<Claim>,
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
    pub(super) fn new(
        held: Held,
        spec: SandboxSpec,
        folder: Folder,
        claim: Claim,
        launcher: Arc<Launcher>,
    ) -> Self {
        Self {
            held,
            removed: AtomicBool::new(false),
            attested: AtomicBool::new(false),
            spec,
            why: String::new(),
            folder,
            claim: Some(claim),
            launcher,
        }
    }

    /// It was attested by an earlier daemon.
    pub(super) fn known_before(self) -> Self {
        self.attested.store(true, Ordering::Relaxed);
        self
    }

    /// A jail runs already when it gets here.
    pub(super) async fn start_container(&mut self, engine: &Engine) -> Result<(), Problem> {
        match &mut self.held {
            Held::Container(container) => {
                container.start(engine, &self.spec).await.map_err(|error| error.problem())
            }
            Held::Jail(_) => Ok(()),
        }
    }

    /// The host's pid of the guardian.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        match &self.held {
            Held::Container(container) => container.pid(),
            Held::Jail(jail) => Some(jail.pid()),
        }
    }

    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.spec.sandbox
    }

    /// Reads back what the sandbox is; an error names every difference.
    pub fn attest(&self, python: String, probe: Probe) -> Result<Receipt, Problem> {
        let receipt = match &self.held {
            Held::Container(container) => container.attest(&self.spec, python, probe)?,
            Held::Jail(jail) => jail.attest(&self.spec, python, probe)?,
        };
        self.attested.store(true, Ordering::Relaxed);
        Ok(Receipt { chosen: self.why.clone(), ..receipt })
    }

    /// The same as when it was made, read back again? Settings may have changed since, so it is held
    /// against its own receipt and not against today's wishes.
    pub fn attest_again(&self, before: &Receipt, python: String, probe: Probe) -> Result<(), Problem> {
        let now = match &self.held {
            Held::Container(container) => container.receipt(&self.spec, python, probe),
            Held::Jail(jail) => jail.receipt(&self.spec, python, probe),
        };
        // What an older version did not note, or what only the daemon that built a jail knew, cannot have changed.
        let carried = |mut now: Receipt| {
            now.chosen.clone_from(&before.chosen);
            if before.process.groups.is_none() {
                now.process.groups = None;
            }
            if matches!(self.held, Held::Jail(_)) {
                now.seccomp_profile.clone_from(&before.seccomp_profile);
            }
            now
        };
        if now.map(carried).as_ref() == Some(before) {
            return Ok(());
        }
        Err(Problem::new(Code::PolicyViolation, "the sandbox is no longer isolated as its receipt says"))
    }

    /// Where the daemon has to listen for its kernel.
    #[must_use]
    pub fn bridge_dir(&self) -> &Path {
        &self.spec.bridge_dir
    }

    pub async fn freeze(&self) -> Result<(), Problem> {
        match &self.held {
            Held::Container(container) => {
                container.freeze(&self.launcher.engine).await.map_err(|error| error.problem())
            }
            Held::Jail(jail) => jail.freeze(),
        }
    }

    /// One that is not frozen is a success.
    pub async fn thaw(&self) -> Result<(), Problem> {
        match &self.held {
            Held::Container(container) => {
                container.thaw(&self.launcher.engine).await.map_err(|error| error.problem())
            }
            Held::Jail(jail) => jail.thaw(),
        }
    }

    /// Whether its processes are stopped, by whomever. Where it cannot be told they are not.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        match &self.held {
            Held::Container(container) => container.cgroup().and_then(Cgroup::is_frozen).unwrap_or(false),
            Held::Jail(jail) => jail.is_frozen(),
        }
    }

    /// A folder of the daemon's own that goes with the sandbox.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// Leaves the sandbox running for the next daemon.
    pub fn leave(&self) {
        self.removed.store(true, Ordering::Relaxed);
        self.folder.left.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        match &self.held {
            Held::Container(container) => container.cgroup().map(Cgroup::counters).unwrap_or_default(),
            Held::Jail(jail) => jail.counters(),
        }
    }

    /// What became of it; none if that cannot be learnt.
    pub async fn end(&self) -> Option<SandboxEnd> {
        match &self.held {
            Held::Container(container) => container.end(&self.launcher.engine).await,
            Held::Jail(jail) => Some(jail.end().await),
        }
    }

    /// Waits for its end, where that can be seen; else for ever.
    pub async fn gone(&self) {
        match &self.held {
            Held::Container(_) => std::future::pending().await,
            Held::Jail(jail) => jail.gone().await,
        }
    }

    /// What it wrote itself about its end, if anything.
    #[must_use]
    pub fn last_words(&self) -> String {
        match &self.held {
            Held::Container(_) => String::new(),
            Held::Jail(jail) => jail.last_words(),
        }
    }

    /// Kills and removes it, and tells when it is gone.
    pub async fn remove(&self) -> Result<(), Problem> {
        let outcome = match &self.held {
            Held::Container(container) => {
                let removed = self.launcher.engine.remove(&container.name).await;
                removed.map_err(|error| error.problem())
            }
            Held::Jail(jail) => jail.remove().await,
        };
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
        let runtime = tokio::runtime::Handle::try_current();
        let claim = self.claim.take();
        match &self.held {
            Held::Container(container) => {
                let Ok(runtime) = runtime else { return };
                let (launcher, container) = (Arc::clone(&self.launcher), container.name.clone());
                runtime.spawn(async move {
                    if let Err(error) = launcher.engine.remove(&container).await {
                        tracing::warn!(%error, container, "left to the reaper");
                    }
                    drop(claim);
                });
            }
            Held::Jail(jail) => {
                let remains = jail.remains();
                // At once: the runtime may be about to end.
                remains.kill();
                let Ok(runtime) = runtime else { return };
                // Its notes stay until it is gone, so that else the next daemon finds it by them.
                self.folder.left.store(true, Ordering::Relaxed);
                let folder = self.folder.path.clone();
                runtime.spawn(async move {
                    match remains.remove().await {
                        Ok(()) => drop(std::fs::remove_dir_all(folder)),
                        Err(problem) => {
                            tracing::warn!(problem = problem.message, "a jail could not be removed");
                        }
                    }
                    drop(claim);
                });
            }
        }
    }
}
