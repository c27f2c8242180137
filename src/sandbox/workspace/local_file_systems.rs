//! The file systems on which a caller's folder may lie: those of this machine. A remote file system, or one that a
//! user's own program serves (FUSE), may answer late, never, or differently to the daemon than to its user.

use rustix::fd::AsFd;
use std::path::Path;

use crate::protocol::problem::{Code, Problem};
use crate::security_controls;

/// The kernel's type numbers of file systems on disks and in memory of this machine.
const LOCAL: [(u64, &str); 15] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0xF2F5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlay"),
    (0xF15F, "ecryptfs"),
    (0x3153_464A, "jfs"),
    (0x5265_4973, "reiserfs"),
    (0x4D44, "vfat"),
    (0x2011_BAB0, "exfat"),
    (0x7366_746E, "ntfs3"),
];
/// Refused file systems that are common enough for the message to name them.
const ELSEWHERE: [(u64, &str); 8] = [
    (0x6573_5546, "FUSE"),
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "Ceph"),
    (0x0187, "autofs"),
    (0x0BD0_0BD0, "Lustre"),
];

/// Refuses a folder that does not lie on this machine.
pub(super) fn check(folder: &impl AsFd, path: &Path) -> Result<(), Problem> {
    let found = rustix::fs::fstatfs(folder).map_err(|error| {
        Problem::new(Code::BadRequest, format!("the file system of `{}`: {error}", path.display()))
    })?;
    // The field's sign and width differ between architectures; the type numbers have 32 bits.
    #[expect(clippy::cast_sign_loss, reason = "only the lower 32 bits are looked at")]
    let number = found.f_type as u64 & 0xFFFF_FFFF;
    match refused(number).filter(|_| security_controls::holds("local_file_systems_only")) {
        None => Ok(()),
        Some(name) => Err(Problem::new(
            Code::Forbidden,
            format!(
                "the folder `{}` lies on a file system that is not of this machine ({name})",
                path.display()
            ),
        )
        .hint("copy the folder to a local disk, or use a managed workspace and `belljar cp`")),
    }
}

/// The name of the file system, if it is refused.
fn refused(number: u64) -> Option<String> {
    if LOCAL.iter().any(|(local, _)| *local == number) {
        return None;
    }
    let known = ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == number);
    Some(known.map_or_else(|| format!("type {number:#x}"), |(_, name)| (*name).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_be_local_is_let_in() {
        assert_eq!(refused(0xEF53), None);
        assert_eq!(refused(0x6573_5546).as_deref(), Some("FUSE"));
        assert_eq!(refused(0x6969).as_deref(), Some("NFS"));
        assert_eq!(refused(0x1234_5678).as_deref(), Some("type 0x12345678"));
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(check(&proc, Path::new("/proc")).unwrap_err().code, Code::Forbidden);
    }
}
