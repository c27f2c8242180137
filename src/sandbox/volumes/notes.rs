//! Which volumes a sandbox has, noted in the daemon's own folder for it. A sandbox can outlive its daemon and even the record
//! of its session: until it is known to be gone, the next daemon holds these volumes for it.

use serde::{Deserialize, Serialize};
use std::path::Path;

use super::{Volumes, names_in};
use crate::protocol::ids::{SandboxId, VolumeName};
use crate::protocol::principal::Principal;
use crate::protocol::receipt::Backend;
use crate::security_controls;

/// The name of the note in the folder of a sandbox.
const NAME: &str = "volumes";

#[derive(Serialize, Deserialize)]
struct VolumeNote {
    backend: Backend,
    volumes: Vec<(Principal, VolumeName)>,
}

/// Notes the volumes of a sandbox that is about to be started.
pub(super) fn write(
    folder: &Path,
    backend: Backend,
    volumes: Vec<(Principal, VolumeName)>,
) -> std::io::Result<()> {
    if volumes.is_empty() {
        return Ok(());
    }
    std::fs::write(folder.join(NAME), serde_json::to_vec(&VolumeNote { backend, volumes })?)
}

impl Volumes {
    /// Holds the volumes of all sandboxes that earlier daemons left, each until `let_go`.
    pub(super) fn hold_noted(&self, sandboxes: &Path) {
        if !security_controls::holds("left_sandboxes_hold_volumes") {
            return;
        }
        for sandbox in names_in(sandboxes) {
            let Ok(text) = std::fs::read(sandboxes.join(&sandbox).join(NAME)) else { continue };
            match serde_json::from_slice(&text) {
                Ok(VolumeNote { backend, volumes }) => {
                    self.hold_all(&SandboxId(sandbox), backend, volumes.into_iter());
                }
                Err(error) => {
                    tracing::error!(%error, sandbox, "the note of a sandbox's volumes is not understood");
                }
            }
        }
    }
}
