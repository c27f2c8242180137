//! What has a volume in use, each until its value is dropped: a session, a sandbox, a transfer of files.

use std::sync::Arc;

use super::{Key, Volumes};
use crate::protocol::ids::{SandboxId, SessionId, VolumeName};
use crate::protocol::principal::Principal;
use crate::quota::Gauge;
use crate::sandbox::workspace::upload_room::FillLevel;

/// A volume whose files are sent or received, until this value is dropped.
pub struct VolumeTransfer {
    pub(super) volumes: Volumes,
    pub(super) key: Key,
    /// What the bytes of the volume are charged to.
    pub gauge: Gauge,
    pub fill_level: Arc<FillLevel>,
}

/// The use of volumes by a session, until this value is dropped.
pub struct VolumeUse {
    pub(super) volumes: Volumes,
    pub(super) owner: Principal,
    pub(super) names: Vec<VolumeName>,
    pub(super) session: SessionId,
}

/// The volumes of a sandbox that is not started yet. Dropping it lets go of them, unless `leave` was called.
pub struct VolumeHold {
    pub(super) volumes: Volumes,
    pub(super) sandbox: Option<SandboxId>,
}

impl VolumeHold {
    /// Leaves the volumes held until `Volumes::let_go`.
    pub fn leave(mut self) {
        self.sandbox = None;
    }
}

impl Drop for VolumeHold {
    fn drop(&mut self) {
        if let Some(sandbox) = &self.sandbox {
            self.volumes.let_go(sandbox);
        }
    }
}

impl Drop for VolumeTransfer {
    fn drop(&mut self) {
        if let Some(volume) = self.volumes.known.lock().get_mut(&self.key) {
            volume.transfers = volume.transfers.saturating_sub(1);
        }
    }
}

impl Drop for VolumeUse {
    fn drop(&mut self) {
        let mut known = self.volumes.known.lock();
        for name in &self.names {
            if let Some(volume) = known.get_mut(&(self.owner, name.clone())) {
                volume.sessions.remove(&self.session);
            }
        }
    }
}
