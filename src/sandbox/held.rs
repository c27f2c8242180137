//! A sandbox that runs, whichever backend holds it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// A sandbox that was started. Dropping this lets go of it and leaves it running.
pub struct Sandbox {
    held: Held,
    removed: AtomicBool,
    spec: SandboxSpec,
    /// Why this backend.
    pub(super) why: String,
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
            spec,
            why: String::new(),
            folder,
            _claim: claim,
            launcher,
        }
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

    /// CPU time that its processes have taken together; none if that is not counted here.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        match &self.held {
            Held::Container(container) => container.cgroup().and_then(Cgroup::cpu_time),
            Held::Jail(jail) => jail.cpu_time(),
        }
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

    /// Removes one that came to nothing. What cannot be removed now is left to the reaper.
    pub async fn undo(self) {
        if let Err(error) = self.remove().await {
            tracing::warn!(%error, sandbox = %self.id(), "a sandbox is left to the reaper");
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
    /// Removal is an act of its own (`remove`) and never happens here: whoever lets go of a sandbox may have died over
    /// something else, and it holds what its user has computed. Its folder stays, with the notes by which it is found:
    /// by the session that attaches to it again, by the next daemon, or by the reaper if no session claims it.
    fn drop(&mut self) {
        if !self.removed.load(Ordering::Relaxed) {
            self.folder.left.store(true, Ordering::Relaxed);
        }
    }
}
