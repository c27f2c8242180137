//! Folders for a while, for files that another program reads.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::{Builder, TempDir};

/// A new folder that no other user can read. It is removed when dropped; one that remains does no harm.
pub(in crate::cli) fn scratch_folder() -> io::Result<TempDir> {
    Builder::new().prefix("belljar-").permissions(Permissions::from_mode(0o700)).tempdir()
}
