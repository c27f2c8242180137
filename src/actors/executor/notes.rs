//! What the next daemon needs to know of a sandbox and the journal does not say, in the sandbox's own
//! folder: how the workspace was before the cell that runs, and what earlier cells left running.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

use super::state::ExecutorState;
use crate::protocol::frames::LiveResources;

const SNAPSHOT: &str = "workspace.json";
const LIVE: &str = "live.json";

impl ExecutorState {
    /// Before a cell runs, so that its changes are told also if another daemon tells them.
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

    /// Where no cell runs, the workspace is taken as it is: its changes have been told.
    pub(super) fn recall_notes(&mut self, a_cell_runs: bool) {
        let Some(connected) = &self.connected else { return };
        let folder = connected.sandbox.folder();
        self.live = load(&folder.join(LIVE)).unwrap_or_default();
        if a_cell_runs && let Some(snapshot) = load(&folder.join(SNAPSHOT)) {
            (self.snapshot, self.snapshot_unnoted) = (snapshot, false);
        }
    }
}

/// Whole or not at all. Without it a report says less, which is no reason not to go on.
fn save(path: &Path, value: &impl Serialize) {
    let draft = path.with_extension("draft");
    let written = serde_json::to_vec(value)
        .map_err(std::io::Error::from)
        .and_then(|bytes| std::fs::write(&draft, bytes))
        .and_then(|()| std::fs::rename(&draft, path));
    if let Err(error) = written {
        tracing::warn!(%error, path = %path.display(), "a note for the next daemon cannot be written");
    }
}

fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
