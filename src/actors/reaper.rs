//! The reaper: removes what no living session owns – containers of this instance in the engine,
//! jails and folders in the daemon's home. At boot, then regularly; an engine that is away is tried again.

use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

use crate::protocol::ids::{SandboxId, SessionId};
use crate::sandbox::engine::EngineError;
use crate::sandbox::jail;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::remove_tree;

const EVERY: Duration = Duration::from_secs(30);

pub type ReaperRef = ActorRef<ReaperMsg>;

pub enum ReaperMsg {
    /// Look and remove.
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
        myself.send_interval(EVERY, || ReaperMsg::Look);
        Ok(launcher)
    }

    async fn handle(
        &self,
        _: ReaperRef,
        message: ReaperMsg,
        launcher: &mut Arc<Launcher>,
    ) -> Result<(), ActorProcessingErr> {
        crate::deaths::on_demand("reaper");
        match message {
            ReaperMsg::Look => {
                let launcher = Arc::clone(launcher);
                tokio::spawn(async move { reap(&launcher).await });
            }
        }
        Ok(())
    }
}

/// Removes every sandbox of this instance that no session owns; gives how many.
pub async fn reap(launcher: &Launcher) -> usize {
    reap_jails(launcher).await + reap_containers(launcher).await
}

/// Those whose notes lie in folders that nobody owns. The folder goes with them.
async fn reap_jails(launcher: &Launcher) -> usize {
    let mut reaped = 0;
    for entry in std::fs::read_dir(launcher.paths.sandboxes_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if launcher.is_live(&name) {
            continue;
        }
        match jail::reap(&SandboxId(name.clone()), &entry.path()).await {
            Ok(true) => {
                reaped += 1;
                tracing::info!(sandbox = name, "reaped");
                if let Err(error) = remove_tree(&entry.path()) {
                    tracing::warn!(%error, sandbox = name, "its folder cannot be removed");
                }
            }
            Ok(false) => {}
            Err(problem) => tracing::warn!(problem = problem.message, sandbox = name, "cannot be reaped"),
        }
    }
    reaped
}

async fn reap_containers(launcher: &Launcher) -> usize {
    let found = match launcher.engine.ours(&launcher.instance).await {
        Ok(found) => found,
        // Where there is no engine, nothing of ours is in it.
        Err(EngineError::Unavailable(_)) if !launcher.needs_engine() => return 0,
        Err(error) => {
            tracing::warn!(%error, "the reaper cannot list containers");
            return 0;
        }
    };
    let mut reaped = 0;
    for container in found {
        if container.sandbox.as_deref().is_some_and(|sandbox| launcher.is_live(sandbox)) {
            continue;
        }
        match launcher.engine.remove(&container.id).await {
            Ok(()) => {
                reaped += 1;
                tracing::info!(container = container.id, "reaped");
                if let Some(sandbox) = container.sandbox.filter(|sandbox| is_name(sandbox))
                    && let Err(error) = remove_tree(&launcher.paths.sandboxes_dir().join(&sandbox))
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, sandbox, "its folder cannot be removed");
                }
            }
            Err(error) => tracing::warn!(%error, container = container.id, "cannot be reaped"),
        }
    }
    reaped
}

/// Anybody with the engine's keys can write a container's labels: no path may come of one.
fn is_name(sandbox: &str) -> bool {
    !sandbox.is_empty() && sandbox.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Removes folders that belong to no sandbox that is expected and to none of these sessions. Before
/// the first request, so that nobody makes one meanwhile.
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
