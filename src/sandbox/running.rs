//! A running sandbox of any backend.

use parking_lot::Mutex;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact, Receipt};
use crate::sandbox::attest::counters::CounterFiles;
use crate::sandbox::backend::RunningSandbox;
use crate::sandbox::claims::Claim;
use crate::sandbox::folder::Folder;
use crate::sandbox::left_sandboxes::LeftSandboxes;
use crate::sandbox::packages::sandbox_packages::SandboxPackages;
use crate::sandbox::spec::SandboxSpec;
use crate::sandbox::volumes::Volumes;
use crate::security_controls;

/// A sandbox that was started. Dropping this value leaves the sandbox running.
pub struct Sandbox {
    handle: Box<dyn RunningSandbox>,
    removed: AtomicBool,
    /// Whether no session goes on with it: it was not attested yet, or its removal has begun.
    is_unwanted: AtomicBool,
    /// What is given back when the sandbox is gone, and not before, because it runs with it until then.
    has: Mutex<Vec<Box<dyn Send>>>,
    /// The sandboxes that could not be removed.
    left: Arc<LeftSandboxes>,
    spec: SandboxSpec,
    /// The reason why this backend was chosen.
    why: String,
    folder: Folder,
    lifted: Mutex<LiftedCpuLimit>,
    /// Opened when they are first needed.
    counters: OnceLock<Arc<CounterFiles>>,
    /// The packages in it, and what its user is charged for them.
    packages: SandboxPackages,
    /// The volumes of all users, those of this sandbox among them.
    volumes: Volumes,
    claim: Option<Claim>,
}

impl Deref for Sandbox {
    type Target = dyn RunningSandbox;

    fn deref(&self) -> &Self::Target {
        self.handle.as_ref()
    }
}

impl Sandbox {
    pub(super) fn new(
        handle: Box<dyn RunningSandbox>,
        spec: SandboxSpec,
        why: String,
        folder: Folder,
        claim: Claim,
        (volumes, left): (Volumes, Arc<LeftSandboxes>),
    ) -> Self {
        Self {
            handle,
            packages: SandboxPackages::of(spec.packages_dir.clone()),
            removed: AtomicBool::new(false),
            is_unwanted: AtomicBool::new(true),
            has: Mutex::default(),
            left,
            spec,
            why,
            folder,
            lifted: Mutex::default(),
            counters: OnceLock::new(),
            volumes,
            claim: Some(claim),
        }
    }

    /// Lifts the limit on the sandbox's CPU time until the last returned guard is dropped.
    ///
    /// The guardian shares the limit with all processes of user code. Processes that fork as fast as they can use it up
    /// in every period before the guardian could end them, at any priority.
    pub fn lift_cpu_limit(self: &Arc<Self>) -> CpuLimitLifted {
        let mut lifted = self.lifted.lock();
        lifted.times += 1;
        if lifted.times == 1 && security_controls::holds("cpu_limit_is_lifted_to_kill") {
            lifted.done = self.handle.limit_cpus(None);
        }
        CpuLimitLifted(Arc::clone(self))
    }

    /// Restores the limit on the sandbox's CPU time, also where an earlier daemon lifted it and died.
    pub(super) fn limit_cpus_again(&self) -> bool {
        self.handle.limit_cpus(Some(self.spec.limits.cpus))
    }

    /// What the kernel counts in the sandbox; shared, because open files are few.
    pub fn counters(&self) -> &Arc<CounterFiles> {
        let open = || Arc::new(self.handle.cgroup().map(CounterFiles::open).unwrap_or_default());
        self.counters.get_or_init(open)
    }

    pub fn id(&self) -> &SandboxId {
        &self.spec.sandbox
    }

    /// Reads the sandbox's properties back; an error names every difference from its spec.
    pub fn attest(&self, python: String, probe: Probe) -> Result<Receipt, Problem> {
        let (differences, receipt) = self.handle.read_back(&self.spec, python, probe).ok_or_else(|| {
            let what = "the isolation of the sandbox cannot be read back from the host";
            Problem::new(Code::PolicyViolation, what)
                .hint("the daemon has to run on the host of the engine or the jail, and see its `/proc`")
        })?;
        if !differences.is_empty() && security_controls::holds("attestation") {
            let what = format!("the sandbox is not as isolated as it has to be: {}", differences.join("; "));
            return Err(Problem::new(Code::PolicyViolation, what).hint(self.handle.remedy(&differences)));
        }
        self.is_of_session();
        Ok(Receipt { chosen: self.why.clone(), ..receipt })
    }

