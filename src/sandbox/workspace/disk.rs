//! The disk of the daemon's home, which all workspaces and the journals of all users share. `reserve` bytes of it are
//! kept free: below that nothing new begins there, and work that grows is ended, so that the files of one user cannot
//! stop all others.

use rustix::fs::{Mode, OFlags, StatVfs, fstatvfs, openat};
use std::os::fd::AsFd;

use crate::config::show_size;
use crate::protocol::problem::{Code, Problem};
use crate::security_controls;

/// A refusal if the disk of the workspace has less than `reserve` bytes left. A workspace with a project quota reports
/// what is left of its quota, so the parent folder is asked.
pub fn check(workspace: impl AsFd, reserve: u64) -> Result<(), Problem> {
    let parent = openat(&workspace, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    judge(parent.and_then(fstatvfs).ok(), reserve)
}

/// The same check for the folder of all workspaces.
pub fn check_at(folder: &std::path::Path, reserve: u64) -> Result<(), Problem> {
    judge(std::fs::File::open(folder).ok().and_then(|folder| fstatvfs(folder).ok()), reserve)
}

/// Bytes that the disk of the folder is short of `reserve`.
pub fn short_at(folder: &std::path::Path, reserve: u64) -> u64 {
    let found = std::fs::File::open(folder).ok().and_then(|folder| fstatvfs(folder).ok());
    let short = |found: StatVfs| reserve.saturating_sub(free_bytes(&found));
    found.filter(|found| is_short(found, reserve)).map_or(0, short)
}

/// If the file system cannot be read, the check passes.
fn judge(found: Option<StatVfs>, reserve: u64) -> Result<(), Problem> {
    if !found.is_some_and(|found| is_short(&found, reserve)) {
        return Ok(());
    }
    Err(Problem::new(
        Code::Storage,
        format!("the disk of the daemon's home has less than {} left", show_size(reserve)),
    )
    .hint("remove sessions with large workspaces, or make room on that disk (`sandbox.disk_reserve` is kept free)"))
}

fn is_short(found: &StatVfs, reserve: u64) -> bool {
    free_bytes(found) < reserve && security_controls::holds("disk_reserve")
}

fn free_bytes(found: &StatVfs) -> u64 {
    found.f_bavail.saturating_mul(found.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_the_reserve_is_too_little() {
        let folder = tempfile::tempdir().unwrap();
        check_at(folder.path(), 0).unwrap();
        let problem = check_at(folder.path(), u64::MAX).unwrap_err();
        assert_eq!(problem.code, Code::Storage);
        assert!(problem.message.contains("left"), "{problem:?}");
        check(std::fs::File::open(folder.path()).unwrap(), 0).unwrap();
        check(std::fs::File::open(folder.path()).unwrap(), u64::MAX).unwrap_err();
        check_at(&folder.path().join("missing"), u64::MAX).unwrap();
    }
}
