//! Whether somebody else could replace what the daemon trusts: its home, its configuration, the folder of its socket.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DaemonError;
use crate::controls;

/// Whoever can write to a file or folder can change what is in it: it has to be the daemon's own or root's, and nobody
/// else may write there. The same holds of all folders above.
///
/// # Errors
/// Somebody else could; `otherwise` is what to do instead of changing that.
pub fn check(path: &Path, otherwise: &str) -> Result<(), DaemonError> {
    for name in names(path) {
        judge(&name, false, otherwise)?;
    }
    check_above(path, otherwise)
}

/// Whoever can write to a folder can put something else in the place of what is in it. A sticky folder will do, as `/tmp`
/// is, where names are their owners'.
///
/// # Errors
/// As there.
pub fn check_above(path: &Path, otherwise: &str) -> Result<(), DaemonError> {
    for name in names(path) {
        for folder in name.ancestors().skip(1) {
            judge(folder, true, otherwise)?;
        }
    }
    Ok(())
}

/// The name as it is given, and the one that it stands for after all links: each may be replaced.
fn names(path: &Path) -> Vec<std::path::PathBuf> {
    // Of what is not there yet, the folders above that are.
    let there = path.ancestors().find(|path| path.exists()).and_then(|there| there.canonicalize().ok());
    let rest = path.ancestors().take_while(|path| !path.exists()).filter_map(Path::file_name);
    let rest: Vec<_> = rest.collect();
    let real = there.map(|there| rest.iter().rev().fold(there, |path, name| path.join(name)));
    std::iter::once(path.to_owned()).chain(real).collect()
}

fn judge(path: &Path, may_be_sticky: bool, otherwise: &str) -> Result<(), DaemonError> {
    // What is not there is made by the daemon, in folders that are judged too.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let Some((what, fix)) = trouble(&found, may_be_sticky) else { return Ok(()) };
    if !controls::holds("paths_are_the_daemons") {
        return Ok(());
    }
    let shown = path.display();
    Err(DaemonError::Start(format!(
        "`{shown}` {what}, and whoever can write there can replace what the daemon trusts\n\nhint: `{fix} {shown}`, or {otherwise}"
    )))
}

/// What is wrong with a file or folder, and the command that mends it.
fn trouble(found: &Metadata, may_be_sticky: bool) -> Option<(String, String)> {
    if !found.is_file() && !found.is_dir() {
        // Such as `/dev/null`, which nobody changes by writing to it.
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