    /// From here on a session has the receipt of the sandbox, by which it finds it again.
    pub(super) fn is_of_session(&self) {
        self.is_unwanted.store(false, Ordering::Relaxed);
    }

    /// Checks that the sandbox still has the properties in its receipt. Settings may have changed since it was made, so
    /// it is compared with its own receipt and not with the current settings.
    pub fn attest_again(&self, before: &Receipt, python: String, probe: Probe) -> Result<(), Problem> {
        // Facts that an older version did not record are not compared.
        let carried = |mut now: Receipt| {
            now.chosen.clone_from(&before.chosen);
            if before.process.groups.is_none() {
                now.process.groups = None;
            }
            now
        };
        let now = self.handle.read_back(&self.spec, python, probe);
        if now.map(|(_, receipt)| carried(receipt)).as_ref() == Some(before) {
            return Ok(());
        }
        Err(Problem::new(Code::PolicyViolation, "the sandbox is no longer isolated as its receipt says"))
    }

    /// The daemon's own folder for this sandbox, which is removed with it.
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    pub fn backend(&self) -> Backend {
        self.spec.backend
    }

    pub fn image(&self) -> &ImageFact {
        &self.spec.image
    }

    /// The packages in the sandbox.
    pub fn packages(&self) -> &SandboxPackages {
        &self.packages
    }

    /// Removes a sandbox whose launch failed. If that fails, the reaper removes it later.
    pub async fn undo(self) {
        if let Err(error) = self.remove().await {
            tracing::warn!(%error, sandbox = %self.id(), "a sandbox is left to the reaper");
        }
    }

    /// Keeps what the sandbox has, such as its user id and its part of a quota, until it is gone. If it cannot be removed,
    /// that is when the reaper has removed it.
    pub fn keep_until_gone(&self, has: impl Send + 'static) {
        self.has.lock().push(Box::new(has));
    }

    /// Kills and removes the sandbox, and returns when it is gone.
    pub async fn remove(&self) -> Result<(), Problem> {
        self.is_unwanted.store(true, Ordering::Relaxed);
        let outcome = self.handle.remove().await;
        self.removed.store(outcome.is_ok(), Ordering::Relaxed);
        if outcome.is_ok() {
            self.volumes.let_go(self.id());
            // The note of its user id was read at the start of the daemon.
            self.left.is_gone(self.id());
            let had = std::mem::take(&mut *self.has.lock());
            drop(had);
        }
        outcome
    }
}

#[derive(Default)]
struct LiftedCpuLimit {
    /// The number of `CpuLimitLifted` guards.
    times: usize,
    /// Whether the backend lifted the limit.
    done: bool,
}

/// Dropping the last of these guards restores the limit on the sandbox's CPU time.
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
    /// Only `remove` removes a sandbox, never a drop: the holder may have panicked for another reason, and the sandbox
    /// holds what its user has computed. Its folder stays, with the notes by which it is found again: by the session
    /// that attaches to it, by the next daemon, or by the reaper if no session claims it.
    fn drop(&mut self) {
        if !self.removed.load(Ordering::Relaxed) {
            self.folder.left.store(true, Ordering::Relaxed);
            if self.is_unwanted.load(Ordering::Relaxed)
                && security_controls::holds("sandboxes_keep_what_they_have")
            {
                let has = std::mem::take(self.has.get_mut());
                self.left.add(self.spec.backend, self.spec.sandbox.clone(), has);
            }
            return;
        }
        // Packages can be a great many files. They are charged, and the end of the daemon waits, until they are gone.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !self.packages.is_empty()
        {
            let folder = std::mem::replace(&mut self.folder, Folder::none());
            let (packages, claim) = (self.packages.clone(), self.claim.take());
            runtime.spawn_blocking(move || {
                drop(folder);
                drop((packages, claim));
            });
        }
    }
}
