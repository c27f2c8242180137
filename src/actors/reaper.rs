//! The reaper: removes what no existing session owns, namely containers of this instance in the engine, and
//! jails and folders in the daemon's home. It runs at start, then regularly; an unreachable engine is tried
//! again.

use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

use crate::protocol::ids::SessionId;
use crate::protocol::periods::period;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::remove_tree;

const EVERY: Duration = Duration::from_secs(30);

pub type ReaperRef = ActorRef<ReaperMsg>;

pub enum ReaperMsg {
    /// Find and remove leftovers.
    Look,
}

pub struct Reaper;

impl Reaper {
    pub async fn spawn(launcher: Arc<Launcher>) -> Result<(ReaperRef, JoinHandle<()>), SpawnErr> {
        Actor::spawn(None, Self, launcher).await
    }
}

impl Actor for Reaper {
    type Msg = ReaperMsg;
    type State = Arc<Launcher>;
    type Arguments = Arc<Launcher>;

    async fn pre_start(
        &self,
        myself: ReaperRef,
        launcher: Arc<Launcher>,
    ) -> Result<Arc<Launcher>, ActorProcessingErr> {
        myself.send_interval(period("reaper", EVERY), || ReaperMsg::Look);
        Ok(launcher)
    }

    async fn handle(
        &self,
        _: ReaperRef,
        message: ReaperMsg,
        launcher: &mut Arc<Launcher>,
    ) -> Result<(), ActorProcessingErr> {
        crate::panics::panic_if_requested("reaper");
        match message {
            ReaperMsg::Look => {
                let launcher = Arc::clone(launcher);
                tokio::spawn(async move { launcher.reap().await });
            }
        }
        Ok(())
    }
}

/// Removes folders that belong to none of the expected sandboxes and none of these sessions. It runs before
/// the first request, so that no new folder appears meanwhile.
pub fn clear_folders(launcher: &Launcher, sessions: &[SessionId]) {
    let paths = &launcher.paths;
    clear(&paths.sandboxes_dir(), |name| !launcher.is_live(name));
    clear(&paths.workspaces_dir(), |name| !sessions.iter().any(|session| session.to_string() == name));
    clear(&paths.kernel_dir(), |name| name.starts_with(".draft-"));
}

fn clear(folder: &Path, which: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if which(&entry.file_name().to_string_lossy())
            && let Err(error) = remove_tree(&entry.path())
        {
            tracing::warn!(%error, path = %entry.path().display(), "cannot be removed");
        }
    }
}
