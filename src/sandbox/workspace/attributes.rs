//! What the header of a member of a tar stream says besides its name, its kind and its size.

use rustix::fs::{Mode, Timespec, Timestamps};
use std::os::fd::AsFd;

use crate::security_controls;

/// The rights to read, write and run. An archive is a stranger's word, so nothing that it holds gets a set-id bit.
const RIGHTS: u32 = 0o777;

/// The rights and the time of the last change of a file or a folder; none where the header has no number for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub rights: Option<u32>,
    /// Seconds since 1970.
    pub modified: Option<i64>,
}

impl Attributes {
    pub(super) fn of(header: &tar::Header) -> Self {
        let rights = if security_controls::holds("no_set_id_enters") { RIGHTS } else { 0o7777 };
        Self {
            rights: header.mode().ok().map(|mode| mode & rights),
            modified: header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()),
        }
    }

    /// Gives them to an open file or folder, whatever the daemon's own mask is.
    pub(super) fn give_to(&self, target: impl AsFd) -> rustix::io::Result<()> {
        if let Some(rights) = self.rights {
            rustix::fs::fchmod(&target, Mode::from_raw_mode(rights))?;
        }
        if let Some(seconds) = self.modified {
            let modified = Timespec { tv_sec: seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: modified, last_modification: modified };
            rustix::fs::futimens(&target, &times)?;
        }
        Ok(())
    }
}
