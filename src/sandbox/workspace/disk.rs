//! The disk of the daemon's home, which all workspaces and everybody's journal share. So much of it is kept free: below
//! that nothing new is begun there, and what grows is ended, so that what one user hides cannot stop all others.

use rustix::fs::StatVfs;
use std::os::fd::AsFd;

use crate::config::show_size;
use crate::controls;
use crate::protocol::problem::{Code, Problem};

/// A refusal if the disk of that folder has less left than is to be kept free.
pub fn check(folder: impl AsFd, reserve: u64) -> Result<(), Problem> {
    let Ok(found) = rustix::fs::fstatvfs(folder) else { return Ok(()) };
    if !is_short(&found, reserve) {
        return Ok(());
    }
    Err(Problem::new(
        Code::Storage,
        format!("the disk of the daemon's home has less than {} left", show_size(reserve)),
    )
    .hint("remove sessions with large workspaces, or make room on that disk (`sandbox.disk_reserve` is kept free)"))
}

/// The same for a folder that is named.
pub fn check_at(folder: &std::path::Path, reserve: u64) -> Result<(), Problem> {
    std::fs::File::open(folder).map_or(Ok(()), |folder| check(folder, reserve))
}

fn is_short(found: &StatVfs, reserve: u64) -> bool {
    found.f_bavail.saturating_mul(found.f_frsize) < reserve && controls::holds("disk_reserve")
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
        // Where nothing can be learnt, nobody is stopped.
        check_at(&folder.path().join("missing"), u64::MAX).unwrap();
    }
}
