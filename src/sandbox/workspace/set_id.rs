//! Programs with a set-id bit in a caller's folder. No guest can make one, but a write to a shared mapping of a file
//! that has the bit already does not clear it: hostile code could replace the program, and the next user who runs it
//! would run that code with the rights of the program's owner. So a folder with such a file that the guest may write to
//! is refused as a workspace.

use rustix::fs::{FileType, Stat};
use std::path::PathBuf;

use crate::controls;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::usage::ENTRIES_LOOKED_AT;
use crate::sandbox::workspace::walk::{Met, Walk};

const SET_ID: u32 = 0o6000;

/// A refusal that names the first such file, or says that the folder cannot be checked. Folders that the guest's user
/// cannot read are passed over, because the guest cannot read them, either.
pub(super) fn check(root: &Root<'_>) -> Result<(), Problem> {
    let refused = |message: String, hint: &str| Err(Problem::new(Code::Forbidden, message).hint(hint));
    match find(root, ENTRIES_LOOKED_AT) {
        Err(_) if !controls::holds("no_set_id_workspace") => Ok(()),
        Ok(()) => Ok(()),
        Err(Found::Program(path)) => refused(
            format!(
                "`{}` in the workspace has a set-user-id or set-group-id bit and can be written to, so that code in \
                 the sandbox could replace a program that runs with the rights of somebody else",
                path.to_string_lossy().escape_default()
            ),
            "take the bit away (`chmod ug-s FILE`), or use another folder",
        ),
        Err(Found::TooMany) => refused(
            format!(
                "the workspace has more than {ENTRIES_LOOKED_AT} files, too many to look for programs with a \
                 set-user-id bit, which code in the sandbox could replace"
            ),
            "use a smaller folder as workspace",
        ),
    }
}

/// Why a folder is refused.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Program(PathBuf),
    TooMany,
}

fn find(root: &Root<'_>, most: usize) -> Result<(), Found> {
    Walk { entries: most, sorted: false }.run(root.folder(), |met| match met {
        Met::Entry(entry) if is_writable_set_id(&entry.stat, root.uid) => Err(Found::Program(entry.path())),
        Met::Entry(_) | Met::Unread { .. } => Ok(true),
        Met::TooMany => Err(Found::TooMany),
    })
}

/// Only regular files are checked, because on a folder the bit has another meaning.
fn is_writable_set_id(found: &Stat, uid: u32) -> bool {
    let writable = if found.st_uid == uid { 0o222 } else { 0o022 };
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && found.st_mode & SET_ID != 0
        && found.st_mode & writable != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_files_with_the_bit_that_can_be_written_to_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep");
        std::fs::create_dir(&deep).unwrap();
        std::fs::write(deep.join("program"), "x").unwrap();
        let found = |mode: u32| {
            std::fs::set_permissions(deep.join("program"), Permissions::from_mode(mode)).unwrap();
            find(&Root::of_daemon(File::open(folder.path()).unwrap().as_fd()), 2)
        };
        for mode in [0o755, 0o777, 0o6555, 0o2444, 0o1777] {
            assert_eq!(found(mode), Ok(()), "{mode:o}");
        }
        for mode in [0o4755, 0o2755, 0o6700, 0o4575, 0o2557] {
            assert_eq!(found(mode), Err(Found::Program("deep/program".into())), "{mode:o}");
        }
        // Files in a folder with the set-group-id bit get the folder's group, and no more rights.
        assert_eq!(found(0o755), Ok(()));
        std::fs::set_permissions(&deep, Permissions::from_mode(0o2775)).unwrap();
        assert_eq!(found(0o755), Ok(()));
        // What could not be looked at may have the bit.
        std::fs::write(deep.join("one more"), "x").unwrap();
        assert_eq!(found(0o755), Err(Found::TooMany));
    }
}
