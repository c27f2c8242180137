//! What a new session begins with besides what its request says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::spool::Spool;
use crate::actors::snapshots::SessionBase;
use crate::config;
use crate::protocol::packages::PackageSet;
use crate::protocol::problem::Problem;
use crate::quota::Gauge;
use crate::sandbox::workspace::owner::WorkKind;
use crate::sandbox::workspace::session_archive;
use crate::sandbox::workspace::upload_room::UploadRoom;
use crate::sandbox::workspace::{Root, Workspace};

#[derive(Default)]
pub struct Beginning {
    pub variables: Option<SessionBase>,
    pub carried: Carried,
}

/// What a session begins with besides variables.
#[derive(Clone, Default)]
pub struct Carried {
    pub files: Option<Files>,
    pub packages: Option<PackageSet>,
}

/// Where the files of a new session come from, and how many were left out.
#[derive(Clone)]
pub struct Files {
    source: FilesSource,
    left_out: LeftOut,
}

#[derive(Clone)]
enum FilesSource {
    Workspace(Arc<Workspace>),
    Archive(Arc<Spool>),
}

/// The entries that could not be copied; none before the session is made.
#[derive(Clone, Default)]
pub struct LeftOut(Arc<AtomicUsize>);

impl LeftOut {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Files {
    pub fn of_workspace(source: Arc<Workspace>) -> (Self, LeftOut) {
        let left_out = LeftOut::default();
        (Self { source: FilesSource::Workspace(source), left_out: left_out.clone() }, left_out)
    }

    /// Those of an archive that was read to its end before.
    pub fn of_archive(spool: Arc<Spool>) -> Self {
        Self { source: FilesSource::Archive(spool), left_out: LeftOut::default() }
    }

    /// Puts them into the workspace of the new session, which is empty, before anything runs there.
    pub async fn fill(
        &self,
        workspace: &Workspace,
        limits: &config::Sandbox,
        gauge: Gauge,
    ) -> Result<(), Problem> {
        let (most, reserve, fill_level) =
            (limits.workspace_bytes, limits.disk_reserve_bytes, workspace.fill_level());
        let open = move |root: &Root<'_>| UploadRoom::open(root, fill_level, most, reserve, Some(gauge));
        match &self.source {
            FilesSource::Workspace(source) => {
                let copied = workspace.copy_from(source, open).await?;
                self.left_out.0.store(copied.left_out, Ordering::Relaxed);
                Ok(())
            }
            FilesSource::Archive(spool) => {
                let spool = Arc::clone(spool);
                let unpacked = workspace.access(WorkKind::Transfer, move |root| {
                    let room = open(root)?;
                    session_archive::unpack(|| spool.reader(), root, &room)
                });
                unpacked.await?
            }
        }
    }
}
