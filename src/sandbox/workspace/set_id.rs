//! Programs in a caller's folder that run with more rights than who starts them: by a set-id bit, or by capabilities of
//! the file. No guest can make one, but a write to a shared mapping of a file that has them already does not take them
//! away: hostile code could replace the program, and the next user who runs it would run that code with its rights. So a
//! folder with such a file that the guest may write to, or owns, is refused as a workspace and as a mount.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::files::beneath;
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::usage::{ENTRIES_LOOKED_AT, is_guests};
use crate::sandbox::workspace::walk::{Entry, Walk, WalkItem};
use crate::security_controls;

const SET_ID: u32 = 0o6000;
const ENTERED_BY_OTHERS: u32 = 0o001;
/// The attribute in which a file has its capabilities.
const CAPABILITIES: &str = "security.capability";
/// Room for the value of the attribute, which is not looked at.
const CAPABILITIES_BYTES: usize = 64;

/// A refusal that names the first such file, or says that the folder at `path` cannot be checked. Folders of other users
/// that the guest's user can neither read nor enter are passed over, because the guest cannot do that, either.
pub(super) fn check(root: &Root<'_>, path: &Path) -> Result<(), Problem> {
    let top = path.display();
    let refused = |message: String, hint: &str| Err(Problem::new(Code::Forbidden, message).hint(hint));
    let printable = |path: &Path| path.to_string_lossy().escape_default().to_string();
    match find(root, ENTRIES_LOOKED_AT) {
        Err(_) if !security_controls::holds("no_set_id_workspace") => Ok(()),
        Ok(()) => Ok(()),
        Err(FolderRefusal::SetId(path)) => refused(
            format!(
                "`{}` in the folder `{top}` has a set-user-id or set-group-id bit and is the guest's own or writable, so \
                 that code in the sandbox could replace a program that runs with the rights of somebody else",
                printable(&path)
            ),
            "take the bit away (`chmod ug-s FILE`), or use another folder",
        ),
        Err(FolderRefusal::Capable(path)) => refused(
            format!(
                "`{}` in the folder `{top}` has capabilities (`{CAPABILITIES}`) and is the guest's own or writable, so that \
                 code in the sandbox could replace a program that runs with rights which its user does not have",
                printable(&path)
            ),
            "take them away (`setcap -r FILE`), or use another folder",
        ),
        Err(FolderRefusal::Unread(path)) => refused(
            format!(
                "`{}` in the folder `{top}` cannot be looked into for programs that run with the rights of somebody else; \
                 code in the sandbox could open it",
                printable(&path)
            ),
            "give its owner the right to read it (`chmod u+rx FOLDER`), or close it to others (`chmod o-x FOLDER`), or move it \
             out, or use another folder",
        ),
        Err(FolderRefusal::Mount(path)) => refused(
            format!(
                "another file system is mounted in `{}` of the folder `{top}`, which code in the sandbox would reach, \
                 and in which nothing is looked at or counted",
                printable(&Path::new(".").join(path))
            ),
            "unmount it, or use a folder without mounts in it",
        ),
        Err(FolderRefusal::TooMany) => refused(
            format!(
                "the folder `{top}` has more than {ENTRIES_LOOKED_AT} files, too many to look for programs with a \
                 set-user-id bit, which code in the sandbox could replace"
            ),
            "use a smaller folder",
        ),
    }
}

/// Why a folder is refused.
#[derive(Debug, PartialEq, Eq)]
enum FolderRefusal {
    SetId(PathBuf),
    Capable(PathBuf),
    /// A folder that the guest could open, and the daemon with its rights cannot see into.
    Unread(PathBuf),
    /// A folder in which another file system is mounted. Binds of workspaces are recursive, so the guest sees into it.
    Mount(PathBuf),
    TooMany,
}

fn find(root: &Root<'_>, most: usize) -> Result<(), FolderRefusal> {
    Walk { entries: most, sorted: false }.run(root.folder(), |met| match met {
        WalkItem::Entry(entry) if is_replaceable_set_id(&entry.stat, root.uid) => {
            Err(FolderRefusal::SetId(entry.path()))
        }
        WalkItem::Entry(entry) if may_be_replaced(&entry.stat, root.uid) && has_capabilities(&entry) => {
            Err(FolderRefusal::Capable(entry.path()))
        }
        WalkItem::Unread { folder, error: Errno::XDEV } => Err(FolderRefusal::Mount(folder.to_owned())),
        WalkItem::Unread { folder, error } if !is_out_of_reach(root, folder, error) => {
            Err(FolderRefusal::Unread(folder.to_owned()))
        }
        WalkItem::Entry(_) | WalkItem::Unread { .. } => Ok(true),
        WalkItem::TooMany => Err(FolderRefusal::TooMany),
    })
}

