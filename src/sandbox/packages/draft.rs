//! The folder of one installation.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use crate::protocol::principal::Principal;
use crate::quota::Permit;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::remove_tree;

/// A folder of an installation, with what its user holds for it until it is gone. It is removed when this value is
/// dropped, some time later.
pub struct Draft {
    pub path: PathBuf,
    owner: Principal,
    room: Option<Permit>,
}

impl Draft {
    pub fn make(path: PathBuf, owner: Principal, room: Permit) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, owner, room: Some(room) })
    }

    /// Removes the folder, and returns when it is gone.
    pub async fn remove(mut self) {
        if let Some(room) = self.room.take() {
            removed(self.path.clone(), self.owner, room).await;
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let (Some(room), Ok(runtime)) = (self.room.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(removed(self.path.clone(), self.owner, room));
        }
    }
}

async fn removed(path: PathBuf, owner: Principal, room: Permit) {
    let shown = path.display().to_string();
    let remove = move || {
        let removed = remove_tree(&path);
        drop(room);
        removed
    };
    let error = match folders::run(owner, WorkKind::Removal, None, remove).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(problem) => problem.message,
    };
    tracing::warn!(error, path = shown, "cannot be removed");
}
