//! How much may still be uploaded to a workspace. All uploads to one workspace share the room: each chunk, file and
//! folder is charged before it is made, so that simultaneous uploads get no more than successive ones.

use parking_lot::Mutex;
use std::sync::Arc;

use crate::controls;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::disk;
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::usage;

/// The block size of a file system: the least that a folder takes, and the unit to which files are rounded up.
pub(super) const BLOCK: u64 = 4096;

/// The account that is charged for uploads to a workspace.
pub trait Payer: Send {
    /// Records how much the workspace holds.
    fn measured(&self, bytes: u64) -> Result<(), Problem>;
    /// Charges `bytes` more, or refuses.
    fn grow(&self, bytes: u64) -> Result<(), Problem>;
    /// Gives `bytes` back.
    fn shrink(&self, bytes: u64);
}

/// How full a workspace is while files are uploaded. Every upload measures the workspace when it begins, because the
/// guest may write at any time.
#[derive(Debug, Default)]
pub struct Filling(Mutex<Filled>);

#[derive(Debug, Default)]
struct Filled {
    uploads: usize,
    bytes: u64,
    entries: u64,
    /// Bytes of files without a name that processes of the sandbox held at the last measurement.
    nameless: u64,
}

impl Filling {
    /// Records what a walk of the workspace does not see.
    pub fn set_nameless(&self, bytes: u64) {
        self.0.lock().nameless = bytes;
    }
}

/// One upload's access to the room. Charges stay until the last upload is over and the next one measures again.
pub struct UploadRoom {
    filling: Arc<Filling>,
    /// Maximum number of bytes in the workspace.
    most: u64,
    payer: Option<Box<dyn Payer>>,
}

impl UploadRoom {
    /// Opens the room for an upload; a refusal if the workspace holds too much already.
    pub fn open(
        root: &Root<'_>,
        filling: Arc<Filling>,
        most: u64,
        disk_reserve: u64,
        payer: Option<Box<dyn Payer>>,
    ) -> Result<Self, Problem> {
        if root.managed {
            disk::check(root.folder(), disk_reserve)?;
        }
        let room = Self { filling, most, payer };
        // The upload is counted before the measurement, so that charges of other uploads in the meantime are kept.
        {
            let mut filled = room.filling.0.lock();
            if filled.uploads == 0 {
                (filled.bytes, filled.entries) = (0, 0);
            }
            filled.uploads += 1;
        }
        let mut used = usage::measure(root).map_err(|error| {
            Problem::new(Code::Storage, format!("the workspace cannot be measured: {error}"))
        })?;
        let mut filled = room.filling.0.lock();
        used.bytes = used.bytes.saturating_add(filled.nameless);
        if let Some(why) = used.beyond(most) {
            return Err(Problem::new(Code::TooLarge, why).hint("remove some files first"));
        }
        filled.bytes = filled.bytes.max(used.bytes);
        filled.entries = filled.entries.max(used.entries as u64);
        let bytes = filled.bytes;
        drop(filled);
        room.payer.as_ref().map_or(Ok(()), |payer| payer.measured(bytes))?;
        Ok(room)
    }

    /// Called before bytes or entries are made.
    pub fn charge(&self, bytes: u64, entries: u64) -> Result<(), Problem> {
        if !controls::holds("uploads_share_room") {
            return Ok(());
        }
        let mut filled = self.filling.0.lock();
        let no_room = |what: String| {
            Problem::new(Code::TooLarge, format!("there is no room for it: a workspace may hold {what}"))
                .hint("remove some files of the workspace first, or raise `sandbox.workspace`")
        };
        if filled.bytes.saturating_add(bytes) > self.most {
            return Err(no_room(format!("{} bytes", self.most)));
        }
        if filled.entries.saturating_add(entries) > usage::ENTRIES as u64 {
            return Err(no_room(format!("{} files and folders", usage::ENTRIES)));
        }
        if let Some(payer) = &self.payer {
            payer.grow(bytes)?;
        }
        filled.bytes += bytes;
        filled.entries += entries;
        Ok(())
    }

    /// Called when charged bytes or entries were not made after all.
    pub fn give_back(&self, bytes: u64, entries: u64) {
        let mut filled = self.filling.0.lock();
        filled.bytes = filled.bytes.saturating_sub(bytes);
        filled.entries = filled.entries.saturating_sub(entries);
        drop(filled);
        if let Some(payer) = &self.payer {
            payer.shrink(bytes);
        }
    }
}

impl Drop for UploadRoom {
    fn drop(&mut self) {
        let mut filled = self.filling.0.lock();
        filled.uploads = filled.uploads.saturating_sub(1);
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
        let (top, filling) = (File::open(folder.path()).unwrap(), Arc::new(Filling::default()));
        let open =
            || UploadRoom::open(&Root::of_daemon(top.as_fd()), Arc::clone(&filling), MOST, 0, None).unwrap();
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
        let (top, filling) = (File::open(folder.path()).unwrap(), Arc::new(Filling::default()));
        let open = || UploadRoom::open(&Root::of_daemon(top.as_fd()), Arc::clone(&filling), MOST, 0, None);
        filling.set_nameless(90 * BLOCK);
        assert!(open().unwrap().charge(20 * BLOCK, 1).is_err());
        filling.set_nameless(MOST + 1);
        assert!(open().is_err());
        filling.set_nameless(0);
        open().unwrap().charge(20 * BLOCK, 1).unwrap();
    }
}
