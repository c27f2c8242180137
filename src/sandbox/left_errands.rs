//! The errands whose sandboxes could not be removed, with what they have: a user id, room, folders. Such a sandbox may still
//! run as that user and write into those folders.

use parking_lot::Mutex;
use std::collections::BTreeSet;

use crate::protocol::ids::SandboxId;
use crate::protocol::receipt::Backend;

#[derive(Default)]
pub struct LeftErrands(Mutex<Vec<LeftErrand>>);

struct LeftErrand {
    backend: Backend,
    sandbox: SandboxId,
    /// What the errand has. Dropping it gives it back.
    _has: Box<dyn Send>,
}

impl LeftErrands {
    pub fn add(&self, backend: Backend, sandbox: SandboxId, has: impl Send + 'static) {
        self.0.lock().push(LeftErrand { backend, sandbox, _has: Box::new(has) });
    }

    /// The sandboxes of a backend that are left.
    pub fn of(&self, backend: Backend) -> BTreeSet<SandboxId> {
        let errands = self.0.lock();
        let of_backend = errands.iter().filter(|errand| errand.backend == backend);
        of_backend.map(|errand| errand.sandbox.clone()).collect()
    }

    /// Gives back what errands have whose sandboxes are among those that were left `before`, and no longer.
    pub fn are_gone(&self, before: &BTreeSet<SandboxId>, left: &BTreeSet<SandboxId>) {
        let is_gone = |sandbox: &SandboxId| before.contains(sandbox) && !left.contains(sandbox);
        let mut errands = self.0.lock();
        let all = std::mem::take(&mut *errands).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|errand| is_gone(&errand.sandbox));
        *errands = kept;
        drop(errands);
        // Folders are removed with it, for which no other errand waits.
        drop(gone);
    }
}
