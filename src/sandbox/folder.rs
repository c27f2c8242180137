//! The folder of one sandbox in the daemon's home: its bridge, and the notes by which it is found again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::protocol::problem::{Code, FREE_SPACE, Problem};

/// The host folder of one sandbox. It is removed when this value is dropped, unless `left` is set.
pub(super) struct Folder {
    pub path: PathBuf,
    pub left: AtomicBool,
}

impl Folder {
    pub fn of(path: PathBuf) -> Self {
        Self { path, left: AtomicBool::new(false) }
    }

    /// No folder, which stays in the place of one that was moved away.
    pub fn none() -> Self {
        Self { path: PathBuf::new(), left: AtomicBool::new(true) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

pub(super) fn storage_problem(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("`{}` cannot be written: {error}", path.display())).hint(FREE_SPACE)
}
