//! The folder of one installation.

use std::mem::ManuallyDrop;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::quota::{Gauge, Permit};
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::remove_tree;

/// Times between two tries to remove a folder. An installer that was given up may write for a moment longer.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_secs(2)];

/// A folder of an installation, with what its user holds for it until it is gone. It is removed when this value is
/// dropped, some time later. Whoever works in the folder has a share of this value, so that nothing is removed below it.
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

    /// The hold for the folder; none once it is being removed.
    pub fn hold(&self) -> Option<Gauge> {
        self.room.as_ref().map(Permit::gauge)
    }

    /// Removes the folder, and returns when it is gone.
    pub async fn remove(mut self) {
        if let Some(removal) = self.begin_removal()
            && let Err(problem) = removal.await
        {
            self.warn(&problem.message);
        }
    }

    /// The removal goes on whether or not its outcome is waited for, and needs no runtime: the last share of a draft may
    /// be dropped on a thread for folders.
    fn begin_removal(&mut self) -> Option<impl Future<Output = Result<(), Problem>> + Send + 'static> {
        // As long as the folder is there, it takes what is held for it, also if its removal is refused, fails or dies.
        // The next daemon removes it.
        let room = ManuallyDrop::new(self.room.take()?);
        let path = self.path.clone();
        let remove = move || match removed(&path) {
            Ok(()) => drop(ManuallyDrop::into_inner(room)),
            Err(error) => tracing::warn!(%error, path = %path.display(), "cannot be removed"),
        };
        let begun = folders::begin(self.owner, WorkKind::Removal, None, remove);
        begun.inspect_err(|problem| self.warn(&problem.message)).ok()
    }

    fn warn(&self, error: &str) {
        tracing::warn!(error, path = %self.path.display(), "cannot be removed");
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        drop(self.begin_removal());
    }
}

fn removed(path: &Path) -> std::io::Result<()> {
    for pause in PAUSES {
        if remove_tree(path).is_ok() {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
    remove_tree(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::quota::Kind;
    use crate::quota::Ledger;
    use crate::sandbox::packages::charges::disk;
    use std::sync::Arc;

    const ROOM: u64 = 1000;

    fn draft(path: PathBuf) -> (Draft, Ledger) {
        let settings = crate::config::load_text(Path::new("c.toml"), "").unwrap().settings;
        let ledger = Ledger::new(&settings.quota);
        let room = ledger.take(Principal::ANN, "a test", disk(ROOM)).unwrap();
        (Draft::make(path, Principal::ANN, room).unwrap(), ledger)
    }

    #[test]
    fn a_draft_stays_until_the_last_who_works_in_it_is_done_and_goes_without_a_runtime() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("draft");
        let (draft, ledger) = draft(path.clone());
        let draft = Arc::new(draft);
        let works = Arc::clone(&draft);
        drop(draft);
        std::thread::sleep(Duration::from_millis(50));
        assert!(path.exists());
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), ROOM);
        drop(works);
        for _ in 0..500 {
            if ledger.used(Principal::ANN, Kind::Workspace) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!path.exists());
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
    }

    #[tokio::test]
    async fn what_cannot_be_removed_stays_charged() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("draft");
        let (mut draft, ledger) = draft(path.clone());
        // No folder of any user has a name like this.
        draft.path = home.path().join("x".repeat(300));
        draft.remove().await;
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), ROOM);
    }
}
