//! Notes for the next daemon that are not in the journal, kept in the sandbox's folder: the state of the
//! workspace before the running cell, and the resources that earlier cells left running.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

use super::state::ExecutorState;
use crate::protocol::frames::LiveResources;

const SNAPSHOT: &str = "workspace.json";
const LIVE: &str = "live.json";

impl ExecutorState {
    /// Saves the snapshot before a cell runs, so that another daemon can report the cell's changes as well.
    pub(super) fn note_snapshot(&mut self) {
        if let Some(connected) = &self.connected
            && std::mem::take(&mut self.snapshot_unnoted)
        {
            save(&connected.sandbox.folder().join(SNAPSHOT), &self.snapshot);
        }
    }

    pub(super) fn set_live(&mut self, live: LiveResources) {
        if self.live == live {
            return;
        }
        self.live = live;
        if let Some(connected) = &self.connected {
            save(&connected.sandbox.folder().join(LIVE), &live);
        }
    }

    /// Loads the notes. If no cell runs, all changes have been reported, so the saved snapshot is not used.
    pub(super) fn recall_notes(&mut self, a_cell_runs: bool) {
        let Some(connected) = &self.connected else { return };
        let folder = connected.sandbox.folder();
        self.live = load(&folder.join(LIVE)).unwrap_or_default();
        if a_cell_runs && let Some(snapshot) = load(&folder.join(SNAPSHOT)) {
            (self.snapshot, self.snapshot_unnoted) = (snapshot, false);
        }
    }
}

/// Writes a file completely or not at all. A missing note only makes a report less complete, so a failure is
/// logged and ignored.
fn save(path: &Path, value: &impl Serialize) {
    let draft = path.with_extension("draft");
    let outcome = serde_json::to_vec(value)
        .map_err(std::io::Error::from)
        .and_then(|bytes| std::fs::write(&draft, bytes))
        .and_then(|()| std::fs::rename(&draft, path));
    if let Err(error) = outcome {
        tracing::warn!(%error, path = %path.display(), "a note for the next daemon cannot be written");
    }
}

fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
