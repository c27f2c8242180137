//! Starts a sandbox that waits for a session.

use std::sync::Arc;

use super::waiting::WaitingSandbox;
use crate::actors::launch::launch;
use crate::protocol::ids::SandboxId;
use crate::protocol::preload::Preload;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::images::is_same_name;
use crate::sandbox::launch::Launcher;
use crate::sandbox::pool::Class;
use crate::sandbox::spec::Choice;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::{Workspace, disk};

/// The start of the name of a workspace that has no session yet. No session has such an id, so the next daemon removes
/// the folder.
const PREFIX: &str = "pool-";

/// Does what a session does for its first sandbox.
pub async fn fill(launcher: Arc<Launcher>, class: Class) -> Result<WaitingSandbox, Problem> {
    let Class { backend, wanted, preloads } = class;
    let settings = Arc::clone(&launcher.settings);
    let image = wanted.first_image.as_ref().map(|image| image.reference.clone());
    let slot = launcher.slots.take()?;
    disk::check_at(&launcher.paths.workspaces_dir(), settings.sandbox.disk_reserve_bytes)?;
    let mapping = launcher.backend(backend).user_mapping().await?;
    let path = launcher.paths.workspaces_dir().join(format!("{PREFIX}{}", SandboxId::fresh()));
    let (service, bytes, uid) = (launcher.service, settings.sandbox.workspace_bytes, slot.uid);
    let choice = Choice { backend, why: String::new() };
    let make = move || Workspace::managed(path, service, mapping, choice, uid, bytes);
    let workspace = Arc::new(folders::run(service.principal(), WorkKind::Look, None, make).await??);
    let launched = Box::pin(launch(launcher, wanted, Arc::clone(&workspace), None, |_| {})).await;
    let ready = match launched {
        Ok(ready) => ready,
        Err(problem) => {
            if let Err(error) = workspace.remove().await {
                tracing::warn!(%error, "a workspace is left to the next start");
            }
            return Err(problem);
        }
    };
    let Some(workspace) = Arc::into_inner(workspace) else {
        ready.sandbox.undo().await;
        return Err(Problem::new(Code::Internal, "a launch still has its workspace"));
    };
    let mut waiting = WaitingSandbox::new(ready, workspace, slot);
    let of_pool =
        settings.pool.preload.of(|name| image.as_deref().is_some_and(|image| is_same_name(image, name)));
    if preloads && let Err(problem) = preload(&mut waiting, of_pool, &settings.sessions.preload).await {
        waiting.discard().await;
        return Err(problem);
    }
    Ok(waiting)
}

/// Imports the pool's modules, and those that the session will begin with.
async fn preload(
    waiting: &mut WaitingSandbox,
    of_pool: &[String],
    of_sessions: &[String],
) -> Result<(), Problem> {
    // The entries were checked when the settings were read.
    let preload = Preload::parse(&[of_pool, of_sessions].concat()).unwrap_or_default();
    if preload.is_empty() { Ok(()) } else { waiting.preload(preload).await }
}