fn is_replaceable_set_id(found: &Stat, uid: u32) -> bool {
    found.st_mode & SET_ID != 0 && may_be_replaced(found, uid)
}

/// Whether the guest may write to a file, or give itself the right to. The owner always can, and keep the bits as well as
/// the capabilities: a list of access rights (`system.posix_acl_access`) changes nothing of a mode but its lowest nine
/// bits. Only regular files count, because on a folder the bits have another meaning.
fn may_be_replaced(found: &Stat, uid: u32) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && (found.st_uid == uid || found.st_mode & 0o022 != 0)
}

/// Every answer that does not mean «none» counts as capabilities.
fn has_capabilities(entry: &Entry<'_>) -> bool {
    let folder = PathBuf::from(format!("/proc/self/fd/{}", entry.folder.as_raw_fd()));
    let file = folder.join(std::ffi::OsStr::from_bytes(entry.name.to_bytes()));
    let answer = rustix::fs::lgetxattr(file, CAPABILITIES, &mut [0; CAPABILITIES_BYTES]);
    !matches!(answer, Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT))
}

/// Whether the guest has no way to what could not be read, either.
fn is_out_of_reach(root: &Root<'_>, folder: &Path, error: Errno) -> bool {
    match error {
        Errno::ACCESS | Errno::PERM => {
            !is_guests(root, folder) && !can_be_entered(root, folder) && !is_open_to_others(root, folder)
        }
        // The entry is gone meanwhile, or was replaced.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => true,
        _ => false,
    }
}

/// Whether who knows a name in the folder can open it: that needs the right to enter the folder, not to list it.
fn can_be_entered(root: &Root<'_>, folder: &Path) -> bool {
    let inside = beneath(root.folder(), folder.join("."), OFlags::PATH, Mode::empty());
    !matches!(inside, Err(Errno::ACCESS | Errno::PERM | Errno::NOENT))
}

