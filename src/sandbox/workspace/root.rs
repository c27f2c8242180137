//! The handle to a workspace for code that works in it.

use std::os::fd::BorrowedFd;

/// The open folder. Code gets this value only while its thread has the rights of the folder's owner.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    pub(super) folder: BorrowedFd<'a>,
    /// Whether the daemon made the folder for a guest.
    pub(super) managed: bool,
    /// The user with whose rights the thread acts.
    pub(super) uid: u32,
}

impl Root<'_> {
    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder
    }

    /// The folder with the daemon's own rights.
    #[cfg(test)]
    pub(crate) fn of_daemon(folder: BorrowedFd<'_>) -> Root<'_> {
        Root { folder, managed: true, uid: rustix::process::geteuid().as_raw() }
    }
}
