//! Checks whether another user could replace what the daemon trusts: its home, its configuration, the folder of its
//! socket.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DaemonError;
use crate::security_controls;

/// Checks a file or folder and all folders above it: each must belong to the daemon's user or root, and only they, the
/// daemon's own group and root's group may have the right to write, because a writer can change the content.
///
/// # Errors
/// Another user could replace the path; `otherwise` is the alternative to fixing that.
pub fn check(path: &Path, otherwise: &str) -> Result<(), DaemonError> {
    for name in names(path) {
        judge(&name, false, otherwise)?;
    }
    check_above(path, otherwise)
}

/// Checks the folders above a path, because a user who can write to a folder can replace what is in it. A sticky folder
/// such as `/tmp` is accepted, because there only the owner of a name can replace it.
///
/// # Errors
/// The same as for [`check`].
pub fn check_above(path: &Path, otherwise: &str) -> Result<(), DaemonError> {
    for name in names(path) {
        for folder in name.ancestors().skip(1) {
            judge(folder, true, otherwise)?;
        }
    }
    Ok(())
}

/// The path as given, and the path after resolving all links, because both could be replaced.
fn names(path: &Path) -> Vec<std::path::PathBuf> {
    // For a path that does not exist yet, only its existing ancestors can be resolved.
    let there = path.ancestors().find(|path| path.exists()).and_then(|there| there.canonicalize().ok());
    let rest = path.ancestors().take_while(|path| !path.exists()).filter_map(Path::file_name);
    let rest: Vec<_> = rest.collect();
    let real = there.map(|there| rest.iter().rev().fold(there, |path, name| path.join(name)));
    std::iter::once(path.to_owned()).chain(real).collect()
}

fn judge(path: &Path, may_be_sticky: bool, otherwise: &str) -> Result<(), DaemonError> {
    // A missing path is created by the daemon, in folders that are checked too.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let Some((what, fix)) = trouble(&found, may_be_sticky) else { return Ok(()) };
    if !security_controls::holds("paths_are_the_daemons") {
        return Ok(());
    }
    let printable_path = path.display();
    Err(DaemonError::Start(format!(
        "`{printable_path}` {what}, and whoever can write there can replace what the daemon trusts\n\nhint: `{fix} {printable_path}`, or {otherwise}"
    )))
}

/// What is wrong with a file or folder, and the command that fixes it.
fn trouble(found: &Metadata, may_be_sticky: bool) -> Option<(String, String)> {
    if !found.is_file() && !found.is_dir() {
        // Writing to a device such as `/dev/null` does not change its content.
        return None;
    }
    let (own, own_group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if found.uid() != own && found.uid() != 0 {
        return Some((format!("belongs to user {}", found.uid()), format!("chown {own}")));
    }
    let mode = found.mode();
    let by_group = mode & 0o020 != 0 && found.gid() != own_group && found.gid() != 0;
    let is_sticky = mode & 0o1000 != 0 && may_be_sticky;
    let by_others = (mode & 0o002 != 0 || by_group) && !is_sticky;
    by_others
        .then(|| (format!("can be written by others (mode {:o})", mode & 0o7777), "chmod go-w".to_owned()))
}
