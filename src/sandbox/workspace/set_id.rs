//! Programs with a set-id bit in a caller's folder. No guest can make one, but a write to a shared mapping of a file
//! that has the bit already does not clear it: hostile code could replace the program, and the next user who runs it
//! would run that code with the rights of the program's owner. So a folder with such a file that the guest may write to
//! is refused as a workspace.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::controls;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::files::{beneath, stat_at};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::usage::ENTRIES_LOOKED_AT;
use crate::sandbox::workspace::walk::{Folders, names};

const SET_ID: u32 = 0o6000;

/// A refusal that names the first such file. Folders that the guest's user cannot read are skipped, because the guest
/// cannot read them, either.
pub(super) fn check(root: &Root<'_>) -> Result<(), Problem> {
    match find(root).filter(|_| controls::holds("no_set_id_workspace")) {
        None => Ok(()),
        Some(path) => Err(Problem::new(
            Code::Forbidden,
            format!(
                "`{}` in the workspace has a set-user-id or set-group-id bit and can be written to, so that code in \
                 the sandbox could replace a program that runs with the rights of somebody else",
                path.to_string_lossy().escape_default()
            ),
        )
        .hint("take the bit away (`chmod ug-s FILE`), or use another folder")),
    }
}

fn find(root: &Root<'_>) -> Option<PathBuf> {
    let (mut folders, mut looked_at) = (Folders::from_root(), 0);
    while folders.advance() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = beneath(root.folder(), folders.path(), flags, Mode::empty());
        let Ok((names, folder)) = opened.and_then(|folder| Ok((names(folder.as_fd())?, folder))) else {
            continue;
        };
        for name in names.map_while(Result::ok) {
            looked_at += 1;
            if looked_at > ENTRIES_LOOKED_AT {
                return None;
            }
            let Ok(found) = stat_at(folder.as_fd(), &name) else { continue };
            if is_writable_set_id(&found, root.uid) {
                return Some(folders.join(&name));
            }
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                let _ = folders.later(name);
            }
        }
    }
    None
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
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_files_with_the_bit_that_can_be_written_to_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep");
        std::fs::create_dir(&deep).unwrap();
        std::fs::write(deep.join("program"), "x").unwrap();
        let found = |mode: u32| {
            std::fs::set_permissions(deep.join("program"), Permissions::from_mode(mode)).unwrap();
            find(&Root::of_daemon(File::open(folder.path()).unwrap().as_fd()))
        };
        for mode in [0o755, 0o777, 0o6555, 0o2444, 0o1777] {
            assert_eq!(found(mode), None, "{mode:o}");
        }
        for mode in [0o4755, 0o2755, 0o6700, 0o4575, 0o2557] {
            assert_eq!(found(mode), Some("deep/program".into()), "{mode:o}");
        }
        // Files in a folder with the set-group-id bit get the folder's group, and no more rights.
        assert_eq!(found(0o755), None);
        std::fs::set_permissions(&deep, Permissions::from_mode(0o2775)).unwrap();
        assert_eq!(found(0o755), None);
    }
}
