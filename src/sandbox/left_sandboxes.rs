//! The sandboxes that could not be removed, with what they have: a user id, room in their owners' quotas, an errand's folders.
//! Such a sandbox may still run as that user, and write into those folders. A note in the daemon's own folder for a sandbox has
//! its user id, because a sandbox can outlive its daemon and the record of its session.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::slots::{UserSlot, UserSlots};
use crate::protocol::ids::SandboxId;
use crate::protocol::receipt::Backend;
use crate::security_controls;

/// The name of the note in the folder of a sandbox.
const NOTE: &str = "user";

#[derive(Serialize, Deserialize)]
struct UserNote {
    backend: Backend,
    uid: u32,
}

/// Notes the user id of a sandbox that is about to be started.
pub fn note_user(folder: &Path, backend: Backend, slot: &UserSlot) -> std::io::Result<()> {
    std::fs::write(folder.join(NOTE), serde_json::to_vec(&UserNote { backend, uid: slot.uid })?)
}

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

    /// Keeps the user ids of all sandboxes that have a note, as far as they are not kept yet: of those that nobody holds, and
    /// of those that still have a session, which has the same id.
    pub fn load(&self, sandboxes: &Path, slots: &Arc<UserSlots>) {
        if !security_controls::holds("left_sandboxes_keep_user_ids") {
            return;
        }
        for entry in std::fs::read_dir(sandboxes).into_iter().flatten().flatten() {
            let (sandbox, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path().join(NOTE));
            let Some(text) = std::fs::read(path).ok().filter(|_| !self.has(&sandbox)) else { continue };
            match serde_json::from_slice(&text) {
                Ok(UserNote { backend, uid }) => self.add(backend, SandboxId(sandbox), slots.keep(uid)),
                Err(error) => {
                    tracing::error!(%error, sandbox, "the note of a sandbox's user id is not understood");
                }
            }
        }
    }

    /// Whether a sandbox of this name is left, also one whose backend does not answer.
    pub fn has(&self, sandbox: &str) -> bool {
        self.0.lock().iter().any(|left| left.sandbox.0 == sandbox)
    }

    /// The sandboxes of a backend that are left.
    pub fn of(&self, backend: Backend) -> BTreeSet<SandboxId> {
        let all = self.0.lock();
        all.iter().filter(|left| left.backend == backend).map(|left| left.sandbox.clone()).collect()
    }

    /// Gives back what those sandboxes have that were left `before`, and no longer are.
    pub fn are_gone(&self, before: &BTreeSet<SandboxId>, left: &BTreeSet<SandboxId>) {
        self.let_go(|sandbox| before.contains(sandbox) && !left.contains(sandbox));
    }

    /// Gives back what a sandbox has that was removed by who started it.
    pub fn is_gone(&self, removed: &SandboxId) {
        self.let_go(|sandbox| sandbox == removed);
    }

    fn let_go(&self, is_gone: impl Fn(&SandboxId) -> bool) {
        let mut known = self.0.lock();
        let all = std::mem::take(&mut *known).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|left| is_gone(&left.sandbox));
        *known = kept;
        drop(known);
        // Folders of errands are removed with it, for which nobody else waits.
        drop(gone);
    }
}

impl Drop for LeftSandboxes {
    /// The sandboxes outlive the daemon, and so do their folders, with the notes by which the next daemon knows of them.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(self.0.get_mut()));
    }
}
