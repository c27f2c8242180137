//! The sandboxes that could not be removed, with what they have: a user id, room in their owners' quotas, an errand's folders.
//! Such a sandbox may still run as that user, and write into those folders.

use parking_lot::Mutex;
use std::collections::BTreeSet;

use crate::protocol::ids::SandboxId;
use crate::protocol::receipt::Backend;

#[derive(Default)]
pub struct LeftSandboxes(Mutex<Vec<LeftSandbox>>);

struct LeftSandbox {
    backend: Backend,
    sandbox: SandboxId,
    /// What the sandbox has. Dropping it gives it back.
    _has: Box<dyn Send>,
}

impl LeftSandboxes {
    pub fn add(&self, backend: Backend, sandbox: SandboxId, has: impl Send + 'static) {
        self.0.lock().push(LeftSandbox { backend, sandbox, _has: Box::new(has) });
    }

    /// The sandboxes of a backend that are left.
    pub fn of(&self, backend: Backend) -> BTreeSet<SandboxId> {
        let all = self.0.lock();
        all.iter().filter(|left| left.backend == backend).map(|left| left.sandbox.clone()).collect()
    }

    /// Gives back what those sandboxes have that were left `before`, and no longer are.
    pub fn are_gone(&self, before: &BTreeSet<SandboxId>, left: &BTreeSet<SandboxId>) {
        let is_gone = |sandbox: &SandboxId| before.contains(sandbox) && !left.contains(sandbox);
        let mut known = self.0.lock();
        let all = std::mem::take(&mut *known).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|left| is_gone(&left.sandbox));
        *known = kept;
        drop(known);
        // Folders of errands are removed with it, for which nobody else waits.
        drop(gone);
    }
}
