//! How much may still be uploaded to a workspace. All uploads to one workspace share the room: each chunk, file and
//! folder is charged before it is made, so that simultaneous uploads get no more than successive ones.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::quota::Gauge;
use crate::sandbox::workspace::disk;
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::usage;
use crate::security_controls;

/// The block size of a file system: the least that a folder takes, and the unit to which files are rounded up.
pub(super) const BLOCK: u64 = 4096;

/// How full a workspace is while files are uploaded. Every upload measures the workspace when it begins, because the
/// guest may write at any time.
#[derive(Debug, Default)]
pub struct FillLevel(Mutex<FillCounts>);

#[derive(Debug, Default)]
struct FillCounts {
    /// The uploads and walks that are under way.
    users: usize,
    bytes: u64,
    entries: u64,
    /// Bytes of files without a name that the processes of each sandbox held at its last measurement.
    unlinked_bytes: BTreeMap<SandboxId, u64>,
}

impl FillCounts {
    fn unlinked_bytes(&self) -> u64 {
        self.unlinked_bytes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl FillLevel {
    /// Records what a walk of the workspace does not see, because processes of this sandbox hold it without a name.
    pub fn set_unlinked(&self, sandbox: &SandboxId, bytes: u64) {
        let mut counts = self.0.lock();
        if bytes == 0 {
            counts.unlinked_bytes.remove(sandbox);
        } else {
            counts.unlinked_bytes.insert(sandbox.clone(), bytes);
        }
    }

    /// Records that no sandbox holds anything.
    pub fn forget_unlinked(&self) {
        self.0.lock().unlinked_bytes.clear();
    }

    /// Bytes of unlinked open files, which a walk cannot see.
    pub fn unlinked_bytes(&self) -> u64 {
        self.0.lock().unlinked_bytes()
    }

    fn begin_use(self: &Arc<Self>) -> FillLevelUse {
        let mut counts = self.0.lock();
        if counts.users == 0 {
            (counts.bytes, counts.entries) = (0, 0);
        }
        counts.users += 1;
        FillLevelUse(Arc::clone(self))
    }
}

/// Keeps what uploads have charged, until the last of these values is dropped.
struct FillLevelUse(Arc<FillLevel>);

impl FillLevelUse {
    fn counts(&self) -> MutexGuard<'_, FillCounts> {
        self.0.0.lock()
    }
}

impl Drop for FillLevelUse {
    fn drop(&mut self) {
        let mut counts = self.counts();
        counts.users = counts.users.saturating_sub(1);
    }
}

/// A walk that measures a folder. It may pass a place before an upload writes there, so it lasts until its outcome is
/// recorded, and that is never less than what uploads have charged meanwhile.
pub struct MeasuringWalk(FillLevelUse);

impl MeasuringWalk {
    /// Begins a walk. This has to be called before the first look at the folder.
    pub fn begin(fill_level: &Arc<FillLevel>) -> Self {
        Self(fill_level.begin_use())
    }

    /// Records what the walk found, as `record` does it. No upload is charged meanwhile.
    pub fn record<T>(&self, bytes: u64, record: impl FnOnce(u64) -> T) -> T {
        let counts = self.0.counts();
        let charged = if security_controls::holds("walks_keep_charges") { counts.bytes } else { 0 };
        record(bytes.max(charged))
    }
}

/// One upload's access to the room. Charges stay until the last upload is over and the next one measures again.
pub struct UploadRoom {
    fill_level: FillLevelUse,
    /// Maximum number of bytes in the workspace.
    most: u64,
    /// The gauge that uploads are charged to; none for the owner's own folder.
    gauge: Option<Gauge>,
}

impl UploadRoom {
    /// Opens the room for an upload; a refusal if the workspace holds too much already.
    pub fn open(
        root: &Root<'_>,
        fill_level: Arc<FillLevel>,
        most: u64,
        disk_reserve: u64,
        gauge: Option<Gauge>,
    ) -> Result<Self, Problem> {
        if root.managed {
            disk::check(root.folder(), disk_reserve)?;
        }
        // The upload is counted before the measurement, so that charges of other uploads in the meantime are kept.
        let upload_room = Self { fill_level: fill_level.begin_use(), most, gauge };
        let mut used = usage::measure(root).map_err(|error| {
            Problem::new(Code::Storage, format!("the workspace cannot be measured: {error}"))
        })?;
        let mut counts = upload_room.fill_level.counts();
        used.bytes = used.bytes.saturating_add(counts.unlinked_bytes());
        if let Some(why) = used.beyond("workspace", most) {
            return Err(Problem::new(Code::TooLarge, why).hint("remove some files first"));
        }
        counts.bytes = counts.bytes.max(used.bytes);
        counts.entries = counts.entries.max(used.entries as u64);
        if let Some(gauge) = &upload_room.gauge {
            gauge.measure(Kind::Workspace, counts.bytes)?;
        }
        drop(counts);
        Ok(upload_room)
    }

