//! What code that works in a workspace gets to see of it.

use std::os::fd::BorrowedFd;

/// The folder, for code that has the rights of its owner: it is only to be had while one has them.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    pub(super) folder: BorrowedFd<'a>,
    /// The daemon made it, for a guest.
    pub(super) managed: bool,
    /// Who acts.
    pub(super) uid: u32,
}

impl Root<'_> {
    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder
    }

    /// With the daemon's own rights.
    #[cfg(test)]
    pub(crate) fn of_daemon(folder: BorrowedFd<'_>) -> Root<'_> {
        Root { folder, managed: true, uid: rustix::process::geteuid().as_raw() }
    }
}
