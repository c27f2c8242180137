//! A file system that a test can fill up.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Enough for a daemon's home with a few sessions.
const SIZE: &str = "size=48m,mode=700";
const CHUNK: usize = 1024 * 1024;

pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Only root can mount.
    pub fn mount(folder: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT RUN: a full disk can only be tested as root");
            return None;
        }
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", SIZE, "belljar-test"]).arg(folder).status();
        assert!(mounted.expect("mount").success(), "a tmpfs cannot be mounted");
        Some(Self { folder: folder.to_owned() })
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Not a byte is left.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).expect("a file");
        let mut size = CHUNK;
        while size > 0 {
            if file.write_all(&vec![1; size]).is_err() {
                size /= 2;
            }
        }
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}
