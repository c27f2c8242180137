//! The three kernel interfaces of project quotas, none of which a library offers safely: the folder's attributes
//! (`FS_IOC_FS[GS]ETXATTR`), the limits and usage of a project (`quotactl_fd`), and whether a file system enforces
//! them. The `unsafe` is for these alone: each call passes one structure of the size that its number encodes,
//! which stays valid until the call returns.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

const PROJECTS: i32 = 2;
const GET_QUOTA: i32 = 0x80_0007;
const SET_QUOTA: i32 = 0x80_0008;
const GET_STATE: i32 = 0x5808;
const STATE_VERSION: u8 = 1;
const PROJECTS_ENFORCED: u16 = 1 << 5;
/// The flags by which the limits of blocks and of entries are set.
const LIMITS: u32 = 1 | 4;
const INHERIT: u32 = 0x200;

/// `struct fsxattr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    shared_extent_size: u32,
    reserved: [u8; 8],
}

impl FolderAttributes {
    /// The project that everything made in the folder inherits.
    pub fn inherited_project(&self) -> Option<u32> {
        (self.flags & INHERIT != 0).then_some(self.project)
    }

    pub fn join(&mut self, project: u32) {
        self.flags |= INHERIT;
        self.project = project;
    }
}

pub fn attributes(folder: BorrowedFd<'_>) -> rustix::io::Result<FolderAttributes> {
    type Get = Getter<{ opcode::read::<FolderAttributes>(b'X', 31) }, FolderAttributes>;
    // SAFETY: the kernel writes a `struct fsxattr`, whose size is a part of the number.
    unsafe { rustix::ioctl::ioctl(folder, Get::new()) }
}

pub fn set_attributes(folder: BorrowedFd<'_>, attributes: &FolderAttributes) -> rustix::io::Result<()> {
    type Set = Setter<{ opcode::write::<FolderAttributes>(b'X', 32) }, FolderAttributes>;
    // SAFETY: the kernel reads a `struct fsxattr`, whose size is a part of the number.
    unsafe { rustix::ioctl::ioctl(folder, Set::new(*attributes)) }
}

/// The limits and the usage of a project: the fields of `struct if_dqblk` that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The limit in blocks of 1024 bytes; 0 is no limit.
    pub blocks: u64,
    pub entries: u64,
    pub bytes_used: u64,
    pub entries_used: u64,
}

/// `struct if_dqblk`
#[repr(C)]
#[derive(Default)]
struct RawQuota {
    hard_blocks: u64,
    soft_blocks: u64,
    bytes_used: u64,
    hard_entries: u64,
    soft_entries: u64,
    entries_used: u64,
    block_grace: u64,
    entry_grace: u64,
    valid: u32,
}

pub fn quota(folder: BorrowedFd<'_>, project: u32) -> rustix::io::Result<Quota> {
    let mut raw = RawQuota::default();
    match call(folder, GET_QUOTA, project, &mut raw) {
        // On xfs, this error means that the project was never used.
        Err(Errno::NOENT) => return Ok(Quota::default()),
        outcome => outcome?,
    }
    Ok(Quota {
        blocks: raw.hard_blocks,
        entries: raw.hard_entries,
        bytes_used: raw.bytes_used,
        entries_used: raw.entries_used,
    })
}

pub fn limit(folder: BorrowedFd<'_>, project: u32, limits: Quota) -> rustix::io::Result<()> {
    let mut raw = RawQuota {
        hard_blocks: limits.blocks,
        hard_entries: limits.entries,
        valid: LIMITS,
        ..RawQuota::default()
    };
    call(folder, SET_QUOTA, project, &mut raw)
}

/// `struct fs_quota_statv`, of which only the flags are used.
#[repr(C)]
#[derive(Default)]
struct State {
    version: u8,
    reserved: u8,
    flags: u16,
    in_core: u32,
    rest: [u64; 19],
}

/// Whether the folder's file system enforces the limits of projects.
pub fn are_enforced(folder: BorrowedFd<'_>) -> bool {
    let mut state = State { version: STATE_VERSION, ..State::default() };
    call(folder, GET_STATE, 0, &mut state).is_ok() && state.flags & PROJECTS_ENFORCED != 0
}

/// `T` must be the structure that the command expects.
fn call<T>(folder: BorrowedFd<'_>, command: i32, project: u32, structure: &mut T) -> rustix::io::Result<()> {
    let command = (command << 8) | PROJECTS;
    let structure: *mut T = structure;
    // SAFETY: the callers above pass the structure that the command expects, and this function borrows it exclusively
    // until the call has returned.
    let code =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, folder.as_raw_fd(), command, project, structure) };
    match code {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
