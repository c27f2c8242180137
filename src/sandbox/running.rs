//! A sandbox that runs, whichever backend holds it.

use parking_lot::Mutex;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::controls;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;
use crate::sandbox::backend::RunningSandbox;
use crate::sandbox::claims::Claim;
use crate::sandbox::folder::Folder;
use crate::sandbox::spec::SandboxSpec;

/// A sandbox that was started. Dropping this lets go of it and leaves it running.
pub struct Sandbox {
    held: Box<dyn RunningSandbox>,
    removed: AtomicBool,
    spec: SandboxSpec,
    /// Why this backend.
    why: String,
    folder: Folder,
    lifted: Mutex<Lifted>,
    _claim: Claim,
}

impl Deref for Sandbox {
    type Target = dyn RunningSandbox;

    fn deref(&self) -> &Self::Target {
        self.held.as_ref()
    }
}

impl Sandbox {
    pub(super) fn new(
        held: Box<dyn RunningSandbox>,
        spec: SandboxSpec,
        why: String,
        folder: Folder,
        claim: Claim,
    ) -> Self {
        Self {
            held,
            removed: AtomicBool::new(false),
            spec,
            why,
            folder,
            lifted: Mutex::default(),
            _claim: claim,
        }
    }

    /// Lifts the limit of its CPU time until the last of what this gives is dropped.
    ///
    /// The guardian shares the limit with all that code has started. Processes that fork as fast as they can use it
    /// up in every period before the guardian, whatever its priority, could end them.
    #[must_use]
    pub fn lift_cpu_limit(self: &Arc<Self>) -> CpuLimitLifted {
        let mut lifted = self.lifted.lock();
        lifted.times += 1;
        if lifted.times == 1 && controls::holds("cpu_limit_is_lifted_to_kill") {
            lifted.done = self.held.limit_cpus(None);
        }
        CpuLimitLifted(Arc::clone(self))
    }

    /// Puts the limit of its CPU time back, also where a daemon had lifted it and died.
    pub(super) fn limit_cpus_again(&self) -> bool {
        self.held.limit_cpus(Some(self.spec.limits.cpus))
    }

    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.spec.sandbox
    }

    /// Reads back what the sandbox is; an error names every difference.
    pub fn attest(&self, python: String, probe: Probe) -> Result<Receipt, Problem> {
        let receipt = self.held.attest(&self.spec, python, probe)?;
        Ok(Receipt { chosen: self.why.clone(), ..receipt })
    }

    /// The same as when it was made, read back again? Settings may have changed since, so it is held
    /// against its own receipt and not against today's wishes.
    pub fn attest_again(&self, before: &Receipt, python: String, probe: Probe) -> Result<(), Problem> {
        // What an older version did not note cannot have changed.
        let carried = |mut now: Receipt| {
            now.chosen.clone_from(&before.chosen);
            if before.process.groups.is_none() {
                now.process.groups = None;
            }
            now
        };
        if self.held.receipt(&self.spec, python, probe).map(carried).as_ref() == Some(before) {
            return Ok(());
        }
        Err(Problem::new(Code::PolicyViolation, "the sandbox is no longer isolated as its receipt says"))
    }

    /// Where the daemon has to listen for its kernel.
    #[must_use]
    pub fn bridge_dir(&self) -> &Path {
        &self.spec.bridge_dir
    }

    /// A folder of the daemon's own that goes with the sandbox.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// Removes one that came to nothing. What cannot be removed now is left to the reaper.
    pub async fn undo(self) {
        if let Err(error) = self.remove().await {
            tracing::warn!(%error, sandbox = %self.id(), "a sandbox is left to the reaper");
        }
    }

    /// Kills and removes it, and tells when it is gone.
    pub async fn remove(&self) -> Result<(), Problem> {
        let outcome = self.held.remove().await;
        self.removed.store(outcome.is_ok(), Ordering::Relaxed);
        outcome
    }
}

#[derive(Default)]
struct Lifted {
    /// How many `CpuLimitLifted` there are.
    times: usize,
    /// The backend could do it.
    done: bool,
}

/// The limit of a sandbox's CPU time is back when this is dropped, unless there is another one.
pub struct CpuLimitLifted(Arc<Sandbox>);

impl Drop for CpuLimitLifted {
    fn drop(&mut self) {
        let mut lifted = self.0.lifted.lock();
        lifted.times -= 1;
        if lifted.times == 0 && std::mem::take(&mut lifted.done) && !self.0.limit_cpus_again() {
            tracing::warn!(sandbox = %self.0.id(), "the CPU limit of a sandbox cannot be put back");
        }
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
