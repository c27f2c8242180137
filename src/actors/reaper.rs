//! The reaper: removes what no existing session owns, namely containers of this instance in the engine, and
//! jails and folders in the daemon's home, and what builds of images left in the engine. It runs at start, then
//! regularly; an unreachable engine is tried again.

use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

use crate::protocol::ids::{SandboxId, SessionId};
use crate::protocol::periods::period;
use crate::sandbox::kernel::DRAFT;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::remove_tree;

const EVERY: Duration = Duration::from_secs(30);

pub type ReaperRef = ActorRef<ReaperMsg>;

pub enum ReaperMsg {
    /// Find and remove leftovers.
    Sweep,
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
        myself.send_interval(period("reaper", EVERY), || ReaperMsg::Sweep);
        // Sandboxes were reaped before the first request. No request waits for what builds left: an engine may need long
        // to remove it.
        let images = Arc::clone(&launcher);
        tokio::spawn(async move { images.settle_images().await });
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
            ReaperMsg::Sweep => {
                let launcher = Arc::clone(launcher);
                tokio::spawn(async move { sweep(&launcher).await });
            }
        }
        Ok(())
    }
}

async fn sweep(launcher: &Launcher) {
    launcher.reap().await;
    launcher.settle_images().await;
}

/// Removes folders that belong to no sandbox that is still there and to none of these sessions. They are listed before
/// the first request, and no later folder has the name of an earlier one; then they are removed one after the other,
/// while the daemon serves, because a guest may have left a million files. `left` are sandboxes that belong to no session
/// and could not be removed: by the notes in its folder such a sandbox is found again, and the volumes that it has.
/// `more` are folders that earlier daemons left elsewhere.
pub fn clear_folders(
    launcher: &Launcher,
    left: &BTreeSet<SandboxId>,
    sessions: &[SessionId],
    more: Vec<PathBuf>,
) -> JoinHandle<()> {
    let paths = &launcher.paths;
    // A sandbox whose backend does not answer is not among those that are left, but has its user id and volumes still.
    let is_there = |name: &str| {
        launcher.is_live(name)
            || left.contains(&SandboxId(name.to_owned()))
            || launcher.is_left(name)
            || launcher.volumes.are_held_by(name)
    };
    let mut unwanted = listed(&paths.sandboxes_dir(), |name| !is_there(name));
    let is_known = |name: &str| sessions.iter().any(|session| session.to_string() == name);
    unwanted.extend(listed(&paths.workspaces_dir(), |name| !is_known(name)));
    unwanted.extend(listed(&paths.kernel_dir(), |name| name.starts_with(DRAFT)));
    if listed(&paths.sandboxes_dir(), is_there).is_empty() {
        unwanted.extend(launcher.retire_kernels());
    }
    unwanted.extend(more);
    let daemon = launcher.service.principal();
    tokio::spawn(async move {
        for path in unwanted {
            let printable_path = path.display().to_string();
            let removed = folders::run(daemon, WorkKind::Removal, None, move || remove_tree(&path)).await;
            let error = match removed {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(problem) => problem.message,
            };
            tracing::warn!(error, path = printable_path, "cannot be removed");
        }
    })
}

fn listed(folder: &Path, which: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| which(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Paths, load_text};
    use crate::sandbox::workspace::Service;

    /// In a runtime of one thread nothing happens in the background before the test waits.
    #[tokio::test]
    async fn what_is_left_over_is_removed_in_the_background_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let paths = Paths::discover(false, &|name| (name == "BELLJAR_HOME").then(|| home.path().into()));
        let paths = paths.unwrap();
        let settings = Arc::new(load_text(&home.path().join("config.toml"), "").unwrap().settings);
        let service = Service { system: false, ..Service::of_this_process() };
        let (kept, left) = (SessionId::fresh(), SessionId::fresh());
        let workspace = |id: SessionId| paths.workspaces_dir().join(id.to_string());
        let draft = paths.kernel_dir().join(".draft-1");
        for folder in [&workspace(kept), &workspace(left), &draft, &paths.sandboxes_dir().join("old")] {
            std::fs::create_dir_all(folder.join("deeper")).unwrap();
        }
        let launcher = Launcher::new(service, settings, paths.clone(), "test".into());
        // A kernel of an earlier version, which this one does not use.
        let old = paths.kernel_dir().join("0123456789abcdef0123");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("runner.py"), "pass").unwrap();
        // A sandbox of an earlier daemon may have it.
        let sandbox = SandboxId("left".into());
        std::fs::create_dir_all(paths.sandboxes_dir().join(&sandbox.0)).unwrap();
        launcher.expect(&sandbox);
        clear_folders(&launcher, &BTreeSet::new(), &[kept, left], Vec::new()).await.unwrap();
        assert!(old.exists());
        launcher.forgo(&sandbox);
        std::fs::create_dir_all(draft.join("deeper")).unwrap();
        let clearing = clear_folders(&launcher, &BTreeSet::new(), &[kept], Vec::new());
        assert!(workspace(left).exists(), "the start does not wait for it");
        // This one has appeared since.
        let late = workspace(SessionId::fresh());
        std::fs::create_dir_all(&late).unwrap();
        clearing.await.unwrap();
        assert!(workspace(kept).exists() && late.exists());
        assert!(!old.exists());
        assert!(!workspace(left).exists() && !draft.exists() && !paths.sandboxes_dir().join("old").exists());
    }
}
