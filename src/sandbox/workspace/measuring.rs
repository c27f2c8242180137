//! How much of the disk the folders of a sandbox take: its workspace, and the volumes that it can write to.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::ids::{SandboxId, VolumeName};
use crate::protocol::problem::Problem;
use crate::sandbox::spec::WORKSPACE;
use crate::sandbox::volumes::Volumes;
use crate::sandbox::workspace::owner::{self, WorkKind};
use crate::sandbox::workspace::unlinked_files::{FolderInSandbox, find_unlinked_files};
use crate::sandbox::workspace::upload_room::MeasuringWalk;
use crate::sandbox::workspace::usage::{self, DiskUsage, UnmeasuredReason};
use crate::sandbox::workspace::{Workspace, disk};

/// A sandbox whose processes may hold files without a name.
#[derive(Clone)]
pub struct HoldingSandbox {
    pub id: SandboxId,
    /// The volumes of all users, which know whether the sandbox still has those that it was started with.
    pub volumes: Volumes,
    /// The pid of the sandbox's first process.
    pub first: i32,
}

/// What a folder takes. Its upload charges stay until this value is dropped.
pub struct MeasuredFolder {
    pub usage: DiskUsage,
    walk: MeasuringWalk,
}

impl MeasuredFolder {
    /// Records the bytes that count if the folder may hold `most`, as `record` does it, and no less than what uploads have
    /// charged since the walk began.
    pub fn record<T>(&self, most: u64, record: impl FnOnce(u64) -> T) -> T {
        self.walk.record(self.usage.counted(most), record)
    }
}

type Measured<T> = Result<rustix::io::Result<(T, Duration)>, Problem>;

impl Workspace {
    /// How much of the disk a workspace takes that no sandbox has now, and how long it took to measure.
    pub async fn measure(&self) -> Measured<MeasuredFolder> {
        let walk = MeasuringWalk::begin(&self.fill_level);
        self.fill_level.forget_unlinked();
        let seen = self.access(WorkKind::Look, |root| timed(|| usage::measure(root))).await?;
        Ok(seen.map(|(usage, took)| (MeasuredFolder { usage, walk }, took)))
    }

    /// The workspace and the volumes that the sandbox can write to, in their order, with the places where the sandbox has
    /// them.
    fn written(&self) -> impl Iterator<Item = (&str, Option<&VolumeName>, &Self)> {
        let volumes = self.mounts.iter().filter(|mount| mount.writable && mount.volume.is_some());
        std::iter::once((WORKSPACE, None, self))
            .chain(volumes.map(|mount| (&*mount.target, mount.volume.as_ref(), &mount.folder)))
    }

    /// The volumes that the sandbox can write to, in their order.
    pub fn written_volumes(&self) -> impl Iterator<Item = (&VolumeName, &Self)> {
        let writable = self.mounts.iter().filter(|mount| mount.writable);
        writable.filter_map(|mount| Some((mount.volume.as_ref()?, &mount.folder)))
    }

    /// Measures the workspace and the volumes that the sandbox can write to. A file without a name that a process of the
    /// sandbox holds counts to the folder in which it is; only the daemon's own rights show what processes hold.
    pub async fn measure_all(
        &self,
        sandbox: Option<HoldingSandbox>,
        disk_reserve: u64,
    ) -> Measured<Vec<MeasuredFolder>> {
        let (mut measured, mut took) = (Vec::new(), Duration::ZERO);
        for (_, _, folder) in self.written() {
            let walk = MeasuringWalk::begin(&folder.fill_level);
            match folder.access(WorkKind::Look, |root| timed(|| usage::measure(root))).await? {
                Ok((usage, walking)) => {
                    measured.push(MeasuredFolder { usage, walk });
                    took += walking;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        let folders: Vec<_> = self
            .written()
            .map(|(target, _, folder)| (PathBuf::from(target), Arc::clone(&folder.root), folder.managed))
            .collect();
        let first = sandbox.as_ref().map(|sandbox| sandbox.first);
        let find = move || {
            let (mut places, mut is_short) = (Vec::new(), Vec::new());
            for (target, folder, managed) in folders {
                places.push(FolderInSandbox { device: rustix::fs::fstat(&folder)?.st_dev, target });
                is_short.push(managed && disk::check(folder.as_fd(), disk_reserve).is_err());
            }
            let unlinked = first.map(|first| find_unlinked_files(first, places)).unwrap_or_default();
            Ok((unlinked, is_short))
        };
        let ((unlinked, is_short), looking) =
            match owner::run(self.pays, WorkKind::Look, None, move || timed(find)).await? {
                Ok(found) => found,
                Err(error) => return Ok(Err(error)),
            };
        for (index, (_, volume, folder)) in self.written().enumerate() {
            let MeasuredFolder { usage, .. } = &mut measured[index];
            let bytes = unlinked.bytes.get(index).copied().unwrap_or(0);
            if index == 0 {
                // The sandbox before this one is gone with all that it held.
                folder.fill_level.forget_unlinked();
            }
            match (&sandbox, volume) {
                (Some(sandbox), Some(name)) => {
                    sandbox.volumes.set_unlinked(folder.payer(), name, &sandbox.id, bytes);
                }
                (Some(sandbox), None) => folder.fill_level.set_unlinked(&sandbox.id, bytes),
                (None, _) => {}
            }
            usage.bytes = usage.bytes.saturating_add(folder.fill_level.unlinked_bytes());
            (usage.bytes_written, usage.is_disk_short) = (unlinked.bytes_written, is_short[index]);
            if unlinked.too_many {
                usage.hidden = Some(UnmeasuredReason::TooMany);
            }
        }
        Ok(Ok((measured, took + looking)))
    }
}

/// Returns the result with the time that the work took, without the wait for a thread.
fn timed<T>(work: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<(T, Duration)> {
    let since = Instant::now();
    work().map(|done| (done, since.elapsed()))
}