    /// Called before bytes or entries are made.
    pub fn charge(&self, bytes: u64, entries: u64) -> Result<(), Problem> {
        if !security_controls::holds("uploads_share_room") {
            return Ok(());
        }
        let mut counts = self.fill_level.counts();
        let no_room = |what: String| {
            Problem::new(Code::TooLarge, format!("there is no room for it: a workspace may hold {what}"))
                .hint("remove some files of the workspace first, or raise `sandbox.workspace`")
        };
        if counts.bytes.saturating_add(bytes) > self.most {
            return Err(no_room(format!("{} bytes", self.most)));
        }
        if counts.entries.saturating_add(entries) > usage::ENTRIES as u64 {
            return Err(no_room(format!("{} files and folders", usage::ENTRIES)));
        }
        if let Some(gauge) = &self.gauge {
            gauge.grow(Kind::Workspace, bytes)?;
        }
        counts.bytes += bytes;
        counts.entries += entries;
        Ok(())
    }

    /// Called when charged bytes or entries were not made after all.
    pub fn give_back(&self, bytes: u64, entries: u64) {
        let mut counts = self.fill_level.counts();
        counts.bytes = counts.bytes.saturating_sub(bytes);
        counts.entries = counts.entries.saturating_sub(entries);
        if let Some(gauge) = &self.gauge {
            gauge.shrink(Kind::Workspace, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    const MOST: u64 = 100 * BLOCK;

    #[test]
    fn all_that_comes_in_at_once_has_one_room() {
        let folder = tempfile::tempdir().unwrap();
        let (top, fill_level) = (File::open(folder.path()).unwrap(), Arc::new(FillLevel::default()));
        let open = || {
            UploadRoom::open(&Root::of_daemon(top.as_fd()), Arc::clone(&fill_level), MOST, 0, None).unwrap()
        };
        let (one, other) = (open(), open());
        one.charge(60 * BLOCK, 1).unwrap();
        let refused = other.charge(60 * BLOCK, 1).unwrap_err();
        assert_eq!(refused.code, Code::TooLarge);
        other.charge(40 * BLOCK, 1).unwrap();
        // Bytes that are charged but not written yet still count for a third upload.
        let third = open();
        assert!(third.charge(1, 0).is_err());
        other.give_back(40 * BLOCK, 1);
        third.charge(40 * BLOCK, 1).unwrap();
        drop((one, other, third));
        // Once no upload runs, only what is really there counts.
        let fresh = open();
        fresh.charge(MOST, 0).unwrap();
        assert!(fresh.charge(0, usage::ENTRIES as u64 + 1).is_err());
    }

    #[test]
    fn files_without_a_name_take_room_too() {
        let folder = tempfile::tempdir().unwrap();
        let (top, fill_level) = (File::open(folder.path()).unwrap(), Arc::new(FillLevel::default()));
        let open = || UploadRoom::open(&Root::of_daemon(top.as_fd()), Arc::clone(&fill_level), MOST, 0, None);
        let (one, other) = (SandboxId::fresh(), SandboxId::fresh());
        fill_level.set_unlinked(&one, 50 * BLOCK);
        open().unwrap().charge(20 * BLOCK, 1).unwrap();
        fill_level.set_unlinked(&other, 40 * BLOCK);
        assert!(open().unwrap().charge(20 * BLOCK, 1).is_err());
        fill_level.set_unlinked(&one, MOST + 1);
        assert!(open().is_err());
        fill_level.set_unlinked(&one, 0);
        open().unwrap().charge(20 * BLOCK, 1).unwrap();
        fill_level.forget_unlinked();
        open().unwrap().charge(90 * BLOCK, 1).unwrap();
    }

    /// The walk has passed the place when the upload writes there, and the upload is over when the walk is recorded.
    #[test]
    fn a_walk_does_not_forget_what_uploads_charged_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let (top, fill_level) = (File::open(folder.path()).unwrap(), Arc::new(FillLevel::default()));
        let open = || {
            UploadRoom::open(&Root::of_daemon(top.as_fd()), Arc::clone(&fill_level), MOST, 0, None).unwrap()
        };
        let found = |walk: &MeasuringWalk, bytes| walk.record(bytes, |recorded| recorded);
        let before = open();
        before.charge(10 * BLOCK, 1).unwrap();
        // This one was charged before the walk, and is written after it.
        let walk = MeasuringWalk::begin(&fill_level);
        assert_eq!(found(&walk, BLOCK), 10 * BLOCK);
        let during = open();
        during.charge(20 * BLOCK, 1).unwrap();
        during.give_back(5 * BLOCK, 0);
        drop((before, during));
        assert_eq!((found(&walk, BLOCK), found(&walk, 50 * BLOCK)), (25 * BLOCK, 50 * BLOCK));
        drop(walk);
        // The next one begins after all uploads, so it sees all.
        assert_eq!(found(&MeasuringWalk::begin(&fill_level), BLOCK), BLOCK);
    }
}
