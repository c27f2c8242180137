//! The store of snapshots at the start: what an earlier daemon left half-written is removed before any session begins.

use std::collections::HashSet;

use super::DaemonError;
use crate::protocol::ids::SessionId;
use crate::sandbox::launch::Launcher;
use crate::store::snapshots::{SnapshotError, SnapshotStore};

/// Opens the store in the daemon's home; `living` are the sessions that may have snapshots.
pub async fn open(launcher: &Launcher, living: Vec<SessionId>) -> Result<SnapshotStore, DaemonError> {
    let home = launcher.paths.home().to_owned();
    let known: HashSet<SessionId> = living.into_iter().collect();
    let opened = tokio::task::spawn_blocking(move || {
        let store = SnapshotStore::open(&home)?;
        let swept = store.sweep(&known)?;
        tracing::info!(?swept, "the snapshots of sessions were swept");
        Ok::<_, SnapshotError>(store)
    });
    let opened = opened.await.map_err(|error| DaemonError::Start(error.to_string()))?;
    opened.map_err(|error| DaemonError::Start(format!("the snapshots of sessions cannot be read: {error}")))
}