/// Whether a folder may be entered by who is neither its owner nor in its group. The owner's groups can close a folder to
/// the owner that is open to the guest, because the guest has only one of them.
fn is_open_to_others(root: &Root<'_>, folder: &Path) -> bool {
    let handle = beneath(root.folder(), folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
    let mode = handle.and_then(|handle| Ok(rustix::fs::fstat(&handle)?.st_mode));
    match mode {
        Ok(mode) => mode & ENTERED_BY_OTHERS != 0,
        Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::workspace::owner::{Ids, acting_as};
    use std::fs::{File, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_file_of_the_guest_with_the_bit_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep");
        std::fs::create_dir(&deep).unwrap();
        std::fs::write(deep.join("program"), "x").unwrap();
        let found = |mode: u32| {
            std::fs::set_permissions(deep.join("program"), Permissions::from_mode(mode)).unwrap();
            find(&Root::of_daemon(File::open(folder.path()).unwrap().as_fd()), 2)
        };
        for mode in [0o755, 0o777, 0o1777] {
            assert_eq!(found(mode), Ok(()), "{mode:o}");
        }
        // The owner gives itself the right to write, and the bit stays.
        for mode in [0o4755, 0o2755, 0o6700, 0o4575, 0o2557, 0o6555, 0o2444, 0o4000] {
            assert_eq!(found(mode), Err(FolderRefusal::SetId("deep/program".into())), "{mode:o}");
        }
        // Files in a folder with the set-group-id bit get the folder's group, and no more rights.
        assert_eq!(found(0o755), Ok(()));
        std::fs::set_permissions(&deep, Permissions::from_mode(0o2775)).unwrap();
        assert_eq!(found(0o755), Ok(()));
        // What could not be looked at may have the bit.
        std::fs::write(deep.join("one more"), "x").unwrap();
        assert_eq!(found(0o755), Err(FolderRefusal::TooMany));
    }

    /// What is found in a caller's folder by the folder's owner: a user other than root, to whom folders can be closed.
    fn found_by_owner(folder: &Path) -> Result<(), FolderRefusal> {
        let root = File::open(folder).unwrap();
        let me = rustix::process::geteuid().as_raw();
        let uid = if me == 0 { OWNER } else { me };
        let ids = (me == 0).then(|| Ids::alone(uid, uid));
        acting_as(ids.as_ref(), || find(&Root { folder: root.as_fd(), managed: false, uid }, 100)).unwrap()
    }

    const OWNER: u32 = 61_234;
    const ANOTHER: u32 = 61_235;

    /// Gives a file to another user, as far as the tests run as root.
    fn give(path: &Path, uid: u32) {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
        }
    }

    #[test]
    fn a_folder_that_its_owner_closed_is_refused_and_one_of_another_user_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        give(folder.path(), OWNER);
        let closed = folder.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::write(closed.join("file"), "x").unwrap();
        let of = |uid: u32, mode: u32| {
            std::fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
            give(&closed, uid);
            found_by_owner(folder.path())
        };
        for mode in [0o000, 0o311, 0o600] {
            assert_eq!(of(OWNER, mode), Err(FolderRefusal::Unread("closed".into())), "{mode:o}");
        }
        assert_eq!(of(OWNER, 0o700), Ok(()));
        if rustix::process::geteuid().is_root() {
            for mode in [0o700, 0o744, 0o750] {
                assert_eq!(of(ANOTHER, mode), Ok(()), "{mode:o}");
            }
            // Who may enter it can open a name in it that is known.
            for mode in [0o711, 0o751] {
                assert_eq!(of(ANOTHER, mode), Err(FolderRefusal::Unread("closed".into())), "{mode:o}");
            }
        }
        std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    }

    /// The guest has one group at most, so it need not be in the group that closes a folder to its owner. Only root may
    /// take on groups, so others leave this test out.
    #[test]
    fn a_folder_that_a_group_of_the_owner_closes_and_that_is_open_to_others_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        give(folder.path(), OWNER);
        let closed = folder.path().join("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::write(closed.join("file"), "x").unwrap();
        give(&closed, ANOTHER);
        let root = File::open(folder.path()).unwrap();
        let owner = Ids { uid: OWNER, gid: OWNER, groups: vec![OWNER, ANOTHER] };
        let found = |mode: u32| {
            std::fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
            let root = Root { folder: root.as_fd(), managed: false, uid: OWNER };
            acting_as(Some(&owner), || find(&root, 100)).unwrap()
        };
        for mode in [0o705, 0o701, 0o745] {
            assert_eq!(found(mode), Err(FolderRefusal::Unread("closed".into())), "{mode:o}");
        }
        for mode in [0o700, 0o704, 0o750, 0o755] {
            assert_eq!(found(mode), Ok(()), "{mode:o}");
        }
    }

    /// Only root may give a file away, so others leave this test out.
    #[test]
    fn of_another_users_files_with_the_bit_only_those_are_found_that_can_be_written_to() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        give(folder.path(), OWNER);
        let program = folder.path().join("program");
        std::fs::write(&program, "x").unwrap();
        give(&program, ANOTHER);
        let found = |mode: u32| {
            std::fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            found_by_owner(folder.path())
        };
        for mode in [0o4755, 0o6555, 0o2444] {
            assert_eq!(found(mode), Ok(()), "{mode:o}");
        }
        // The bits of the group are also the most that a list of access rights gives anybody.
        for mode in [0o4775, 0o2757] {
            assert_eq!(found(mode), Err(FolderRefusal::SetId("program".into())), "{mode:o}");
        }
    }

    /// Only root may mount, so others leave this test out.
    #[test]
    fn a_folder_with_a_mount_in_it_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().join("deep/point");
        std::fs::create_dir_all(&point).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let status = std::process::Command::new(program).args(arguments).arg(&point).status().unwrap();
            assert!(status.success(), "{program}");
        };
        let found = || find(&Root::of_daemon(File::open(folder.path()).unwrap().as_fd()), 10);
        assert_eq!(found(), Ok(()));
        run("mount", &["-t", "tmpfs", "none"]);
        let refused = found();
        run("umount", &[]);
        assert_eq!(refused, Err(FolderRefusal::Mount("deep".into())));
    }

    /// `cap_net_raw+ep`, as the kernel stores it. Only root may set it, so others leave this test out.
    #[test]
    fn a_program_with_capabilities_that_the_guest_may_write_to_is_refused() {
        const NET_RAW: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        give(folder.path(), OWNER);
        let program = folder.path().join("program");
        std::fs::write(&program, "x").unwrap();
        let of = |uid: u32, mode: u32| {
            give(&program, uid);
            std::fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            let value: Vec<u8> = NET_RAW.iter().flat_map(|word| word.to_le_bytes()).collect();
            rustix::fs::lsetxattr(&program, CAPABILITIES, &value, rustix::fs::XattrFlags::empty()).unwrap();
            found_by_owner(folder.path())
        };
        let found = || Err(FolderRefusal::Capable("program".into()));
        // The owner can make a file writable and executable, and its capabilities stay.
        for (uid, mode) in
            [(OWNER, 0o755), (OWNER, 0o555), (OWNER, 0o400), (ANOTHER, 0o757), (ANOTHER, 0o575)]
        {
            assert_eq!(of(uid, mode), found(), "{uid} {mode:o}");
        }
        assert_eq!(of(ANOTHER, 0o755), Ok(()));
        rustix::fs::lremovexattr(&program, CAPABILITIES).unwrap();
        give(&program, OWNER);
        assert_eq!(found_by_owner(folder.path()), Ok(()));
    }
}
