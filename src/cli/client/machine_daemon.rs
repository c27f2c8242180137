//! The daemon that root runs for all users of the machine: who may use it finds it without being told where it is.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::{Gid, Group};

use super::http::{connect, is_absent};
use crate::config::{Paths, SYSTEM_SOCKET};

/// The daemon of the whole machine, for a user who may not use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct ClosedDaemon {
    /// The group whose members may use the daemon.
    pub group: String,
}

impl ClosedDaemon {
    /// What lets the user in.
    pub fn remedy(&self) -> String {
        format!("sudo usermod -aG {} $USER, then log in again", self.group)
    }
}

/// Which daemon the commands of a user talk to: the one that the environment names, the user's own if it runs or has
/// sessions, that of the machine if it listens, even if it does not answer just now, because the user's sessions may be
/// there, and otherwise one of the user's own that is yet to be started. Also tells of a daemon of the
/// machine that may not be used.
pub(in crate::cli) async fn choose(paths: Paths) -> (Paths, Option<ClosedDaemon>) {
    let system = Path::new(SYSTEM_SOCKET);
    if paths.socket_is_named() || paths.socket() == system || has_own(&paths).await {
        return (paths, None);
    }
    match connect(system).await {
        // The administrator has stopped it, or there is none.
        Err(error) if is_absent(&error) => (paths, None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let group = group_of(system);
            (paths, group.map(|group| ClosedDaemon { group }))
        }
        Ok(_) | Err(_) => (paths.with_socket(system.to_owned()), None),
    }
}

/// Whether a daemon of the user's own runs, or has sessions for when it runs again.
async fn has_own(paths: &Paths) -> bool {
    let has_sessions =
        || std::fs::read_dir(paths.workspaces_dir()).is_ok_and(|mut found| found.next().is_some());
    connect(paths.socket()).await.is_ok() || has_sessions()
}

/// The group of a socket, or of the folder around it if that does not let this user in; none for root's, as
/// joining it would make the user an administrator.
fn group_of(socket: &Path) -> Option<String> {
    let found = std::fs::metadata(socket).or_else(|_| std::fs::metadata(socket.parent().unwrap_or(socket)));
    let gid = found.ok()?.gid();
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    (gid != 0).then(|| group.map_or_else(|| gid.to_string(), |group| group.name))
}
